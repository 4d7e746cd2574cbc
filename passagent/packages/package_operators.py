"""The operators of packages: what a match binds to them, a plan for each layout, and their names in torch."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx
from torch.library import Library

from passagent.errors import PassagentError
from passagent.evaluator.matching.pattern import PassLoadError
from passagent.kernels import driver
from passagent.plan import memory
from passagent.plan.arguments import Argument, ValueArg, leaves
from passagent.plan.calling import compute
from passagent.plan.choosing import fastest_choices
from passagent.plan.compile import compile_plan
from passagent.plan.convert import bound_argument, flattened, parts
from passagent.plan.model import Plan
from passagent.plan.replay import Replay, choices_of
from passagent.plan.table import Mode
from passagent.tasks.graphio import load_value, plain_value

Skeleton = dict[str, Any]
"""Each parameter's value as plain data (graphio.py), in which the call's tensors are the nodes a0, a1, ..."""


def split(bindings: Mapping[str, Any]) -> tuple[Skeleton, list[Any]]:
    """The skeleton of a match's bindings, and the nodes or tensors in them."""
    tensors, places = list[Any](), fx.Graph()

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, fx.Node | torch.Tensor):
            return leaf
        tensors.append(leaf)
        return places.placeholder(f"a{len(tensors) - 1}")

    placed = {name: fx.node.map_aggregate(bindings[name], place) for name in sorted(bindings)}
    return {name: plain_value(value) for name, value in placed.items()}, tensors


def join(skeleton: Skeleton, tensors: Sequence[Any]) -> dict[str, Any]:
    """Bindings with these tensors, or nodes, in their places."""
    places: dict[str, Any] = {f"a{number}": tensor for number, tensor in enumerate(tensors)}
    return {name: load_value(value, places) for name, value in skeleton.items()}


def tensor_count(skeleton: Skeleton) -> int:
    """How many tensors a call is given."""
    places: dict[str, Any] = defaultdict(object)
    for value in skeleton.values():
        load_value(value, places)
    return len(places)


def pattern_module(pattern: fx.Graph, skeleton: Skeleton) -> fx.GraphModule:
    """Return the pattern as a function of a call's tensors alone, which returns a tuple."""
    graph = fx.Graph()
    tensors = [graph.placeholder(f"a{number}") for number in range(tensor_count(skeleton))]
    bound = join(skeleton, tensors)
    copies: dict[fx.Node, Any] = {}
    for node in pattern.nodes:
        if node.op == "placeholder":
            if str(node.target) not in bound:
                raise PassLoadError(f"the pattern's parameter {node.target} is bound to nothing")
            copies[node] = bound[str(node.target)]
        elif node.op != "output":
            args, kwargs = fx.node.map_aggregate(
                (node.args, node.kwargs), lambda leaf: copies[leaf] if isinstance(leaf, fx.Node) else leaf
            )
            copies[node] = graph.create_node(node.op, node.target, args, kwargs)
    returned = next(node for node in reversed(pattern.nodes) if node.op == "output").args[0]
    outputs = returned if isinstance(returned, tuple | list) else (returned,)
    graph.output(tuple(copies[node] for node in outputs))  # type: ignore[index]
    return fx.GraphModule(torch.nn.Module(), graph)


log = logging.getLogger("passagent")

Layout = tuple[tuple[int, ...], tuple[int, ...], str]
"""Shape, strides (1 where the size is 1) and dtype of a tensor."""
Key = tuple[Layout, ...]
"""The layout of each tensor of a call."""


@dataclass(frozen=True)
class PlannedCall:
    """A plan, and what it is given of a match's bindings."""

    plan: Plan
    arguments: tuple[Argument, ...]


def layout_of(value: torch.Tensor) -> Layout:
    """Return the layout of a tensor."""
    return _layout(value.shape, value.stride(), str(value.dtype)[6:])


def key_of(tensors: Sequence[torch.Tensor]) -> Key:
    """Return the layouts of a call's tensors."""
    return tuple(map(layout_of, tensors))


def planned_layout(plan: Plan, number: int) -> Layout:
    """Return the layout of a plan's value."""
    value = plan.values[number]
    return _layout(value.shape, value.stride, value.dtype)


