"""The tasks that passagent ships: `example:NAME` wherever a command takes a task."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from passagent.errors import UsageError, nearest
from passagent.system import resources

PREFIX = "example:"


def examples() -> dict[str, Path]:
    """Name and directory of each example task; a user's resource directory may hold others."""
    lists = resources.glob("examples/tasks/*/graph_list.txt")
    return {PurePosixPath(name).parent.name: path.parent for name, path in lists}


def locate(task: str | Path) -> Path:
    """The directory that `task` names: a path as it is, or `example:NAME`.

    Raises UsageError for a name that no example has.
    """
    word = str(task)
    if not word.startswith(PREFIX):
        return Path(task)
    places, name = examples(), word.removeprefix(PREFIX)
    if name not in places:
        raise UsageError(f"{word}: no such example{nearest(name, list(places))}")
    return places[name]
