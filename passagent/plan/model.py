"""The data model of a plan: what host code decided for one combination of inputs; nothing in it runs.

A plan comes from a process that is not trusted. Reading it is the first check: the schema bounds kinds, types
and sizes, refuses unknown fields, and every number must refer to something. Whether views lie inside their
base and outputs are written is checked later.

Records are immutable. Floats are texts (`float.hex`): JSON keeps every bit, NaN and infinities included.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator
from typing_extensions import TypeAliasType

from passagent.plan.arguments import (
    MOST_CONSTANT,
    PLACED,
    Argument,
    Base64,
    BoolArg,
    ComplexArg,
    Constant,
    Device,
    Digest,
    FileName,
    FloatArg,
    FunctionArg,
    IntArg,
    Name,
    Number,
    ParameterArg,
    Record,
    Text,
    TritonDtypeArg,
    ValueArg,
    Word,
    leaves,
)
from passagent.plan.values import ConstantValue, Value, ViewValue

# Steps: what happens at a call, in order.


class Alloc(Record):
    """Make a value. Its memory holds anything."""

    step: Literal["alloc"] = "alloc"
    value: Number


class Fill(Record):
    """Set every element of a value to a number, converted to its dtype."""

    step: Literal["fill"] = "fill"
    value: Number
    number: Annotated[IntArg | FloatArg | BoolArg | ComplexArg, Field(discriminator="kind")]


class Copy(Record):
    """Set every element of a value to that of `source`; both have one shape and dtype."""

    step: Literal["copy"] = "copy"
    value: Number
    source: Number


class OperatorCall(Record):
    """Have torch compute an operator (library.py), whose results become `values`; None: that is no tensor."""

    step: Literal["call"] = "call"
    operator: Annotated[str, StringConstraints(pattern=r"^aten::[a-z0-9_]+\.[A-Za-z0-9_]+$", max_length=200)]
    arguments: Annotated[tuple[Argument, ...], Field(max_length=64)]
    keywords: Annotated[dict[Name, Argument], Field(max_length=64)] = Field(default_factory=dict)
    values: Annotated[tuple[Number | None, ...], Field(min_length=1, max_length=64)]


GridSize = Annotated[int, Field(ge=0, lt=1 << 31)]
BlockSize = Annotated[int, Field(ge=1, le=1024)]


class Launch(Record):
    """Run a kernel of the plan. `args` in the order of its signature.

    A grid with a 0 launches nothing. `block` and `shared` (bytes) are given for CUDA C++ only. The grid of
    C++ is (1, 1, 1).
    """

    step: Literal["launch"] = "launch"
    kernel: Digest
    grid: tuple[GridSize, GridSize, GridSize] = (1, 1, 1)
    block: tuple[BlockSize, BlockSize, BlockSize] | None = None
    shared: Annotated[int, Field(ge=0, le=1 << 20)] = 0
    args: Annotated[tuple[Argument, ...], Field(max_length=1000)]


class Alternative(Record):
    """One configuration of a kernel that is tuned, as `BLOCK: 128, num_warps: 4`, and its steps."""

    name: Word
    steps: Annotated[tuple[Step, ...], Field(max_length=1000)]


class Choice(Record):
    """Run the steps of one alternative: the fastest, by the clock of whoever replays the plan."""

    step: Literal["choice"] = "choice"
    of: Annotated[tuple[Alternative, ...], Field(min_length=1, max_length=1000)]


Simple = Alloc | Fill | Copy | OperatorCall | Launch
Step = TypeAliasType("Step", Annotated[Simple | Choice, Field(discriminator="step")])
for _record in (Alternative, Choice):
    _record.model_rebuild()


# Kernels.


class Parameter(Record):
    """A parameter of a kernel.

    `type`: of C (`float*`, `int64_t`), or of Triton (`*fp32`, `i32`, `constexpr`, `tensordesc<...>`), where
    `tuple` has its parts in `items`. Parameters of C have no name.
    """

    name: Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$", max_length=200)] = ""
    type: Word
    items: Annotated[tuple[Parameter, ...], Field(max_length=1000)] = ()


class Options(Record):
    """How Triton compiles a kernel; None: as Triton does without being asked."""

    num_warps: Literal[1, 2, 4, 8, 16, 32] | None = None
    num_stages: Annotated[int, Field(ge=0, le=64)] | None = None
    num_ctas: Annotated[int, Field(ge=1, le=16)] | None = None
    maxnreg: Annotated[int, Field(ge=1, le=512)] | None = None
    enable_fp_fusion: bool | None = None


class NativeKernel(Record):
    """The function `entry` of a C++ or CUDA C++ source. In CUDA it may be a template's: `rows<256>`."""

    kind: Literal["cpp", "cuda"]
    text: Text
    entry: Word
    signature: Annotated[tuple[Parameter, ...], Field(max_length=1000)]


