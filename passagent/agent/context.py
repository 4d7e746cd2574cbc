"""The context of an episode: plain data that the search gathers and prompt.compose puts into words."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from passagent.config import AgentConfig
from passagent.evaluator.hardware.machine import Machine
from passagent.evaluator.reference.eager import EagerGraph
from passagent.evaluator.result import Evaluation
from passagent.experience.diagnosis import START, Diagnosis
from passagent.experience.exemplars import Match
from passagent.experience.hints import Hint
from passagent.experience.knowledge import Passage
from passagent.extend import Target
from passagent.store import Node
from passagent.tasks import Task
from passagent.tasks.reader import LibraryRule


class JudgedNode(NamedTuple):
    """A node that is done, with its files and its evaluation."""

    node: Node
    files: dict[str, str]
    evaluation: Evaluation


class Attempt(NamedTuple):
    """An earlier candidate, a line in the prompt."""

    node: Node
    changed: str = ""
    """The files that differ from those of the node it was made from, with the lines added and removed."""
    failure: str = ""
    """Its first error with file and line; empty where it is correct."""


@dataclass(frozen=True)
class EpisodeContext:
    """Everything that compose() needs."""

    task: Task
    target: Target
    device_name: str
    """Empty: not known; then the prompt has no figures of the hardware."""
    role: str
    """Name of a file in prompts/roles."""
    seed: int
    """The episode's own."""
    parent: JudgedNode | None = None
    """The candidate that the episode starts from: the workspace holds its files when the episode begins."""
    best_as: float | None = None
    """The best AS of the whole run so far."""
    attempts: list[Attempt] = field(default_factory=list)
    """Relatives of the parent, the newest last."""
    more_attempts: int = 0
    """Earlier ones of the island that are not among them."""
    hints: list[Hint] = field(default_factory=list)
    """The hints shown; their use is logged. A learned one is quoted, as data."""
    held_out: list[str] = field(default_factory=list)
    """Ids of learned hints that are not shown, to measure their worth."""
    knowledge: list[Passage] = field(default_factory=list)
    """Sections of the knowledge documents, the best fitting first."""
    past: list[Match] = field(default_factory=list)
    """Passes of similar tasks, the most similar first."""
    machine: Machine | None = None
    """Measured figures of this machine."""
    threads: int | None = None
    """OpenMP threads of a timed call; None: not known."""
    library: LibraryRule = "none"
    """Operators of torch that a pass may call."""
    eager: tuple[EagerGraph, ...] = ()
    """Eager's measured outputs and times on the task's subgraphs."""
    migrated: bool = False
    """The parent comes from another island."""
    limits: AgentConfig = field(default_factory=AgentConfig)


def diagnosis_of(node: Node | None) -> Diagnosis:
    """The diagnosis stored with a node; of no node: the start."""
    diagnosed = node.diagnosed if node is not None else None
    return START if diagnosed is None else Diagnosis(diagnosed["label"], diagnosed["text"])


class Change(NamedTuple):
    """A file that is not the same on both sides."""

    file: str
    added: int
    """Lines."""
    removed: int

    def __str__(self) -> str:
        """`Fused.py +12 -3`."""
        parts = [f"+{self.added}" * bool(self.added), f"-{self.removed}" * bool(self.removed)]
        return " ".join([self.file, *filter(None, parts)])


def unified(
    before: dict[str, str], after: dict[str, str], names: tuple[str, str], around: int = 3
) -> Iterator[str]:
    """The unified diff of two candidates, line by line; `names` are the sides' directories in the headers.

    `around`: unchanged lines shown before and after each change.
    """
    for file in sorted(before.keys() | after.keys()):
        if before.get(file) != after.get(file):
            old, new = (side.get(file, "").splitlines() for side in (before, after))
            headers = f"{names[0]}/{file}", f"{names[1]}/{file}"
            yield from difflib.unified_diff(old, new, *headers, n=around, lineterm="")


def changes(before: dict[str, str], after: dict[str, str]) -> list[Change]:
    """The files that differ, with how many lines came and went."""
    file_changes = []
    for file in sorted(before.keys() | after.keys()):
        if before.get(file) != after.get(file):
            lines = list(unified({file: before.get(file, "")}, {file: after.get(file, "")}, ("a", "b")))[2:]
            count = [sum(line.startswith(sign) for line in lines) for sign in "+-"]
            file_changes.append(Change(file, *count))
    return file_changes
