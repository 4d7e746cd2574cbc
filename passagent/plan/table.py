"""Write a plan as the table of steps that replay.c runs, with everything in it that no call changes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from passagent.kernels import build_cuda, driver, launch
from passagent.plan import extension, kernel_arguments, memory
from passagent.plan.arguments import AddressArg, Argument, DescriptorArg, TupleArg, ValueArg, values_of
from passagent.plan.calling import Empty, Operator
from passagent.plan.check import PlanError, filled
from passagent.plan.compile import Built
from passagent.plan.constants import Constants
from passagent.plan.convert import explain, flattened, home, python_value
from passagent.plan.extension import Cell
from passagent.plan.model import Alloc, Choice, Copy, Fill, Launch, OperatorCall, Plan, Step, TritonKernel
from passagent.plan.values import ConstantValue, InputValue

_ALIGN = 256
_PATTERN = 8
_MOST_OBJECTS = 64

Run = Callable[..., Any]
"""In place of a compiled Triton kernel: a function, and the values whose tensors it is given."""


@dataclass(frozen=True)
class Mode:
    """The way in which a plan is replayed."""

    choices: Sequence[int] = ()
    """The alternative of each Choice that runs; the first where none is given."""
    fresh: bool = False
    """Scratch memory is allocated too, anew for each call."""
    empty: Empty | None = None
    """Allocates outputs; None: as torch does."""


class Table:
    """The table of a plan for replay.c, and all that it refers to."""

    def __init__(
        self, plan: Plan, built: Mapping[str, Built], constants: Constants, device: torch.device, mode: Mode
    ) -> None:
        self.plan, self.built, self.constants, self.device = plan, built, constants, device
        self.cpu = self.device.type == "cpu"
        self.cells: list[Cell] = []
        self.maps: list[extension.Map] = []
        self.objects: list[extension.Object] = []
        self.steps: list[extension.Step] = []
        self.keep: list[Any] = [constants]
        self.given = [*flattened(self.plan.inputs)]
        self.slots: dict[int, int] = {}
        """Where the tensors of a call are found: its inputs, its outputs, what operators return."""
        for position, argument in enumerate(self.given):
            if isinstance(argument, ValueArg):
                self.slots.setdefault(argument.value, position)
        self.steps_taken = list(taken(self.plan.steps, iter(mode.choices)))
        leaf_bases = [memory.place(self.plan, n).base for n in values_of(self.plan.result)]
        self.empty = mode.empty
        computed = (step.values for step in self.steps_taken if isinstance(step, OperatorCall))
        self.computed = [n for values in computed for n in values if n is not None]
        made = (n for n in dict.fromkeys(leaf_bases) if self.plan.values[n].kind == "made")
        self.outputs = [n for n in made if n not in self.computed]
        if mode.fresh:
            allocated = [step.value for step in self.steps_taken if isinstance(step, Alloc)]
            self.outputs += [n for n in allocated if n not in self.outputs]
        self.slots |= {base: len(self.given) + n for n, base in enumerate((*self.outputs, *self.computed))}
        self.layouts = {base: self._layout(base) for base in self.outputs}
        self.places, size = self._laid_out()
        self.arena = torch.empty(size + _ALIGN, dtype=torch.uint8, device=self.device)
        self.start = -(-self.arena.data_ptr() // _ALIGN) * _ALIGN
        self.keep.append(self.arena)
        for number in self._pointing():
            self._point(number)
        for step in self.steps_taken:
            self._add(step)

    def _layout(self, base: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides that an output is allocated with: of the view of all of it that is returned."""
        whole = self.plan.values[base]
        views = {n for n in values_of(self.plan.result) if memory.place(self.plan, n).base == base}
        view = self.plan.values[views.pop()] if len(views) == 1 else whole
        alike = (view.dtype, memory.span(view)) == (whole.dtype, memory.span(whole)) and memory.is_dense(view)
        chosen = view if alike else whole
        return chosen.shape, chosen.stride

    def _laid_out(self) -> tuple[dict[Any, int], int]:
        """The layout of the arena: values, constants with addresses, scratch memory of launches."""
        needed: dict[Any, int] = {
            number: memory.span(self.plan.values[number]) for number in self._pointing()
        }
        for step in self.steps_taken:
            if isinstance(step, Alloc) and step.value not in self.outputs:
                needed[step.value] = memory.span(self.plan.values[step.value])
            elif isinstance(step, Launch) and step.kernel in self.built:
                x, y, z = step.grid
                needed[id(step)] = self.built[step.kernel].scratch * x * y * z
        places, end = {}, 0
        for key, size in needed.items():
            places[key] = end
            end = -(-(end + size) // _ALIGN) * _ALIGN
        return places, end

    def _pointing(self) -> list[int]:
        return [n for n, value in enumerate(self.plan.values) if value.kind == "constant" and value.addresses]

    def _point(self, number: int) -> None:
        """Make this call's copy of a constant with addresses in it."""
        value = self.plan.values[number]
        assert isinstance(value, ConstantValue)
        here = self.where(number).value
        cells = [Cell(here), Cell(self.constants.tensors[number].data_ptr())]
        self._step(extension.COPY, "a table of addresses", cells, size=memory.span(value))
        for address in value.addresses:
            if not self._is_here(address.value):
                continue  # it is made by another alternative, which is the one that uses the table
            to = self.where(address.value)
            cells = [Cell(here + 8 * address.word), Cell(to.value + address.offset, to.slot)]
            self._step(extension.ADDRESS, "a table of addresses", cells)

    def _is_here(self, number: int) -> bool:
        base = memory.place(self.plan, number).base
        return base in self.slots or base in self.places

    def where(self, number: int) -> Cell:
        """Where a value lies."""
        base, offset = memory.place(self.plan, number)
        if base in self.slots:
            return Cell(offset, self.slots[base])
        if base in self.places:
            return Cell(self.start + self.places[base] + offset)
        return Cell(self.constants.tensors[base].data_ptr() + offset)

    def object(self, number: int) -> extension.Object:
        """The tensor of a value."""
        value, (base, offset) = self.plan.values[number], memory.place(self.plan, number)
        view = (memory.dtype_of(value), value.shape, value.stride, offset)
        slot = self.where(number).slot
        if slot != extension.NOWHERE:
            whole = self.plan.values[base]
            layout = self.layouts.get(base, (whole.shape, whole.stride))
            is_whole = (value.dtype, value.shape, value.stride, offset) == (whole.dtype, *layout, 0)
            return self._object(None, None if is_whole else view, slot)
        if base in self.places:
            begin = self.start - self.arena.data_ptr() + self.places[base]
            return self._object(memory.look(self.arena, (*view[:3], begin + offset)))
        return self._object(memory.look(self.constants.tensors[base], view))

    def _object(self, fixed: Any, view: Any = None, slot: int = extension.NOWHERE) -> extension.Object:
        self.keep += [fixed, view]
        return extension.Object(
            None if slot != extension.NOWHERE else id(fixed), None if view is None else id(view), slot
        )

    def _step(self, kind: int, name: str, cells: Sequence[Cell] = (), **fields: Any) -> None:
        """Add a step; `fields`: of extension.Step."""
        first = len(self.cells)
        self.cells += cells
        words = (ctypes.c_uint32 * extension.SIZES)(*fields.pop("sizes", ()))
        text = name.encode()
        self.keep.append(text)
        self.steps.append(extension.Step(kind, first, len(cells), words, name=text, **fields))

    def _call(self, name: str, function: Run, numbers: Sequence[int]) -> None:
        """A step that calls Python with the tensors of values."""
        if len(numbers) > _MOST_OBJECTS:
            raise PlanError(f"{name} is given more than {_MOST_OBJECTS} tensors")
        self.keep.append(function)
        self._step(extension.CALL, name, function=id(function))
        self.steps[-1].first, self.steps[-1].count = len(self.objects), len(numbers)
        self.objects += [self.object(number) for number in numbers]

    def _add(self, step: Step) -> None:
        if isinstance(step, Fill):
            self._fill(step)
        elif isinstance(step, Copy):
            self._copy(step)
        elif isinstance(step, OperatorCall):
            self._compute(step)
        elif isinstance(step, Launch):
            self._launch(step)

    def _compute(self, step: OperatorCall) -> None:
        """An operator of torch; what it returns is put into slots of its own."""
        operator = Operator(self.plan, step, self.empty)
        self._call(step.operator, operator, operator.tensors)
        results = [self.slots[number] for number in step.values if number is not None]
        self.steps[-1].size, self.steps[-1].pattern = len(results), min(results, default=0)

    def _fill(self, step: Fill) -> None:
        value, scalar = self.plan.values[step.value], filled(step, self.plan.values[step.value])
        raw = bytes(scalar.reshape(1).view(torch.uint8).tolist())
        if not memory.span(value):
            return
        cuda_fills = len(set(raw)) == 1 or (
            len(raw) <= 4 and memory.span(value) % 4 == 0 == self._beyond(step, 4)
        )
        if memory.is_dense(value) and _PATTERN % len(raw) == 0 and (self.cpu or cuda_fills):
            pattern = int.from_bytes(raw * (_PATTERN // len(raw)), "little")
            self._step(
                extension.FILL, "a fill", [self.where(step.value)], size=memory.span(value), pattern=pattern
            )
        else:
            self._call("a fill", _filling(scalar.item()), [step.value])

    def _beyond(self, step: Fill, unit: int) -> int:
        """Bytes from a multiple of `unit` to the target of a fill; not 0 if that is unknown."""
        base, offset = memory.place(self.plan, step.value)
        value = self.plan.values[base]
        return 1 if isinstance(value, InputValue) and value.alignment < unit else offset % unit

    def _copy(self, step: Copy) -> None:
        target, source = self.plan.values[step.value], self.plan.values[step.source]
        alike = memory.steps(target.shape, target.stride) == memory.steps(source.shape, source.stride)
        if not memory.span(target):
            return
        if alike and memory.is_dense(target):
            cells = [self.where(step.value), self.where(step.source)]
            self._step(extension.COPY, "a copy", cells, size=memory.span(target))
        else:
            self._call("a copy", torch.Tensor.copy_, [step.value, step.source])

    def _launch(self, step: Launch) -> None:
        kernel = self.plan.kernels[step.kernel]
        if 0 in step.grid:
            return
        if (kernel.kind == "cpp") != self.cpu:
            raise PlanError(f"{kernel.entry} cannot run on {self.device}")
        built = self.built[step.kernel]
        function, types = _loaded(built, kernel.entry, self.device)
        types = types or tuple(parameter.type for parameter in kernel.signature)
        passed = kernel_arguments.passed(step, kernel.signature, types)
        is_triton, decided = isinstance(kernel, TritonKernel), iter(built.maps)
        cells = [
            self._mapped(argument, next(decided))
            if isinstance(argument, DescriptorArg)
            else self._cell(kernel.entry, argument, ctype, is_triton)
            for argument, ctype in zip(passed, types, strict=True)
        ]
        shared = step.shared
        if is_triton:
            shared, types = built.shared, (*types, "void*", "void*")
            cells += [Cell(self.start + self.places[id(step)] if built.scratch else 0), Cell(0)]
        if not self.cpu:
            driver.allow_shared(kernel.entry, function, shared)
            driver.allow_clusters(kernel.entry, function, built.ctas)
            sizes = driver.parameter_sizes(function)
            if sizes not in (None, [ctypes.sizeof(launch.TYPES[ctype]) for ctype in types]):
                raise PlanError(f"{kernel.entry} takes parameters of {sizes} bytes, the plan gives {types}")
        block = step.block or (built.threads or 1, 1, 1)
        grid = (step.grid[0] * built.ctas, *step.grid[1:])
        numbers = (*grid, *block, shared, built.ctas)
        self._step(extension.LAUNCH, kernel.entry, cells, function=function, sizes=numbers)

    def _mapped(self, descriptor: DescriptorArg, decided: tuple[int, ...]) -> Cell:
        """A tensor map; `decided`: by Triton's compiler."""
        number = descriptor.value
        self.maps.append(kernel_arguments.tensor_map(descriptor, self.plan.values[number], decided))
        cell = self.where(number)
        cell.map = len(self.maps) - 1
        return cell

    def _cell(self, kernel: str, argument: Argument, ctype: str, wraps: bool) -> Cell:
        """The kernel's value for an argument, as its parameter's C type; `wraps`: unsigned as signed."""
        if isinstance(argument, ValueArg):
            return self.where(argument.value)
        if isinstance(argument, AddressArg):
            to = self.where(argument.value)
            return Cell(to.value + argument.offset, to.slot)
        number = python_value(argument)
        value = launch.TYPES[ctype](number)
        if not wraps and ctype not in ("float", "double", "bool") and value.value != number:
            raise PlanError(f"{kernel} is given {number}, which is no {ctype}")
        return Cell(int.from_bytes(bytes(value), "little"))

    def function(self) -> Run:
        """The C function that runs the table."""
        results = [*flattened((self.plan.result,))]
        for leaf in results:
            if isinstance(leaf, ValueArg):
                self.objects.append(self.object(leaf.value))
            else:
                self.objects.append(self._object(python_value(leaf)))
        parts = []
        for number in self.outputs:
            value = self.plan.values[number]
            parts += [*self.layouts[number], memory.dtype_of(value)]
        explanation, loaded = explain(self.plan, self.device), extension.library()
        if not self.cpu:
            extension.tell_cuda(loaded)
        empty = self.empty or extension.EMPTY[self.device.type]
        inputs = [self._input(loaded, position) for position in range(len(self.given))]
        tables = {
            "input": extension.array(extension.Input, inputs),
            "made": extension.array(ctypes.c_void_p, [id(part) for part in parts]),
            "cell": extension.array(Cell, self.cells),
            "object": extension.array(extension.Object, self.objects),
            "step": extension.array(extension.Step, self.steps),
            "map": extension.array(extension.Map, self.maps),
        }
        self.keep += [tables, parts, explanation, empty]
        keep = list(self.keep)
        program = extension.Program(
            name=b"replay", explain=id(explanation), look=id(memory.look), empty=id(empty), keep=id(keep),
            cpu=self.cpu,
            device=self.device.index or 0, many=isinstance(self.plan.result, TupleArg),
            inputs=len(self.given), slots=len(self.given), outputs=len(self.outputs),
            computed=len(self.computed), cells=len(self.cells), steps=len(self.steps),
            objects=len(self.objects), results=len(results), maps=len(self.maps),
        )  # fmt: skip
        for name, table in tables.items():
            setattr(program, name, ctypes.addressof(table))
        function: Callable[..., Any] = loaded.replay_new(ctypes.byref(program))
        return function

    def _input(self, loaded: ctypes.PyDLL, position: int) -> extension.Input:
        argument = self.given[position]
        if not isinstance(argument, ValueArg):
            constant = python_value(argument)
            self.keep.append(constant)
            return extension.Input(equal=id(constant))
        value = self.plan.values[argument.value]
        assert isinstance(value, InputValue)
        code, bits = ctypes.c_uint8(), ctypes.c_uint8()
        example = torch.empty(1, dtype=memory.dtype_of(value))
        if not loaded.dtype_of(example, ctypes.byref(code), ctypes.byref(bits)):
            raise PlanError(f"input {position} is of {value.dtype}, which DLPack does not know")
        shape, stride = (extension.array(ctypes.c_int64, sizes) for sizes in (value.shape, value.stride))
        self.keep += [shape, stride]
        first, on = self.slots[argument.value], home(value, self.device)
        return extension.Input(
            kind=2 if on.type == "cuda" else 1, device=on.index or 0, ndim=len(value.shape),
            same=first if first != position else -1,
            slot=position, code=code, bits=bits, alignment=value.alignment,
            shape=ctypes.addressof(shape), stride=ctypes.addressof(stride),
        )  # fmt: skip


def taken(steps: Sequence[Step], choices: Iterator[int]) -> Iterator[Step]:
    """The steps that run."""
    for step in steps:
        if isinstance(step, Choice):
            index = next(choices, 0)
            if not 0 <= index < len(step.of):
                raise PlanError(f"alternative {index} of a choice among {len(step.of)}")
            yield from taken(step.of[index].steps, choices)
        else:
            yield step


@functools.cache
def _loaded(built: Built, entry: str, device: torch.device) -> tuple[int, tuple[str, ...]]:
    """The address of a kernel's code and the C types of its parameters; it stays loaded."""
    if device.type == "cpu":
        function = ctypes.cast(ctypes.PyDLL(str(built.path)).passagent_entry, ctypes.c_void_p).value
        return function or 0, ()
    image, symbol, types = build_cuda.unpack(built.path.read_bytes())
    return driver.load(image, symbol), types


def _filling(number: Any) -> Run:
    return lambda tensor: tensor.fill_(number)