def _layout(shape: Sequence[int], stride: Sequence[int], dtype: str) -> Layout:
    strides = (s if size != 1 else 1 for size, s in zip(shape, stride, strict=True))
    return tuple(shape), tuple(strides), dtype


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
        self.calls = {key: call for call in calls if (key := planned_key(call, skeleton)) is not None}
        """The plans by what they are for."""
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

    @property
    def ready(self) -> list[Any]:
        """Replays that calls of this thread run, with the memory that they use."""
        return list(self._ready.__dict__.values())

    def _looked_up(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The outputs, by the plan for these layouts if there is one."""
        ready: dict[Any, Callable[..., Any] | None] = self._ready.__dict__
        key = key_of(tensors)
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
        """Compute what the pattern says."""
        result = self.pattern(*tensors)
        return owned(result if len(result) > 1 else result[0], tensors)

    def has_plan(self, tensors: Sequence[torch.Tensor]) -> bool:
        """A plan is for these tensors, whose sizes are known."""
        sizes = (size for tensor in tensors for size in (*tensor.shape, *tensor.stride()))
        return all(isinstance(size, int) for size in sizes) and key_of(tensors) in self.calls

    def computed(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The outputs by the operators that the plan for these tensors calls."""
        call = self.calls[key_of(tensors)]
        return compute(call.plan, _arranger(_given(call, self.skeleton))(tensors))

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
        """Return what `make` returns, with memory that outlives this call.

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
            return Replay(call.plan, built, self.device, Mode(choices))

        places = _given(call, self.skeleton)
        arranged = _arranger(places)
        choices = [0] * len(choices_of(call.plan))
        if choices and not (is_cuda and torch.cuda.is_current_stream_capturing()):
            choices = fastest_choices(call.plan, arranged(tensors), made)
        call_plan = made(choices).call
        if _are_owned(call.plan):
            if places == [_Place(number) for number in range(self.count)]:
                return call_plan
            return lambda *args: call_plan(*arranged(args))
        return lambda *args: owned(call_plan(*arranged(args)), args)


def owned(result: Any, tensors: Sequence[Any]) -> Any:
    """The outputs, none of which shares memory with an input or another output: an operator may not do so."""
    taken = {tensor.untyped_storage()._cdata for tensor in tensors}
    many = isinstance(result, tuple | list)
    outputs = []
    for tensor in result if many else (result,):
        if tensor.untyped_storage()._cdata in taken:
            tensor = tensor.clone()  # noqa: PLW2901
        taken.add(tensor.untyped_storage()._cdata)
        outputs.append(tensor)
    return tuple(outputs) if many else outputs[0]


def _are_owned(plan: Plan) -> bool:
    """Return whether each result of a plan has memory of its own."""
    results = [leaf.value for leaf in leaves(plan.result) if isinstance(leaf, ValueArg)]
    bases = [memory.place(plan, number).base for number in results]
    return len(set(bases)) == len(bases) and all(plan.values[base].kind == "made" for base in bases)


def planned_key(call: PlannedCall, skeleton: Skeleton) -> Key | None:
    """Return the layouts of the tensors that a plan is for; None if it does not look at one of them."""
    layouts: dict[int, Layout] = {}
    places = parts(_given(call, skeleton))
    for place, argument in zip(places, flattened(call.plan.inputs), strict=True):
        if isinstance(place, _Place) and isinstance(argument, ValueArg):
            layouts[place.number] = planned_layout(call.plan, argument.value)
    count = tensor_count(skeleton)
    return tuple(layouts[number] for number in range(count)) if len(layouts) == count else None


@dataclass(frozen=True)
class _Place:
    number: int


def _given(call: PlannedCall, skeleton: Skeleton) -> list[Any]:
    """Return a plan's arguments: places of tensors, constants, tuples of these."""
    bindings = join(skeleton, [_Place(number) for number in range(tensor_count(skeleton))])
    return [bound_argument(argument, bindings) for argument in call.arguments]


def _arranger(arguments: list[Any]) -> Callable[[Sequence[Any]], list[Any]]:
    """A function that puts a call's tensors into their places."""

    def put(part: Any, tensors: Sequence[Any]) -> Any:
        if isinstance(part, _Place):
            return tensors[part.number]
        return tuple(put(item, tensors) for item in part) if isinstance(part, tuple) else part

    return lambda tensors: [put(part, tensors) for part in arguments]


NAMESPACE = "passagent"
_library: list[Library] = []
direct_calls = SimpleNamespace()
"""The operators as functions, by name, for code that Inductor generates.

A call of `torch.ops.passagent.p_...` goes through torch's dispatcher and twice through Python. Generated code
is below autograd and autocast: there the implementation for its device can be called itself.
"""


def ready_plans() -> list[Any]:
    """Replays that calls of all operators run in this thread, with the memory that they use."""
    return [operator.ready for operator in vars(direct_calls).values()]


def overload(name: str) -> torch._ops.OpOverload:
    """The operator as a graph calls it."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default  # type: ignore[no-any-return]


def register(name: str, operator: PlannedOperator, outputs: int) -> PlannedOperator:
    """Register an operator with so many outputs, unless it is registered. The one that is.

    On the device of its plans it replays them; anywhere else, for gradients, under autocast and for shapes
    alone it is its pattern.
    """
    if hasattr(direct_calls, name):
        return getattr(direct_calls, name)  # type: ignore[no-any-return]
    if not _library:
        _library.append(Library(NAMESPACE, "FRAGMENT"))
    library = _library[0]
    parameters = ", ".join(f"Tensor a{number}" for number in range(operator.count))
    result = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
    library.define(f"{name}({parameters}) -> {result}", tags=tags)
    library.impl(name, operator, operator.device.upper())
    library.impl(name, operator.by_pattern, "CompositeExplicitAutograd")
    for device in ("CPU", "CUDA"):
        library.impl(name, operator.by_pattern, f"Autocast{device}")
    qualified = f"{NAMESPACE}::{name}"
    torch.library.register_fake(qualified, operator.by_pattern, lib=library)
    torch.library.register_autograd(qualified, _backward(operator), setup_context=_keep, lib=library)
    setattr(direct_calls, name, operator)
    return operator


def _keep(ctx: Any, inputs: tuple[torch.Tensor, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(operator: PlannedOperator) -> Any:
    """The pattern's gradients: it is computed again. A pass for them could take this place."""

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        inputs = ctx.saved_tensors
        differentiable = [number for number, needs in enumerate(ctx.needs_input_grad) if needs]

        def pattern(*some: torch.Tensor) -> Any:
            values = list(inputs)
            for number, value in zip(differentiable, some, strict=True):
                values[number] = value
            outputs = operator.pattern(*values)
            return outputs if len(outputs) > 1 else outputs[0]

        pulled = torch.func.vjp(pattern, *(inputs[number] for number in differentiable))[1]
        gradients = dict(zip(differentiable, pulled(grads if len(grads) > 1 else grads[0]), strict=True))
        return tuple(gradients.get(number) for number in range(len(inputs)))

    return backward
