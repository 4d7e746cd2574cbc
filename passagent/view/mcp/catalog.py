"""The tasks that a client may name: the examples, and those below the directories of `--tasks`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from passagent.agent.taskfiles import TASK, TaskFiles, ToolError
from passagent.agent.workspace import Workspace
from passagent.errors import UsageError, nearest
from passagent.tasks import Task, load_task
from passagent.tasks.examples import PREFIX, examples
from passagent.tasks.tasklist import find_tasks


class Catalog:
    """Names and places of tasks. A client never gives a path of this machine."""

    def __init__(self, directories: Sequence[str]) -> None:
        """Raises UsageError for a directory that is not there."""
        for directory in directories:
            if not Path(directory).is_dir():
                raise UsageError(f"--tasks {directory}: no such directory")
        self._directories = [Path(directory) for directory in directories]
        self._places: dict[str, Path] = {}

    def look(self) -> dict[str, Path]:
        """Name and directory of each task that is there now."""
        places = {f"{PREFIX}{name}": path for name, path in examples().items()}
        for directory in self._directories:
            for path in _tasks_below(directory):
                name, root_name = path.relative_to(directory).as_posix(), directory.resolve().name
                name = root_name if name == "." else name
                places[f"{root_name}/{name}" if name in places else name] = path
        self._places = places
        return places

    def add(self, directory: Path) -> None:
        """Have the tasks below `directory` from now on, too."""
        if directory not in self._directories:
            self._directories.append(directory)

    def task(self, name: str) -> Task:
        """The task of this name. Raises ToolError; TaskError for one that cannot be read."""
        place = self._places.get(name) or self.look().get(name)
        if place is None:
            raise ToolError(
                f"no task '{name[:80]}'{nearest(name[:80], list(self._places))}; list_tasks lists them"
            )
        return load_task(place)


def _tasks_below(directory: Path) -> list[Path]:
    """The tasks in it, which may be none yet."""
    try:
        return find_tasks([str(directory)])
    except UsageError:
        return []


def read_file(task: Task, path: str) -> str:
    """Return a file of the task, or the listing of a directory. Raises ToolError."""
    workspace = Workspace(TaskFiles(task.path), {})
    name = f"{TASK}/{path}"
    if workspace.is_directory(name):
        return "\n".join(workspace.listing(name))
    return workspace.read(name)
