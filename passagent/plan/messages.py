"""Requests to the recording process, and its answers. The answer is not trusted: it is read as data."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from passagent.plan.arguments import Device, FileName, Number, Record
from passagent.plan.model import Recording
from passagent.tasks.reader import LibraryRule

MOST_ANSWER = 4 << 20
"""Bytes of an answer."""
Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", max_length=5000)]
"""For a terminal: no control characters."""
Lines = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x09\x0b-\x1f\x7f-\x9f]*$", max_length=5000)]
"""Printable text of several lines."""
Failing = Literal["refused", "load_error", "compile_error", "runtime_error", "timeout"]
"""The failing part of evaluator.result.Status."""


class Subgraph(Record):
    """A subgraph as the recording process sees it: its graph and its inputs' metadata, no values."""

    name: str
    nodes: list[dict[str, Any]]
    """tasks/graphio.py"""
    order: list[int]
    """For each placeholder the position of its input."""
    inputs: list[TensorMeta | int | float]


class TensorMeta(Record):
    """An input that is a tensor; strides in elements."""

    shape: list[int]
    stride: list[int]
    dtype: str
    device: Device


class Request(Record):
    """Record these files on these subgraphs."""

    files: dict[str, str]
    device: Device
    facts: dict[str, int | str]
    """Facts of the device (facts.py)."""
    library: LibraryRule
    subgraphs: list[Subgraph]


class Missed(Record):
    """A pass matches nowhere in a subgraph."""

    subgraph: FileName
    pass_name: FileName
    matched_nodes: Number
    pattern_nodes: Number
    pattern_node: Line
    """The operator of the pattern that fails."""
    graph_node: Line | None
    reason: Line

    @property
    def words(self) -> str:
        """How far it comes and why not further, in a line."""
        against = f" (the graph has {self.graph_node})" if self.graph_node else ""
        return (
            f"matches {self.matched_nodes} of {self.pattern_nodes} operators, then not "
            f"{self.pattern_node}{against}: {self.reason}"
        )


class Refusal(Record):
    """Why there are no plans. `file` is "" and `line` 0 where no line of the candidate's is at fault."""

    kind: Literal["refused"] = "refused"
    status: Failing = "refused"
    message: Lines
    file: Annotated[str, Field(max_length=300)] = ""
    line: Number = 0
    others: Annotated[tuple[Refusal, ...], Field(max_length=1000)] = ()
    """Refusals on further subgraphs."""
    missed: Annotated[tuple[Missed, ...], Field(max_length=100_000)] = ()


class Failure(Record):
    """Why there is no plan for one subgraph."""

    subgraph: FileName
    why: Refusal


class Recorded(Record):
    """The plans."""

    kind: Literal["recorded"] = "recorded"
    recording: Recording
    missed: Annotated[tuple[Missed, ...], Field(max_length=100_000)]
    failed: Annotated[tuple[Failure, ...], Field(max_length=10_000)] = ()


def as_line(text: str) -> Line:
    """The text as one line of what a terminal can show, shortened."""
    characters = (c if c.isprintable() else " " if c.isspace() else repr(c)[1:-1] for c in text)
    return "".join(characters)[:5000]


def as_lines(text: str) -> Lines:
    """The text's lines as a terminal can show them, shortened."""
    return "\n".join(map(as_line, text.splitlines()))[:5000]


class RecordingAnswer(Record):
    """The answer of the recording process."""

    answer: Annotated[Recorded | Refusal, Field(discriminator="kind")]
