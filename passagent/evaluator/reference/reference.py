"""Inputs of a subgraph and eager's outputs on them, and what a worker is asked about it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import torch

from passagent.evaluator.correctness.precision import Expected
from passagent.evaluator.reference.eager import Output
from passagent.evaluator.runner import worker_messages
from passagent.evaluator.runner.fresh import Rotation, Windows, window_of
from passagent.evaluator.runner.worker_messages import (
    Float64,
    Given,
    Room,
    Run,
    Spread,
    States,
    TakeGraph,
)
from passagent.sandbox.channel import Arena
from passagent.tasks.reader import Subgraph
from passagent.tasks.special import KINDS

_SLOW_S = 0.1
"""The time from which on a call is slow, s."""


@dataclass
class Reference:
    """Inputs of one subgraph, in shared memory, and eager's outputs on them."""

    name: str
    subgraph: Subgraph
    dispatch: str
    arena: Arena
    described: list[list[Given]]
    """SETS sets that outputs are compared on, and those of large, of other and of special values."""
    kinds: list[str]
    """The kind of values in each set (drawing.py)."""
    rotation: Rotation
    nodes: list[dict[str, Any]]
    """The captured graph (tasks/graphio.py), and for each of its placeholders the position of its input."""
    order: list[int]
    expected: list[Expected] = field(default_factory=list)
    """Expected values of each set, but for the last ones where eager is slow or its outputs are large."""
    mutated: list[int] = field(default_factory=list)
    """Inputs that eager writes into."""
    often: list[int] = field(default_factory=list)
    """Inputs that get fresh values before every call; the others, too large for that, once a block."""
    outputs: list[Output] = field(default_factory=list)
    """Eager's outputs, as they are laid out in memory."""
    narrowed: list[str] = field(default_factory=list)
    """Inputs that stay as recorded in all sets, and why."""
    operators: int = 0
    moved_bytes: int = 0
    """Bytes of all inputs and outputs."""
    unread_bytes: int = 0
    """Bytes of the inputs that are not read."""
    written_bytes: int = 0
    """Bytes of outputs with memory of their own, each element that is not repeated once."""
    flops: int | None = None
    """The FLOPs of GraphResult."""
    repeats: int = 0
    """Calls of the CUDA graph that timed calls replay (hostless.py); 0: they call the subgraph itself."""
    captures: int = 1
    """CUDA graphs of so many calls, one of which is drawn for each timed call."""
    dispatches: float = 0.0
    """Empty operators that eager's host takes as long as, where they do not count, and what one takes: """
    operator_ns: float = 0.0
    call_s: float = 0.0
    """The time of a call of eager's in the baseline's worker, s."""
    eager_s: float = 0.0
    """The time of eager's worker for all sets and in float64: a slow task is not its candidates' fault."""
    uses: int = 0
    judged: set[str | None] = field(default_factory=set)
    """The candidates that were judged on it."""

    def note_outputs(self, eager: list[torch.Tensor], returned: list[worker_messages.Output]) -> None:
        """Note what eager's outputs are like, and the bytes that they take."""
        self.outputs = [
            Output(tuple(output.shape), str(output.dtype).removeprefix("torch."), tuple(item.strides))
            for output, item in zip(eager, returned, strict=True)
        ]
        for tensor, output, item in zip(eager, self.outputs, returned, strict=True):
            self.moved_bytes += tensor.nbytes if item.new else 0
            self.written_bytes += own_bytes(output) if item.new else 0

    def request(self, outputs: Arena) -> TakeGraph:
        """The request to a worker to take it; the arenas' descriptors go with it."""
        rotation = self.rotation
        return TakeGraph(
            id=self.name,
            subgraph=asdict(self.subgraph) | {"path": str(self.subgraph.path)},
            dispatch=self.dispatch,
            sets=self.described,
            nodes=self.nodes or None,
            order=self.order,
            written=self.mutated,
            repeats=self.repeats,
            captures=self.captures,
            rotation=(rotation.units, rotation.counts, rotation.mixed),
            input_bytes=self.arena.size,
            output_bytes=outputs.size,
        )

    def values(self, position: int, chosen: int, windows: Windows) -> torch.Tensor:
        """Values of input `position`, a tensor, on windows of set `chosen`."""
        described = self.described[chosen][position]
        assert described.tensor is not None and described.shape is not None
        reservoir = self.arena.view(described.tensor)
        count = self.subgraph.inputs[position].numel
        return window_of(reservoir, windows[position], count).reshape(described.shape)

    def host_ns(self, dispatches: float) -> int:
        """The part of a call's time that does not count, for a side that is worth so many empty operators."""
        return round(dispatches * self.operator_ns)

    @property
    def is_slow(self) -> bool:
        """Tell whether a call takes so long that few are made, and that caches do not matter."""
        return self.call_s > _SLOW_S

    @property
    def special(self) -> set[int]:
        """The sets of special values."""
        return {number for number, kind in enumerate(self.kinds) if kind in KINDS}

    @property
    def size(self) -> int:
        """Bytes: the inputs, eager's outputs on them, these in float64, and what else was in the inputs."""
        outputs = (tensor for e in self.expected for tensor in (*e.eager, *(e.float64 or ())))
        between = [tensor for e in self.expected for states in e.states for tensor in states.after[:-1]]
        between += (tensor for e in self.expected for tensor in (*e.room, *e.spread))
        return self.arena.size + sum(tensor.nbytes for tensor in (*outputs, *between))

    def room(self) -> int:
        """Bytes for the outputs of an audit, every set's at once, and for torch's copies in their places."""
        return 2 * sum(Arena.room(expected.eager) for expected in self.expected)

    def handed(self) -> int:
        """Bytes that a subgraph takes in a worker: inputs, their copies and room for outputs."""
        return self.arena.size + self.copied() + self.room()

    def copied(self) -> int:
        """Bytes of the inputs and outputs of the further calls of CUDA graphs."""
        return max(0, self.repeats * self.captures - 1) * self.moved_bytes

    def close(self) -> None:
        """Free the shared memory."""
        self.arena.close()


