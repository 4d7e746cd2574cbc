"""What came of a problem: tasks, or one word why there are none."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Reason = Literal[
    "fails",
    "missing_package",
    "needs_gpu",
    "memory",
    "too_large",
    "timeout",
    "random",
    "no_tensor",
    "no_model",
    "not_captured",
    "differs",
]
"""fails: its code raises an error. too_large: its inputs do not get small enough. random: two calls with the
same inputs differ. no_tensor: a call returns none. no_model: it does not define what its suite asks for.
not_captured: Dynamo or the layout of a task cannot hold it. differs: what was written does not compute what
the problem does."""


class Refused(Exception):
    """A problem that becomes no task."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


class MadeTask(BaseModel):
    """A task, as text: what the process that ran the problem hands over."""

    model_config = ConfigDict(extra="forbid")

    suffix: str
    """After the problem's name; empty for the only one."""
    subgraphs: dict[str, dict[str, str]]
    """Of each subgraph its files."""


class Outcome(BaseModel):
    """What came of a problem."""

    reason: Reason | None = None
    message: str = ""
    """One line: the file and line, what is wrong."""
    is_exact: bool = False
    """Outputs are equal bit for bit."""
    operators: int = 0
    cut: dict[str, list[int]] = {}
    left_out: int = 0
    """Calls that became no subgraph, where others did."""
    weak: list[str] = []
    """What makes a result on it worth little: outputs that are constant, or close to each other."""


class Answer(Outcome):
    """What came of a problem, from the process that ran it."""

    model_config = ConfigDict(extra="forbid")

    tasks: list[MadeTask] = []
    source: str = ""
    """The problem's text as it was run; kept beside its task's subgraphs."""


class Row(Outcome):
    """A problem in the record of an import."""

    name: str
    group: str
    file: str
    source: str
    """sha256 of the problem and of how it was asked for."""
    tasks: list[str] = []
    seconds: float = 0.0

    @property
    def stands(self) -> bool:
        """Whether the problem need not be run again: memory that was short may be there now."""
        return self.reason != "memory"
