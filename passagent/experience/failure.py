"""Why a candidate failed: the first error in one line, and the source lines that an error message means.

Such a line is `File.py:12`, `kernel.cpp:3` or `kernel.cu(3)`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from passagent.evaluator.result import Evaluation, Mismatch

AROUND = 2
"""Lines shown before and after the one that is meant."""
MAX_EXCERPTS = 6
MAX_WIDTH = 160
_PYTHON = re.compile(r"(?<![\w/])(?P<name>[\w/]+\.py)(?:\", line |:)(?P<line>\d+)")
_KERNEL = re.compile(r"\b(?P<name>\w+)\.(?:cpp:|cu[:(])(?P<line>\d+)")


def first_error(evaluation: Evaluation, files: Mapping[str, str]) -> str:
    """`Fused.py:14: error: 'b' was not declared`, of an evaluation of `files`; empty if correct."""
    if evaluation.status == "ok":
        return ""
    if evaluation.violations:
        first = evaluation.violations[0]
        return _one_line(f"{first.file}:{first.line}: {first.message} (rule {first.rule})")
    failed = [graph for graph in evaluation.graphs if graph.status != "ok"]
    graph = next((graph for graph in failed if graph.status == evaluation.status), None)
    if graph and graph.status == "mismatch" and graph.mismatches:
        best = max(graph.mismatches, key=lambda m: m.matched_nodes / max(m.pattern_nodes, 1))
        return _one_line(mismatch_text(best, files))
    if graph and graph.status == "wrong_result" and graph.worst:
        return _one_line(f"{graph.name}: {graph.worst_element}{f'; {graph.error}' if graph.error else ''}")
    return _error((graph.error if graph else None) or evaluation.error or "no reason was recorded", files)


def mismatch_text(mismatch: Mismatch, files: Mapping[str, str]) -> str:
    """Return how far a pass came, and where its pattern is."""
    file = f"{mismatch.pass_name}.py"
    lines = files.get(file, "").splitlines()
    line = next((number for number, text in enumerate(lines, 1) if text.startswith("def pattern")), None)
    against = f", held against {mismatch.graph_node}" if mismatch.graph_node else ""
    return (
        f"{file}{f':{line}' if line else ''}: the pattern matched {mismatch.matched_nodes} of "
        f"{mismatch.pattern_nodes} nodes, not {mismatch.pattern_node}{against}: {mismatch.reason}"
    )


def _error(text: str, files: Mapping[str, str]) -> str:
    """The line of a compiler's or an interpreter's message that says what is wrong, after the place meant."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [text]
    message = next((line for line in lines if "error: " in line), lines[0])
    if message.endswith(":") and message != lines[-1]:
        message = f"{message} {lines[-1]}"  # what is between quotes the source
    place = next((f"{file}:{line}" for file, line in places(text, files)), None)
    return _one_line(f"{place}: {message.removesuffix(f' ({place})')}" if place else message)


def _one_line(text: str, limit: int = 220) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def excerpts(message: str, files: Mapping[str, str]) -> str:
    """The lines of `files` (name to text) that `message` names, the line meant marked by `>`; "" if none.

    A line of a kernel's C++ or CUDA source is looked up in the Python file that holds it as a literal.
    """
    quoted: dict[tuple[str, int], str] = {}
    for name, line in places(message, files):
        lines = files[name].split("\n")
        near = any(name == file and abs(line - at) <= AROUND for file, at in quoted)
        if 1 <= line <= len(lines) and not near and len(quoted) < MAX_EXCERPTS:
            quoted[(name, line)] = _excerpt(name, lines, line)
    return "\n".join(quoted.values())


def places(message: str, files: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """`(file, line)` of each line of `files` that `message` means, those inside of kernels first."""
    for place in _KERNEL.finditer(message):
        kernel, line = place["name"], int(place["line"])
        yield from ((name, first + line - 1) for name, first in _literals(kernel, line, files))
    by_last_part = {name.rpartition("/")[2]: name for name in files}
    for place in _PYTHON.finditer(message):
        last_part = place["name"].rpartition("/")[2]
        file = place["name"] if place["name"] in files else by_last_part.get(last_part)
        if file:
            yield file, int(place["line"])


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
