"""Search in code that a pass can learn from: samples, the examples' passes, the installed Triton's sources.

Strings and expressions are looked for in a process of their own with a limit of CPU time (code_scan.py).
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from passagent import resources
from passagent.errors import InfrastructureError, UsageError, nearest
from passagent.experience import code_scan
from passagent.extend import Target

Kind = Literal["string", "regex", "file"]
KINDS = ("string", "regex", "file")
MAX_CPU_S = 3
"""CPU time of a search, s."""
MAX_PATTERN = 500
"""Characters of what is looked for."""
MAX_NAMES = 400
"""Files that are listed."""


@dataclass(frozen=True)
class CodeRoot:
    """Where code is: its files are named `name/...`."""

    name: str
    files: Callable[[], Iterator[tuple[str, Path]]]
    """Relative name and path of each file, in order."""
    is_read: bool = True
    """Whether a target admits a file by its text, too, and not by its name alone."""


def _resources(pattern: str) -> Callable[[], Iterator[tuple[str, Path]]]:
    """Files among the resources, named without the pattern's directory."""
    place = pattern.partition("*")[0]
    return lambda: ((name.removeprefix(place), path) for name, path in resources.glob(pattern))


def _triton() -> Iterator[tuple[str, Path]]:
    """The Python sources of the installed Triton, which is not imported."""
    spec = importlib.util.find_spec("triton")
    for place in map(Path, (spec and spec.submodule_search_locations) or ()):
        for path in sorted(place.rglob("*.py")):
            yield path.relative_to(place).as_posix(), path


ROOTS = [
    CodeRoot("samples", _resources("knowledge/code_samples/**/*.py")),
    CodeRoot("examples", _resources("prompts/examples/**/*.py")),
    CodeRoot("triton", _triton, is_read=False),
]
"""All that is searched; a further place is a further entry."""


def files(target: Target | None = None) -> dict[str, Path]:
    """Name to path of every file; for a `target`, of those that name only what works there."""
    found = {}
    for root in ROOTS:
        for name, path in root.files():
            whole = f"{root.name}/{name}"
            text = path.read_text(encoding="utf-8") if target and root.is_read else ""
            if target is None or target.admits(f"{whole} {text}"):
                found[whole] = path
    return found


async def search(query: str, kind: Kind = "string", target: Target | None = None) -> str:
    """Lines `file:line: text` that hold `query`, or match it; of kind `file` names of files that hold it.

    The name of a file (`triton/language/core.py`), or of a line (`...core.py:120`), gives the file from
    there on. Raises UsageError for what cannot be looked for, InfrastructureError where the process fails.
    """
    if not query.strip() or len(query) > MAX_PATTERN:
        raise UsageError(f"query: 1 to {MAX_PATTERN} characters are looked for, not {len(query)}")
    known = await asyncio.to_thread(files, target)
    if kind == "file":
        return _file(query.strip(), known)
    if kind == "regex":
        try:
            re.compile(query)
        except (re.error, OverflowError, RecursionError) as error:
            raise UsageError(f"query: no regular expression: {error}") from error
    lines = await _scan(query, kind == "regex", known)
    shown = [line for line in lines if target is None or target.admits(line)]
    return "\n".join(shown) or "nothing found; kind: file, query: / lists the files"


def _file(query: str, known: dict[str, Path]) -> str:
    """The file that is named, from the line on that is named; else the names that hold the query."""
    name, _, line = query.partition(":")
    if name in known:
        lines = known[name].read_text(encoding="utf-8", errors="replace").splitlines()
        first = min(int(line), len(lines)) if line.isascii() and line.isdigit() and int(line) else 1
        return "\n".join(f"{number}: {text}" for number, text in enumerate(lines[first - 1 :], first))
    names = [one for one in known if query in one]
    if not names:
        raise UsageError(f"query: no file's name holds '{query[:80]}'{nearest(query[:80], list(known))}")
    more = f"\n... and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return "\n".join(names[:MAX_NAMES]) + more


async def _scan(pattern: str, is_regex: bool, known: dict[str, Path]) -> list[str]:
    """The lines that code_scan finds."""
    asked = {
        "files": [[name, str(path)] for name, path in known.items()],
        "pattern": pattern,
        "is_regex": is_regex,
        "cpu_s": MAX_CPU_S,
    }
    pipe = asyncio.subprocess.PIPE
    words = (sys.executable, "-I", "-S", code_scan.__file__)
    child = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        said, failed = await child.communicate(json.dumps(asked).encode())
    finally:
        if child.returncode is None:
            child.kill()
    if child.returncode == -signal.SIGXCPU:
        raise UsageError(f"query: it took over {MAX_CPU_S} s; write an expression without nested repeats")
    if child.returncode:
        last = (failed.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise InfrastructureError(f"search_code: its process ended with {child.returncode}: {last}")
    return said.decode().splitlines()
