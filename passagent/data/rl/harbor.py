"""Tasks as Harbor task directories: instruction, environment, and a test that writes PassEnv's reward.

The format is Harbor's (schema 1.4, harbor 0.25): `task.toml`, `instruction.md`, `environment/` (the image's
Dockerfile and what it copies), `tests/test.sh`. The verifier runs in a container of its own, made of the same
image, into which Harbor copies the pass directory alone: nothing that an agent did to its own container's
evaluator reaches it.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from passagent import __version__
from passagent.agent.structured import render
from passagent.config import Config
from passagent.data.rl.pass_env import task_text
from passagent.errors import UsageError
from passagent.evaluator.target import kind_of
from passagent.store.outputs import whole_directory
from passagent.tasks import Task, load_task
from passagent.tasks.reader import FILES, GRAPH_LIST


@dataclass(frozen=True)
class Export:
    """The settings that all tasks of an export share."""

    config: Config
    settings: Sequence[str] = ()
    """The `KEY=VALUE` that `config` was made with; the test passes them on."""
    wheel: Path | None = None
    """A wheel of passagent to install in the image; None: the released version."""

    @property
    def device(self) -> str:
        """The device in a container: the one GPU that it is given, or the CPU."""
        return kind_of(self.config.evaluator.device)


def export(paths: Sequence[Path], directory: Path, shared: Export) -> list[Path]:
    """Write `directory`, a Harbor task in it for each task, and return these; all of them or nothing.

    Raises UsageError for a directory that is there, a wheel that is not, tasks of one name, and what
    load_task raises.
    """
    if shared.wheel is not None and not (shared.wheel.is_file() and shared.wheel.suffix == ".whl"):
        raise UsageError(f"{shared.wheel}: no such wheel; make one with `python -m build --wheel`")
    tasks = [load_task(path) for path in paths]
    # letters, digits, dots, hyphens and underscores are allowed in Harbor's names
    names = [
        re.sub(r"[^A-Za-z0-9._-]+", "-", task.name).lstrip("._-").replace("..", ".") or "task"
        for task in tasks
    ]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name}: {names.count(name)} tasks have this name; export them apart")
    with whole_directory(directory, "--harbor") as whole:
        for name, task in zip(names, tasks, strict=True):
            _write(task, whole / name, name, shared)
    return [directory / name for name in names]


def _write(task: Task, place: Path, name: str, shared: Export) -> None:
    """Write one Harbor task directory; its files are the templates `prompts/harbor/`."""
    copied = copy_task(task, place / "environment/task")
    if shared.wheel is not None:
        shutil.copy(shared.wheel, place / "environment")
    agent = shared.config.agent.model_copy(update={"tools": ["file_editor", "pass_evaluator"]})
    text = task_text(copied, shared.config.model_copy(update={"agent": agent}), here=False)
    extra = "[cuda]" if shared.device == "cuda" else ""
    wheel = shared.wheel.name if shared.wheel else ""
    values = {
        "harbor_name": name,
        "task": task,
        "text": text.replace(str(copied.path), "/app/task"),
        "device": shared.device,
        "version": __version__,
        "torch": metadata.version("torch").partition("+")[0],
        "wheel": wheel,
        "package": f"/opt/{wheel}{extra}" if wheel else f"passagent{extra}=={__version__}",
        "settings": "".join(f" --set {shlex.quote(pair)}" for pair in shared.settings),
    }
    (place / "tests").mkdir()
    for file in ("instruction.md", "task.toml", "environment/Dockerfile", "tests/test.sh"):
        (place / file).write_text(render(f"harbor/{Path(file).name}.j2", **values) + "\n")
    (place / "tests/test.sh").chmod(0o755)


def copy_task(task: Task, place: Path) -> Task:
    """Copy the task's files to `place`, without answers; the copy's key is the original's."""
    places = []
    for subgraph in task.subgraphs:
        target = place / "graphs" / subgraph.name
        target.mkdir(parents=True)
        for name in FILES:
            if (subgraph.path / name).is_file():
                shutil.copyfile(subgraph.path / name, target / name)
        places.append(f"graphs/{subgraph.name}")
    (place / GRAPH_LIST).write_text("\n".join(places) + "\n")
    return load_task(place)
