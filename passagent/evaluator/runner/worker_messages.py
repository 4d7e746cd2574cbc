"""What a worker may send, as a schema: it is held against it before anything else looks at it.

A worker runs a candidate's code, which can send what it likes. Each message is a mark, a request for a build,
or the reply to the request at hand. Counts, lengths, depths and numbers have limits; no other key is taken.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from passagent.kernels import build

SOURCE = 8 << 20
"""Characters of a kernel's source, or of its PTX."""
TEXT = 1 << 14
"""Characters of an error, or of a node that is printed."""
NAME = 1 << 10
VIOLATIONS = 1000
"""Violations of a reply; a worker tells no more."""
DEPTH = 8
"""Types within types of a launcher's signature."""
_DTYPES = Literal[
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16",
    "float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip

_Name = Annotated[str, Field(max_length=NAME)]
_Text = Annotated[str, Field(max_length=TEXT)]
_Count = Annotated[int, Field(ge=0, le=1 << 31)]
_Size = Annotated[int, Field(ge=0, le=1 << 48)]
_Ns = Annotated[int, Field(ge=0, le=10**15)]
"""A time, up to eleven days."""
_Figure = Annotated[float, Field(ge=0, le=1e9)]
_Positive = Annotated[int, Field(ge=1, le=10**15)]
_Source = Annotated[str, Field(max_length=SOURCE)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Violation(_Model):
    rule: _Name
    file: _Name
    line: _Count
    message: _Text


class _Error(_Model):
    kind: _Name
    message: _Text
    violation: _Violation | None = None
    errno: int | None = None
    path: _Name | None = None


class _Reply(_Model):
    violations: Annotated[list[_Violation], Field(max_length=VIOLATIONS)] = []


class _Failure(_Reply):
    error: _Error


class _Tensor(_Model):
    """Where a tensor lies in an arena."""

    dtype: _DTYPES
    shape: Annotated[list[_Size], Field(max_length=64)]
    offset: Annotated[_Size, Field(multiple_of=64)]

    @model_validator(mode="after")
    def _is_possible(self) -> _Tensor:
        if math.prod(max(size, 1) for size in self.shape) > 1 << 48:
            raise ValueError("a tensor of no possible size")
        return self


class _Output(_Tensor):
    contiguous: bool
    strides: Annotated[list[_Size], Field(max_length=64)]
    device: Annotated[str, Field(max_length=20)]
    new: bool
    own: bool


_Tensors = Annotated[list[_Tensor | None], Field(max_length=1 << 14)]


class _Kept(_Model):
    outputs: Annotated[list[_Output], Field(max_length=1 << 14)]
    mutated: Annotated[list[_Count], Field(max_length=1 << 14)]
    left: _Tensors


class _Mismatch(_Model):
    pass_name: _Name
    matched_nodes: _Count
    pattern_nodes: _Count
    pattern_node: _Text
    graph_node: _Text | None
    reason: _Text


class _Graph(_Reply):
    matches: _Count
    applied: Annotated[list[_Name], Field(max_length=1 << 16)]
    mismatches: Annotated[list[_Mismatch], Field(max_length=1 << 10)]
    left: Annotated[list[_Name], Field(max_length=1 << 16)] = []
    operators: _Count
    dispatches: _Figure = 0.0
    operator_ns: _Figure = 0.0


class _CapturedGraph(_Graph):
    """Of a worker that runs no candidate's code: it captures graphs."""

    nodes: list[dict[str, Any]]
    order: list[_Count]


class _Run(_Reply):
    samples: Annotated[list[_Positive], Field(max_length=1 << 20)]
    kept: _Kept | None
    call: _Count | None = None


class _Group(_Model):
    samples: Annotated[list[_Positive], Field(max_length=1 << 20)]
    held: _Ns
    without: _Ns


class _Lockstep(_Reply):
    groups: Annotated[list[_Group], Field(max_length=1 << 16)]
    kept: Annotated[list[_Kept], Field(max_length=1 << 16)]


class _EndedEarly(_Reply):
    ended_early: Literal[True]


class _Device(_Reply):
    samples: Annotated[list[_Ns], Field(max_length=1 << 20)]


class _Audit(_Reply):
    kept: Annotated[list[_Kept], Field(max_length=64)]
    stable: bool
    copies: Annotated[list[_Tensors], Field(max_length=64)]


class _Float64(_Reply):
    outputs: Annotated[list[_Tensor], Field(max_length=1 << 14)] | None


class _Rounding(_Reply):
    operators: Annotated[list[_Name], Field(max_length=1 << 16)]


class _States(_Reply):
    states: Annotated[list[Annotated[list[_Tensor], Field(max_length=1 << 16)]], Field(max_length=1 << 14)]


class Mark(_Model):
    """The timed calls of a request start or end."""

    mark: Literal["start", "end"]


class _Build(_Model):
    build: dict[str, Any]


_BUILD = TypeAdapter(_Build)
_KernelTypes = Annotated[list[_Name], Field(max_length=256)]


class CppBuild(_Model):
    """A C++ kernel."""

    kind: Literal["cpp"]
    source: _Source
    name: _Name
    types: _KernelTypes

    @model_validator(mode="after")
    def _takes_known_types(self) -> CppBuild:
        build.Signature(tuple(self.types))
        return self


class CudaBuild(_Model):
    """A CUDA C++ kernel."""

    kind: Literal["cuda"]
    source: _Source
    name: _Name
    types: _KernelTypes
    arch: Annotated[str, Field(pattern=r"^sm_[0-9]{2,3}[af]?\z")]

    @model_validator(mode="after")
    def _takes_known_types(self) -> CudaBuild:
        build.Signature(tuple(self.types))
        return self


class PtxBuild(_Model):
    """A Triton kernel's PTX."""

    kind: Literal["ptxas"]
    ptx: _Source
    options: Annotated[list[_Name], Field(max_length=32)]


class LauncherBuild(_Model):
    """Triton's launcher for these types."""

    kind: Literal["launcher"]
    signature: Annotated[list[Any], Field(max_length=1 << 10)]
    descriptors: Annotated[list[bool], Field(max_length=1 << 10)]

    @model_validator(mode="after")
    def _is_shallow(self) -> LauncherBuild:
        parts, depth, count = self.signature, 0, 0
        while parts:
            depth, count = depth + 1, count + len(parts)
            if depth > DEPTH or count > 1 << 10:
                raise ValueError("a signature of no kernel's")
            if not all(isinstance(part, (str, list)) for part in parts):
                raise ValueError("a signature that holds something else than types")
            if any(len(part) > NAME for part in parts):
                raise ValueError("a signature with an endless type")
            parts = [inner for part in parts if isinstance(part, list) for inner in part]
        return self


class ModuleBuild(_Model):
    """passagent's launcher, or Triton's module for the driver."""

    kind: Literal["launch", "cuda_utils"]


BuildRequest = CppBuild | CudaBuild | PtxBuild | LauncherBuild | ModuleBuild
_REQUESTS: TypeAdapter[BuildRequest] = TypeAdapter(Annotated[BuildRequest, Field(discriminator="kind")])
_REPLIES: dict[str, type[_Reply]] = {
    "prepare": _Reply, "load": _Reply, "release": _Reply, "graph": _Graph, "run": _Run,
    "lockstep": _Lockstep, "device": _Device, "audit": _Audit, "float64": _Float64, "states": _States,
    "rounding": _Rounding,
}  # fmt: skip


def read(request: dict[str, Any], message: dict[str, Any]) -> Mark | BuildRequest | dict[str, Any]:
    """What a worker that was sent `request` says: a mark, a request for a build, or its reply, as it may be.

    Raises ValueError for anything else.
    """
    if "mark" in message:
        return Mark.model_validate(message)
    if "build" in message:
        return build_request(_BUILD.validate_python(message).build)
    kind = _REPLIES[request["op"]]
    if "error" in message:
        kind = _Failure
    elif request["op"] == "graph" and request["nodes"] is None:
        kind = _CapturedGraph
    elif "ended_early" in message and request["op"] == "lockstep":
        kind = _EndedEarly
    reply = kind.model_validate(message)
    if not _fits(request, reply):
        raise ValueError(f"a reply to {request['op']} that does not fit it")
    return reply.model_dump(exclude_unset=True)


def build_request(message: dict[str, Any]) -> BuildRequest:
    """The build that a worker asks for. Raises ValueError."""
    return _REQUESTS.validate_python(message)


def _fits(request: dict[str, Any], reply: _Reply) -> bool:
    """Whether a reply holds as many parts as were asked for."""
    match reply:
        case _Run():
            calls, is_kept = len(request["windows"]), reply.kept is not None
            is_one = reply.call is not None and reply.call < calls
            is_last = reply.call == calls - 1 or not is_kept
            return (
                len(reply.samples) == calls
                and is_kept == bool(request["keep"])
                and is_one == is_kept
                and is_last
            )
        case _Lockstep():
            groups = request["groups"]
            counts = [sum(map(len, group["turns"])) for group in groups]
            kept = sum(group["keep"] is not None for group in groups)
            return [len(group.samples) for group in reply.groups] == counts and len(reply.kept) == kept
        case _Device():
            return len(reply.samples) == len(request["windows"])
        case _Audit():
            asked = len(request["sets"])
            rows = zip(reply.kept, reply.copies, strict=False)
            fits = len(reply.kept) == len(reply.copies) == asked
            return fits and all(len(kept.outputs) == len(copies) for kept, copies in rows)
        case _States():
            return len(reply.states) == len(request["inputs"])
    return True
