"""From data to HTML: the templates and what they can do; one page that opens from disk, and charts as SVG."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from passagent import __version__
from passagent.errors import PassagentError
from passagent.sandbox.cache import write_whole
from passagent.sandbox.faults import writing
from passagent.search import finalists
from passagent.store import Store, nodes
from passagent.store.nodes import Node
from passagent.store.runs import Run
from passagent.view import charts
from passagent.view.charts import Chart, drawn
from passagent.view.node_changes import lineage
from passagent.view.page import views
from passagent.view.text import clock, counted, interval, number, percent, printable, thousands

if TYPE_CHECKING:
    from passagent.data.bench.results import Row
    from passagent.data.bench.summary import Summary

HERE = Path(__file__).parent
MOST_SHOWN = 200_000
"""Characters of a text that a page shows."""
_HIGHLIGHTED = 60_000
"""Characters up to which a text's syntax is shown."""


class Relative:
    """Links of a served page: relative to its own address, so that a proxy may put it anywhere."""

    def __init__(self, path: str) -> None:
        self.up = "../" * (path.count("/") - 1)

    def __call__(self, *parts: object, **query: object) -> str:
        """Return the relative address."""
        where = self.up + "/".join(quote(str(part), safe="") for part in parts)
        return (where or "./") + (f"?{urlencode(query)}" if query else "")


@functools.cache
def environment() -> Environment:
    """The templates: HTML is escaped, and no text can make itself look like another."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (number, interval, clock, thousands, percent, counted, when, code, diff, plain, size, picture)
    templates.filters |= {function.__name__: function for function in filters}
    return templates


def _shown(value: Any) -> Any:
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def when(at: str | None) -> Markup:
    """A time (ISO 8601, UTC), which the page shows in the viewer's zone."""
    if at is None:
        return Markup("-")
    text = f"{at[:16].replace('T', ' ')} UTC"
    return Markup('<time datetime="{}" hx-morph-skip-children>{}</time>').format(at, text)


def picture(chart: Chart, label: str, go: Any) -> Markup:
    """Draw a chart; `go` leads from a point to its node."""
    values = {"label": label, "go": go, "attributes": Markup('class="chart"')}
    return Markup(environment().get_template("chart.svg").render(drawn(chart) | values))


def size(text: str) -> str:
    """`12 lines`, or of a large text `4.8 MB`."""
    count = len(text.encode(errors="replace"))
    if count > MOST_SHOWN:
        return f"{count / 1e6:.1f} MB"
    return counted(text.count("\n") + (not text.endswith("\n")), "line")


def plain(text: str) -> Markup:
    """A text as it is, cut where it is very long."""
    return escape(printable(text[:MOST_SHOWN])) + _cut(text)


def code(text: str, name: str) -> Markup:
    """A file's text with its syntax marked, by its `name`."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_for_filename
    from pygments.util import ClassNotFound

    if len(text) > _HIGHLIGHTED:
        return plain(text)
    try:
        lexer = get_lexer_for_filename(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return plain(text)
    return Markup(highlight(printable(text), lexer, HtmlFormatter(nowrap=True, classprefix="k-")))


def diff(text: str) -> Markup:
    """A unified diff, its lines marked."""
    names = {"+": "added", "-": "removed", "@": "hunk"}
    marked_lines = []
    for line in text[:MOST_SHOWN].split("\n"):
        name = "file" if line.startswith(("+++ ", "--- ")) else names.get(line[:1], "")
        marked_lines.append(Markup('<span class="{}">{}\n</span>').format(name, printable(line)))
    return Markup("").join(marked_lines) + _cut(text)


def _cut(text: str) -> Markup:
    more = len(text) - MOST_SHOWN
    if more <= 0:
        return Markup("")
    return Markup('<span class="cut">\n... {:,} more characters are not shown</span>').format(more)


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
        (anchor("run", run.id), "run.html", views.now(store, run.id) | figures),
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
    """Write best.svg, islands.svg and tree.svg into `directory`.

    Returns their paths, and why some were left out. Raises UsageError if a file cannot be written.
    """
    figures, pictures, left_out = views.figures(store, run.id), Pictures(), list[str]()
    for name, key in (("best", "best_chart"), ("islands", "island_chart")):
        if figures["course"].best:
            pictures[name] = "chart.svg", charts.drawn(figures[key])
        else:
            left_out.append(f"{name}: run {run.id}: nothing correct was timed yet")
    if figures["course"].nodes:
        pictures["tree"] = "tree.svg", views.tree(store, run.id)
    else:
        left_out.append(f"tree: run {run.id}: has no candidate yet")
    return _write(pictures, directory, f"{run.task}, {run.model}, {run.device}", "--pictures"), left_out


def draw_bench(directory: Path, summaries: Sequence[Summary], rows: Sequence[Row]) -> list[Path]:
    """Write es.svg and s.svg into `directory`; their paths. Raises PassagentError."""
    if not summaries:
        raise PassagentError("nothing was measured: there is nothing to draw")
    pictures: Pictures = {
        curve: ("chart.svg", charts.drawn(charts.tolerance(summaries, curve, symbol)))
        for curve, symbol in (("es", "ES(t)"), ("s", "S(t)"))
    }
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
