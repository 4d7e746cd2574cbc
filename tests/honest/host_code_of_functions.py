# expect: ok
"""Functions as people write host code: typed, decorated, made, cached and bound; logging, matching, a main block."""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import logging
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec, TypeVar, assert_never, get_args, overload

import numpy as np  # noqa: F401
import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["fused", "pattern", "replacement_args", "replacement_func"]
P, R = ParamSpec("P"), TypeVar("R")
Kind = Literal["narrow", "wide"]
logger = logging.getLogger(__name__).getChild("fused")
logger.addHandler(logging.NullHandler())
RECENT = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 0)
DEBUG = False
KINDS: dict[str, Callable] = {}
PLANS: dict[tuple, dict] = {}
WARNED: set[str] = set()


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


def registered(kind: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    def note(function: Callable[P, R]) -> Callable[P, R]:
        KINDS[kind] = function
        return function

    return note


def contiguous(
    function: Callable[Concatenate[torch.Tensor, P], R],
) -> Callable[Concatenate[torch.Tensor, P], R]:
    @functools.wraps(function)
    def call(x: torch.Tensor, *args: P.args, **kwargs: P.kwargs) -> R:
        rest = map(operator.methodcaller("contiguous"), args)
        return function(x.contiguous(), *rest, **kwargs)

    return call


@contextlib.contextmanager
def described(what: str, *tensors: torch.Tensor) -> Iterator[int]:
    """Says which launch it was that failed."""
    try:
        with torch.no_grad(), torch.profiler.record_function(what):
            yield max(tensor.numel() for tensor in tensors)
    except (ValueError, TypeError) as error:
        raise RuntimeError(f"{what} of {[tuple(tensor.shape) for tensor in tensors]}: {error}") from error


def blocks() -> Iterator[tuple[int, int]]:
    for block, warps in itertools.product((64, 128), (2, 4)):
        yield block, warps


def warn_once(text: str) -> None:
    if text not in WARNED:
        WARNED.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=2)


@overload
def width(kind: Kind, limits: None = None) -> int: ...
@overload
def width(kind: Kind, limits: Mapping[str, int]) -> int: ...
def width(kind, limits=None):
    match (kind, limits or {}):
        case ("narrow", {"least": least, **rest}):
            return max(least, *rest.values(), 64)
        case ("narrow", _) if RECENT:
            return next(itertools.islice((32, 64), 1, None))
        case ("wide", _):
            return list(itertools.takewhile(lambda one: one <= 512, (128, 256, 512, 1024)))[-1]
        case _:
            assert_never(kind)


@functools.lru_cache(maxsize=64)
def choice(numel: int, dtype: torch.dtype, kind: Kind) -> dict[str, int]:
    [(_, warps)] = heapq.nsmallest(1, blocks(), key=lambda one: (-one[0], one[1]))
    return {"BLOCK": width(kind), "num_warps": warps}


def made(kind: Kind) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    @registered(kind)
    @contiguous
    def launch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.shape != y.shape or type(x).__name__ != type(y).__name__:
            raise TypeError(f"{type(x).__name__} of %s and {type(y)}" % (tuple(x.shape),))
        output = torch.empty_like(x)
        key = (x.shape, x.dtype)
        plan = PLANS.setdefault(key, choice(functools.reduce(operator.mul, x.shape, 1), x.dtype, kind))
        with described("add_relu", x, y, output) as n, contextlib.suppress(triton.runtime.OutOfResources):
            bound = functools.partial(add_relu[(math.ceil(n / plan["BLOCK"]),)], **plan)
            bound(x, y, output, n)
        return output

    return launch


for _kind in get_args(Kind):
    made(_kind)


def _checked(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    if DEBUG:
        torch.testing.assert_close(out, torch.relu(x + y))
    return out


def largest(shape: Sequence[int]) -> int:
    first, *rest = sorted(shape)[::-1]
    return first if first >= max(rest, default=0) else 0


@torch.fx.wrap
def fused(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The relu of a sum.

    >>> fused(torch.ones(2, device="cuda"), torch.ones(2, device="cuda"))  # doctest: +SKIP
    """
    logger.debug("GEMS ADD_RELU %s", tuple(input.shape))
    if not RECENT:
        warn_once("untested with this version of Triton")
    kind: Kind = "wide" if input.numel() > 4096 and largest(input.shape) else "narrow"
    try:
        return _checked(input, other, KINDS[kind](input, other))
    except RuntimeError as error:
        raise RuntimeError(f"add_relu: {error}") from error
    finally:
        logger.isEnabledFor(logging.INFO) and logger.info("done")


def pattern(input, other):
    return torch.nn.functional.relu(input + other)


def replacement_args(input, other):
    return (input, other)


def replacement_func():
    return fused


if __name__ == "__main__":
    print(fused(torch.ones(4, device="cuda"), torch.ones(4, device="cuda")))
    sys.exit(0)
