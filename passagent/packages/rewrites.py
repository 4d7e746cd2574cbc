"""Rewrites in a graph that Dynamo captured: operators of the library in place of a match.

A rewrite is trusted code (passagent/passes). Its replacement is traced on the example values of the match, so
that symbolic sizes stay symbolic. What replacements compute of parameters alone is taken out of the graph
(`Prepared`): it is computed when the graph is first called, and again when one of the parameters has changed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._guards import tracing
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from passagent.errors import PassagentError
from passagent.evaluator.matching.effects import Memory, is_pure, is_random, written
from passagent.evaluator.matching.loaded_passes import PlannedPass
from passagent.evaluator.matching.matcher import Match
from passagent.evaluator.matching.rewrite import replace_match
from passagent.packages.prepared import Prepared, extract_module, known_values
from passagent.passes import Rewrite
from passagent.tasks.extract.structural_hash import closure

_STATIC = "_dynamo_static_input_type"
"""Dynamo's mark of an input that stays at one address: a parameter or a buffer of the model."""


class DoesNotFit(PassagentError):
    """A rewrite cannot take the place of a match; the message says why."""


@dataclass
class RewrittenGraph:
    """A graph of Dynamo's and what rewrites have put into it."""

    graph: fx.Graph
    prepares: bool
    """Values of parameters may be taken out. False where nobody computes them, and in training."""
    derived: set[fx.Node] = field(default_factory=set)
    """Parameters that the graph does not write, and new nodes that are computed of them alone."""
    returned: dict[fx.Node, torch.Tensor] = field(default_factory=dict)
    """Example values of what the graph returns, in eager's strides, where these have changed."""

    def __post_init__(self) -> None:
        written = Memory(self.graph).writes(self.graph.nodes)
        inputs = self.graph.find_nodes(op="placeholder")
        parameters = {node for node in inputs if (node.meta.get("tensor_dict") or {}).get(_STATIC)}
        self.derived |= parameters - written

    def put(self, rewrite: Rewrite, pattern: fx.Graph, site: Match) -> None:
        """Put the replacement in place of a match. Raises DoesNotFit; the graph is then as it was."""
        bound = site.bindings
        nodes: list[fx.Node] = []
        fx.node.map_arg(bound, nodes.append)
        nodes = list(dict.fromkeys(nodes))
        eager = [_example(node) for node in site.outputs]
        mode = next((v.fake_mode for v in map(_example, nodes) if isinstance(v, FakeTensor)), None)
        if mode is None:
            raise DoesNotFit("the shapes of its inputs are not known here")
        with tracing(None):
            given = dict(fx.node.map_arg(bound, _example))
            if "known" in inspect.signature(rewrite.applies).parameters:
                given["known"] = known_values(self.graph, bound)
            verdict = rewrite.applies(**given)
        if not verdict:
            raise DoesNotFit("its condition does not hold here")
        if isinstance(verdict, dict):
            rewrite = replace(rewrite, replacement=functools.partial(rewrite.replacement, **verdict))
        with tracing(None), mode:
            traced = _traced(rewrite, bound, nodes, [None] * len(eager))
            self._check_outputs(site, traced, nodes, eager)
            changed = self._propagated(site, traced, eager)
            if changed is None:
                traced = _traced(rewrite, bound, nodes, [order_of(value) for value in eager])
                changed = self._propagated(site, traced, eager)
            if changed is None:
                raise DoesNotFit("its outputs cannot be laid out as eager's are")
        inputs = zip(traced.find_nodes(op="placeholder"), nodes, strict=True)
        derived = _derived(traced, {inside for inside, node in inputs if node in self.derived})
        if not self.prepares and _computed(traced, derived):
            raise DoesNotFit('it prepares values of parameters: for inference, with backend="passagent"')
        copies = self._insert(rewrite, pattern, site, nodes, traced)
        self.derived |= {copies[node] for node in derived if node.op != "placeholder"}
        returned = self.graph.output_node().all_input_nodes
        for node, value in changed.items():
            if node in returned:
                self.returned.setdefault(node, _example(node))
            node.meta["example_value"] = value

    def prepare(self) -> list[fx.Node]:
        """Have all that is computed of parameters alone prepared; return the nodes whose values are.

        Nodes that depend on no input go along where they are needed for it.
        """
        if not self.prepares:
            return []
        memory, constants, derived = Memory(self.graph), set[fx.Node](), set(self.derived)
        private = {  # write what nobody else reads, as an activation in place does
            node
            for node in self.graph.nodes
            if written(node)
            and not is_random(node)
            and all({*arg.users} == {node} and memory.roots[arg] == {arg} for arg in written(node))
        }
        writes = memory.writes([node for node in self.graph.nodes if node not in private])
        for node in self.graph.nodes:
            inputs = set(node.all_input_nodes)
            is_fixed = (is_pure(node) or node in private) and node not in memory.transformed
            is_fixed = is_fixed and not memory.roots[node] & writes
            if node.op in ("call_function", "call_method") and is_fixed and inputs <= derived | constants:
                (derived if inputs & derived else constants).add(node)
        before = _computed(self.graph, self.derived)
        for node in reversed(self.graph.nodes):  # views of what is prepared stay in the graph
            storages = {_storage(each) for each in node.all_input_nodes} - {None}
            is_value = isinstance(_value(node), torch.Tensor) and _storage(node) not in storages
            if node in derived - self.derived and not is_value and not derived.issuperset(node.users):
                derived.remove(node)
        self.derived = derived
        return [node for node in _computed(self.graph, derived) if node not in before]

    def _check_outputs(
        self, site: Match, traced: fx.Graph, nodes: Sequence[fx.Node], eager: Sequence[torch.Tensor]
    ) -> None:
        """Raise DoesNotFit for outputs of another shape or dtype, and for memory of an input that matters.

        It does where something in the graph writes into it, and where the graph returns it.
        """
        for node, before in zip(_returned(traced), eager, strict=True):
            value = _value(node)
            if value.dtype != before.dtype or value.dim() != before.dim():
                raise DoesNotFit(f"returns {value.dtype} of {value.dim()} dimensions, eager {before.dtype}")
            if not all(statically_known_true(a == b) for a, b in zip(value.shape, before.shape, strict=True)):
                raise DoesNotFit(f"returns the shape {list(value.shape)}, eager {list(before.shape)}")
        storages = {_storage(node) for node in _returned(traced)}
        if storages.isdisjoint(_storage(node) for node in traced.find_nodes(op="placeholder")):
            return
        memory, output = Memory(self.graph), self.graph.output_node()
        touched = memory.writes(self.graph.nodes) | frozenset(
            root for node in output.all_input_nodes for root in memory.roots[node]
        )
        if any(memory.roots[node] & touched for node in (*nodes, *site.outputs)):
            raise DoesNotFit("returns memory of its input, which is written or returned in this graph")

    def _propagated(
        self, site: Match, traced: fx.Graph, eager: Sequence[torch.Tensor]
    ) -> dict[fx.Node, Any] | None:
        """Return the example values that change behind the match; None where eager's strides are needed.

        They are where an operator does not run on others, and where a later operator writes into the outputs:
        it may be a view in one layout and a copy in the other.
        """
        outputs = zip(site.outputs, map(_value, _returned(traced)), eager, strict=True)
        changed = {node: value for node, value, before in outputs if not _same_layout(value, before)}
        if not changed:
            return {}
        memory = Memory(self.graph)
        behind = memory.order[min(memory.position[node] for node in changed) :]
        if memory.writes(behind) & frozenset(root for node in changed for root in memory.roots[node]):
            return None
        inside = set(site.nodes.values())
        for node in behind:
            if node in inside or changed.keys().isdisjoint(node.all_input_nodes):
                continue
            try:
                if node.op == "output":
                    if any(
                        n in site.outputs or not _is_dense(_example(n)) for n in changed if node in n.users
                    ):
                        return None
                    continue
                args, kwargs = fx.node.map_arg(
                    (node.args, node.kwargs), lambda n: changed[n] if n in changed else _example(n)
                )
                function = getattr(args[0], node.target) if node.op == "call_method" else node.target
                value = function(*args[node.op == "call_method" :], **kwargs)
                if not _same_layout(value, _example(node)):
                    changed[node] = value
            except Exception:  # whatever torch raises where strides do not fit
                return None
        return {node: value for node, value in changed.items() if node not in inside}

    def _insert(
        self, rewrite: Rewrite, pattern: fx.Graph, site: Match, nodes: list[fx.Node], traced: fx.Graph
    ) -> dict[fx.Node, fx.Node]:
        """Replace the match by the traced nodes. The copy of each of these."""
        planned = PlannedPass(rewrite.name, rewrite.file.name, pattern)
        call = replace_match(self.graph, planned, site, stand_in, tuple(nodes))
        copies = dict(zip(traced.find_nodes(op="placeholder"), nodes, strict=True))
        with self.graph.inserting_before(call):
            for node in traced.nodes:
                if node.op == "call_function":
                    copies[node] = self.graph.node_copy(node, copies.__getitem__)
                    copies[node].meta = {"example_value": node.meta.get("val")}
        results = [copies[node] for node in _returned(traced)]
        if isinstance(pattern.output_node().args[0], tuple | list):
            for part in list(call.users):
                number = part.args[1] if len(part.args) > 1 else 0
                part.replace_all_uses_with(results[number])  # type: ignore[index]
                self.graph.erase_node(part)
        else:
            call.replace_all_uses_with(results[0])
        self.graph.erase_node(call)
        return copies

    def finish(self) -> Prepared | None:
        """Return outputs in eager's strides; take out what is computed of parameters alone.

        The latter becomes inputs behind the others.
        """
        output = self.graph.output_node()
        for node, like in self.returned.items():
            if node in output.all_input_nodes and not _same_layout(_example(node), like):
                with self.graph.inserting_before(output):
                    order, value = order_of(like), node
                    for method, args in (("permute", order), ("contiguous", []), ("permute", inverse(order))):
                        value = self.graph.call_method(method, (value, *args))
                value.meta["example_value"] = like
                output.replace_input_with(node, value)
        if not self.prepares:
            return None
        _merge_equal(self.graph, self.derived)
        prepared = _computed(self.graph, self.derived)
        if not prepared:
            return None
        module, used = extract_module(self.graph, prepared), closure(prepared)
        inputs = self.graph.find_nodes(op="placeholder")
        positions = [number for number, node in enumerate(inputs) if node in used]
        for number, node in enumerate(prepared):
            with self.graph.inserting_after(self.graph.find_nodes(op="placeholder")[-1]):
                value = self.graph.placeholder(f"prepared_{number}")
            value.meta = {"example_value": _example(node), "tensor_dict": {_STATIC: "unguarded"}}
            value._dynamo_source = None  # type: ignore[attr-defined]
            node.replace_all_uses_with(value)
        for node in reversed(list(self.graph.nodes)):
            if node in used and node.op != "placeholder" and not node.users:
                self.graph.erase_node(node)
        examples = [_example(node) for node in prepared]
        return Prepared(module, positions, examples)


