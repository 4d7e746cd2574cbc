"""Tasks as Harbor task directories: instruction, environment, and a test that writes PassEnv's reward.

The format is Harbor's (schema 1.4, harbor 0.25): `task.toml`, `instruction.md`, `environment/` (the image's
Dockerfile and what it copies), `tests/test.sh`. The verifier runs in a container of its own, made of the same
image, into which Harbor copies the pass directory alone: nothing that an agent did to its own container's
evaluator reaches it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from passagent import __version__, resources
from passagent.config import Config
from passagent.data.rl.pass_env import task_text
from passagent.errors import UsageError
from passagent.evaluator.target import kind_of
from passagent.system.resumable import whole_directory
from passagent.tasks import Task, load_task
from passagent.tasks.reader import FILES, GRAPH_LIST

APP, LOGS = "/app", "/logs/verifier"
"""Where the task and the pass directory are in a container, and where Harbor looks for the reward."""


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
    """Write one Harbor task directory."""
    environment, tests = place / "environment", place / "tests"
    copied = copy_task(task, environment / "task")
    if shared.wheel is not None:
        shutil.copy(shared.wheel, environment)
    tests.mkdir()
    agent = shared.config.agent.model_copy(update={"tools": ["file_editor", "pass_evaluator"]})
    text = task_text(copied, shared.config.model_copy(update={"agent": agent}), here=False)
    text = text.replace(str(copied.path), f"{APP}/task")
    template = resources.find("prompts/harbor/instruction.md").read_text(encoding="utf-8")
    (place / "instruction.md").write_text(template.replace("DEVICE", shared.device) + "\n" + text + "\n")
    (place / "task.toml").write_text(_task_toml(task, name, shared))
    (environment / "Dockerfile").write_text(_dockerfile(shared))
    settings = "".join(f" --set {shlex.quote(pair)}" for pair in shared.settings)
    test = tests / "test.sh"
    test.write_text(f"""#!/usr/bin/env bash
# Judges {APP}/pass_dir and writes {LOGS}/reward.txt: the rounded AS, 0 for no pass and for a refused one.
# A fault of the machine writes no reward. Written by passagent {__version__}.
# PASSAGENT_ROOT: a directory to put before all paths, to try it outside a container.
set -eu
root="${{PASSAGENT_ROOT:-}}"
mkdir -p "$root{LOGS}"
exec passagent eval "$root{APP}/task" --pass-dir "$root{APP}/pass_dir" \\
    --reward "$root{LOGS}" --device {shared.device}{settings}
""")
    test.chmod(0o755)


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


def _task_toml(task: Task, name: str, shared: Export) -> str:
    """Write task.toml's text; a JSON string or number is one of TOML's, too."""
    description = json.dumps(f"Write compiler passes for {', '.join(task.operators[:8])}")
    return f"""schema_version = "1.4"
artifacts = ["{APP}/pass_dir"]

[task]
name = "passagent/{name}"
description = {description}
keywords = ["pytorch", "compiler", "kernels", "{shared.device}"]

[metadata]
passagent = "{__version__}"
task_key = "{task.key}"
device = "{shared.device}"

[agent]
timeout_sec = 3600.0

[verifier]
timeout_sec = 1800.0
environment_mode = "separate"

[environment]
build_timeout_sec = 3600.0
cpus = 4
memory_mb = 16384
storage_mb = 20480
workdir = "{APP}"
{"gpus = 1" if shared.device == "cuda" else ""}
"""


def _dockerfile(shared: Export) -> str:
    """Write the image's text: a compiler for C++ kernels, torch as installed here, passagent, the task."""
    extra = "[cuda]" if shared.device == "cuda" else ""
    torch = metadata.version("torch").partition("+")[0]
    wheel = shared.wheel.name if shared.wheel else ""
    package = f"/opt/{wheel}{extra}" if wheel else f"passagent{extra}=={__version__}"
    copied = f"COPY {wheel} /opt/{wheel}\n" if wheel else ""
    return f"""FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends g++ binutils \\
    && rm -rf /var/lib/apt/lists/*
{copied}RUN pip install --no-cache-dir torch=={torch} "{package}"
COPY task {APP}/task
RUN mkdir {APP}/pass_dir
WORKDIR {APP}
"""
