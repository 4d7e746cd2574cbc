"""Messages between the referee and its workers: requests, and replies as a schema with limits.

A worker runs a candidate's kernels, which can send what they like. Each of its messages is a mark or the
reply to the request at hand. It is held against the schema before anything else looks at it: counts, lengths,
depths and numbers have limits; no other key is taken.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from passagent.plan.arguments import Dtype
from passagent.sandbox.channel import Placed

TEXT = 1 << 14
"""Characters of an error, or of a node that is printed."""
NAME = 1 << 10
"""Characters of a name."""
VIOLATIONS = 1000
"""Violations of a reply; a worker tells no more."""

Name = Annotated[str, Field(max_length=NAME)]
_Text = Annotated[str, Field(max_length=TEXT)]
_Count = Annotated[int, Field(ge=0, le=1 << 31)]
_Size = Annotated[int, Field(ge=0, le=1 << 48)]
_Ns = Annotated[int, Field(ge=0, le=10**15)]
"""A time, up to eleven days."""
_Figure = Annotated[float, Field(ge=0, le=1e9)]
_Positive = Annotated[int, Field(ge=1, le=10**15)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ReportedViolation(_Model):
    rule: Name
    file: Name
    line: _Count
    message: _Text


class Error(_Model):
    kind: Name
    message: _Text
    errno: int | None = None
    path: Name | None = None


class Reply(_Model):
    violations: Annotated[list[ReportedViolation], Field(max_length=VIOLATIONS)] = []


class Failure(Reply):
    """Whatever was asked for."""

    error: Error


class Tensor(_Model):
    """Where a tensor lies in an arena."""

    dtype: Dtype
    shape: Annotated[list[_Size], Field(max_length=64)]
    offset: Annotated[_Size, Field(multiple_of=64)]

    @model_validator(mode="after")
    def _is_possible(self) -> Tensor:
        if math.prod(max(size, 1) for size in self.shape) > 1 << 48:
            raise ValueError("a tensor of no possible size")
        return self


class Output(Tensor):
    contiguous: bool
    strides: Annotated[list[_Size], Field(max_length=64)]
    device: Annotated[str, Field(max_length=20)]
    new: bool
    own: bool


_Tensors = Annotated[list[Tensor | None], Field(max_length=1 << 14)]


class Kept(_Model):
    outputs: Annotated[list[Output], Field(max_length=1 << 14)]
    mutated: Annotated[list[_Count], Field(max_length=1 << 14)]
    left: _Tensors


class GraphReply(Reply):
    matches: _Count
    left: Annotated[list[Name], Field(max_length=1 << 16)] = []
    dispatches: _Figure = 0.0
    """How many empty operators the host's share of a call is worth, and what one of them takes, ns."""
    operator_ns: _Figure = 0.0
    nodes: list[dict[str, Any]] | None = None
    """The nodes of a graph that the worker had to capture, which none does that runs a candidate's code."""
    order: list[_Count] = []


class RunReply(Reply):
    """Times of the calls, and of copying what each returned; what the last one did."""

    samples: Annotated[list[_Positive], Field(max_length=1 << 20)]
    copying: Annotated[list[_Positive], Field(max_length=1 << 20)] = []
    kept: Kept | None

    @property
    def returned(self) -> Kept:
        """The kept call, where one was to be kept."""
        assert self.kept is not None
        return self.kept


class GroupTimes(_Model):
    samples: Annotated[list[_Positive], Field(max_length=1 << 20)]
    held: _Ns
    without: _Ns


class LockstepReply(Reply):
    groups: Annotated[list[GroupTimes], Field(max_length=1 << 16)] = []
    kept: Annotated[list[Kept], Field(max_length=1 << 16)] = []
    ended_early: bool = False
    """The other side gave up, and is to blame."""


class AuditReply(Reply):
    kept: Annotated[list[Kept], Field(max_length=64)]
    stable: bool


class TensorsReply(Reply):
    tensors: Annotated[list[Tensor], Field(max_length=1 << 14)] | None


class StatesReply(Reply):
    states: Annotated[list[Annotated[list[Tensor], Field(max_length=1 << 16)]], Field(max_length=1 << 14)]
    due: Annotated[list[Annotated[list[bool], Field(max_length=1 << 16)]], Field(max_length=1 << 14)]


class Mark(_Model):
    """The timed calls of a request start or end."""

    mark: Literal["start", "end"]


R = TypeVar("R", bound=Reply)
Nodes = list[dict[str, Any]]
Windows = list[int]


class Request(BaseModel, Generic[R]):
    """A request to a worker, and the kind of its reply. The referee is believed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: str

    def fits(self, reply: R) -> bool:
        """Tell whether the reply holds as many parts as were asked for."""
        return True


class Prepare(Request[Reply]):
    """Make the device's context."""

    op: Literal["prepare"] = "prepare"
    device: str


class Load(Request[Reply]):
    """A candidate's plans (Plans.data), or none for eager and compilers."""

    op: Literal["load"] = "load"
    plans: dict[str, Any] | None
    compiler: str | None
    device: str


class Given(BaseModel):
    """An input of a subgraph: a flat tensor in an arena and the shape of what a call takes, or a number."""

    tensor: Placed | None = None
    shape: list[int] | None = None
    host: bool = False
    """It stays on the CPU, as it was recorded beside inputs on a GPU."""
    value: int | float | None = None


