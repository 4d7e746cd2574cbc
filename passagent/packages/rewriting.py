"""Put a package's operators into a captured graph, where they fit what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import fx

from passagent.evaluator.matching.effects import Memory
from passagent.evaluator.matching.matcher import Match, explain, match
from passagent.evaluator.matching.rewrite import replace_match
from passagent.evaluator.matching.unify import same_literal
from passagent.packages.loading import DeployedPass, Package
from passagent.packages.package_operators import (
    Key,
    PlannedOperator,
    key_of,
    layout_of,
    overload,
    split,
    tensor_count,
)
from passagent.packages.prepared import Prepared
from passagent.packages.rewrites import DoesNotFit, RewrittenGraph, inverse, order_of
from passagent.passes import Rewrite
from passagent.tasks.extract.model_capture import Model, capture_model

Copies = dict[int, tuple[torch.Tensor, list[int]]]
"""Outputs by number: the operator's own, and the order of dimensions in eager's memory."""
_AUTOCAST = "autocast is on, under which the pattern means something else"


@dataclass(frozen=True)
class Replaced:
    """A match that is now a call."""

    name: str
    """Name of the pass."""
    operator: str
    """The package's operator; empty for a rewrite into operators of the library."""
    nodes: tuple[str, ...]
    laid_out: tuple[str, ...] = ()
    """Inputs that are made contiguous for it, as they were when it was measured."""


@dataclass(frozen=True)
class Refused:
    """A match that stays as it is, or a pass that matches nowhere (no nodes)."""

    name: str
    nodes: tuple[str, ...]
    reason: str


@dataclass
class Rewriting:
    """The changes to a graph, or to those of a model."""

    replaced: list[Replaced] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)
    """Where Dynamo breaks the model's graph: `FILE:LINE: reason`."""
    prepared: Prepared | None = field(default=None, repr=False)
    """Values that the rewritten graph is given behind its inputs."""
    prepared_bytes: int = 0

    def data(self) -> dict[str, Any]:
        """Return plain data."""
        rows = {"replaced": list(map(asdict, self.replaced)), "refused": list(map(asdict, self.refused))}
        return {**rows, "breaks": self.breaks, "prepared_bytes": self.prepared_bytes}

    def __str__(self) -> str:
        lines = []
        for site in self.replaced:
            copied = f", with {', '.join(site.laid_out)} as contiguous copies" if site.laid_out else ""
            lines.append(f"{site.name}: replaces {', '.join(site.nodes)}{copied}")
        for miss in self.refused:
            where = f"leaves {', '.join(miss.nodes)}" if miss.nodes else "matches nothing"
            lines.append(f"{miss.name}: {where}: {miss.reason}")
        lines += [f"graph break at {place}" for place in self.breaks]
        if self.prepared_bytes:
            lines.append(f"values prepared of parameters take {self.prepared_bytes / 1e6:.1f} MB")
        lines.append(f"{len(self.replaced)} places replaced")
        return "\n".join(lines)


def explain_model(model: Model, packages: Iterable[Package]) -> Rewriting:
    """Capture the model and rewrite its graphs, without compiling them. Raises PassagentError."""
    packages, captured = list(packages), capture_model(model)
    whole = Rewriting(breaks=captured.breaks)
    for piece in captured.pieces:
        done = rewrite(piece.graph_module.graph, packages, explains=True, prepares=True)
        whole.replaced.extend(done.replaced)
        whole.refused.extend(done.refused)
        whole.prepared_bytes += done.prepared_bytes
    sites: list[Replaced | Refused] = [*whole.replaced, *whole.refused]
    matched = {site.name for site in sites if site.nodes}
    whole.refused = [miss for miss in whole.refused if miss.nodes or miss.name not in matched]
    return whole


