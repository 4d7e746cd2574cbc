"""The state of a recording: the tensors of one call as values of a plan, and its steps.

This runs in the throw-away process, beside the candidate. Whoever reads the plan relies on nothing here.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from passagent.plan import refusal
from passagent.plan.arguments import (
    MOST_CONSTANT,
    AddressArg,
    Argument,
    BoolArg,
    ComplexArg,
    EllipsisArg,
    FloatArg,
    IntArg,
    NoneArg,
    SliceArg,
    StrArg,
    TorchArg,
    TupleArg,
    ValueArg,
)
from passagent.plan.facts import Facts
from passagent.plan.model import Alloc, Copy, Fill, Kernel, OperatorCall, Plan, Step
from passagent.plan.refusal import Refused
from passagent.plan.values import ConstantAddress, ConstantValue, InputValue, MadeValue, Value, ViewValue
from passagent.tasks.reader import LibraryRule

TOKENS, _ROOM = 1 << 60, 1 << 32
"""An address is TOKENS + _ROOM * (which tensor) + the offset in bytes."""
_TORCH_NAMES = {
    torch.dtype: "dtype",
    torch.device: "device",
    torch.memory_format: "memory_format",
    torch.layout: "layout",
}


@dataclass(eq=False)
class Slot:
    """A tensor of a session; it gets its number, and so its place in the plan, when a step first needs it."""

    session: Session
    tensor: torch.Tensor
    kind: Literal["input", "made", "view", "constant"]
    of: Slot | None = None
    """The slot whose memory a view shows."""
    data: bytes = b""
    """The bytes of a constant."""
    number: int | None = None

    @property
    def root(self) -> Slot:
        return self.of or self


@dataclass
class Recorder:
    """All sessions of one candidate."""

    root: Path
    device: str
    library: LibraryRule
    facts: Facts
    fake: FakeTensorMode
    refused: Refused | None = None
    """The first refusal: it holds whatever the candidate does with it."""
    broken: dict[str, None] = field(default_factory=dict)
    """The messages about kernels of the current subgraph that do not compile."""
    session: Session | None = None
    tokens: list[Slot] = field(default_factory=list)
    constants: dict[int, tuple[torch.Tensor, bytes]] = field(default_factory=dict)
    """Constants that were made while recording, and may be used in later calls, by storage: their bytes."""
    own_operators: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """Operators that the candidate registered, by qualified name."""
    fakes: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """Real tensors by their ids: the tensor, and its stand-in."""
    libraries: list[torch.library.Library] = field(default_factory=list)
    """They keep what this process registers with torch in force."""

    def refuse(self, message: str) -> NoReturn:
        """Refuse, at the line of the candidate's that runs."""
        file, line = refusal.running_place(self.root, sys._getframe(1))
        error = Refused(message, file, line)
        self.refused = self.refused or error
        raise error

    def current(self) -> Session:
        """The call that is being recorded; refuses where there is none."""
        return self.session or self.refuse(refusal.NO_CALL)

    def address(self, tensor: torch.Tensor) -> int:
        """The number that stands for the tensor's address; as divisible as the address will be, up to 16."""
        if self.session is None:
            self.refuse(refusal.NO_ADDRESS)
        slot = self.session.slot(tensor)
        if slot.root not in self.tokens:
            self.tokens.append(slot.root)
        return TOKENS + _ROOM * self.tokens.index(slot.root) + _skew(slot.root) + _distance(slot)


