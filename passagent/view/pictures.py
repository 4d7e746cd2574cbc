"""Charts of a run (`report --pictures`) and of a benchmark (`bench --plots`) as files: the page's own SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from passagent.errors import PassagentError
from passagent.sandbox.cache import write_whole
from passagent.sandbox.faults import os_fault
from passagent.store import Store
from passagent.store.runs import Run
from passagent.view import charts
from passagent.view.page import views
from passagent.view.page.rendering import HERE, environment

if TYPE_CHECKING:
    from passagent.data.bench.results import Row
    from passagent.data.bench.summary import Summary

Pictures = dict[str, tuple[str, dict[str, Any]]]
"""The template and the data of each, by its name."""


def draw_run(store: Store, run: Run, directory: Path) -> tuple[list[Path], list[str]]:
    """Write best.svg, islands.svg, tokens.svg and tree.svg into `directory`.

    Returns their paths, and why some were left out. Raises UsageError if a file cannot be written.
    """
    figures, pictures, left_out = views.figures(store, run.id), Pictures(), list[str]()
    for name, key, missing in (
        ("best", "best_chart", "nothing correct was timed yet"),
        ("islands", "island_chart", "nothing correct was timed yet"),
        ("tokens", "spending_chart", "no model was paid"),
    ):
        if figures[key] and (name == "tokens" or figures["course"].best):
            pictures[name] = "chart.svg", charts.drawn(figures[key])
        else:
            left_out.append(f"{name}: run {run.id}: {missing}")
    if figures["course"].nodes:
        pictures["tree"] = "tree.svg", views.tree(store, run.id)
    else:
        left_out.append(f"tree: run {run.id}: has no candidate yet")
    return _write(pictures, directory, f"{run.task}, {run.model}, {run.device}", "--pictures"), left_out


def draw_bench(directory: Path, summaries: Sequence[Summary], rows: Sequence[Row]) -> list[Path]:
    """Write es.svg, s.svg and speedups.svg into `directory`; their paths. Raises PassagentError."""
    if not summaries:
        raise PassagentError("nothing was measured: there is nothing to draw")
    pictures: Pictures = {
        curve: ("chart.svg", charts.drawn(charts.tolerance(summaries, curve, symbol)))
        for curve, symbol in (("es", "ES(t)"), ("s", "S(t)"))
    }
    if violins := charts.violins([summary.compiler for summary in summaries], rows):
        pictures["speedups"] = "violins.svg", {"violins": violins}
    return _write(pictures, directory, "Scores of compilers", "--plots")


def _write(pictures: Pictures, directory: Path, label: str, option: str) -> list[Path]:
    """Draw pictures into files of their names, with the page's style. Raises UsageError."""
    templates, written = environment(), []
    style = f"<style>{(HERE / 'assets' / 'page.css').read_text(encoding='utf-8')}</style>"
    for name, (template, context) in pictures.items():
        base = {"go": lambda *parts: None, "attributes": Markup('xmlns="http://www.w3.org/2000/svg"')}
        picture = templates.get_template(template).render(context | base | {"label": label})
        head, end, body = picture.partition(">\n")
        path = directory / f"{name}.svg"
        try:
            write_whole(path, head + end + style + body)
        except OSError as error:
            raise os_fault(error, path, option) from error
        written.append(path)
    return written