def rewrite(
    graph: fx.Graph, packages: Iterable[Package], explains: bool = False, prepares: bool = False
) -> Rewriting:
    """Replace what the passes match, pass by pass, rewrites first; changes `graph`.

    A match is left alone where its fixed values, device, dtypes or shapes are not among those that were
    measured. A tensor that was measured contiguous and is not is made so, once, where it is made: what makes
    it can write it so. Outputs are copied into eager's strides where the operator's are others. `explains`:
    say of a pass that matches nowhere why. `prepares`: the caller gives the graph `Rewriting.prepared`.
    """
    done, packages = Rewriting(), list(packages)
    _put_rewrites(
        graph, [each for package in packages for each in package.graph_rewrites], done, explains, prepares
    )
    autocast, contiguous = _autocast(graph), dict[fx.Node, fx.Node]()
    for deployed in [each for package in packages for each in package.passes if each.rewrite is None]:
        count = len(done.replaced) + len(done.refused)
        for site in _matches(deployed.pattern, graph):
            nodes = tuple(node.name for node in site.nodes.values())
            chosen = _AUTOCAST if autocast else _choice(deployed, site)
            if isinstance(chosen, str):
                done.refused.append(Refused(deployed.name, nodes, chosen))
                continue
            name, tensors, others, copies = chosen
            for number in others:
                tensors[number] = _made_contiguous(tensors[number], contiguous)
            call = replace_match(graph, deployed.planned, site, overload(name), tuple(tensors))
            call.meta.pop("writes", None)  # it writes nothing: package_writing.py refuses what does
            results = {user.args[1]: user for user in call.users} if len(site.outputs) > 1 else {0: call}
            for number in copies.keys() & results.keys():
                _copy_output(results[number], *copies[number], contiguous)
            laid_out = tuple(tensors[number].name for number in others)
            done.replaced.append(Replaced(deployed.name, name, nodes, laid_out))
        if explains and count == len(done.replaced) + len(done.refused):
            done.refused.append(
                Refused(deployed.name, (), explain(deployed.pattern, graph, deployed.name).reason)
            )
    graph.lint()
    return done


def _put_rewrites(
    graph: fx.Graph, rewrites: list[Rewrite], done: Rewriting, explains: bool, prepares: bool
) -> None:
    """Put in the rewrites that fit, one after the other, and take out what is prepared for them."""
    rewritten, autocast = RewrittenGraph(graph, prepares), _autocast(graph)
    for each in rewrites:
        count = len(done.replaced) + len(done.refused)
        if not each.patterns and not autocast:
            done.replaced += [Replaced(each.name, "", (node.name,)) for node in rewritten.prepare()]
        for pattern in each.patterns:
            for site in _matches(pattern, graph):
                nodes = tuple(node.name for node in site.nodes.values())
                try:
                    if autocast:
                        raise DoesNotFit(_AUTOCAST)
                    rewritten.put(each, pattern, site)
                    done.replaced.append(Replaced(each.name, "", nodes))
                except DoesNotFit as reason:
                    done.refused.append(Refused(each.name, nodes, str(reason)))
        if explains and count == len(done.replaced) + len(done.refused):
            why = "nothing is computed of parameters alone that may be prepared"
            if each.patterns:
                why = explain(each.patterns[0], graph, each.name).reason
            done.refused.append(Refused(each.name, (), why))
    done.prepared = rewritten.finish()
    done.prepared_bytes = done.prepared.nbytes if done.prepared is not None else 0


def _matches(pattern: fx.Graph, graph: fx.Graph) -> Iterator[Match]:
    """Every match once. The graph may change between two: what comes is looked for anew."""
    yielded: set[tuple[str, ...]] = set()
    while True:
        for site in match(pattern, graph):
            nodes = tuple(node.name for node in site.nodes.values())
            if nodes not in yielded:
                yielded.add(nodes)
                yield site
                break
        else:
            return


