"""From the captured graphs of a task and a plan to the files of a candidate; what these take of a task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from torch import fx

from passagent.errors import PassagentError, UsageError
from passagent.expert.choices import CHOICES, Plan, default
from passagent.expert.graph import HEAVY, example, is_free, mutates, op_name, operators
from passagent.expert.lower import (
    Lowered,
    Region,
    Types,
    decides_later,
    has_any,
    lower_region,
    named_types,
)
from passagent.expert.lower.attention import is_attention, lower_attention
from passagent.expert.lower.expressions import HALF, Trace
from passagent.expert.lower.symbolic_sizes import Unsupported, conditions, simplified
from passagent.expert.lower.windows import bias_of, is_written_out
from passagent.expert.read import graphs, pattern_text
from passagent.expert.read.fusible_regions import does_nothing, find_regions, is_view, moves_only
from passagent.expert.schedule import layouts
from passagent.expert.write import Part, attention_text, cpp_text, cuda_text, entry, mentioned
from passagent.expert.write.routes import Route, Variant, distinct, limits
from passagent.kernels.layout import Order


@dataclass
class Authored:
    """A candidate's files, and what was left out and why."""

    files: dict[str, str]
    fused: list[str]
    operators: list[str] = field(default_factory=list)
    """Fused operators that a plan may leave out."""
    refused: dict[str, str] = field(default_factory=dict)
    uncovered: list[int] = field(default_factory=list)
    """Graphs without any region."""
    taken: list[tuple[int, Region]] = field(default_factory=list)
    """The regions that the passes replace, each with its graph's number."""
    parts: list[Part] = field(default_factory=list)
    """The parts of the kernels, for CUDA."""


def author(graphs: list[fx.Graph], target: str, plan: Plan) -> Authored:
    """Write a candidate for the captured graphs of a task. Where a region cannot be lowered it shrinks."""
    without, refused = set(plan.without), dict[str, str]()
    while True:
        routes, covered, failed = _routes(graphs, target, plan, frozenset(without), refused)
        if not failed <= without:
            without |= failed
            continue
        numbers = {number for number, _ in covered}
        uncovered = [k for k in range(len(graphs)) if k not in numbers]
        alive = entry.matching([family for family, _ in routes], graphs)
        routes = [route for route, matches in zip(routes, alive, strict=True) if matches]
        if not routes:
            return Authored({}, [], [], refused, uncovered)
        fused = dict.fromkeys(op_name(n) for f, _ in routes for n in f.regions[0].nodes if not is_free(n))
        titles = [entry.title(f.regions[0]) for f, _ in routes]
        parts = [part for _, route in routes for v in route.variants for part in v.parts]
        files = entry.pass_files(routes, plan, target)
        return Authored(files, titles, list(fused), refused, uncovered, covered, parts)


def _routes(
    graphs: list[fx.Graph], target: str, plan: Plan, without: frozenset[str], refused: dict[str, str]
) -> tuple[list[tuple[entry.Family, Route]], list[tuple[int, Region]], set[str]]:
    """Routes of all families, their regions by graph, and operators that regions failed at."""
    families: dict[Any, list[tuple[int, Region]]] = {}
    for number, graph in enumerate(graphs):
        regions, reasons = find_regions(graph, target, without)
        refused.update({op: why for op, why in reasons.items() if op not in refused})
        for region in regions:
            families.setdefault(pattern_text.structure(region), []).append((number, region))
    routes: list[tuple[entry.Family, Route]] = []
    covered: list[tuple[int, Region]] = []
    failed: set[str] = set()
    for members in families.values():
        try:
            routes.append(_route([r for _, r in members], target, plan))
            covered += members
        except Unsupported as error:
            computing = [op_name(n) for n in members[0][1].nodes if not is_free(n)]
            writing = [op_name(n) for _, r in members for n in r.nodes if mutates(n) is not None]
            blamed = writing[0] if error.op == cuda_text.IN_PLACE else error.op
            blamed = blamed if blamed in computing else computing[-1]
            refused[blamed] = error.reason
            failed.add(blamed)
    # The largest first; of equal ones those with fewer inputs, since an input matches a number, too.
    routes.sort(key=lambda r: (-len(r[0].regions[0].nodes), len(r[0].regions[0].inputs)))
    return routes, covered, failed


