"""Check a plan, which is untrusted data, before anything of it is compiled or run.

The schema (model.py) bounds each number by its type. Here is checked what numbers mean together: every view
lies inside of the memory that it is a view of; values are used after they are made; kernels are given what
their signature says; every address is in memory of an input, an allocation or a constant; something writes
every result.

What a kernel does with an address is not in the plan: the checks of compiled kernels and audits look at that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from passagent.errors import PassagentError
from passagent.kernels.build import TYPES
from passagent.plan import arguments, library, memory, model
from passagent.plan.arguments import PLACED, AddressArg, Argument, DescriptorArg, ValueArg, leaves, values_of
from passagent.plan.model import Alloc, Choice, Copy, Fill, Launch, OperatorCall, Plan, Step
from passagent.plan.values import ConstantValue, InputValue, MadeValue, Value, ViewValue

MOST_BYTES = 1 << 40
"""The most bytes of a value's memory, and of all that a plan allocates."""
MOST_THREADS = 1024
MOST_BLOCK = (1024, 1024, 64)
MOST_GRID = (2**31 - 1, 65535, 65535)
"""The most threads of a block, and threads and blocks in each dimension, that CUDA launches."""

_POINTERS = {
    "float32": ("float*", "fp32"), "float64": ("double*", "fp64"), "float16": ("float16*", "fp16"),
    "bfloat16": ("bfloat16*", "bf16"), "int64": ("int64_t*", "i64"), "int32": ("int32_t*", "i32"),
    "int16": ("int16_t*", "i16"), "int8": ("int8_t*", "i8"), "uint8": ("uint8_t*", "u8"),
    "bool": ("bool*", "u1"), "uint16": ("", "u16"), "uint32": ("", "u32"), "uint64": ("", "u64"),
    "float8_e4m3fn": ("", "fp8e4nv"), "float8_e5m2": ("", "fp8e5"), "float8_e4m3fnuz": ("", "fp8e4b8"),
    "float8_e5m2fnuz": ("", "fp8e5b16"),
}  # fmt: skip
"""For each dtype what a pointer to it is in C, and the word for it in Triton."""
_FLOATS = {"fp16", "bf16", "fp32", "f32", "fp64"}


MOST_STEPS = 1_000_000
"""The most steps of the check of a candidate's plans: looks at values, arguments and addresses."""


class PlanError(PassagentError):
    """A plan may not run: the message says what is wrong with it, in one line."""


class Steps:
    """Counts what the check of a candidate's plans looks at: some seconds' worth at most."""

    left = MOST_STEPS

    def take(self, count: int) -> None:
        """Raise PlanError if there are not so many left."""
        self.left -= count
        if self.left < 0:
            raise PlanError(f"takes more than {MOST_STEPS} steps to check; launch less with fewer addresses")


def check(plan: Plan, steps: Steps | None = None) -> None:
    """Raise PlanError for a plan that may not run. `steps`: of all plans of a candidate."""
    try:
        _check(plan, steps or Steps())
    except Exception as error:  # what nobody thought of is the plan's fault, too
        what = str(error) if isinstance(error, PlanError) else f"cannot be checked: {error!r:.200}"
        raise PlanError(what) from error


def _check(plan: Plan, steps: Steps) -> None:
    _check_values(plan, steps)
    state = _run(plan, plan.steps, _State(set(values_of(*plan.inputs)), steps))
    device_of(plan)
    for number in values_of(plan.result):
        base = memory.place(plan, number).base
        kind = plan.values[base].kind
        if kind == "constant":
            raise PlanError(f"returns value {number}, a constant; copy it into a tensor of the call")
        if kind == "made" and base not in state.made:
            raise PlanError(f"returns value {number}, which not every way through the plan makes")
        if kind == "made" and base not in state.written and memory.span(plan.values[number]):
            raise PlanError(f"returns value {number}, which no step writes")


def device_of(plan: Plan) -> str | None:
    """Where a plan works, `cpu` or `cuda`; None if it does nothing. Raises PlanError for two places."""
    devices = {value.device for value in plan.values if isinstance(value, MadeValue)}
    for step in model.flat(plan.steps):
        if isinstance(step, Launch):
            devices.add("cpu" if plan.kernels[step.kernel].kind == "cpp" else "cuda")
        elif not isinstance(step, Alloc | OperatorCall):
            devices.add(plan.values[step.value].device)
        if isinstance(step, Copy) and plan.values[memory.place(plan, step.source).base].kind != "constant":
            devices.add(plan.values[step.source].device)
    if len(devices) > 1:
        raise PlanError("a plan works on the CPU or on a GPU, not on both")
    return next(iter(devices), None)