class TakeGraph(Request[GraphReply]):
    """Take a subgraph. With it come descriptors of the inputs' arena and of that for outputs."""

    op: Literal["graph"] = "graph"
    id: str
    subgraph: dict[str, Any]
    dispatch: str
    sets: list[list[Given]]
    nodes: Nodes | None
    """None: it is to be captured."""
    order: list[int]
    written: list[int]
    """Inputs that eager writes into."""
    repeats: int
    """Calls in a CUDA graph; 0 where there is none."""
    captures: int
    """CUDA graphs that hold so many calls each."""
    rotation: tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...]]
    """Units, counts and mixed of a Rotation."""
    input_bytes: int
    output_bytes: int

    def fits(self, reply: GraphReply) -> bool:
        """Check that nodes are reported only of a graph that was not known."""
        return (reply.nodes is None) == (self.nodes is not None)


class Run(Request[RunReply]):
    """A timed call on each of `windows` of a set. See reference.run_request.

    A worker does not know how many there are (Worker.ask): they are in a file that goes with the request.
    """

    op: Literal["run"] = "run"
    id: str
    set: int
    windows: list[Windows]
    often: list[int]
    keep: bool
    settle: Windows | None = None
    core: int | None = None

    def fits(self, reply: RunReply) -> bool:
        """A time for each call, and what the last one returned, if it was to be kept."""
        calls, copied = len(self.windows), len(self.windows) if self.keep else 0
        fits = len(reply.samples) == calls and len(reply.copying) == copied
        return fits and (reply.kept is not None) == self.keep


class Turns(BaseModel):
    """The calls of either side on one core. See turns.group."""

    first: int
    """The side that begins."""
    set: int
    turns: list[list[Windows]]
    skips: list[int]
    """Calls of each turn that are not measured."""
    keep: tuple[int, int] | None
    """Turn and call of which the outputs are handed back."""
    core: int = 0


class Lockstep(Request[LockstepReply]):
    """Timed calls in turn with the other side's worker. A descriptor of what is shared goes beside."""

    op: Literal["lockstep"] = "lockstep"
    id: str
    groups: list[Turns]
    often: list[int]
    side: int

    def fits(self, reply: LockstepReply) -> bool:
        """A time for each call, and each call that was to be kept; or none of it."""
        if reply.ended_early:
            return not (reply.groups or reply.kept)
        counts = [sum(map(len, group.turns)) for group in self.groups]
        count = sum(group.keep is not None for group in self.groups)
        return [len(group.samples) for group in reply.groups] == counts and len(reply.kept) == count


class Audit(Request[AuditReply]):
    """An audited call on each of `sets`, after one on set `before` that is not judged."""

    op: Literal["audit"] = "audit"
    id: str
    sets: list[int]
    before: int
    wrong: tuple[int, int, int] | None = None
    """An input, an element of it and the value that it has on `sets`."""

    def fits(self, reply: AuditReply) -> bool:
        """Check for each call that it returned."""
        return len(reply.kept) == len(self.sets)


class _OfEager(Request[R], Generic[R]):
    """Something of eager's graph on windows of a set. `inputs`: those that eager writes into."""

    id: str
    set: int
    windows: Windows
    order: list[int]
    inputs: list[int]


class Float64(_OfEager[TensorsReply]):
    """The outputs, and what is left in the inputs, computed in float64; none where that does not run."""

    op: Literal["float64"] = "float64"


class Room(_OfEager[TensorsReply]):
    """How far each of eager's outputs may be missed (settled.settle): flat float32 tensors."""

    op: Literal["room"] = "room"
    seed: int = 0


class Spread(_OfEager[TensorsReply]):
    """How far values in float64 move with inputs that differ in their last place (double.spread_of)."""

    op: Literal["spread"] = "spread"
    seed: int = 0


class States(_OfEager[StatesReply]):
    """Request what each operator writes into the inputs."""

    op: Literal["states"] = "states"

    def fits(self, reply: StatesReply) -> bool:
        """The states of each input."""
        return len(reply.states) == len(reply.due) == len(self.inputs)


class Release(Request[Reply]):
    """Forget these subgraphs."""

    op: Literal["release"] = "release"
    ids: list[str]


_KINDS: dict[type[Request[Any]], type[Reply]] = {
    Prepare: Reply, Load: Reply, TakeGraph: GraphReply, Run: RunReply, Lockstep: LockstepReply,
    Audit: AuditReply, Float64: TensorsReply, Room: TensorsReply, Spread: TensorsReply,
    States: StatesReply, Release: Reply,
}  # fmt: skip
_BY_NAME = {kind.model_fields["op"].default: kind for kind in _KINDS}


def request(message: dict[str, Any]) -> Request[Any]:
    """A request, as a worker reads it."""
    return _BY_NAME[message["op"]].model_validate(message)


def read(request: Request[R], message: dict[str, Any]) -> Mark | Failure | R:
    """Read what a worker says: a mark, a failure, its reply. Else raise ValueError."""
    if "mark" in message:
        return Mark.model_validate(message)
    if "error" in message:
        return Failure.model_validate(message)
    reply: R = _KINDS[type(request)].model_validate(message)  # type: ignore[assignment]
    if request.fits(reply):
        return reply
    raise ValueError(f"a reply to {request.op} that does not fit it")