class TritonKernel(Record):
    """A Triton kernel, compiled for certain arguments as far as Triton's own IR.

    `text` holds the kernel and the jitted functions that it calls. It is for people and is not run. What was
    compiled in of the arguments (constexpr, an int that is 1, divisibility) is in the IR.
    """

    kind: Literal["triton"] = "triton"
    text: Text
    entry: Name
    signature: Annotated[tuple[Parameter, ...], Field(max_length=1000)]
    ttir: Annotated[str, Field(max_length=4 << 20)]
    options: Options = Options()
    target: Annotated[str, StringConstraints(pattern=r"^cuda:[0-9]{2,3}$")]
    """Compute capability that the IR was made for: `cuda:90`."""


Kernel = Annotated[NativeKernel | TritonKernel, Field(discriminator="kind")]


# Plans, passes and what comes out of recording.


class Plan(Record):
    """The work of one call of a replacement for inputs of these shapes, strides, dtypes and constants."""

    version: Literal[1] = 1
    inputs: Annotated[tuple[Argument, ...], Field(max_length=1000)]
    """Arguments of the call: values, constants, tuples of those. One value twice: the same tensor twice."""
    values: Annotated[tuple[Value, ...], Field(max_length=1 << 16)]
    steps: Annotated[tuple[Step, ...], Field(max_length=1 << 16)]
    result: Argument
    kernels: Annotated[dict[Digest, Kernel], Field(max_length=1000)] = Field(default_factory=dict)
    """Each by its own digest."""
    constants: Annotated[dict[Digest, Base64], Field(max_length=1000)] = Field(default_factory=dict)
    """Bytes in base64, each by the SHA-256 of the bytes."""
    facts: Annotated[dict[Word, Word], Field(max_length=1000)] = Field(default_factory=dict)
    """The host code's questions about the device and the versions, with the answers."""

    def constant(self, data: str) -> bytes:
        """The bytes of a constant."""
        return base64.b64decode(self.constants[data], validate=True)

    @model_validator(mode="after")
    def _refers(self) -> Self:
        _check_places(self)
        for key, text in self.constants.items():
            raw = base64.b64decode(text, validate=True)  # binascii.Error is a ValueError
            if len(raw) > MOST_CONSTANT or hashlib.sha256(raw).hexdigest() != key:
                raise ValueError("a constant does not have the bytes that its digest says")
        for key, kernel in self.kernels.items():
            if kernel.digest() != key:
                raise ValueError(f"kernel {kernel.entry} does not have the digest that it is listed by")
        return self


def flat(steps: Iterable[Step]) -> Iterator[Simple]:
    """The steps, those of every alternative included."""
    for step in steps:
        if isinstance(step, Choice):
            for alternative in step.of:
                yield from flat(alternative.steps)
        else:
            yield step


_INPUTS = (ValueArg, *Constant.__args__)
_LAUNCHED = (*_INPUTS, *PLACED, TritonDtypeArg, FunctionArg)


