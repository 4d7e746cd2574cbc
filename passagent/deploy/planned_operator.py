"""What an operator of a package does at a call: a plan for these shapes, or what its pattern says."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from passagent.deploy.bindings import Skeleton, join, pattern_module, tensor_count
from passagent.errors import PassagentError
from passagent.kernels import driver
from passagent.plan import memory
from passagent.plan.arguments import Argument, ValueArg, leaves
from passagent.plan.choosing import fastest_choices
from passagent.plan.compile import compile_plan
from passagent.plan.convert import bound_argument, flattened, parts
from passagent.plan.model import InputValue, Plan
from passagent.plan.replay import Replay, choices_of

log = logging.getLogger("passagent")

Layout = tuple[tuple[int, ...], tuple[int, ...], str]
"""Shape, strides (1 where the size is 1) and dtype of a tensor."""
Key = tuple[Layout | None, ...]
"""Of each tensor of a call; None where a plan does not look at it."""


@dataclass(frozen=True)
class PlannedCall:
    """A plan, and what it is given of a match's bindings."""

    plan: Plan
    arguments: tuple[Argument, ...]


def layout_of(value: torch.Tensor) -> Layout:
    """The layout of a tensor."""
    shape, stride = tuple(value.shape), value.stride()
    return shape, tuple(s if n != 1 else 1 for n, s in zip(shape, stride, strict=True)), str(value.dtype)[6:]


