"""A plan as people read it."""

from __future__ import annotations

import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from passagent.kernels.layout import strides
from passagent.plan import memory
from passagent.plan.arguments import (
    PLACED,
    AddressArg,
    Argument,
    BoolArg,
    ComplexArg,
    DescriptorArg,
    FloatArg,
    FunctionArg,
    IntArg,
    ParameterArg,
    SliceArg,
    StrArg,
    TorchArg,
    TritonDtypeArg,
    TupleArg,
    ValueArg,
    leaves,
    python_number,
    values_of,
)
from passagent.plan.library import readable
from passagent.plan.messages import as_line
from passagent.plan.model import (
    Alloc,
    Choice,
    Copy,
    Fill,
    Launch,
    OperatorCall,
    Plan,
    Recording,
    Step,
    TritonKernel,
)
from passagent.plan.values import Value

_WIDTH = 80
_INDENT = "  "


@dataclass(frozen=True)
class Folded:
    """A plan, and the subgraphs whose calls it is, each as often as it is called there."""

    file: str
    plan: Plan
    subgraphs: tuple[str, ...]


def folded(recording: Recording) -> list[Folded]:
    """Each distinct plan once, in the order of the passes."""
    names = defaultdict[tuple[int, int], list[str]](list)
    for subgraph in recording.subgraphs:
        for call in subgraph.calls:
            names[call.number, call.plan].append(subgraph.name)
    return [
        Folded(recorded.file, plan, tuple(names[number, position]))
        for number, recorded in enumerate(recording.passes)
        for position, plan in enumerate(recorded.plans)
    ]


def recording_text(recording: Recording, ir: bool = False) -> str:
    """All plans, at most 80 columns wide; with `ir` also the Triton IR of each kernel, as it is."""
    return "\n\n".join(_folded_text(entry, ir) for entry in folded(recording))


def brief(plan: Plan) -> str:
    """A few lines: allocations, launches with grids and argument sizes, bytes moved."""
    return "\n".join(_steps_text(plan))


@dataclass(frozen=True)
class Moved:
    """Bytes that kernels, copies and fills move at most: each tensor that they are given, once."""

    read: int
    written: int


def moved(plan: Plan) -> Moved:
    """Count moved bytes: a launch reads values that hold something by then, and writes the others (or all).

    Of a choice the alternative that moves most.
    """
    return _moved(plan, plan.steps, {n for n, v in enumerate(plan.values) if v.kind in ("input", "constant")})


def _folded_text(entry: Folded, ir: bool) -> str:
    names = ", ".join(dict.fromkeys(entry.subgraphs))
    lines = [f"plan {entry.plan.digest()[:12]}  {entry.file}"]
    lines += _wrapped(f"subgraphs {names}", 1)
    lines += [f"{_INDENT}inputs"]
    lines += _inputs_text(entry.plan)
    lines += [f"{_INDENT}steps"]
    lines += textwrap.indent("\n".join(_steps_text(entry.plan)), _INDENT * 2).split("\n")
    lines += _wrapped(f"result {_argument(entry.plan.result)}", 1)
    facts = [f"{name} {value}" for name, value in entry.plan.facts.items()]
    lines += _wrapped(f"holds for {', '.join(facts)}", 1) if facts else []
    for kernel in entry.plan.kernels.values() if ir else ():
        if isinstance(kernel, TritonKernel):
            lines += [f"{_INDENT}ttir of {kernel.entry} for {kernel.target}"]
            lines += map(as_line, kernel.ttir.rstrip().split("\n"))  # without what a terminal would obey
    return "\n".join(lines)


def _inputs_text(plan: Plan) -> list[str]:
    lines = []
    for argument in plan.inputs:
        for leaf in leaves(argument):
            if isinstance(leaf, ValueArg):
                lines += _wrapped(f"v{leaf.value}  {_value(plan.values[leaf.value])}", 2)
            else:
                lines += _wrapped(f"constant {_argument(leaf)}", 2)
    return lines


