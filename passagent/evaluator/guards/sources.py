"""Kernel sources that are written out in a candidate's file: their text, and where each line of it stands."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from dataclasses import dataclass

from passagent.evaluator.guards.scope import File, World
from passagent.kernels.lexer import MAX_SOURCE

_STRING = re.compile(r"([A-Za-z]*)('''|\"\"\"|'|\")(.*)\2", re.DOTALL)
_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|[0-7]{1,3}|[\\'\"abfnrtv])"
"""One character."""
_PART = re.compile(rf"(?P<splice>\\\n)|(?P<escape>{_ESCAPE})|(?P<newline>\n)|\\|[^\\\n]+")
_RAW_PART = re.compile(r"(?P<newline>\n)|[^\n]+")


@dataclass(frozen=True)
class Source:
    """A text, and for each of its characters the line of the file."""

    text: str
    rows: list[int]

    def line(self, number: int) -> int:
        """The line of the file where line `number` of the text begins; both count from 1."""
        start = sum(len(line) + 1 for line in self.text.split("\n")[: number - 1])
        return self.rows[min(start, len(self.rows) - 1)] if self.rows else 1


class TooLong(Exception):
    """A source that is joined of more characters than a kernel may have."""


class Texts:
    """The sources that expressions of a file stand for; each name is followed once."""

    def __init__(self, world: World, file: File, lines: list[str]) -> None:
        self._world, self._file, self._lines = world, file, lines
        self._known: dict[str, Source | None] = {}

    def written_out(self, node: ast.expr) -> Source | None:
        """The source that an expression stands for, if that can be read in the file.

        A string constant, constants joined by +, or dedented, or a module-level name for such.
        Raises TooLong.
        """
        match node:
            case ast.Name(id=name) if name in self._file.values:
                if name not in self._known:
                    self._known[name] = None  # for a name that leads to itself
                    self._known[name] = self.written_out(self._file.values[name])
                return self._known[name]
            case ast.Constant(value=str(text)):
                rows = _rows(node, self._lines)
                return Source(text, rows if len(rows) == len(text) else [node.lineno] * len(text))
            case ast.BinOp(left=first, op=ast.Add(), right=second):
                left, right = self.written_out(first), self.written_out(second)
                if left is None or right is None:
                    return None
                if len(left.text) + len(right.text) > MAX_SOURCE:
                    raise TooLong
                return Source(left.text + right.text, left.rows + right.rows)
            case ast.Call(func=function, args=[given]):
                if self._world.dotted(function, self._file) == "textwrap.dedent":
                    whole = self.written_out(given)
                    return _dedented(whole) if whole else None
        return None


def _dedented(source: Source) -> Source:
    text = textwrap.dedent(source.text)
    rows: list[int] = []
    start = 0
    for line, was in zip(text.split("\n"), source.text.split("\n"), strict=True):
        rows += source.rows[start : start + 1] * (len(line) + 1)
        start += len(was) + 1
    return Source(text, rows[: len(text)])


def _rows(node: ast.Constant, lines: list[str]) -> list[int]:
    """The line of each character of a string, which may be written in pieces, with escapes and splices."""
    segment = _segment(node, lines)
    rows: list[int] = []
    try:
        found = list(tokenize.generate_tokens(io.StringIO(f"({segment})").readline))
    except (tokenize.TokenError, SyntaxError):
        return rows
    for token in found:
        match = _STRING.fullmatch(token.string) if token.type == tokenize.STRING else None
        if match is None:
            continue
        row = node.lineno + token.start[0] - 1
        for part in (_RAW_PART if "r" in match[1].lower() else _PART).finditer(match[3]):
            if part.lastgroup != "splice":
                rows += [row] * (1 if part.lastgroup else len(part[0]))
            row += part.lastgroup in ("splice", "newline")
    return rows


def _segment(node: ast.expr, lines: list[str]) -> str:
    """What stands in a file's lines for an expression; columns are those of UTF-8."""
    assert node.end_lineno is not None
    own = [line.encode(errors="surrogatepass") for line in lines[node.lineno - 1 : node.end_lineno]]
    own[-1] = own[-1][: node.end_col_offset]
    own[0] = own[0][node.col_offset :]
    return b"".join(own).decode(errors="surrogatepass")