def _route(regions: list[Region], target: str, plan: Plan) -> tuple[entry.Family, Route]:
    taken = pattern_text.parameters(regions)
    family = entry.Family(regions, taken, pattern_text.names(regions[0], taken))
    inputs = [family.names[i] for i in regions[0].inputs]
    if all(is_view(n) for n in regions[0].nodes):
        body = entry.view_lines(family)  # the wrapper takes them itself, without those that do nothing
        return family, Route(
            entry.identifier(regions[0]), inputs, mentioned([p.name for p in taken], body), [], moves=body
        )
    writer = FamilyWriter(family, target, plan)
    route = Route(writer.name, inputs, [], [], writer.inputs)
    first, *others = regions[0].inputs
    of_library = not others and first.op == "call_function" and op_name(first) in HEAVY
    if of_library and moves_only(regions[0]) and not writer.inputs[0]:
        route.moves = entry.view_lines(family)  # on another device it may lie otherwise
    variants = list(map(writer.variant, regions))
    route.library = {name: _library_call(family, name) for name in variants[0].library}
    route.inputs, route.orders = [*inputs, *route.library], [*writer.inputs, *[()] * len(route.library)]
    for region, v in zip(regions, variants, strict=True):
        route.named.append(entry.named(region, family) | v.library)
    # Those that take any size come last.
    route.variants = sorted(distinct(variants), key=lambda v: -len(limits(v)))
    texts = [t for v in route.variants for t in [*v.guards, *v.kernel.sizes, *chain(*v.shapes)]]
    used = {p for v in route.variants for p in v.kernel.params}
    used |= {*mentioned(writer.parameters, [*texts, *route.moves])}
    route.parameters = [p for p in writer.parameters if p in used]
    return family, route


def _library_call(family: entry.Family, name: str) -> str:
    """A convolution of the pattern as an expression, without its bias."""
    node = next(n for n in family.regions[0].nodes if family.names[n] == name)

    def leaf(_: Any, value: Any) -> str:
        if isinstance(value, fx.Node):
            return "None" if value is bias_of(node) else family.names[value]
        return pattern_text.literal(value)

    return pattern_text.call(node, leaf)


class FamilyWriter:
    """Writes the kernels of a family's regions."""

    def __init__(self, family: entry.Family, target: str, plan: Plan) -> None:
        self.target, self.plan, self.first = target, plan, family.regions[0]
        self.taken, self.names = family.parameters, family.names
        self.name, self.parameters = entry.identifier(self.first), [p.name for p in family.parameters]
        inputs = zip(*(region.inputs for region in family.regions), strict=True)
        self.inputs = [layouts.memory_order(list(map(example, nodes))) for nodes in inputs]
        """How the regions' inputs lie in memory."""
        self.outputs = layouts.output_orders(family.regions)
        """How eager's outputs lie."""
        self.half = next((r for r in family.regions if has_any(r, HALF)), None)

    def variant(self, region: Region) -> Variant:
        """The kernel of a region. Raises Unsupported."""
        types = named_types(region, self.half)
        try:
            return self._lowered(region, types)
        except Unsupported:
            if self.half is None or self.half is region or has_any(region, HALF):
                raise
            return self._lowered(region, [Types(frozenset())] * len(types))

    def _lowered(self, region: Region, types: list[Types]) -> Variant:
        names = [self.names[i] for i in self.first.inputs]
        if is_attention(region):
            attention, order = lower_attention(region, self.taken, types, self.inputs), self.outputs[0]
            kernel, shape = attention_text.attention_kernel(
                attention, self.name, names, self.parameters, order, self.plan
            )
            variant = Variant(kernel, [shape], [attention.output.dtype], [order], [""])
            return self._completed(variant, attention.trace, region, self.inputs)
        low = lower_region(region, self.taken, self.target, types, self.inputs)
        low.trace.decisive = decides_later(region)
        library = {
            self.names[self.first.nodes[region.nodes.index(node)]]: tuple(example(node).shape)
            for node in low.trace.library.values()
        }
        names += library
        try:
            variant = self._scheduled(low, names, region)
        except Unsupported as error:
            if error.op != "schedule" or not layouts.join_reductions(low.trace, low.outputs):
                raise
            variant = self._scheduled(low, names, region)
        variant.library = library
        return variant

    def _scheduled(self, low: Lowered, names: list[str], region: Region) -> Variant:
        written = low.written if self.target == "cuda" else {}
        sources = list(region.outputs)
        for j in range(len(sources)):  # what an operator that does nothing returns is its input
            while does_nothing(sources[j]):
                sources[j] = sources[j].all_input_nodes[0]
        returned = [next((k for k, (_, last) in written.items() if last is o), None) for o in sources]
        new = [j for j, k in enumerate(returned) if k is None]
        more = [k for k in written if k not in returned]
        values = [*low.outputs, *(written[k][0] for k in more)]
        lying = [*self.outputs, *[()] * len(written)]
        schedule, orders = layouts.stored(low.trace, values, lying, self.target)
        moves = next((op for n in region.nodes if (op := op_name(n)) in layouts.MOVES), None)
        if self.target == "cpu" and moves and layouts.reduces_again(schedule):
            raise Unsupported(moves, "what is reduced before it would be reduced again for what it moves")
        windows = next((op_name(n) for n in region.nodes if is_written_out(n)), None)
        if windows and layouts.windows_again(schedule):
            raise Unsupported(windows, "would be computed again for what is reduced of it")
        allocated = ["out"] if len(new) == 1 else [f"out{k}" for k in range(len(new))]
        outputs = [allocated[new.index(j)] if k is None else names[k] for j, k in enumerate(returned)]
        outputs += [names[k] for k in more]
        shapes = [list(map(str, low.outputs[j].refresh().shape)) for j in new]
        dtypes = [low.outputs[j].dtype for j in new]
        returns = [names[k] if k is not None else "" for k in returned]
        writer = {"cpu": cpp_text.CppWriter, "cuda": cuda_text.TritonWriter}[self.target]
        kernel = writer(schedule, self.name, names, outputs, self.plan).kernel(shapes, self.parameters)
        variant = Variant(kernel, shapes, dtypes, [orders[j] for j in new], returns)
        lying = [*self.inputs, *[()] * (len(names) - len(self.inputs))]
        return self._completed(variant, schedule.trace, region, lying)

    def _completed(self, v: Variant, trace: Trace, region: Region, orders: list[Order]) -> Variant:
        """The variant with what its plan says of its inputs, which lie in `orders`. Raises Unsupported."""
        kernel, input_dtypes = v.kernel, tuple(trace.dtypes[: len(orders)])
        generic = next((k for k in kernel.inputs if input_dtypes[k] == "half"), None)
        if generic is None and ("half" in v.dtypes or "<T>" in kernel.source or "T*" in kernel.source):
            raise Unsupported("dtype", "no input tells the 16-bit type of the result")
        kinds = list(zip(input_dtypes, orders, strict=True))
        for shape, dtype, order in zip(v.shapes, v.dtypes, v.orders, strict=True):
            lying = [shape[d] for d in order or range(len(shape))]
            alike = [k for k in kernel.inputs if kinds[k] == (dtype, order)]
            v.like.append(next((k for k in alike if list(map(str, trace.inputs[k])) == lying), None))
        kernel.sizes = [simplified(size) for size in kernel.sizes]
        v.guards, v.shapes = conditions(trace.guards), [list(map(simplified, shape)) for shape in v.shapes]
        v.generic, v.input_dtypes = generic, input_dtypes
        if generic is not None:
            v.generic_dtypes = (str(example(region.inputs[generic]).dtype).removeprefix("torch."),)
        v.ranks = tuple(len(sizes) for sizes in trace.inputs[: len(orders)])
        return v


