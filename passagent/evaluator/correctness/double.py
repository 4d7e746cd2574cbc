"""Eager in float64: what a graph would compute if no operator rounded to its dtype."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from passagent.tasks.special import step_bits


class Mode(TorchDispatchMode):
    """Sees every call of an operator.

    torch has Dynamo leave a mode's handler alone, and imports it for that, which takes seconds in every
    worker: here only where Dynamo is imported anyway.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handle = _left_alone if "torch._dynamo" in sys.modules else _handle
        return handle(self, func, args, kwargs or {})

    def on_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call and return its result."""
        raise NotImplementedError


def _handle(mode: Mode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.on_call(func, args, kwargs)


_left_alone = torch._disable_dynamo(_handle)


LOW = (torch.float16, torch.bfloat16, torch.float32)
_DRAWN = 65537
"""Numbers that are drawn for all tensors: a prime, so that no two rows have the same ones."""
_MOVES = 4
"""Draws of inputs that differ in their last place."""
_aten = torch.ops.aten
_SUMS = {
    _aten.add: _aten.add, _aten.add_: _aten.add, _aten.sub: _aten.add, _aten.sub_: _aten.add,
    _aten.rsub: _aten.add, _aten.sum: _aten.sum, _aten.mean: _aten.mean, _aten.mm: _aten.mm,
    _aten.bmm: _aten.bmm, _aten.mv: _aten.mv, _aten.dot: _aten.dot, _aten.addmm: _aten.addmm,
    _aten.baddbmm: _aten.baddbmm, _aten.convolution: _aten.convolution, _aten.cumsum: _aten.cumsum,
    **{pool: pool for pool in (_aten.avg_pool2d, _aten.avg_pool3d)},
    **{pool: pool for pool in (_aten._adaptive_avg_pool2d, _aten._adaptive_avg_pool3d)},
}  # fmt: skip
"""Operators that add terms which may cancel, and what adds their squares."""
_MEANS = (_aten.mean, *(packet for packet in _SUMS if "avg_pool" in str(packet)))


def in_float64(
    graph_module: torch.fx.GraphModule, inputs: list[Any], written: Sequence[int] = ()
) -> list[torch.Tensor] | None:
    """The tensors that the graph returns, with every floating-point value carried in float64, and what it
    leaves in the inputs `written`. What is no narrower float it may write into as it is.

    None where it does not run so: a graph that looks at the bits of its values, a kernel that has no float64.
    """
    if any(isinstance(value, torch.Tensor) and value.is_complex() for value in inputs):
        return None
    try:
        with Wide():
            return run_graph(graph_module, [wide(value) for value in inputs], written)
    except (RuntimeError, TypeError, ValueError):
        return None


def nudged(
    graph_module: torch.fx.GraphModule, inputs: list[Any], written: Sequence[int], seed: int
) -> list[list[torch.Tensor]]:
    """Return eager's outputs on moved values in five ways, which the `seed` decides.

    Floats of `inputs` move by a unit in their last place, and results of sums (see MovedSums); both up or
    down. The ways combine each with its opposite: no two moves of one value cancel in all four. In a fifth
    way sums are as in another order (see LostTerms).
    """
    ways, generator = [], torch.Generator().manual_seed(seed)
    drawn = torch.randint(2, (_DRAWN,), generator=generator, dtype=torch.int8) * 2 - 1
    for way, opposite in itertools.product((1, -1), (1, -1)):
        signs, values = _Drawn(drawn, seed), copied(inputs)
        for i, value in enumerate(inputs):
            if isinstance(value, torch.Tensor) and value.dtype in (*LOW, torch.float64):
                values[i] = step_bits(value, way * signs.over(value))
        with MovedSums(signs, opposite):
            ways.append(run_graph(graph_module, values, written))
    with LostTerms():
        return [*ways, run_graph(graph_module, copied(inputs), written)]


def spread_of(
    graph_module: torch.fx.GraphModule, inputs: list[Any], written: Sequence[int], seed: int
) -> list[torch.Tensor]:
    """Return how far values in float64 move, float32, where inputs differ in their last place.

    In each of several draws they are off by what they may have been rounded by. Empty where the graph does
    not run in float64.
    """
    exact, spread = in_float64(graph_module, copied(inputs), written), list[torch.Tensor]()
    if exact is None:
        return []
    for number in range(_MOVES):
        moved = in_float64(graph_module, blurred(inputs, seed + number, 0.5), written)
        if moved is None:
            return []
        pairs = zip(map(real, moved), map(real, exact), strict=True)
        moves = [(a.double() - b.double()).abs().nan_to_num(0.0).float() for a, b in pairs]
        spread = [torch.maximum(*pair) for pair in zip(spread, moves, strict=True)] if number else moves
    return spread


def blurred(inputs: list[Any], seed: int, units: float = 1.0) -> list[Any]:
    """Return the inputs with narrow floats in float64, off by up to so many of the `units` that they had."""
    generator, values = torch.Generator().manual_seed(seed), copied(inputs)
    parts = _Drawn(torch.rand(_DRAWN, generator=generator, dtype=torch.float64) * 2 - 1, seed)
    for i, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.dtype in LOW:
            off = units * torch.finfo(value.dtype).eps * parts.over(value)
            values[i] = value.double() * (1 + off)
    return values


def run_graph(
    graph_module: torch.fx.GraphModule, inputs: list[Any], written: Sequence[int]
) -> list[torch.Tensor]:
    """Return the tensors that the graph returns, and then what it leaves in the inputs `written`."""
    returned = pytree.tree_leaves(graph_module.forward(*inputs))
    outputs = [value for value in returned if isinstance(value, torch.Tensor)]
    return outputs + [inputs[i] for i in written]


def real(values: torch.Tensor) -> torch.Tensor:
    """Return complex numbers as pairs."""
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def copied(inputs: list[Any]) -> list[Any]:
    """Return the inputs with copies of tensors."""
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]


class _Drawn:
    """Hands out numbers that were drawn once: each tensor has them over and over, from another place on.

    Drawing for each tensor would take longer than the graphs of most tasks.
    """

    def __init__(self, numbers: torch.Tensor, seed: int) -> None:
        """`numbers`: so many as _DRAWN, flat; `seed`: of the places."""
        self._numbers, self._places = numbers, random.Random(seed)

    def over(self, like: torch.Tensor) -> torch.Tensor:
        """Return them in the shape and on the device of `like`."""
        if self._numbers.device != like.device:
            self._numbers = self._numbers.to(like.device)
        count = like.numel()
        numbers = self._numbers.roll(self._places.randrange(_DRAWN))
        return numbers.repeat(-(-count // _DRAWN) or 1)[:count].reshape(like.shape)


class MovedSums(Mode):
    """Moves what operators that add return by a unit in the last place of their terms, up or down.

    Terms that cancel leave less than they are rounded by. A move is the root of the sum of the terms' squares
    times the dtype's epsilon: what independent roundings of the terms come to.
    """

    def __init__(self, signs: _Drawn, way: int) -> None:
        super().__init__()
        self._signs, self._way = signs, way

    def on_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator and move its result."""
        adding = _SUMS.get(func.overloadpacket)
        squares = _sum_of_squares(adding, args, kwargs) if adding is not None else None
        returned = func(*args, **kwargs)
        if squares is None or returned.dtype not in (*LOW, torch.float64):
            return returned
        step = torch.finfo(returned.dtype).eps * squares.sqrt().nan_to_num(0.0, 0.0, 0.0)
        return returned.add_(step.mul_(self._way * self._signs.over(returned)))


