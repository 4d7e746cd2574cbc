"""Search in code that a pass can learn from: samples, example passes, the installed Triton's sources."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Literal

from passagent.errors import UsageError, nearest
from passagent.extend import Target
from passagent.tasks import resources

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


RESOURCES = {"samples": "knowledge/code_samples/", "examples": "prompts/examples/"}
"""The beginnings of names, and where such files are among the resources."""


def files(target: Target | None = None) -> dict[str, Path]:
    """Name to path of every file: samples, examples, and `triton/...`, the installed Triton's sources.

    For a `target` those that name only what works there; Triton is admitted by its name alone.
    """
    paths = {
        f"{begin}/{name.removeprefix(place)}": path
        for begin, place in RESOURCES.items()
        for name, path in resources.glob(f"{place}**/*.py")
        if target is None or target.admits(f"{begin}/{name} {path.read_text(encoding='utf-8')}")
    }
    spec = importlib.util.find_spec("triton")
    for place in map(Path, (spec and spec.submodule_search_locations) or ()):
        for path in sorted(place.rglob("*.py")):
            name = f"triton/{path.relative_to(place).as_posix()}"
            if target is None or target.admits(name):
                paths[name] = path
    return paths


async def search(query: str, kind: Kind = "string", target: Target | None = None) -> str:
    """Return the lines `file:line: text` that hold `query`; of kind `file` the names of files that hold it.

    The name of a file (`triton/language/core.py`), or of a line (`...core.py:120`), gives the file from
    there on. Raises UsageError for a query that cannot be looked for.
    """
    if not query.strip() or len(query) > MAX_QUERY:
        raise UsageError(f"query: 1 to {MAX_QUERY} characters are looked for, not {len(query)}")
    if kind == "file":
        return await asyncio.to_thread(lambda: _file(query.strip(), files(target)))
    lines = await asyncio.to_thread(lambda: _lines_with(query, files(target)))
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