class PlannedOperator:
    """The implementation of an operator on the device that its plans are for.

    A call that no plan is for computes what the pattern does. `planned` and `fallen_back` count calls.
    """

    def __init__(
        self, pattern: fx.Graph, skeleton: Skeleton, calls: Sequence[PlannedCall], device: str
    ) -> None:
        self.skeleton, self.device = skeleton, device
        self.pattern: Callable[..., Any] = pattern_module(pattern, skeleton).forward
        self.count = tensor_count(skeleton)
        self.calls = {_key(call, skeleton): call for call in calls}
        """The plans by what they are for."""
        self.looked_at = [any(key[i] is not None for key in self.calls) for i in range(self.count)]
        self.planned = self.fallen_back = 0
        self._ready = threading.local()  # a replay has scratch memory of its own, for one thread
        self._failed: set[Key] = set()

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The operator's outputs: one tensor, or a tuple of them."""
        try:  # the plan of the last call looks at its arguments itself
            result = self._ready.last(*tensors)
        except (TypeError, AttributeError):  # it is for others, or there is none yet
            return self._looked_up(tensors)
        self.planned += 1
        return result

    def _looked_up(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The outputs, by the plan for these layouts if there is one."""
        ready: dict[Any, Callable[..., Any] | None] = self._ready.__dict__
        key = tuple(layout_of(t) if seen else None for t, seen in zip(tensors, self.looked_at, strict=True))
        if key in self.calls and key not in ready:
            ready[key] = self._prepared(key, tensors)
        replay = ready.get(key)
        if replay is not None:
            try:
                result = replay(*tensors)
            except TypeError:  # an address that is not aligned as the plan's were, one tensor for two
                replay = None
            else:
                self._ready.last = replay
                self.planned += 1
                return result
        self.fallen_back += 1
        return self.by_pattern(*tensors)

    def by_pattern(self, *tensors: torch.Tensor) -> Any:
        """What the pattern computes."""
        result = self.pattern(*tensors)
        return owned(result if len(result) > 1 else result[0], tensors)

    def _prepared(self, key: Key, tensors: Sequence[torch.Tensor]) -> Callable[..., Any] | None:
        """The plan for a call, built and ready; None if it cannot be built here."""
        if key in self._failed:
            return None
        try:
            return self._lasting(lambda: self._replay(self.calls[key], tensors))
        except PassagentError as error:  # no compiler, another GPU
            self._failed.add(key)
            log.warning("a pass runs as eager does: %s", str(error).splitlines()[0])
            return None

    def _lasting(self, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """What `make` returns, whose memory outlives this call.

        While Inductor warms up for a CUDA graph, a thread's memory comes from that graph's pool and must be
        gone after the call. Memory of other threads does not.
        """
        if self.device != "cuda" or torch.cuda.is_current_stream_capturing():
            return make()
        device = torch.cuda.current_device()

        @torch.no_grad()
        def made() -> Callable[..., Any]:
            torch.cuda.set_device(device)
            torch.cuda.synchronize()  # the inputs come from another stream; so does what uses the constants
            result = make()
            torch.cuda.synchronize()
            return result

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(made).result()

    def _replay(self, call: PlannedCall, tensors: Sequence[torch.Tensor]) -> Callable[..., Any]:
        is_cuda = self.device == "cuda"
        built = compile_plan(call.plan, driver.architecture() if is_cuda else None)

        def made(choices: list[int]) -> Replay:
            return Replay(call.plan, built, self.device, choices)

        places = _given(call, self.skeleton)
        arranged = _arranger(places)
        choices = [0] * len(choices_of(call.plan))
        if choices and not (is_cuda and torch.cuda.is_current_stream_capturing()):
            choices = fastest_choices(call.plan, arranged(tensors), made)
        call_plan = made(choices).call
        if _are_owned(call.plan):
            if places == [_Place(number) for number in range(self.count)]:
                return call_plan
            return lambda *given: call_plan(*arranged(given))
        return lambda *given: owned(call_plan(*arranged(given)), given)


def owned(result: Any, tensors: Sequence[Any]) -> Any:
    """The outputs, none of which shares memory with an input or another output: an operator may not do so."""
    taken = {one.untyped_storage()._cdata for one in tensors}
    many = isinstance(result, tuple | list)
    outputs = []
    for one in result if many else (result,):
        if one.untyped_storage()._cdata in taken:
            one = one.clone()  # noqa: PLW2901
        taken.add(one.untyped_storage()._cdata)
        outputs.append(one)
    return tuple(outputs) if many else outputs[0]


def _are_owned(plan: Plan) -> bool:
    """Whether each result of a plan has memory of its own."""
    results = [leaf.value for leaf in leaves(plan.result) if isinstance(leaf, ValueArg)]
    bases = [memory.place(plan, number).base for number in results]
    return len(set(bases)) == len(bases) and all(plan.values[base].kind == "made" for base in bases)


def _key(call: PlannedCall, skeleton: Skeleton) -> Key:
    """What tensors a plan is for."""
    found: dict[int, Layout] = {}
    given = parts(_given(call, skeleton))
    for place, argument in zip(given, flattened(call.plan.inputs), strict=True):
        if isinstance(place, _Place) and isinstance(argument, ValueArg):
            value = call.plan.values[argument.value]
            assert isinstance(value, InputValue)
            stride = tuple(s if n != 1 else 1 for n, s in zip(value.shape, value.stride, strict=True))
            found[place.number] = (tuple(value.shape), stride, value.dtype)
    return tuple(found.get(number) for number in range(tensor_count(skeleton)))


@dataclass(frozen=True)
class _Place:
    number: int


def _given(call: PlannedCall, skeleton: Skeleton) -> list[Any]:
    """What a plan is given: places of tensors, constants, tuples of these."""
    bindings = join(skeleton, [_Place(number) for number in range(tensor_count(skeleton))])
    return [bound_argument(argument, bindings) for argument in call.arguments]


def _arranger(given: list[Any]) -> Callable[[Sequence[Any]], list[Any]]:
    """A function that puts a call's tensors into their places."""

    def put(part: Any, tensors: Sequence[Any]) -> Any:
        if isinstance(part, _Place):
            return tensors[part.number]
        return tuple(put(one, tensors) for one in part) if isinstance(part, tuple) else part

    if any(isinstance(part, tuple) for part in given):
        return lambda tensors: [put(part, tensors) for part in given]
    pairs = [(part.number, None) if isinstance(part, _Place) else (-1, part) for part in given]
    return lambda tensors: [tensors[at] if at >= 0 else constant for at, constant in pairs]
