"""`best --standalone`: the passes and one file beside them, made of what they use of passagent.kernels."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Collection
from pathlib import Path

from passagent import __version__
from passagent.deploy.delivery.linker import link
from passagent.errors import UsageError
from passagent.evaluator.candidate import HELPER, HELPER_HEAD
from passagent.kernels.toolchain import PRELUDE_TEXT

_MODULE = HELPER.removesuffix(".py")
_OFFERED = ("cpp_kernel", "triton_kernel")
_SOURCES = (
    "passagent.kernels.plain", "passagent.kernels.cpp", "passagent.kernels.layout", "passagent.system.cache",
    "passagent.kernels.toolchain",
)  # fmt: skip
"""Modules that the file is made of."""


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
    modules = {name: Path(str(importlib.import_module(name).__file__)).read_text() for name in _SOURCES}
    modules[_SOURCES[-1]] = re.sub(
        r"^PRELUDE_TEXT = .*$",
        lambda _: f'PRELUDE_TEXT = r"""\n{PRELUDE_TEXT}"""',
        modules[_SOURCES[-1]],
        flags=re.MULTILINE,
    )
    return link(f"{HELPER_HEAD}\n{_DOCSTRING.format(version=__version__)}", modules, _SOURCES[0], taken)


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