def _check_places(plan: Plan) -> None:
    """Raise ValueError for a number that refers to nothing, or an argument in a place where it cannot be."""
    count = len(plan.values)

    def see(argument: Argument, allowed: tuple[type, ...], where: str) -> None:
        for leaf in leaves(argument):
            if not isinstance(leaf, allowed):
                raise ValueError(f"a {leaf.kind} among the {where}")
            if isinstance(leaf, PLACED) and leaf.value >= count:
                raise ValueError(f"value {leaf.value} of {count} among the {where}")

    for argument in plan.inputs:
        see(argument, _INPUTS, "inputs")
        for leaf in leaves(argument):
            if isinstance(leaf, ValueArg) and plan.values[leaf.value].kind != "input":
                raise ValueError(f"value {leaf.value} is given, but is no input")
    see(plan.result, _INPUTS, "results")
    for position, value in enumerate(plan.values):
        if isinstance(value, ViewValue) and (value.of >= count or plan.values[value.of].kind == "view"):
            raise ValueError(
                f"value {position} is a view of {value.of}, which is no value with memory of its own"
            )
        if isinstance(value, ConstantValue):
            if value.data not in plan.constants:
                raise ValueError(f"value {position} is a constant without bytes")
            if any(address.value >= count for address in value.addresses):
                raise ValueError(f"value {position} holds the address of no value")
    for step in flat(plan.steps):
        if isinstance(step, Launch):
            if step.kernel not in plan.kernels:
                raise ValueError(f"a launch of the kernel {step.kernel}, which the plan does not hold")
            for argument in step.args:
                see(argument, _LAUNCHED, "arguments of a kernel")
        elif isinstance(step, OperatorCall):
            results = [ValueArg(value=number) for number in step.values if number is not None]
            for argument in (*step.arguments, *step.keywords.values(), *results):
                see(argument, _INPUTS, "arguments of an operator")
        elif max(step.value, getattr(step, "source", 0)) >= count:
            raise ValueError(f"a step for value {step.value} of {count}")


_JsonInt = Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]
_JsonText = Annotated[str, Field(max_length=1000)]
Json = TypeAliasType(
    "Json", "bool | _JsonInt | float | _JsonText | list[Json] | dict[_JsonText, Json] | None"
)


class PatternNode(Record):
    """A node of a pattern's graph, as tasks/graphio.py writes it."""

    op: Literal["placeholder", "call_function", "call_method", "output"]
    name: Name
    target: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:]+$", max_length=300)]
    args: Json
    kwargs: Json = None


class Pass(Record):
    """A pass and its plans."""

    name: FileName
    file: FileName
    pattern: Annotated[tuple[PatternNode, ...], Field(max_length=10_000)]
    plans: Annotated[tuple[Plan, ...], Field(max_length=10_000)]
    """Each once."""


class Call(Record):
    """One match of a pass in a subgraph, replaced by a call."""

    number: Number
    """Position of the pass in `Recording.passes`."""
    plan: Number
    """Position of the plan in the pass's `plans`."""
    nodes: Annotated[tuple[Name, ...], Field(max_length=10_000)]
    """The nodes of the graph that the match covers, one for each operator of the pattern, in its order.

    What the parameters are bound to and which nodes are outputs follows from them. The graph is the captured
    one after the calls before this one; what replaced them are its nodes `call`, `call_output`, `call_1` ...
    """
    arguments: Annotated[tuple[Argument, ...], Field(max_length=1000)]
    """The result of `replacement_args` on the match: parameters of the pattern and constants."""


class SubgraphCalls(Record):
    """The calls of one subgraph, in the order in which they take their nodes' places."""

    name: FileName
    calls: Annotated[tuple[Call, ...], Field(max_length=10_000)]


class Recording(Record):
    """The result of recording a candidate on a task."""

    version: Literal[1] = 1
    device: Device
    passes: Annotated[tuple[Pass, ...], Field(max_length=1000)]
    subgraphs: Annotated[tuple[SubgraphCalls, ...], Field(max_length=10_000)]

    def calls_of(self, subgraph: str) -> tuple[Call, ...]:
        """The calls of the subgraph of that name."""
        return next((graph.calls for graph in self.subgraphs if graph.name == subgraph), ())

    @model_validator(mode="after")
    def _refers(self) -> Self:
        for call in (call for subgraph in self.subgraphs for call in subgraph.calls):
            if call.number >= len(self.passes) or call.plan >= len(self.passes[call.number].plans):
                raise ValueError("a call of a pass or plan that the recording does not hold")
            for leaf in (leaf for argument in call.arguments for leaf in leaves(argument)):
                if not isinstance(leaf, (ParameterArg, *Constant.__args__)):
                    raise ValueError(f"a {leaf.kind} among the arguments of a call")
        return self