@dataclass(frozen=True)
class _State:
    """The values with memory of their own that were made, and written by a step; the rest of the check."""

    made: set[int]
    steps: Steps
    written: set[int] = field(default_factory=set)

    def copy(self) -> _State:
        self.steps.take(1 + (len(self.made) + len(self.written)) // 16)
        return _State(set(self.made), self.steps, set(self.written))


def _check_values(plan: Plan, steps: Steps) -> None:
    passed, total = set(values_of(*plan.inputs)), 0
    for number, value in enumerate(plan.values):
        size = memory.span(value)
        if size > MOST_BYTES or any(n > MOST_BYTES for n in (*value.shape, *value.stride)):
            raise PlanError(f"value {number} takes {size} bytes of memory; at most 2**40")
        if isinstance(value, InputValue):
            if number not in passed:
                raise PlanError(f"value {number} is an input that no call gives")
        elif isinstance(value, MadeValue):
            total += size
        elif isinstance(value, ViewValue):
            _check_view(plan, number, value)
        else:
            steps.take(len(value.addresses) + len(plan.constants[value.data]) // 1024)
            _check_constant(plan, number, value)
    if total > MOST_BYTES:
        raise PlanError(f"the plan allocates {total} bytes; at most 2**40")


def _check_view(plan: Plan, number: int, value: ViewValue) -> None:
    base, offset = memory.place(plan, number)
    whole, end = memory.span(plan.values[base]), offset + memory.span(value)
    if offset < 0 or max(offset, end) > whole:
        what = f"bytes {offset} to {end} of value {base}, which has {whole}"
        raise PlanError(f"value {number} is a view of {what}")
    if value.device != plan.values[base].device:
        raise PlanError(f"value {number} is on {value.device}, its memory on {plan.values[base].device}")


def _check_constant(plan: Plan, number: int, value: ConstantValue) -> None:
    size = len(plan.constant(value.data))
    if not memory.is_dense(value) or memory.span(value) != size:
        raise PlanError(f"value {number} is no contiguous tensor of the {size} bytes that its constant has")
    for address in value.addresses:
        if value.dtype not in ("int64", "uint64") or 8 * (address.word + 1) > size:
            raise PlanError(f"value {number} holds an address where it has no word of 64 bits")
        if isinstance(plan.values[memory.place(plan, address.value).base], ConstantValue):
            raise PlanError(f"value {number} holds the address of a constant")
        _check_address(plan, address.value, address.offset)


def _check_address(plan: Plan, number: int, offset: int) -> None:
    size = memory.span(plan.values[number])
    if not 0 <= offset <= size:
        raise PlanError(f"an address lies {offset} bytes from the start of value {number}, which has {size}")


def _run(plan: Plan, steps: Iterable[Step], state: _State) -> _State:
    """The state after the steps; a choice makes and writes what all its alternatives do."""
    for step in steps:
        if isinstance(step, Choice):
            ends = [_run(plan, alternative.steps, state.copy()) for alternative in step.of]
            values, written = (
                set.intersection(*sets) for sets in zip(*((e.made, e.written) for e in ends), strict=True)
            )
            state = _State(values, state.steps, written)
        elif isinstance(step, Alloc):
            if not isinstance(plan.values[step.value], MadeValue) or step.value in state.made:
                raise PlanError(f"allocates value {step.value}, which is made already or no value to be made")
            state.made.add(step.value)
        elif isinstance(step, Launch):
            _check_launch(plan, step, state)
        elif isinstance(step, OperatorCall):
            _check_call(plan, step, state)
        else:
            _check_write(plan, step, state)
    return state


def _check_made(plan: Plan, number: int, state: _State) -> int:
    """The value whose memory a value has. Raises PlanError if it is not made yet."""
    base = memory.place(plan, number).base
    value = plan.values[base]
    state.steps.take(1)
    if isinstance(value, ConstantValue):
        state.steps.take(3 * len(value.addresses))  # each is looked at, and is then what a kernel reaches
        for address in value.addresses:
            _check_made(plan, address.value, state)
    elif base not in state.made:
        raise PlanError(f"uses value {number} before it is made")
    return base


def _check_call(plan: Plan, step: OperatorCall, state: _State) -> None:
    """Check an operator and its arguments. What it returns is compared with its values when it runs."""
    given = step.arguments
    for number in values_of(*given, *step.keywords.values()):
        _check_made(plan, number, state)
    operator = library.operator_of(step.operator)
    if operator is None:
        raise PlanError(f"calls {step.operator}, which this torch does not have")

    def number_at(position: int, name: str) -> float | None:
        argument = given[position] if position < len(given) else step.keywords.get(name)
        return float.fromhex(argument.value) if isinstance(argument, arguments.FloatArg) else None

    if reason := library.refusal(operator, number_at):
        raise PlanError(f"calls {step.operator}: {reason}")
    for number in (value for value in step.values if value is not None):
        if not isinstance(plan.values[number], MadeValue) or number in state.made:
            raise PlanError(f"computes value {number}, which is made already or no value to be made")
        state.made.add(number)
        state.written.add(number)


def _check_write(plan: Plan, step: Fill | Copy, state: _State) -> None:
    target, base = plan.values[step.value], _check_made(plan, step.value, state)
    if isinstance(plan.values[base], ConstantValue):
        raise PlanError(f"writes value {step.value}, a constant")
    if memory.overlaps_itself(target):
        raise PlanError(f"writes value {step.value}, of which elements share memory")
    if isinstance(step, Copy):
        source = plan.values[step.source]
        _check_made(plan, step.source, state)
        if (source.shape, source.dtype) != (target.shape, target.dtype):
            raise PlanError(f"copies value {step.source} into value {step.value} of another shape or dtype")
    else:
        filled(step, target)
    state.written.add(base)


def filled(step: Fill, target: Value) -> torch.Tensor:
    """One element of what a step fills its target with, a tensor of no dimensions. Raises PlanError."""
    value = arguments.python_number(step.number)
    try:
        return torch.full((), value, dtype=memory.dtype_of(target))
    except (RuntimeError, OverflowError, TypeError, ValueError, NotImplementedError):
        raise PlanError(f"fills value {step.value} with {value}, which is no {target.dtype}") from None


def _check_launch(plan: Plan, step: Launch, state: _State) -> None:
    kernel = plan.kernels[step.kernel]
    _check_grid(kernel, step)
    if len(step.args) != len(kernel.signature):
        counts = f"{len(step.args)} arguments; it has {len(kernel.signature)} parameters"
        raise PlanError(f"launches {kernel.entry} with {counts}")
    bases = set()
    for position, (argument, parameter) in enumerate(zip(step.args, kernel.signature, strict=True)):
        where = f"argument {parameter.name or position} of {kernel.entry}"
        check = _check_native if isinstance(kernel, model.NativeKernel) else _check_triton
        check(plan, argument, parameter, where)
        for leaf in leaves(argument):
            if isinstance(leaf, PLACED):
                bases |= _reached(plan, leaf, state, where)
    device = "cpu" if kernel.kind == "cpp" else "cuda"
    elsewhere = [base for base in bases if plan.values[base].device != device]
    if elsewhere:
        raise PlanError(f"launches {kernel.entry} with value {elsewhere[0]}, which is not on {device}")
    if 0 not in step.grid:
        state.written.update(base for base in bases if plan.values[base].kind != "constant")


def _check_grid(kernel: model.Kernel, step: Launch) -> None:
    if kernel.kind == "cuda":
        threads = math.prod(step.block or (0,))
        limits = zip(step.block or (), MOST_BLOCK, strict=False)
        if not 1 <= threads <= MOST_THREADS or any(size > most for size, most in limits):
            raise PlanError(f"launches {kernel.entry} with blocks of {step.block}; give up to 1024 threads")
    elif step.block is not None or step.shared:
        raise PlanError(f"launches {kernel.entry} with a block or shared memory; only CUDA C++ has them")
    if kernel.kind == "cpp" and step.grid != (1, 1, 1):
        raise PlanError(f"launches {kernel.entry} with a grid; C++ has none")
    clusters = kernel.options.num_ctas or 1 if isinstance(kernel, model.TritonKernel) else 1
    blocks = (step.grid[0] * clusters, *step.grid[1:])
    if any(size > most for size, most in zip(blocks, MOST_GRID, strict=True)):
        raise PlanError(f"launches {kernel.entry} with the grid {step.grid}; CUDA takes up to {MOST_GRID}")


def _reached(plan: Plan, leaf: ValueArg | AddressArg | DescriptorArg, state: _State, where: str) -> set[int]:
    """Values whose memory an argument leads to."""
    base = _check_made(plan, leaf.value, state)
    if isinstance(leaf, AddressArg):
        _check_address(plan, leaf.value, leaf.offset)
    elif isinstance(leaf, DescriptorArg):
        _check_descriptor(plan, leaf, where)
    value = plan.values[base]
    pointed = value.addresses if isinstance(value, ConstantValue) else ()
    return {base, *(memory.place(plan, address.value).base for address in pointed)}


def _check_descriptor(plan: Plan, described: DescriptorArg, where: str) -> None:
    """Check that a descriptor reaches nothing beside its value, and is one that TMA takes."""
    value, (base, offset) = plan.values[described.value], memory.place(plan, described.value)
    if not 1 <= len(described.shape) == len(described.stride) == len(described.block) <= 5:
        raise PlanError(f"{where}: a descriptor has one to five dimensions, each with stride and block")
    view = ViewValue(
        shape=described.shape, stride=described.stride, dtype=value.dtype, device=value.device, of=0, offset=0
    )
    if 0 in view.shape or memory.span(view) > memory.span(value):
        raise PlanError(f"{where}: the descriptor goes beyond value {described.value}; describe all of it")
    start = plan.values[base]
    aligned = start.alignment if isinstance(start, InputValue) else 16
    steps = [step * memory.dtype_of(value).itemsize for step in view.stride[:-1]]
    if view.stride[-1] != 1 or any(step % 16 for step in (aligned, offset, *steps)):
        what = "a descriptor's last stride is 1, the others and its address multiples of 16 bytes"
        raise PlanError(f"{where}: {what}")
    if described.tf32 and value.dtype != "float32":
        raise PlanError(f"{where}: a descriptor rounds float32 to TF32, not {value.dtype}")


def _check_native(plan: Plan, argument: Argument, parameter: model.Parameter, where: str) -> None:
    """Arguments of C++ and CUDA C++."""
    expected: str | None = None
    if isinstance(argument, ValueArg):
        expected = _POINTERS.get(plan.values[argument.value].dtype, ("",))[0]
    elif isinstance(argument, AddressArg) or (
        isinstance(argument, arguments.IntArg) and argument.value < 1 << 63
    ):
        expected = "int64_t"
    elif isinstance(argument, (arguments.FloatArg, arguments.BoolArg)):
        expected = "double" if isinstance(argument, arguments.FloatArg) else "bool"
    if not expected or parameter.type != expected or parameter.type not in TYPES:
        raise PlanError(f"{where}: a {argument.kind} for a parameter of type {parameter.type!r}")


def _check_triton(plan: Plan, argument: Argument, parameter: model.Parameter, where: str) -> None:
    """Arguments of a Triton kernel; of a tuple each part."""
    kind, fits = parameter.type, False
    if isinstance(argument, arguments.TupleArg) and parameter.items:
        if len(argument.items) != len(parameter.items):
            raise PlanError(f"{where}: {len(argument.items)} parts for a tuple of {len(parameter.items)}")
        for item, part in zip(argument.items, parameter.items, strict=True):
            _check_triton(plan, item, part, where)
        return
    if kind == "constexpr":
        fits = not any(isinstance(leaf, PLACED) for leaf in leaves(argument))
    elif isinstance(argument, ValueArg):
        word = _POINTERS.get(plan.values[argument.value].dtype, ("", ""))[1]
        fits = kind in (f"*{word}", f"*k{word}") or (word == "u1" and kind == "*i1")
    elif isinstance(argument, DescriptorArg):
        word = _POINTERS.get(plan.values[argument.value].dtype, ("", ""))[1]
        fits = kind.replace(" ", "") == f"tensordesc<{word}[{','.join(map(str, argument.block))}]>"
    elif isinstance(argument, AddressArg):
        fits = kind in ("i64", "u64")
    elif isinstance(argument, (arguments.IntArg, arguments.BoolArg)):
        fits = _fits(int(argument.value), kind)
    elif isinstance(argument, arguments.FloatArg):
        fits = kind in _FLOATS
    if not fits:
        raise PlanError(f"{where}: a {argument.kind} for a parameter of type {kind!r}")


def _fits(number: int, kind: str) -> bool:
    """Tell whether a whole number is one of a type such as `i32` or `u1`."""
    bits = int(kind[1:]) if kind[:1] in ("i", "u") and kind[1:] in ("1", "8", "16", "32", "64") else 0
    lowest = -(1 << bits - 1) if kind[:1] == "i" and bits > 1 else 0
    return bits > 0 and lowest <= number < lowest + (1 << bits)