def _made_contiguous(node: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """A contiguous copy of a tensor that nothing writes; one for all matches."""
    if node not in copies:
        inputs = node.graph.find_nodes(op="placeholder")
        copies[node] = _call_method(node, inputs[-1] if node in inputs else node, "contiguous")
    return copies[node]


def _choice(deployed: DeployedPass, site: Match) -> tuple[str, list[fx.Node], list[int], Copies] | str:
    """The operator for a match, its tensors, which must be made contiguous, which outputs must be copied; or
    why there is none.
    """
    skeleton, tensors = split(site.bindings)
    names = [name for bindings, name in deployed.skeletons if same_literal(bindings, skeleton)]
    if not names:
        return f"was measured with other constants than {_constants(skeleton)}"
    values = [node.meta.get("example_value") for node in tensors]
    reasons = {name: _unfit(deployed.operators[name], values) for name in names}
    for name in sorted(names, key=lambda name: bool(reasons[name])):  # those that need no copies first
        others = _strided(deployed.operators[name], values) if reasons[name] else []
        if others and not _are_written([tensors[number] for number in others]):
            reasons[name] = ""
        if not reasons[name]:
            copies = _copies(deployed.operators[name], site, values, others)
            if not isinstance(copies, str):
                return name, tensors, others, copies
            reasons[name] = copies
    return reasons[names[-1]]


def _copies(
    operator: PlannedOperator, site: Match, values: Sequence[Any], others: Sequence[int]
) -> Copies | str:
    """The outputs whose strides are not eager's at this place; a reason, if no copy has eager's.

    `others`: inputs that are made contiguous. Without examples the operator has the strides of its pattern.
    """
    examples = [node.meta.get("example_value") for node in site.outputs]
    tensors = [value for value in (*values, *examples) if isinstance(value, torch.Tensor)]
    if len(tensors) < len(values) + len(examples):
        return {}
    outputs = operator.by_pattern(*(v.contiguous() if n in others else v for n, v in enumerate(values)))
    copies: Copies = {}
    outputs = outputs if len(examples) > 1 else [outputs]
    for number, (output, like) in enumerate(zip(outputs, examples, strict=True)):
        if not _is_symbolic(like.stride()) and layout_of(output) == layout_of(like):
            continue
        order = order_of(like)
        copies[number] = output, order
        if layout_of(output.permute(order).contiguous().permute(inverse(order))) != layout_of(like):
            return f"eager's output {number} has strides {_shown(like.stride())}, which no copy has"
    return copies


def _copy_output(
    node: fx.Node, output: torch.Tensor, order: list[int], contiguous: dict[fx.Node, fx.Node]
) -> None:
    """Give the users of a node a copy of it that is contiguous in that order of dimensions."""
    node.meta["example_value"], users = output, list(node.users)
    turned = _call_method(node, node, "permute", *order)
    copy = _call_method(turned, turned, "contiguous")
    copy = _call_method(copy, copy, "permute", *inverse(order))
    node.replace_all_uses_with(copy, delete_user_cb=users.__contains__)
    if output.is_contiguous():
        contiguous[copy] = node


def _call_method(node: fx.Node, behind: fx.Node, name: str, *args: int) -> fx.Node:
    with node.graph.inserting_after(behind):
        call = node.graph.call_method(name, (node, *args))
    call.meta["example_value"] = getattr(node.meta["example_value"], name)(*args)
    return call


def _is_symbolic(sizes: Sequence[Any]) -> bool:
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _constants(skeleton: dict[str, Any]) -> str:
    fixed = {name: part for name, part in skeleton.items() if not tensor_count({name: part})}
    return (
        ", ".join(f"{name}={value}" for name, value in fixed.items()) or "these (another number of tensors)"
    )


def _unfit(operator: PlannedOperator, values: Sequence[Any]) -> str:
    """Why an operator is not used for these tensors; empty if it is. Without examples calls decide."""
    if not all(isinstance(value, torch.Tensor) for value in values):
        return "" if all(value is None for value in values) else "a parameter is bound to a number"
    device = next((value.device.type for value in values if value.device.type != operator.device), None)
    if device is not None:
        return f"was measured on {operator.device}, a tensor is on {device}"
    sizes = [(*value.shape, *value.stride()) for value in values]
    symbolic = next((number for number, these in enumerate(sizes) if _is_symbolic(these)), None)
    if symbolic is not None:
        return f"a size or stride of tensor {symbolic} is symbolic"
    key = key_of(values)
    if key in operator.calls:
        return ""
    return _nearest(key, list(operator.calls))


def _strided(operator: PlannedOperator, values: Sequence[Any]) -> list[int]:
    """The tensors of a call that was measured, but for these, which were contiguous.

    Dynamo makes strides symbolic when it compiles a function again for others: a copy has known ones.
    """
    if not all(isinstance(value, torch.Tensor) and value.device.type == operator.device for value in values):
        return []
    if any(_is_symbolic(value.shape) for value in values):
        return []
    layouts = [None if _is_symbolic(value.stride()) else layout_of(value) for value in values]
    contiguous = [layout_of(value.new_empty(value.shape, device="meta")) for value in values]
    either = list(zip(layouts, contiguous, strict=True))
    fitting = [
        key for key in operator.calls if all(layout in pair for layout, pair in zip(key, either, strict=True))
    ]
    others = [[n for n, layout in enumerate(key) if layout != layouts[n]] for key in fitting]
    return min(others, key=len, default=[])


def _are_written(nodes: Sequence[fx.Node]) -> bool:
    """Return whether anything in the graph writes into the memory of one of the nodes."""
    graph = nodes[0].graph
    memory = Memory(graph)
    written = memory.writes(graph.nodes)
    return any(memory.roots[node] & written for node in nodes)


def _nearest(key_here: Key, measured: list[Key]) -> str:
    """In what a call differs from all that was measured."""
    fields = ("shape", "strides", "dtype")
    closest = max(measured, key=lambda key: sum(a == b for a, b in zip(key, key_here, strict=True)))
    for number, (here, there) in enumerate(zip(key_here, closest, strict=True)):
        if here != there:
            differing = ((word, a, b) for word, a, b in zip(fields, here, there, strict=True) if a != b)
            word, is_now, was = next(differing)
            return f"was measured with {word} {_shown(was)} of tensor {number}, not {_shown(is_now)}"
    return "was measured with other tensors"


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _autocast(graph: fx.Graph) -> bool:
    inside = any(getattr(node.target, "__name__", "") == "_enter_autocast" for node in graph.nodes)
    return inside or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
