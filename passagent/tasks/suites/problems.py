"""Problems of suites: where each suite keeps them, and what comes of one. Nothing of them is run here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from passagent.errors import UsageError
from passagent.sandbox.faults import writing
from passagent.tasks.reader import ALLOWED, ComputeOps
from passagent.tasks.suites.forked_jobs import Ended


class Outcome(BaseModel):
    """Facts about the tasks of a problem."""

    is_exact: bool = False
    """Outputs are equal bit for bit."""
    operators: int = 0
    cut: dict[str, list[int]] = {}
    weak: list[str] = []
    """Reasons why a result on it is worth little: outputs that are constant, or close to each other."""


class Converted(Outcome):
    """The tasks of a problem, from the process that ran it."""

    model_config = ConfigDict(extra="forbid")

    tasks: dict[str, dict[str, dict[str, str]]] = {}
    """The files of each subgraph of each task; a task's key is what follows the problem's name in its own."""
    source: str = ""
    """The problem's text as it was run; kept beside its task's subgraphs."""


class Row(Outcome, Ended):
    """A problem in the record of an import.

    Beside the reasons of forked_jobs.py there are these, why it became no task:

    - random: two calls with the same inputs differ; no_tensor: a call returns none
    - too_large: its inputs do not get small enough
    - no_model: it does not define what its suite asks for
    - not_captured: Dynamo or the layout of a task cannot hold it
    - differs: what was written does not compute what the problem does
    """

    name: str
    group: str
    file: str
    source: str
    """sha256 of the problem and of how it was asked for."""
    tasks: list[str] = []

    @property
    def key(self) -> str:
        """Key of a row (see RowFile)."""
        return self.name


PROBLEM = "problem.py"
"""In a task's directory: the text of the problem that it was made of (kernelbench)."""


class Origin(BaseModel):
    """Where a problem comes from; it is kept in the task's graph_net.json."""

    model_config = ConfigDict(frozen=True)

    suite: str
    file: str
    """Relative to the path that was given."""


class Problem(BaseModel):
    """A problem, not run yet: all that the process needs which makes a task of it."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Name of its task's directory."""
    group: str
    """Under which the table counts it: `level2`."""
    origin: Origin
    files: dict[str, str] = {}
    """Its sources by file name; the first one is the problem."""


@dataclass(frozen=True)
class How:
    """How problems are run."""

    device: str = "cpu"
    most_bytes: int | None = None
    """Limit on a call's inputs, bytes; what is larger is cut, or left out."""
    timeout_s: float = 600.0
    jobs: int = 1
    compute_ops: ComputeOps = ALLOWED
    """A word on whether passes may replace matrix products and convolutions; kept in the tasks."""

    def key(self, problem: Problem) -> str:
        """sha256 of the problem and of what its task depends on."""
        text = f"{problem.model_dump_json()} {self.device.split(':', maxsplit=1)[0]} {self.most_bytes}"
        text += "" if self.compute_ops == ALLOWED else f" {self.compute_ops}"
        return hashlib.sha256(text.encode()).hexdigest()


def find_problems(place: str, levels: Sequence[int]) -> list[Problem]:
    """KernelBench's problems at `place`, in order. Raises UsageError where there is none."""
    root = Path(place)
    if not root.exists():
        raise UsageError(f"{place}: no such file or directory")
    with writing(root, "PATH"):
        problems = list(_kernelbench(root, levels))
    if not problems:
        looks_for = "level1/*.py and so on, in it or in its KernelBench/"
        raise UsageError(f"{place}: holds no problem of kernelbench; it looks for {looks_for}")
    return problems


def _kernelbench(root: Path, levels: Sequence[int]) -> Iterator[Problem]:
    base = next((place for place in (root / "KernelBench", root) if any(place.glob("level*"))), root)
    for level in levels:
        for path in sorted(base.glob(f"level{level}/*.py"), key=_number):
            yield Problem(
                name=f"level{level}_{path.stem.strip('_')}",
                group=f"level{level}",
                origin=Origin(suite="kernelbench", file=str(path.relative_to(root))),
                files={path.name: path.read_text(encoding="utf-8")},
            )


def _number(path: Path) -> tuple[int, str]:
    match = re.match(r"\d+", path.name)
    return int(match.group()) if match else 0, path.name