class Session:
    """One call of a replacement function."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.values: list[Value] = []
        self.steps: list[Step] = []
        self.kernels: dict[str, Kernel] = {}
        self.constants: dict[str, str] = {}
        self._slots: dict[int, Slot] = {}
        self._roots: dict[int, Slot] = {}
        """By storage."""

    def refuse(self, message: str) -> NoReturn:
        self.recorder.refuse(message)

    def argument(self, value: Any, use: Callable[[torch.Tensor], ValueArg]) -> Argument:
        """An argument of tensors, for which there is `use`, constants, and tuples of both."""
        if isinstance(value, torch.Tensor):
            return use(value)
        if isinstance(value, (tuple, list)):
            return TupleArg(items=tuple(self.argument(item, use) for item in value))
        return self.constant(value)

    def given(self, tensor: torch.Tensor) -> ValueArg:
        """A tensor as an argument of the call."""
        slot = self._slots.get(id(tensor)) or self.add(Slot(self, tensor, "input"))
        return ValueArg(value=self.number(slot))

    def add(self, slot: Slot, tensor: torch.Tensor | None = None) -> Slot:
        """Know the slot's tensor from now on, or another one that stands for it."""
        tensor = slot.tensor if tensor is None else tensor
        self._slots[id(tensor)] = slot
        self._roots.setdefault(_storage(tensor), slot.root)
        return slot

    def slot(self, tensor: torch.Tensor) -> Slot:
        """A tensor of this call; refuses any other."""
        existing = self._slots.get(id(tensor))
        if existing is not None:
            return existing
        if not isinstance(tensor, FakeTensor):
            return self.add(Slot(self, tensor, "constant", data=self._bytes(tensor)))
        storage = _storage(tensor)
        if storage not in self._roots:
            if storage not in self.recorder.constants:
                self.refuse(refusal.OLD_TENSOR)
            constant, data = self.recorder.constants[storage]
            slot = self.add(Slot(self, constant, "constant", data=data))
            if constant is tensor:
                return slot
        return self.add(Slot(self, tensor, "view", of=self._roots[storage]))

    def view(self, tensor: torch.Tensor, base: torch.Tensor | None) -> bool:
        """Know a new tensor if it shows memory of this call's, rather of `base`'s."""
        if id(tensor) in self._slots:
            return True
        if base is not None and _storage(base) == _storage(tensor):
            self.add(Slot(self, tensor, "view", of=self.slot(base).root))
            return True
        root = self._roots.get(_storage(tensor))
        if root is not None:
            self.add(Slot(self, tensor, "view", of=root))
        return root is not None

    def stand_in(self, value: Any) -> Any:
        """For a real tensor, which is a constant, the fake tensor that the rest of the call sees."""
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            return value
        slot = self.slot(value)
        if id(value) not in self.recorder.fakes:
            self.recorder.fakes[id(value)] = value, self.recorder.fake.from_tensor(value)
        fake = self.recorder.fakes[id(value)][1]
        self.add(slot, fake)
        return fake

    def keep_constant(self, tensor: torch.Tensor, source: Slot) -> None:
        """A new tensor holds the bytes of a constant: it is one, in this call and in later ones."""
        slot = source if tensor.device == source.tensor.device else Slot(self, tensor, "constant")
        slot.data = source.data
        self.add(slot, tensor)
        self.recorder.constants[_storage(tensor)] = tensor, source.data

    def allocate(self, tensor: torch.Tensor) -> int:
        """A new tensor as an `Alloc` step; its number."""
        number = self.number(self.add(Slot(self, tensor, "made")))
        self.steps.append(Alloc(value=number))
        return number

    def compute(self, operator: str, args: Sequence[Any], kwargs: dict[str, Any], results: Any) -> None:
        """An operator of torch as an `OperatorCall` step; what it returned are values of the call's."""
        arguments = tuple(self.argument(value, self.use) for value in args)
        keywords = {name: self.argument(v, self.use) for name, v in kwargs.items() if v is not None}
        values = tuple(
            self.number(self.add(Slot(self, r, "made"))) if isinstance(r, torch.Tensor) else None
            for r in (results if isinstance(results, (tuple, list)) else [results])
        )
        self.steps.append(
            OperatorCall(operator=operator, arguments=arguments, keywords=keywords, values=values)
        )

    def fill(self, number: int, with_: Any) -> None:
        """A `Fill` step."""
        argument = self.constant(with_)
        if not isinstance(argument, (IntArg, FloatArg, BoolArg, ComplexArg)):
            self.refuse(f"fills a tensor with a {type(with_).__name__}; fill it with a number")
        self.steps.append(Fill(value=number, number=argument))

    def copy(self, target: int, source: torch.Tensor) -> None:
        """A `Copy` step."""
        number = self.number(self.slot(source))
        here, there = self.values[number].device, self.values[target].device
        if here != there:
            self.refuse(refusal.BETWEEN_DEVICES.format(source=here, target=there))
        self.steps.append(Copy(value=target, source=number))

    def number(self, slot: Slot) -> int:
        """The position of a tensor among the plan's values."""
        if slot.number is None:
            value = self._value(slot)  # may number others first
            if isinstance(value, ViewValue):
                slot.number = self._same(value)
        if slot.number is None:
            slot.number = len(self.values)
            self.values.append(value)
        return slot.number

    def _same(self, view: ViewValue) -> int | None:
        """The position of a value that shows the same: the owner of the memory, or an equal view."""
        properties = {"shape", "stride", "dtype", "device"}
        owner = self.values[view.of]
        if view.offset == 0 and owner.model_dump(include=properties) == view.model_dump(include=properties):
            return view.of
        return self.values.index(view) if view in self.values else None

    def use(self, tensor: torch.Tensor) -> ValueArg:
        """A tensor of this call as an argument."""
        return ValueArg(value=self.number(self.slot(tensor)))

    def launched(self, value: Any) -> Argument:
        """An argument of a kernel: a tensor, an int that may stand for an address, another constant."""
        if isinstance(value, torch.Tensor):
            return self.use(value)
        if isinstance(value, int) and value >= TOKENS:
            return self.address(value)
        return self.constant(value)

    def address(self, number: int) -> AddressArg:
        """The address that a number from data_ptr() stands for."""
        which, offset = divmod(number - TOKENS + _ROOM // 2, _ROOM)
        tokens = self.recorder.tokens
        if which >= len(tokens) or tokens[which].session is not self:
            self.refuse(refusal.OLD_ADDRESS)
        slot = tokens[which]
        return AddressArg(value=self.number(slot), offset=offset - _ROOM // 2 - _skew(slot))

    def constant(self, value: Any) -> Argument:
        """A constant as an argument; refuses what is none."""
        if value is None:
            return NoneArg()
        if value is ...:
            return EllipsisArg()
        if isinstance(value, bool):
            return BoolArg(value=bool(value))
        if isinstance(value, int):
            if not -(1 << 63) <= value < 1 << 64:
                self.refuse("passes an int of more than 64 bits")
            return IntArg(value=int(value))
        if isinstance(value, float):
            return FloatArg(value=float(value).hex())
        if isinstance(value, complex):
            return ComplexArg(real=value.real.hex(), imag=value.imag.hex())
        if isinstance(value, str):
            return StrArg(value=str(value))
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return SliceArg(items=tuple(map(self.constant, parts)))  # type: ignore[arg-type]
        for kind, name in _TORCH_NAMES.items():
            if isinstance(value, kind):
                return TorchArg(type=name, name=str(value).removeprefix("torch."))  # type: ignore[arg-type]
        if isinstance(value, (tuple, list)):
            fields = getattr(value, "_fields", ())
            return TupleArg(items=tuple(map(self.constant, value)), fields=tuple(fields))
        self.refuse(
            f"a {type(value).__name__} is no argument of a plan; pass tensors, numbers, texts and tuples"
        )

    def returned(self, tensor: torch.Tensor) -> ValueArg:
        """A tensor as a result of the call."""
        if not isinstance(tensor, FakeTensor) or self.slot(tensor).root.kind == "constant":
            self.refuse("returns a constant tensor; write it into a tensor that the call allocates")
        return self.use(tensor)

    def plan(self, inputs: tuple[Argument, ...], result: Argument) -> Plan:
        """The plan of the call."""
        return Plan(
            inputs=inputs,
            values=tuple(self.values),
            steps=tuple(self.steps),
            result=result,
            kernels=self.kernels,
            constants=self.constants,
        )

    def _bytes(self, tensor: torch.Tensor) -> bytes:
        size = tensor.numel() * tensor.itemsize
        if size > MOST_CONSTANT:
            self.refuse(refusal.LARGE_CONSTANT.format(size=size))
        if not tensor.is_cpu or not tensor.is_contiguous() or tensor.layout != torch.strided:
            self.refuse(refusal.ODD_CONSTANT)
        return ctypes.string_at(torch._C.TensorBase.data_ptr(tensor), size) if size else b""

    def _value(self, slot: Slot) -> Value:
        tensor = slot.tensor
        meta: dict[str, Any] = {
            "shape": tuple(tensor.shape),
            "stride": tuple(tensor.stride()),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "device": tensor.device.type,
        }
        if slot.of is not None:
            bytes_ = _distance(slot)
            if bytes_ % tensor.itemsize:
                self.refuse("views a tensor as another dtype at an offset that is no whole element")
            return ViewValue(of=self.number(slot.of), offset=bytes_ // tensor.itemsize, **meta)
        if slot.kind == "input":
            return InputValue(alignment=_alignment(_skew(slot)), **meta)
        if slot.kind == "made":
            return MadeValue(**meta)
        data = bytearray(slot.data)
        addresses = self._addresses(data) if tensor.dtype in (torch.int64, torch.uint64) else ()
        digest = hashlib.sha256(data).hexdigest()
        self.constants[digest] = base64.b64encode(data).decode()
        return ConstantValue(data=digest, addresses=addresses, **meta)

    def _addresses(self, data: bytearray) -> tuple[ConstantAddress, ...]:
        """The words that stand for addresses, which become 0."""
        addresses, words = [], memoryview(data).cast("Q")
        for i, word in enumerate(words):
            if TOKENS <= word < TOKENS + (1 << 60):
                address = self.address(word)
                addresses.append(ConstantAddress(word=i, value=address.value, offset=address.offset))
                words[i] = 0
        return tuple(addresses)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _distance(slot: Slot) -> int:
    """Bytes from the first element of the memory's owner to that of the tensor."""
    return _start(slot.tensor) - _start(slot.root.tensor)


def _skew(root: Slot) -> int:
    """Bytes by which the address of an input's first element is no multiple of 16."""
    return _start(root.tensor) % 16 if root.kind == "input" else 0


def _start(tensor: torch.Tensor) -> int:
    """Bytes from the beginning of its storage to its first element."""
    return int(tensor.storage_offset()) * tensor.itemsize


def _alignment(skew: int) -> Literal[1, 2, 4, 8, 16]:
    return next(n for n in (16, 8, 4, 2, 1) if skew % n == 0)  # type: ignore[return-value]
