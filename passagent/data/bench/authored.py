"""`--compiler expert`: the expert's first pass for each task, written when its turn comes."""

from __future__ import annotations

import hashlib
from pathlib import Path

from passagent.evaluator.result import Candidate
from passagent.tasks import Task

PASSES = "passes"
"""Beside the results: what the expert wrote, DIR/TASK as `--pass-dir` takes it."""


def expert_version() -> str:
    """A hash of the expert's own files: results of another expert are measured anew."""
    from passagent import expert

    digest = hashlib.sha256()
    root = Path(str(expert.__file__)).parent
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return digest.hexdigest()


def first_pass(task: Task, device: str) -> Candidate | None:
    """What the expert's default plan makes of a task; None where it leaves all of it to eager."""
    from passagent.expert.choices import default
    from passagent.expert.expert_model import candidate

    target = "cuda" if device.startswith("cuda") else "cpu"
    files, _ = candidate(str(task.path), target, default(target))
    return Candidate(files) if files else None
