"""Check PTX's use of a module's variables, which outlive a launch: constants are only read.

A constant of the source (`constexpr int BLOCK = 256;`) is such a variable, too, whether it is used or not.
"""

from __future__ import annotations

import re
from collections import Counter

_VARIABLE = re.compile(r"(?<!\.ptr)\s\.global\s(?:[^;={]*?\s)?([\w$]+)(?:\[[\d\]\[]*)?\s*(?:=|;)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_FUNCTION = re.compile(r"\.(?:entry|func)\b")
_BODY = re.compile(r"[{;]")
_BRACE = re.compile(r"[{}]")
_PLACE = re.compile(r"\[[^\]]*\]")
_WORD = re.compile(r"[%$\w]+")
_STATEMENT = re.compile(r"[\s{}]*(?:[$\w]+:\s*)*(?:@!?[%$\w]+\s+)?([a-z]\w*)[\w.:]*\s+(.*)", re.DOTALL)
_ADDRESS = {"add", "cvt", "cvta", "mad", "mov", "selp", "shl", "sub"}
"""Instructions that make an address of one."""


def without_comments(ptx: str) -> str:
    """The text without comments."""
    return _COMMENT.sub(" ", ptx)


def variables(ptx: str) -> set[str]:
    """Names of the variables in global memory."""
    return set(_VARIABLE.findall(ptx))


def written(ptx: str) -> list[str]:
    """The variables that are not surely only read: their address goes somewhere else than into loads."""
    rest, bodies = _divided(ptx)
    declared = Counter(word for statement in rest.split(";") for word in set(_WORD.findall(statement)))
    functions = [_indexed(body) for body in bodies]
    return [
        name
        for name in sorted(variables(ptx))
        if declared[name] != 1 or not all(_is_only_read(name, uses) for uses in functions)
    ]


def _divided(ptx: str) -> tuple[str, list[str]]:
    """Divide PTX into the text outside of functions and the functions' bodies."""
    rest, bodies, end = [], [], 0
    for head in _FUNCTION.finditer(ptx):
        body = _BODY.search(ptx, head.end())
        if head.start() < end or body is None:
            continue
        rest.append(ptx[end : head.start()])
        end = _closed(ptx, body.start()) if body.group() == "{" else body.end()
        bodies.append(ptx[body.start() : end])
    return ";".join([*rest, ptx[end:]]), bodies


def _closed(text: str, opened: int) -> int:
    """The place behind the brace that closes the one at `opened`."""
    depth = 0
    for brace in _BRACE.finditer(text, opened):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return brace.end()
    return len(text)


def _indexed(function: str) -> dict[str, list[str]]:
    """A function's statements, by the words in them."""
    uses: dict[str, list[str]] = {}
    for statement in function.split(";"):
        for word in set(_WORD.findall(statement)):
            uses.setdefault(word, []).append(statement)
    return uses


def _is_only_read(name: str, uses: dict[str, list[str]]) -> bool:
    """Tell whether all that a function derives from the address of `name` is only loaded from."""
    addresses, pending = {name}, [name]
    while pending:
        word = pending.pop()
        for statement in uses.get(word, []):
            parts = _STATEMENT.fullmatch(statement)
            if parts is None:
                return False
            operation, operands = parts.groups()
            target, _, sources = operands.partition(",")
            if operation == "ld":
                if word in _WORD.findall(_PLACE.sub(" ", operands)):
                    return False
            elif operation in _ADDRESS and re.fullmatch(r"\s*%?\w+\s*", target):
                derived = target.strip()
                if word in _WORD.findall(sources) and derived not in addresses:
                    addresses.add(derived)
                    pending.append(derived)
            else:
                return False
    return True
