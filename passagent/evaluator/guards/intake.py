"""What a candidate's files are as bytes: names, size, encoding, and the text that Triton reads of a kernel.

Triton compiles the text of a kernel, not the function: it takes the file's lines, looks for the first `def`
in them and parses from there. What it finds must be what was inspected.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
from collections import Counter
from typing import NamedTuple

from passagent.evaluator.guards.names import Report
from passagent.evaluator.guards.scope import module_of
from passagent.evaluator.limits import INSPECTION

TOO_LARGE = "too_large"
"""The rule that a candidate breaks whose inspection takes more than limits.py gives it."""
_NAME = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*/)*(?:[A-Za-z0-9_-]+\.py|[A-Za-z0-9_.-]+\.(?:json|md|txt))")
_COOKIE = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")  # PEP 263
_TRITONS = re.compile(r"^def\s+\w+\s*\(", re.MULTILINE)


class Finding(NamedTuple):
    """A broken rule, as result.Violation has it."""

    rule: str
    file: str
    line: int
    message: str


def check_files(files: dict[str, str]) -> list[Finding]:
    """Names that stay inside the pass directory, and a bounded size."""
    size = sum(len(part.encode(errors="surrogatepass")) for file in files.items() for part in file)
    most_bytes, most_files = INSPECTION.sizes["bytes of files and names"], INSPECTION.sizes["files"]
    if size > most_bytes or len(files) > most_files:
        message = (
            f"the candidate is {len(files)} files of {size} bytes; write at most {most_files} "
            f"files of {most_bytes} bytes together"
        )
        return [Finding(TOO_LARGE, min(files)[:200], 1, message)]
    message = "the file's name is not of letters, digits and `_`; name it like a module, inside the directory"
    same = "another file is the same module, and only one of the two can be imported; use another name"
    found = {name: message for name in files if not _NAME.fullmatch(name)}
    modules = {name: module_of(name) for name in files if name.endswith(".py") and name not in found}
    counts = Counter(modules.values())
    found |= {name: same for name, module in modules.items() if counts[module] > 1}
    return [Finding("file_name", name[:200], 1, found[name]) for name in sorted(found)]


def too_large(files: dict[str, str]) -> Finding:
    """What a candidate is refused with whose inspection took more than it may."""
    message = (
        f"inspecting it takes more than {INSPECTION.cpu_s} s or {INSPECTION.memory >> 20} MB; "
        "write shorter files and plainer expressions"
    )
    return Finding(TOO_LARGE, max(files, key=lambda name: len(files[name])), 1, message)


def check_encoding(text: str, report: Report) -> None:
    """The text means the same to everyone who reads the file."""
    for number, line in enumerate(text.split("\n")[:2], 1):  # as tokenize.detect_encoding has lines
        found = _COOKIE.match(line)
        if found and found[1].lower().replace("_", "-") not in ("utf-8", "utf8", "ascii", "us-ascii"):
            where = ast.Pass(lineno=number)
            report("encoding", where, f"declares the encoding {found[1]}; write the file in UTF-8")


def lines_of(text: str) -> list[str]:
    """The lines of a file, as Python counts them, each with its end."""
    return io.StringIO(text, newline=None).readlines()


def check_kernel_text(lines: list[str], node: ast.FunctionDef, report: Report) -> None:
    """Triton reads the function that stands there, not another one in the file's lines."""
    read = _as_triton_reads(lines, node)
    shown = ast.FunctionDef(**{**dict(ast.iter_fields(node)), "decorator_list": []})
    if read is None or ast.dump(read) != ast.dump(shown):
        message = (
            f"{node.name} does not read like a plain function; write decorators of one line each and "
            f"`def {node.name}(` at the start of a line"
        )
        report("kernel_text", node, message)


def _as_triton_reads(lines: list[str], node: ast.FunctionDef) -> ast.FunctionDef | None:
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    indented = node.col_offset > 0
    while not indented and start > 0 and not lines[start].startswith(("@", "def ")):
        start -= 1
    if indented and not lines[start].lstrip(" ").startswith(("@", "def ")):
        return None
    try:
        source = textwrap.dedent("".join(inspect.getblock(lines[start:])))
        found = _TRITONS.search(source)
        tree = ast.parse(source[found.start() :]) if found is not None else None
    except (SyntaxError, ValueError, IndexError):
        return None
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        return None
    return tree.body[0]
