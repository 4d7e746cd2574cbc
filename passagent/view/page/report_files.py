"""Files about a run or a benchmark: one HTML page, which opens from disk, and charts as SVG."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from passagent import __version__
from passagent.errors import PassagentError
from passagent.sandbox.cache import write_whole
from passagent.sandbox.faults import writing
from passagent.search import finalists
from passagent.store import Store, nodes
from passagent.store.nodes import Node
from passagent.store.runs import Run
from passagent.view import charts
from passagent.view.page import views
from passagent.view.page.rendering import HERE, environment
from passagent.view.why import lineage

if TYPE_CHECKING:
    from passagent.data.bench.results import Row
    from passagent.data.bench.summary import Summary

MOST_NODES = 16
"""Candidates that are shown whole."""


def anchor(*parts: object) -> str:
    """The name of a page in the file."""
    return "-".join(map(str, parts))


def one_file(store: Store, run: Run) -> str:
    """The run, its tree, the nodes that matter (see `_chosen`) and the conversation that made the best."""
    best, figures = finalists.winner(store, run.id), views.figures(store, run.id)
    node_ids = _chosen(store, run, best, [row["node_id"] for row in figures["finalists"]])
    pages: list[tuple[str, str, dict[str, Any]]] = [
        (anchor("run", run.id), "run.html", views.run(store, run.id) | figures),
        (anchor("run", run.id, "tree"), "tree.html", views.tree(store, run.id)),
        *((anchor("node", number), "node.html", views.node(store, number)) for number in node_ids),
    ]
    if best is not None:
        episode_data = views.episode(store, run.id, str(best.number))
        pages.append((anchor("run", run.id, "episode", best.number), "episode.html", episode_data))
    templates, inside = environment(), {name for name, _, _ in pages}
    base = {
        "go": lambda *parts, **query: f"#{anchor(*parts)}" if anchor(*parts) in inside else None,
        "layout": "section.html",
        "is_file": True,
        "csrf": "",
        "version": __version__,
    }
    sections = [
        templates.get_template(template).render(base | context | {"anchor": name})
        for name, template, context in pages
    ]
    style, script = _asset("page.css"), _asset("page.js")
    return templates.get_template("one_file.html").render(
        base
        | {
            "run": run,
            "best": best,
            "shown": node_ids,
            "sections": Markup("\n").join(map(Markup, sections)),
            "style": Markup(style),
            "script": Markup(script),
            "hashes": {"style": _hash(style), "script": _hash(script)},
        }
    )


def _chosen(store: Store, run: Run, best: Node | None, finalists: list[int]) -> list[int]:
    """The best node's lineage, the finalists, and the newest of each kind of failure, at most MOST_NODES."""
    node_ids = [node.id for node in reversed(lineage(store, best))] if best else []
    rows = store.rows(
        "SELECT max(id) AS id FROM nodes WHERE run_id = :run AND state = 'done' AND status != 'ok' "
        "GROUP BY status",
        {"run": run.id},
    )
    node_ids += [*finalists, *(row["id"] for row in rows)]
    own_ids = [number for number in dict.fromkeys(node_ids) if nodes.get_node(store, number).run_id == run.id]
    return own_ids[:MOST_NODES]


def _asset(name: str) -> str:
    text = (HERE / "assets" / name).read_text(encoding="utf-8")
    assert "</script" not in text and "</style" not in text, name
    return text


def _hash(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows the text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


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
        with writing(path, option):
            write_whole(path, head + end + style + body)
        written.append(path)
    return written
