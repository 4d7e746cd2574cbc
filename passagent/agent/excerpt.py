"""The source lines that an error message means: `File.py:12`, `kernel.cpp:3` and `kernel.cu(3)`, numbered."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

AROUND = 2
"""Lines shown before and after the one that is meant."""
MAX_EXCERPTS = 6
MAX_WIDTH = 160
_PYTHON = re.compile(r"(?<![\w/])(?P<name>[\w/]+\.py)(?:\", line |:)(?P<line>\d+)")
_KERNEL = re.compile(r"\b(?P<name>\w+)\.(?:cpp:|cu[:(])(?P<line>\d+)")


def excerpts(message: str, files: Mapping[str, str]) -> str:
    """The lines of `files` (name to text) that `message` names, the line meant marked by `>`; "" if none.

    A line of a kernel's C++ or CUDA source is looked up in the Python file that holds it as a literal.
    """
    shown: dict[tuple[str, int], str] = {}
    for name, line in places(message, files):
        lines = files[name].split("\n")
        near = any(name == known and abs(line - at) <= AROUND for known, at in shown)
        if 1 <= line <= len(lines) and not near and len(shown) < MAX_EXCERPTS:
            shown[(name, line)] = _excerpt(name, lines, line)
    return "\n".join(shown.values())


def places(message: str, files: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """`(file, line)` of each line of `files` that `message` means, those inside of kernels first."""
    for found in _KERNEL.finditer(message):
        kernel, line = found["name"], int(found["line"])
        yield from ((name, first + line - 1) for name, first in _literals(kernel, line, files))
    by_last_part = {name.rpartition("/")[2]: name for name in files}
    for found in _PYTHON.finditer(message):
        last_part = found["name"].rpartition("/")[2]
        known = found["name"] if found["name"] in files else by_last_part.get(last_part)
        if known:
            yield known, int(found["line"])


def _literals(kernel: str, line: int, files: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """`(file, first line)` of string literals that define a function `kernel` and have so many lines."""
    for name, text in files.items():
        try:
            tree = ast.parse(text) if name.endswith(".py") and kernel in text else ast.Module([], [])
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines = node.value.count("\n")
                # lines of the literal are lines of the file only where it spells them out
                is_plain = node.end_lineno is not None and node.end_lineno - node.lineno == lines
                if is_plain and lines >= line - 1 and re.search(rf"\b{kernel}\s*\(", node.value):
                    yield name, node.lineno


def _excerpt(name: str, lines: list[str], line: int) -> str:
    first = max(1, line - AROUND)
    rows = [
        f"{'>' if number == line else ' '}{number:>3}  {text[:MAX_WIDTH]}"
        for number, text in enumerate(lines[first - 1 : line + AROUND], first)
    ]
    return "\n".join([f"{name}:", *rows])
