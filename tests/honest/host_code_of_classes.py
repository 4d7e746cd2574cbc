# expect: ok
"""Classes as people write host code: abstract, generic, derived, with operators, caches, contexts and errors."""

import contextlib
import dataclasses
import enum
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cached_property, lru_cache
from operator import attrgetter
from threading import Lock
from typing import ClassVar, Generic, NamedTuple, TypeVar

import torch
import triton
import triton.language as tl

T = TypeVar("T")


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(
        out_ptr + offsets,
        tl.maximum(x + y, 0.0, propagate_nan=tl.PropagateNan.ALL).to(out_ptr.dtype.element_ty),
        mask=mask,
    )


class Backend(str, enum.Enum):
    TRITON = "triton"
    CPP = "cpp"

    def __str__(self):
        return self.value

    @property
    def supported(self):
        return self is Backend.TRITON


class Flags(enum.IntFlag):
    NONE = 0
    WIDE = enum.auto()


class Tile(NamedTuple):
    width: int
    warps: int = 4


@dataclasses.dataclass(frozen=True, order=True)
class Options:
    BLOCK: int = 64
    num_warps: int = 4
    notes: tuple = dataclasses.field(default=(), compare=False)

    def unpacked(self):
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "notes"}


class Problem:
    """Says itself which others it equals, and is a number of elements."""

    __slots__ = ("_numel", "dtype")

    def __init__(self, numel, dtype):
        self._numel, self.dtype = numel, dtype

    def __eq__(self, other):
        return isinstance(other, Problem) and (self._numel, self.dtype) == (other._numel, other.dtype)

    def __hash__(self):
        return hash((self._numel, self.dtype))

    def __int__(self):
        return self._numel

    def __floordiv__(self, width):
        return triton.cdiv(int(self), width)


class Box(Generic[T]):
    def __init__(self, value: T):
        self.view: T = value  # named like a tensor's method


class Space:
    """Goes through tiles; takes, keeps and counts them."""

    def __init__(self, *tiles):
        self.tiles = sorted(tiles, key=attrgetter("width"), reverse=True)
        self.add = self.tiles.append
        self._kept = {}

    def __iter__(self):
        yield from self.tiles

    def __len__(self):
        return len(self.tiles)

    def __getitem__(self, at):
        return self.tiles[at]

    def __setitem__(self, problem, tile):
        self._kept[problem] = tile

    def __contains__(self, problem):
        return problem in self._kept

    def __call__(self, problem):
        return self._kept[problem]

    def __repr__(self):
        return f"{type(self).__name__}({self.tiles})"


class Refused(Exception):
    def __init__(self, backend):
        super().__init__(f"{backend} is not supported")
        self.backend = backend


class SameShape:
    def __init__(self, *tensors):
        self.shapes = {tensor.shape for tensor in tensors}

    def __enter__(self):
        if len(self.shapes) > 1:
            raise ValueError(f"shapes differ: {self.shapes}")
        return self

    def __exit__(self, kind, error, traceback):
        return False


class Launcher(ABC):
    """Base class of all launchers, which it knows by name."""

    known: ClassVar[dict] = {}
    _only = None

    def __init_subclass__(cls, name, **rest):
        super().__init_subclass__(**rest)
        Launcher.known[name] = cls

    @classmethod
    def only(cls):
        if cls._only is None:
            cls._only = cls()
        return cls._only

    @abstractmethod
    def launch(self, x, y): ...

    @staticmethod
    @lru_cache(maxsize=None)
    def warps(width):
        return 4 if width > 64 else 1


class AddRelu(Launcher, name=Backend.TRITON):
    def __init__(self):
        self.lock, self.plans, self.seen = Lock(), OrderedDict(), Counter()
        self.by_shape = defaultdict(lambda: deque(maxlen=2))

    @cached_property
    def space(self):
        return Space(Tile(64), Tile(128, warps=8), Tile(64)._replace(warps=2))

    def plan(self, problem):
        with self.lock:
            if problem not in self.plans:
                tile = min(self.space, key=lambda one: one.width)
                self.space[problem] = tile
                self.plans[problem] = dataclasses.replace(Options(), BLOCK=self.space(problem).width)
            return self.plans[problem]

    def launch(self, x, y):
        out, problem = torch.empty_like(x), Problem(x.numel(), x.dtype)
        options = self.plan(problem)
        self.by_shape[x.shape].append(options)
        self.seen[problem] = 1
        with contextlib.ExitStack() as stack, SameShape(x, y) as same:
            stack.enter_context(torch.no_grad())
            assert len(same.shapes) == 1 and problem in self.space and len(self.space) == 3
            arguments = options.unpacked() | {"num_warps": self.warps(options.BLOCK)}
            add_relu[(problem // options.BLOCK,)](x, y, out, int(problem), **arguments)
        return out


class Wide(AddRelu, name="wide"):
    def launch(self, x, y):
        return super().launch(x.contiguous(), y.contiguous())


BACKEND: Box[Backend] = Box(Backend.TRITON)


@torch.fx.wrap
def fused(x, y):
    flags = Flags.NONE | (Flags.WIDE if x.numel() > 4096 else Flags.NONE)
    try:
        if not BACKEND.view.supported:
            raise Refused(BACKEND.view)
        chosen = Launcher.known["wide" if flags & Flags.WIDE else Backend(str(BACKEND.view))]
    except Refused as error:
        raise RuntimeError(f"{error.backend}: {error}") from error
    return chosen.only().launch(x, y)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
