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
from importlib import metadata
from pathlib import Path

from passagent import __version__
from passagent.agent.prompt import render
from passagent.config import Config
from passagent.data.rl.pass_env import task_text
from passagent.errors import UsageError
from passagent.evaluator.target import kind_of
from passagent.store.outputs import whole_directory
from passagent.tasks import Task, load_task
from passagent.tasks.reader import FILES, write_list


def export(
    paths: Sequence[Path],
    directory: Path,
    config: Config,
    settings: Sequence[str] = (),
    wheel: Path | None = None,
) -> list[Path]:
    """Write `directory`, a Harbor task in it for each task, and return these; all of them or nothing.

    settings: the `KEY=VALUE` that `config` was made with; the test passes them on. wheel: of passagent, to
    install in the image; None: the released version.

    Raises UsageError for a directory that is there, a wheel that is not, tasks of one name, and what
    load_task raises.
    """
    if wheel is not None and not (wheel.is_file() and wheel.suffix == ".whl"):
        raise UsageError(f"{wheel}: no such wheel; make one with `python -m build --wheel`")
    tasks = [load_task(path) for path in paths]
    # letters, digits, dots, hyphens and underscores are allowed in Harbor's names
    names = [
        re.sub(r"[^A-Za-z0-9._-]+", "-", task.name).lstrip("._-").replace("..", ".") or "task"
        for task in tasks
    ]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name}: {names.count(name)} tasks have this name; export them apart")
    device = kind_of(config.evaluator.device)  # in a container: the one GPU that it is given, or the CPU
    extra = "[cuda]" if device == "cuda" else ""
    common = {
        "device": device,
        "version": __version__,
        "torch": metadata.version("torch").partition("+")[0],
        "wheel": wheel.name if wheel else "",
        "package": f"/opt/{wheel.name}{extra}" if wheel else f"passagent{extra}=={__version__}",
        "settings": "".join(f" --set {shlex.quote(pair)}" for pair in settings),
    }
    agent = config.agent.model_copy(update={"tools": ["file_editor", "pass_evaluator"]})
    with whole_directory(directory, "--harbor") as whole:
        for name, task in zip(names, tasks, strict=True):
            place = whole / name
            copied = copy_task(task, place / "environment/task")
            if wheel is not None:
                shutil.copy(wheel, place / "environment")
            text = task_text(copied, config.model_copy(update={"agent": agent}), here=False)
            text = text.replace(str(copied.path), "/app/task")
            (place / "tests").mkdir()
            for file in ("instruction.md", "task.toml", "environment/Dockerfile", "tests/test.sh"):
                template = f"harbor/{Path(file).name}.j2"
                content = render(template, harbor_name=name, task=task, text=text, **common)
                (place / file).write_text(content + "\n")
            (place / "tests/test.sh").chmod(0o755)
    return [directory / name for name in names]


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
    write_list(place, places)
    return load_task(place)
