"""Tasks by their words: task directories, directories of tasks, globs, and PassBench's sample lists.

A sample list is a text file with one task's path a line (blank lines and lines that begin with `#` are
skipped), or a CSV file with a column `sample_path`. `example:NAME`, in a list too, is a shipped task. Torch
is not imported, no task is read.
"""

from __future__ import annotations

import csv
import glob
from collections.abc import Iterable, Iterator
from pathlib import Path

from passagent.errors import UsageError
from passagent.tasks.reader import GRAPH_LIST, PREFIX, locate, meant_by

_COLUMN = "sample_path"


def find_tasks(words: Iterable[str], root: str | None = None) -> list[Path]:
    """The task directories that `words` name, in their order, each once.

    root: what relative paths in sample lists are relative to; default: the list's own directory, else the
    current one. Raises UsageError naming the word, or the line of the list.
    """
    tasks: dict[Path, Path] = {}
    for word in words:
        for path in _expand(word, root):
            tasks.setdefault(path.resolve(), path)
    return list(tasks.values())


def is_task(path: Path) -> bool:
    """Return whether `path` is a task or a single subgraph."""
    return (path / GRAPH_LIST).is_file() or (path / "model.py").is_file()


def _expand(word: str, root: str | None) -> list[Path]:
    path = locate(word)
    matched = [path] if path.exists() else [Path(match) for match in sorted(glob.glob(word, recursive=True))]
    if tasks := [task for match in matched if match.is_dir() for task in _below(match, set())]:
        return tasks
    files = [match for match in matched if match.is_file()]
    if lists := [file for file in files if file == path or file.suffix in (".txt", ".csv")]:
        return [task for listing in lists for task in _listed(listing, root)]
    if matched:
        raise UsageError(f"{word}: holds no task, which is a directory with {GRAPH_LIST} or model.py")
    none = "matches nothing" if glob.has_magic(word) else f"no such directory or sample list{meant_by(path)}"
    raise UsageError(f"{word}: {none}")


def _below(path: Path, visited: set[Path]) -> Iterator[Path]:
    """`path` if it is a task, else the tasks below it, sorted; links are followed, once."""
    if is_task(path):
        yield path
        return
    if path.resolve() in visited:
        return
    visited.add(path.resolve())
    for child in sorted(path.iterdir()):
        if child.is_dir() and not child.name.startswith("."):
            yield from _below(child, visited)


def _listed(listing: Path, root: str | None) -> Iterator[Path]:
    """The tasks of a sample list."""
    try:
        text = listing.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise UsageError(f"{listing}: not a readable sample list: {reason}") from error
    lines = list(enumerate(text.splitlines(), start=1))
    if listing.suffix == ".csv":
        reader = csv.DictReader(text.splitlines())
        if _COLUMN not in (reader.fieldnames or []):
            raise UsageError(f"{listing}:1: has no column {_COLUMN}")
        lines = [(reader.line_num, row[_COLUMN] or "") for row in reader]
    entries = [(number, line.strip()) for number, line in lines if line.strip()]
    entries = [(number, line) for number, line in entries if not line.startswith("#")]
    if not entries:
        raise UsageError(f"{listing}: lists no task; write one task directory a line")
    bases = [Path(root)] if root else [listing.parent, Path()]
    for number, line in entries:
        places = [locate(line)] if line.startswith(PREFIX) else [base / line for base in bases]
        path = next((place for place in places if is_task(place)), None)
        if path is None:
            is_there = any(place.is_dir() for place in places)
            what = f"holds neither {GRAPH_LIST} nor model.py" if is_there else "no such directory"
            default = f"{listing.parent} or to the current directory; give --root DIR"
            where = f"{root} (--root)" if root else default
            raise UsageError(f"{listing}:{number}: {line}: {what}; paths are relative to {where}")
        yield path


def parse_shard(text: str) -> tuple[int, int]:
    """`0/4` as (0, 4). Raises UsageError."""
    index, slash, count = text.partition("/")
    if slash and index.isdecimal() and count.isdecimal() and int(index) < int(count):
        return int(index), int(count)
    raise UsageError(
        f"--shard {text}: write I/N with I from 0 to N-1, such as 0/4 on the first of four machines"
    )
