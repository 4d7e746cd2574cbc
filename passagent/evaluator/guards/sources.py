"""Kernel sources that are written out in a candidate's file: their text, and where each line of it stands."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from dataclasses import dataclass

from passagent.evaluator.guards.scope import File, World

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


def written_out(
    node: ast.expr, world: World, file: File, text: str, followed: frozenset[str] = frozenset()
) -> Source | None:
    """The source that an expression in `file` (whose text is `text`) stands for, if that can be read there.

    A string constant, constants joined by +, or dedented, or a module-level name for such.
    """
    if isinstance(node, ast.Name) and node.id not in followed:
        followed |= {node.id}
        node = file.values.get(node.id, node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        rows = _rows(node, text)
        return Source(node.value, rows if len(rows) == len(node.value) else [node.lineno] * len(node.value))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = (written_out(part, world, file, text, followed) for part in (node.left, node.right))
        return Source(left.text + right.text, left.rows + right.rows) if left and right else None
    if (
        isinstance(node, ast.Call)
        and world.dotted(node.func, file) == "textwrap.dedent"
        and len(node.args) == 1
    ):
        whole = written_out(node.args[0], world, file, text, followed)
        return _dedented(whole) if whole else None
    return None


def _dedented(source: Source) -> Source:
    text = textwrap.dedent(source.text)
    rows: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        rows += [source.line(number)] * (len(line) + 1)
    return Source(text, rows[:-1])


def _rows(node: ast.Constant, text: str) -> list[int]:
    """The line of each character of a string, which may be written in pieces, with escapes and splices."""
    segment = ast.get_source_segment(text, node) or ""
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
