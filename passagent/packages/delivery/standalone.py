"""`best --standalone`: the passes and one file beside them, made of what they use of passagent.kernels."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Collection
from pathlib import Path

from passagent import __version__
from passagent.errors import UsageError
from passagent.evaluator.candidate import HELPER, HELPER_HEAD
from passagent.kernels.toolchain import PRELUDE_TEXT
from passagent.packages.delivery.linker import link

_MODULE = HELPER.removesuffix(".py")
_OFFERED = ("cpp_kernel", "triton_kernel")
_SOURCES = (
    "passagent.kernels.plain", "passagent.kernels.layout", "passagent.sandbox.cache",
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
    taken = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module in ("passagent.kernels", _MODULE):
            taken |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            homes = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            if any(home.partition(".")[0] == "passagent" for home in homes):
                raise UsageError(
                    f"--standalone: {name} has `{ast.unparse(node)}`; only `from passagent.kernels import "
                    "...` can be done without; write it without --standalone"
                )
    if missing := sorted(taken - {*_OFFERED}):
        raise UsageError(
            f"--standalone: {name} takes {', '.join(missing)} of passagent.kernels; {' and '.join(_OFFERED)} "
            "can stand beside a pass; write it without --standalone"
        )
    line = re.compile(r"^(\s*from\s+)passagent\.kernels(\s+import\b)", re.MULTILINE)
    return line.sub(rf"\g<1>{_MODULE}\g<2>", text), taken