ALONE = "alone: a kernel would not pay"
VIEW = "a view, which costs nothing"


@dataclass(frozen=True)
class Left:
    """An operator that stays with eager."""

    operator: str
    why: str
    count: int
    """Over all graphs of the task."""


@dataclass(frozen=True)
class TaskCoverage:
    """The coverage of a task's operators under the default plan."""

    task: str
    graphs: int = 0
    kernels: int = 0
    """Graphs in which a kernel replaces something."""
    views: int = 0
    """Graphs in which nothing but views is rewritten."""
    regions: list[str] = field(default_factory=list)
    """The operators of each kind of region, such as `add + layer_norm`."""
    taken: int = 0
    """Operators inside regions, over all graphs."""
    left: list[Left] = field(default_factory=list)
    error: str | None = None
    """Why the task could not be read."""

    @property
    def covered(self) -> bool:
        """Tell whether a pass rewrites every graph."""
        return 0 < self.graphs == self.kernels + self.views


def cover(task: Path, target: str) -> TaskCoverage:
    """Find what the expert's first pass takes of a task. Raises UsageError for an unknown target."""
    if target not in CHOICES:
        raise UsageError(f"--device {target}: write {' or '.join(CHOICES)}")
    task_name = task.resolve().name
    try:
        captured = graphs(str(task))
    except PassagentError as error:
        return TaskCoverage(task_name, error=str(error))
    authored = author(list(captured), target, default(target))
    inside = {node for _, region in authored.taken for node in region.nodes}
    computed = {number for number, region in authored.taken if not all(map(is_view, region.nodes))}
    every = {number for number, _ in authored.taken}
    counts: Counter[tuple[str, str]] = Counter()
    for graph in captured:
        for node in operators(graph):
            if node not in inside:
                name = op_name(node)
                counts[name, VIEW if is_free(node) else authored.refused.get(name, ALONE)] += 1
    return TaskCoverage(
        task_name,
        len(captured),
        len(computed),
        len(every - computed),
        list(dict.fromkeys(authored.fused)),
        len(inside),
        [Left(operator, why, count) for (operator, why), count in counts.most_common()],
    )


@dataclass(frozen=True)
class Total(Left):
    """An operator that stays with eager, over all tasks."""

    tasks: int


def totals(tasks: list[TaskCoverage]) -> list[Total]:
    """Operators that stay with eager, those of the most tasks first."""
    by_reason: dict[tuple[str, str], list[int]] = {}
    for missing in (missing for task in tasks for missing in task.left):
        by_reason.setdefault((missing.operator, missing.why), []).append(missing.count)
    result = [Total(*reason, sum(counts), len(counts)) for reason, counts in by_reason.items()]
    return sorted(result, key=lambda t: (-t.tasks, -t.count, t.operator))