def _steps_text(plan: Plan) -> list[str]:
    text = _Text(plan)
    text.steps(plan.steps, 0)
    for number in values_of(plan.result):
        text.introduce(number, 0)
    total = moved(plan)
    text.lines.append(
        f"moves at most {size(total.read + total.written)}: reads {size(total.read)}, "
        f"writes {size(total.written)}"
    )
    return text.lines


@dataclass
class _Text:
    plan: Plan
    lines: list[str] = field(default_factory=list)
    _known: set[int] = field(default_factory=set)

    def steps(self, steps: Iterable[Step], depth: int) -> None:
        for step in steps:
            for number in _touched(step):
                self.introduce(number, depth)
            match step:
                case Alloc():
                    value = self.plan.values[step.value]
                    self.say(f"v{step.value} = allocate {_value(value)}, {size(_bytes(value))}", depth)
                case Fill():
                    self.say(f"fill v{step.value} with {_argument(step.number)}", depth)
                case Copy():
                    self.say(f"copy v{step.source} to v{step.value}", depth)
                case OperatorCall():
                    self.call(step, depth)
                case Launch():
                    self.launch(step, depth)
                case Choice():
                    self.say(f"the fastest of {len(step.of)}:", depth)
                    for alternative in step.of:
                        self.say(alternative.name, depth + 1)
                        self.steps(alternative.steps, depth + 2)

    def call(self, step: OperatorCall, depth: int) -> None:
        arguments = [_argument(argument) for argument in step.arguments]
        arguments += [f"{name}={_argument(argument)}" for name, argument in step.keywords.items()]
        results = ", ".join("_" if number is None else f"v{number}" for number in step.values)
        self.say(f"{results} = {readable(step.operator)}({', '.join(arguments)})", depth)

    def launch(self, step: Launch, depth: int) -> None:
        kernel = self.plan.kernels[step.kernel]
        words = [f"launch {kernel.entry} ({kernel.kind})"]
        if kernel.kind != "cpp":
            words.append(f"grid {_sizes(step.grid)}")
        if step.block is not None:
            words.append(f"block {_sizes(step.block)}")
        words += [f"shared {size(step.shared)}"] if step.shared else []
        if isinstance(kernel, TritonKernel):
            words += [f"{k} {v}" for k, v in kernel.options.model_dump(exclude_none=True).items()]
        self.say(", ".join(words), depth)
        names = [parameter.name for parameter in kernel.signature]
        pairs = zip(names, step.args, strict=False)
        arguments = [f"{name}={_argument(arg)}" if name else _argument(arg) for name, arg in pairs]
        self.say(", ".join(arguments), depth + 1)

    def introduce(self, number: int, depth: int) -> None:
        """Say what a view or a constant is before it is used."""
        value = self.plan.values[number]
        if number in self._known or value.kind in ("input", "made"):
            return
        self._known.add(number)
        if value.kind == "view":
            at = f" from element {value.offset}" if value.offset else ""
            self.say(f"v{number} = view of v{value.of}{at}: {_value(value)}", depth)
        elif value.kind == "constant":
            addresses = "".join(f", address of v{a.value}" for a in value.addresses)
            self.say(f"v{number} = constant {_value(value)}, {size(_bytes(value))}{addresses}", depth)

    def say(self, text: str, depth: int) -> None:
        self.lines += _wrapped(text, depth, room=_WIDTH - 2 * len(_INDENT))


def _wrapped(text: str, depth: int, room: int = _WIDTH) -> list[str]:
    indent = _INDENT * depth
    return textwrap.wrap(
        text, room, initial_indent=indent, subsequent_indent=indent + _INDENT * 2, break_on_hyphens=False
    )


def _touched(step: Step) -> Iterator[int]:
    if isinstance(step, Launch | OperatorCall):
        yield from _given(step)
    elif not isinstance(step, Choice):
        yield step.value
        if isinstance(step, Copy):
            yield step.source


