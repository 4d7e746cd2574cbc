"""What PTX does with the variables of a module, which outlive a launch: constants are only read.

A constant of the source (`constexpr int BLOCK = 256;`) is such a variable, too, whether it is used or not.
"""

from __future__ import annotations

import re

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
    """Of these the ones that are not surely only read: their address goes somewhere else than into loads."""
    rest, functions = _divided(ptx)
    found = []
    for name in sorted(variables(ptx)):
        declared = sum(name in _WORD.findall(statement) for statement in rest.split(";"))
        if declared != 1 or any(not _is_only_read(name, function) for function in functions):
            found.append(name)
    return found


def _divided(ptx: str) -> tuple[str, list[str]]:
    """What stands outside of functions, and the functions' bodies."""
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


def _is_only_read(name: str, function: str) -> bool:
    """Whether all that is made of the address of `name` in a function is loaded from."""
    statements = [part for part in function.split(";") if part.strip()]
    addresses, before = {name}, 0
    while len(addresses) > before:
        before = len(addresses)
        for statement in statements:
            if addresses.isdisjoint(_WORD.findall(statement)):
                continue
            parts = _STATEMENT.fullmatch(statement)
            if parts is None:
                return False
            operation, operands = parts.groups()
            target, _, sources = operands.partition(",")
            if operation == "ld":
                if not addresses.isdisjoint(_WORD.findall(_PLACE.sub(" ", operands))):
                    return False
            elif operation in _ADDRESS and re.fullmatch(r"\s*%?\w+\s*", target):
                if not addresses.isdisjoint(_WORD.findall(sources)):
                    addresses.add(target.strip())
            else:
                return False
    return True
