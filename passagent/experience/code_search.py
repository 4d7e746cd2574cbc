"""Search in code that a pass can learn from: samples, example passes, the installed Triton's sources."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from passagent.errors import UsageError, nearest
from passagent.extend import Target
from passagent.system import resources

Kind = Literal["string", "file"]
KINDS = ("string", "file")
MAX_QUERY = 500
"""Characters of a query."""
MAX_HITS = 400
"""Lines that are listed."""
MAX_LINE = 200
"""Characters of a line that are shown."""
MAX_NAMES = 400
"""Files that are listed."""


@dataclass(frozen=True)
class CodeRoot:
    """Where code is: its files are named `name/...`."""

    name: str
    files: Callable[[], Iterator[tuple[str, Path]]]
    """Relative name and path of each file, in order."""
    is_read: bool = True
    """True if a target admits a file by its text, too, and not by its name alone."""


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
    paths = {}
    for root in ROOTS:
        for name, path in root.files():
            whole = f"{root.name}/{name}"
            text = path.read_text(encoding="utf-8") if target and root.is_read else ""
            if target is None or target.admits(f"{whole} {text}"):
                paths[whole] = path
    return paths


async def search(query: str, kind: Kind = "string", target: Target | None = None) -> str:
    """Return the lines `file:line: text` that hold `query`; of kind `file` the names of files that hold it.

    The name of a file (`triton/language/core.py`), or of a line (`...core.py:120`), gives the file from
    there on. Raises UsageError for a query that cannot be looked for.
    """
    if not query.strip() or len(query) > MAX_QUERY:
        raise UsageError(f"query: 1 to {MAX_QUERY} characters are looked for, not {len(query)}")
    paths = await asyncio.to_thread(files, target)
    if kind == "file":
        return _file(query.strip(), paths)
    lines = await asyncio.to_thread(_lines_with, query, paths)
    admitted = [line for line in lines if target is None or target.admits(line)]
    return "\n".join(admitted) or "nothing found; kind: file, query: / lists the files"


def _file(query: str, paths: dict[str, Path]) -> str:
    """The file that is named, from the line on that is named; else the names that hold the query."""
    name, _, line = query.partition(":")
    if name in paths:
        lines = paths[name].read_text(encoding="utf-8", errors="replace").splitlines()
        first = min(int(line), len(lines)) if line.isascii() and line.isdigit() and int(line) else 1
        return "\n".join(f"{number}: {text}" for number, text in enumerate(lines[first - 1 :], first))
    names = [path for path in paths if query in path]
    if not names:
        raise UsageError(f"query: no file's name holds '{query[:80]}'{nearest(query[:80], list(paths))}")
    more = f"\n... and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return "\n".join(names[:MAX_NAMES]) + more


def _lines_with(query: str, paths: dict[str, Path]) -> list[str]:
    """The first MAX_HITS lines that hold the query."""
    hits: list[str] = []
    for name, path in paths.items():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if query not in line:
                continue
            if len(hits) == MAX_HITS:
                return [*hits, f"more than {MAX_HITS} lines match; ask for less"]
            hits.append(f"{name}:{number}: {line.strip()[:MAX_LINE]}")
    return hits