def _example(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else node


def stand_in(*_: Any) -> None:
    """Stand for a call in a graph: until operators are put in, or where it is only matched."""


def _traced(
    rewrite: Rewrite, bound: dict[str, Any], nodes: list[fx.Node], orders: Sequence[list[int] | None]
) -> fx.Graph:
    """Return the replacement's operators as a graph of `nodes`; where orders are given with outputs copied.

    Raises DoesNotFit where the replacement fails, and for outputs that are no fresh tensors like eager's.
    """

    def replaced(*tensors: torch.Tensor) -> list[torch.Tensor]:
        values = dict(zip(nodes, tensors, strict=True))
        result = rewrite.replacement(**fx.node.map_arg(bound, values.__getitem__))
        outputs = list(result) if isinstance(result, tuple | list) else [result]
        for number, order in enumerate(orders):
            if order is not None:
                copy = outputs[number].permute(order).clone(memory_format=torch.contiguous_format)
                outputs[number] = copy.permute(inverse(order))
        return outputs

    try:
        traced = make_fx(replaced, pre_dispatch=True)(*map(_example, nodes)).graph
    except Exception as error:
        raise DoesNotFit(f"its replacement fails here: {type(error).__name__}: {error}") from error
    if any(node.op == "get_attr" for node in traced.nodes):
        raise DoesNotFit("its replacement makes a tensor of Python's numbers; make it with torch.full")
    return traced


def _returned(graph: fx.Graph) -> list[fx.Node]:
    return list(graph.output_node().args[0])  # type: ignore[arg-type]


def order_of(value: torch.Tensor) -> list[int]:
    """The dimensions from the one with the largest stride to the one with the smallest."""
    strides = value.stride()
    return sorted(range(value.dim()), key=lambda dim: -int(strides[dim]))


def inverse(order: list[int]) -> list[int]:
    """The order that takes dimensions in `order` back to where they were."""
    return sorted(range(len(order)), key=order.__getitem__)


def _is_dense(value: torch.Tensor) -> bool:
    """Tell whether a contiguous tensor with its dimensions in another order is laid out as `value` is."""
    return value.permute(order_of(value)).is_contiguous()


def _same_layout(value: Any, before: Any) -> bool:
    """Compare the strides of what an operator returns, where sizes are more than 1."""
    if isinstance(value, tuple | list):
        return all(map(_same_layout, value, before))
    if not isinstance(value, torch.Tensor):
        return True
    pairs = zip(value.shape, value.stride(), before.stride(), strict=True)
    return all(size == 1 or statically_known_true(a == b) for size, a, b in pairs)


def _derived(graph: fx.Graph, parameters: set[fx.Node]) -> set[fx.Node]:
    """`parameters`, and the nodes that are computed of them alone."""
    derived = set(parameters)
    for node in graph.nodes:
        if node.op == "call_function" and derived.issuperset(node.all_input_nodes):
            derived.add(node)
    return derived


def _merge_equal(graph: fx.Graph, derived: set[fx.Node]) -> None:
    """Compute once what several replacements compute of the same parameters; what is written stays apart."""
    first: dict[str, fx.Node] = {}
    for node in list(graph.nodes):
        is_functional = isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable
        if node in derived and is_functional and not any(node in written(user) for user in node.users):
            same = first.setdefault(f"{node.target} {node.args} {node.kwargs}", node)
            if same is not node:
                node.replace_all_uses_with(same)
                derived.remove(node)
                graph.erase_node(node)


def _computed(graph: fx.Graph, derived: set[fx.Node]) -> list[fx.Node]:
    """The derived nodes that others use, and that are no views of a parameter's memory, in order."""
    storages = {_storage(node) for node in derived if node.op == "placeholder"}
    return [
        node
        for node in graph.nodes
        if node in derived
        and node.op != "placeholder"
        and not derived.issuperset(node.users)
        and isinstance(_value(node), torch.Tensor)
        and _storage(node) not in storages
    ]


def _value(node: fx.Node) -> Any:
    return node.meta["val"] if "val" in node.meta else _example(node)


def _storage(node: fx.Node) -> int | None:
    value = _value(node)
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None
