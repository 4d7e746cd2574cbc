"""`best --standalone`: the passes and one file beside them, made of what they use of passagent.kernels."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

import black

from passagent import __version__
from passagent.errors import UsageError
from passagent.evaluator.candidate import HELPER, HELPER_HEAD
from passagent.kernels.toolchain import PRELUDE_TEXT

_MODULE = HELPER.removesuffix(".py")
_OFFERED = ("cpp_kernel", "triton_kernel")
_PLAIN = "passagent.kernels.plain"


def standalone(files: dict[str, str]) -> dict[str, str]:
    """Return the candidate with a further file that has what it imports of passagent.kernels, if anything.

    Raises UsageError for what the file cannot offer.
    """
    redirected = {name: text for name, text in files.items() if name != HELPER}
    taken = set[str]()
    for name, text in redirected.items():
        if name.endswith(".py"):
            redirected[name], names = _redirected(name, text)
            taken |= names
    if not taken:
        return redirected
    return redirected | {HELPER: helper(taken)}


def helper(taken: Collection[str]) -> str:
    """Return the text of the file: functions `taken` and what they use."""
    statements, imports = _closure(taken)
    parts = [f"{HELPER_HEAD}\n", _DOCSTRING.format(version=__version__)]
    ordered = sorted(imports, key=lambda line: (line.startswith("from"), line))
    parts += ["from __future__ import annotations\n", *ordered, ""]
    for name, written in statements:
        text = written if name != "PRELUDE_TEXT" else f'PRELUDE_TEXT = r"""\n{PRELUDE_TEXT}"""'
        parts += [f"\n{text}" if text.startswith(("def ", "class ", "@")) else text]
    return black.format_str("\n".join(parts) + "\n", mode=black.Mode())


_DOCSTRING = '''\
"""What the passes beside this file use of passagent.kernels, so that they do without passagent.

Written by `passagent best --standalone` from the source of passagent {version}, which is under the
Apache License 2.0 (https://www.apache.org/licenses/LICENSE-2.0). When passagent evaluates
the passes, it takes passagent.kernels in place of this file.
"""
'''


def _redirected(name: str, text: str) -> tuple[str, set[str]]:
    """Return a file that imports from the helper, and the names that it imports. Raises UsageError."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text, set()
    changed: list[tuple[ast.stmt, str]] = []
    taken = set[str]()
    for node in ast.walk(tree):
        home = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.ImportFrom) and home.partition(".")[0] in ("passagent", _MODULE):
            if home not in ("passagent.kernels", _MODULE):
                raise _unknown(name, f"from {home} import {', '.join(alias.name for alias in node.names)}")
            taken |= {alias.name for alias in node.names}
            changed.append((node, ast.unparse(ast.ImportFrom(_MODULE, node.names, 0))))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "passagent":
                    raise _unknown(name, ast.unparse(node))
    lines = text.splitlines()
    for node, written in sorted(changed, key=lambda alias: -alias[0].lineno):
        indent = " " * node.col_offset
        lines[node.lineno - 1 : node.end_lineno] = [indent + written]
    missing = sorted(taken - {*_OFFERED})
    if missing:
        raise UsageError(
            f"--standalone: {name} takes {', '.join(missing)} of passagent.kernels; {' and '.join(_OFFERED)} "
            "can stand beside a pass; write it without --standalone"
        )
    return "\n".join(lines) + "\n", taken


def _unknown(name: str, line: str) -> UsageError:
    return UsageError(
        f"--standalone: {name} has `{line}`; only `from passagent.kernels import ...` can be done without; "
        "write it without --standalone"
    )


class _Module(NamedTuple):
    """A module's text, by what its statements define."""

    lines: list[str]
    defines: dict[str, list[tuple[int, int]]]
    """For each name the statements that make it: their first and last lines."""
    uses: dict[str, set[str]]
    """For each name the names that its statements use."""
    imports: dict[str, tuple[str, str]]
    """For each imported name its module, and the import as a line."""


@functools.cache
def _module(name: str) -> _Module:
    path = importlib.import_module(name).__file__
    assert path is not None
    text = Path(path).read_text()
    module = _Module(text.splitlines(), {}, {}, {})
    last: list[str] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            home = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for one in node.names:
                line = f"from {home} import {one.name}" if home else f"import {one.name}"
                module.imports[one.asname or one.name] = home, line
            continue
        names = sorted(_bound(node))
        names = last if isinstance(node, ast.Expr) else names  # a docstring is of what stands above it
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
        for bound in names:
            module.defines.setdefault(bound, []).append((first, node.end_lineno or first))
            spoken = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            module.uses.setdefault(bound, set()).update(spoken - {bound})
        last = names
    return module


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
    return {part.id for part in names if isinstance(part.ctx, ast.Store)}


def _closure(taken: Iterable[str]) -> tuple[list[tuple[str, str]], set[str]]:
    """The statements that the functions need, each with a name that it makes, and the imports."""
    open_, imports = [(_PLAIN, name) for name in sorted(taken)], set[str]()
    needed: dict[tuple[str, str], None] = {}
    while open_:
        place = open_.pop()
        if place in needed:
            continue
        home, name = place
        module = _module(home)
        if name in module.imports:
            source, line = module.imports[name]
            if source.startswith("passagent."):
                open_.append((source, name))
            else:
                imports.add(line)
        elif name in module.defines:
            needed[place] = None
            open_ += [(home, used) for used in sorted(module.uses[name])] if name != "PRELUDE_TEXT" else []
    spans = {(home, span): name for home, name in needed for span in _module(home).defines[name]}
    order = sorted(spans, key=lambda place: (place[0] == _PLAIN, place))
    texts = (_module(home).lines[first - 1 : last] for home, (first, last) in order)
    return list(zip(map(spans.__getitem__, order), map("\n".join, texts), strict=True)), imports
