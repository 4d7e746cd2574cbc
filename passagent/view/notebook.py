"""Text that a notebook shows as it is: a table as HTML, a tree as SVG, both as rich writes them."""

from __future__ import annotations

import io
from typing import Any

_HTML = "<pre style=\"font-family:Menlo,'DejaVu Sans Mono',consolas,monospace\">{code}</pre>"


class Shown:
    """An object that a notebook shows as its text, in a fixed-width font."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return as_html(str(self))


class Table(str, Shown):
    """Aligned text. It prints as text; a notebook shows it in a fixed-width font."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Tree(str):
    """Indented text. It prints as text; a notebook shows it as SVG."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_svg_(self) -> str:
        """The tree as an SVG picture of its text."""
        return str(_recorded(self).export_svg(title="passagent"))


def as_html(text: str) -> str:
    """The text as HTML, in a fixed-width font; what it holds of HTML is escaped."""
    return str(_recorded(text).export_html(inline_styles=True, code_format=_HTML))


def _recorded(text: str) -> Any:
    from rich.console import Console
    from rich.text import Text

    wide = max((len(line) for line in text.split("\n")), default=0) + 1
    console = Console(
        record=True, file=io.StringIO(), width=max(wide, 20), highlight=False, force_jupyter=False
    )
    console.print(Text(text), soft_wrap=True)
    return console