def _given(step: Launch | OperatorCall) -> Iterator[int]:
    given = step.args if isinstance(step, Launch) else (*step.arguments, *step.keywords.values())
    return values_of(*given, kinds=PLACED)


def _moved(plan: Plan, steps: Sequence[Step], held: set[int]) -> Moved:
    read = written = 0
    for step in steps:
        match step:
            case Fill():
                written += _bytes(plan.values[step.value])
                held.add(memory.place(plan, step.value).base)
            case Copy():
                read += _bytes(plan.values[step.source])
                written += _bytes(plan.values[step.value])
                held.add(memory.place(plan, step.value).base)
            case OperatorCall():
                made = [number for number in step.values if number is not None]
                read += sum(_bytes(plan.values[number]) for number in set(_given(step)))
                written += sum(_bytes(plan.values[number]) for number in made)
                held.update(made)
            case Launch():
                sizes = _reached(plan, step)
                full = {n: n_bytes for n, n_bytes in sizes.items() if memory.place(plan, n).base in held}
                new = {n: n_bytes for n, n_bytes in sizes.items() if n not in full}
                read += sum(full.values())
                written += sum((new or full).values())
                held |= {memory.place(plan, n).base for n in sizes}
            case Choice():
                each = [(_moved(plan, a.steps, now := set(held)), now) for a in step.of]
                most, after = max(each, key=lambda pair: pair[0].read + pair[0].written)
                read, written = read + most.read, written + most.written
                held |= after
    return Moved(read, written)


def _reached(plan: Plan, step: Launch) -> dict[int, int]:
    """Bytes of each tensor that a launch is given, or finds the address of in a table."""
    sizes: dict[int, int] = {}
    for number in _given(step):
        value = plan.values[number]
        sizes[number] = _bytes(value)
        if value.kind == "constant":
            sizes |= {a.value: _bytes(plan.values[a.value]) for a in value.addresses}
    return sizes


def _bytes(value: Value) -> int:
    """The bytes of its elements, each once."""
    sizes = [n if step else min(n, 1) for n, step in zip(value.shape, value.stride, strict=True)]
    return math.prod(sizes) * memory.dtype_of(value).itemsize


def size(count: int) -> str:
    """Bytes in the unit that fits: `512 B`, `1.5 KB` (1,024 B), `3.0 MB`."""
    power = min(max(count, 1).bit_length() - 1, 39) // 10
    return f"{count / (1 << 10 * power):.1f} {('KB', 'MB', 'GB')[power - 1]}" if power else f"{count} B"


def _value(value: Value) -> str:
    as_usual = memory.steps(value.shape, strides(value.shape)) == memory.steps(value.shape, value.stride)
    stride = "" if as_usual else f" stride {list(value.stride)}"
    where = " on the CPU" if value.device == "cpu" and value.kind == "constant" else ""
    aligned = ""
    if value.kind == "input" and value.alignment < 16:
        aligned = f" aligned to {value.alignment}"
    return f"{value.dtype} {list(value.shape)}{stride}{aligned}{where}"


def _sizes(sizes: tuple[int, int, int]) -> str:
    return re.sub(r"( x 1)+$", "", " x ".join(map(str, sizes)))


def _argument(argument: Argument) -> str:
    match argument:
        case ValueArg():
            return f"v{argument.value}"
        case IntArg() | FloatArg() | BoolArg() | ComplexArg():
            return repr(python_number(argument))
        case StrArg():
            return ascii(argument.value)
        case TorchArg() | TritonDtypeArg() | FunctionArg() | ParameterArg():
            return argument.name
        case SliceArg():
            return f"slice({', '.join(map(_argument, argument.items))})"
        case TupleArg():
            return f"({', '.join(map(_argument, argument.items))})"
        case AddressArg():
            return f"&v{argument.value}" + (f" + {argument.offset} B" if argument.offset else "")
        case DescriptorArg():
            return f"descriptor of v{argument.value} by blocks of {list(argument.block)}"
    return "None" if argument.kind == "none" else "..."
