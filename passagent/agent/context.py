"""The context of an episode: plain data that the search gathers and prompt.compose puts into words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from passagent.config import AgentConfig
from passagent.evaluator.hardware.machine import Machine
from passagent.evaluator.reference.eager import EagerGraph
from passagent.experience.exemplars import Match
from passagent.experience.knowledge import Passage
from passagent.extend import Target
from passagent.tasks import Task
from passagent.tasks.reader import LibraryRule


@dataclass(frozen=True)
class ParentView:
    """The candidate that the episode starts from."""

    node_id: int | str
    as_score: float | None
    status: str
    files: dict[str, str]
    """Its pass directory, which the workspace holds when the episode begins."""
    diagnosis: str = ""
    """Its limits or its faults, in words."""
    observation: str = ""
    """The text of observe.observation."""
    verdict: dict[str, Any] = field(default_factory=dict)
    """The data of observe.verdict, for programs."""
    is_seed: bool = False
    """It was there before the first episode."""


@dataclass(frozen=True)
class Attempt:
    """An earlier candidate, a line in the prompt."""

    node_id: int | str
    status: str
    as_score: float | None
    note: str
    """First line of its first pass file's docstring (prompt.note_of)."""
    made_from: int | str | None = None
    """The candidate that it is a change of; None: the task."""
    changed: str = ""
    """The files that differ from that one's, with the lines added and removed."""
    failure: str = ""
    """Its first error with file and line; empty where it is correct."""


@dataclass(frozen=True)
class HintView:
    """A hint as shown; its use is logged under `id`."""

    id: str
    text: str
    is_learned: bool = False
    """A model wrote it after an episode of another run or task: it is quoted, as data."""


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
    parent: ParentView | None = None
    best_as: float | None = None
    """The best AS of the whole run so far."""
    attempts: list[Attempt] = field(default_factory=list)
    """Relatives of the parent, the newest last."""
    more_attempts: int = 0
    """Earlier ones of the island that are not among them."""
    hints: list[HintView] = field(default_factory=list)
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
