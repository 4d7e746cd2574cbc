"""From data to HTML: the templates, and what they can do with texts, figures, times, code and links."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from passagent.view.charts import Chart, drawn
from passagent.view.text import clock, counted, interval, number, percent, printable, thousands

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