def run_request(
    reference: Reference,
    chosen: int,
    windows: list[Windows],
    *,
    keep: bool = False,
    settle: Windows | None = None,
    core: int | None = None,
) -> Run:
    """A call on each of `windows` of input set `chosen`.

    `keep`: the worker hands back what the last call returned; it learns that when the call is over, so that
    nothing in its memory shows it before. `settle`: windows of calls that go before, and are not measured.
    With a `core` the calls are made there, and begin when the worker hears that the clock here runs.
    """
    return Run(
        id=reference.name,
        set=chosen,
        windows=windows,
        often=reference.often,
        keep=keep,
        settle=settle,
        core=core,
    )


_OfEager = TypeVar("_OfEager", States, Float64, Room, Spread)


def of_eager(kind: type[_OfEager], reference: Reference, chosen: int, windows: Windows) -> _OfEager:
    """A question about eager's graph on windows of set `chosen`."""
    return kind(
        id=reference.name,
        set=chosen,
        windows=windows,
        order=reference.order,
        inputs=reference.mutated,
    )


def describe(values: list[Any], subgraph: Subgraph, arena: Arena) -> list[Given]:
    """The inputs for a worker; `host`: it stays on the CPU, as it was recorded beside inputs on a GPU."""
    described = []
    for meta, value in zip(subgraph.inputs, values, strict=True):
        if isinstance(value, list):
            host = subgraph.home == "cuda" and meta.device.startswith("cpu")
            tensor = arena.write_flat(value)
            described.append(Given(tensor=tensor, shape=list(meta.shape), host=host))
        else:
            described.append(Given(value=value))
    return described


def own_bytes(output: Output) -> int:
    """Bytes of the elements that have places of their own: fewer than all if expanded or overlapping."""
    if 0 in output.shape:
        return 0
    pairs = list(zip(output.shape, output.strides, strict=True))
    distinct = math.prod(size for size, stride in pairs if stride)
    reach = 1 + sum((size - 1) * stride for size, stride in pairs)
    itemsize: int = getattr(torch, output.dtype).itemsize
    return min(distinct, reach) * itemsize