def _sum_of_squares(adding: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return the sums of the squares of an operator's terms, float64; None where no float is added."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    if not any(value.dtype in (*LOW, torch.float64) for value in tensors):
        return None
    operands = [value.double().square() if isinstance(value, torch.Tensor) else value for value in args]
    scales = {name: value**2 for name, value in kwargs.items() if name in ("alpha", "beta")}
    if adding is torch.ops.aten.add:
        operands = [value**2 if isinstance(value, int | float) else value for value in operands]
        operands, scales = sorted(operands[:2], key=lambda value: not isinstance(value, torch.Tensor)), {}
    squares: torch.Tensor = adding(*operands, **scales)
    if adding in _MEANS:
        squares = squares * (squares.numel() / max(1, tensors[0].numel()))
    return squares


class LostTerms(Mode):
    """Takes the small terms out of sums that cancel, as if the largest term came first and its opposite last.

    Small are those of less than a rounding of the largest. Sums cancel where the result is less than the
    bound of its error: n roundings of the sum of the sizes (Higham, Accuracy and Stability, 4.2).
    """

    def on_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator, and once more without the small terms."""
        returned = func(*args, **kwargs)
        if func.overloadpacket not in (_aten.sum, _aten.mean) or not returned.is_floating_point():
            return returned
        values, *others = args
        dims = list(others[0] if others and others[0] else range(values.dim()))
        sizes, rounding = values.abs(), torch.finfo(torch.float32).eps / 2
        if sizes.numel() == 0:
            return returned
        lost = func(values.masked_fill(sizes < rounding * sizes.amax(dims, True), 0.0), *others, **kwargs)
        most = func(sizes, *others, **kwargs) * (rounding * sizes.numel() / returned.numel())
        return torch.where(returned.abs() < most, lost, returned)


class Classes(Mode):
    """Counts NaN, +inf and -inf in the floats that operators return where their arguments hold others."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[list[int]] = []

    def on_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator and count."""
        before = _classes((args, kwargs))
        returned = func(*args, **kwargs)
        self.counts += [counts for counts in _classes(returned) if counts not in before]
        return returned


def _classes(values: Any) -> list[list[int]]:
    floats = [v for v in pytree.tree_leaves(values) if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return [[int(is_it(v).sum()) for is_it in (torch.isnan, torch.isposinf, torch.isneginf)] for v in floats]


class Wide(Mode):
    """Every dtype that an operator is asked for and that is a narrower float becomes float64."""

    def on_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator in float64."""
        if func is torch.ops.aten.view.dtype:
            raise TypeError("the bits of a value have no float64 counterpart")
        args, kwargs = pytree.tree_map(_wide_dtype, (args, kwargs))
        return pytree.tree_map(wide, func(*args, **kwargs))


def _wide_dtype(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in LOW else value


def wide(value: Any) -> Any:
    """A narrower float tensor in float64; any other value as it is."""
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in LOW else value
