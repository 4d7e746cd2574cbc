"""Eager: inputs from a fresh seed, its outputs on them, and a worker to time beside a candidate's.

A reference (inputs, eager's outputs, eager in float64) is kept for several candidates and then drawn anew: no
candidate sees its seed or its values but through what one evaluation tells its author.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import statistics
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import torch

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError, TaskError
from passagent.evaluator import captures
from passagent.evaluator.correctness.inplace import States
from passagent.evaluator.correctness.precision import Expected, Fact
from passagent.evaluator.correctness.settled import room_of
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.reference import keeping
from passagent.evaluator.reference.drawing import (
    FOR_FAST,
    FOR_FEW,
    FOR_SMALL,
    SET_KINDS,
    EagerError,
    SpecialError,
    begin_wider,
    come_closer,
    draw_sets,
)
from passagent.evaluator.reference.eager import EagerGraph
from passagent.evaluator.reference.graph_costs import affordable_inputs, count_flops, unread_bytes
from passagent.evaluator.reference.reference import Reference, of_eager, run_request
from passagent.evaluator.runner import endings, hostless, worker_messages
from passagent.evaluator.runner.endings import WorkerDied, WorkerTimeout, last_line
from passagent.evaluator.runner.fresh import Rotation, Windows
from passagent.evaluator.runner.process import Worker, WorkerAnswer, WorkerServer, answered
from passagent.evaluator.runner.samples import counted
from passagent.evaluator.runner.worker_messages import R, Request
from passagent.evaluator.score import SETS
from passagent.sandbox.channel import Arena, Described
from passagent.sandbox.environment import give_memory_back
from passagent.tasks.graphio import operator_name
from passagent.tasks.reader import Subgraph, input_bytes
from passagent.tasks.uses import Wider, as_recorded, is_recorded

EPOCH = 32
"""Uses of a reference before its inputs are drawn anew: an evaluation checks and then times with it."""
MAX_AGE_S = 3600.0
"""The baseline's worker is replaced after this long, s: before it runs into its limit of processor time."""
_DESCRIBED_CALLS, _DESCRIBED_NS = 15, 100_000_000
"""Calls that tell an author eager's time, or ns that they take, at most."""
_LARGE = 1 << 22
"""A subgraph is slow to check, too, if its outputs have more elements."""
_SPARSE = 16 << 30
"""Room for eager's outputs, bytes: address space only, memory is taken as it is written."""


class Baseline:
    """The trusted worker of a referee; started at first use, started again if it is lost."""

    def __init__(self, server: WorkerServer, config: EvaluatorConfig, lease: DeviceLease) -> None:
        self._server, self._config, self._lease = server, config, lease
        self._worker: Worker | None = None
        self._outputs: Arena | None = None
        self._kept: OrderedDict[str, Reference] = OrderedDict()
        self._born = 0.0

    def reference(self, subgraph: Subgraph, dispatch: str, judged: str | None = None) -> Reference:
        """The subgraph's reference, kept or drawn; the worker holds the subgraph, ready to be timed.

        `judged`: the candidate whose judgement begins. One that comes again is judged on other values.
        Raises TaskError if eager fails, takes longer than the time-out or is not one graph for Dynamo.
        """
        if self._worker is not None and time.monotonic() - self._born > MAX_AGE_S:
            self._worker.kill()
        key = _key(subgraph, dispatch)
        self._see_whether_it_lives()
        kept_reference = self._kept.get(key)
        if kept_reference is not None and self._worker is not None:
            if kept_reference.uses < EPOCH and judged not in kept_reference.judged:
                kept_reference.uses += 1
                kept_reference.judged |= {judged} - {None}
                self._kept.move_to_end(key)
                return kept_reference
            self._forget(key)
        drawn = self._kept[key] = self._draw(key, subgraph, dispatch)
        drawn.judged |= {judged} - {None}
        while len(self._kept) > 1 and keeping.are_too_many(
            [reference.size for reference in self._kept.values()], self._config.device
        ):
            self._forget(next(iter(self._kept)))
        return drawn

    def capture(self, subgraph: Subgraph) -> captures.KeptGraph:
        """The graph, kept or captured by the worker with Dynamo on the recorded values. Raises TaskError."""
        if (kept_graph := captures.without_dynamo(subgraph, self._config.device)) is not None:
            return kept_graph
        self._see_whether_it_lives()
        name, rotation = _key(subgraph, "direct"), Rotation.of(subgraph)
        with self._lease.host():
            arena, sets = draw_sets(subgraph, subgraph, rotation, None, SET_KINDS[:1])
        drawn = (arena, [*sets.values()], [*sets])
        try:
            reference = Reference(name, subgraph, "direct", *drawn, rotation, [], [])
            reply = self._take(reference)
            self._ask(worker_messages.Release(ids=[name]))
        finally:
            arena.close()
        assert reply.nodes is not None
        graph = captures.KeptGraph(reply.nodes, reply.order)
        captures.keep(subgraph, self._config.device, graph)
        return graph

    def describe(self, subgraph: Subgraph, dispatch: str) -> EagerGraph:
        """Eager on a subgraph, timed in a few calls. Raises as `reference` does."""
        reference = self.reference(subgraph, dispatch)
        windows = [reference.rotation.first()]
        samples: list[int] = []
        while len(samples) < _DESCRIBED_CALLS and sum(samples) < _DESCRIBED_NS:
            request = run_request(reference, 0, windows * 3, settle=windows[0])
            with self._lease.exclusive():
                samples += self._ask(request).reply.samples
        host_ns = reference.host_ns(reference.dispatches)
        eager_us = counted(round(statistics.median(samples)), max(1, reference.repeats), host_ns) / 1e3
        return EagerGraph(subgraph.name, tuple(reference.outputs), tuple(_operators(reference)), eager_us)

    def begin(self, subgraph: Subgraph) -> None:
        """Start the worker, unless it runs, to take `subgraph` first. Raises InfrastructureError."""
        if self._worker is None:
            if captures.without_dynamo(subgraph, self._config.device) is None:
                self._server.load_dynamo()
            # In the same sandbox as a candidate's: what a layer of it costs, it costs both sides.
            worker, self._born = self._server.fork(None), time.monotonic()
            request = worker_messages.Load(plans=None, compiler=None, device=self._config.device)
            self._worker = answered(worker, request, self._config.timeout_s, "the baseline's worker")
            self._outputs = Arena.create(_SPARSE)

    def turn_to(self, subgraphs: Sequence[Subgraph], dispatch: str) -> None:
        """Forget what other tasks left, the oldest first, if all of it takes more than keeping.KEPT_BYTES."""
        self._see_whether_it_lives()
        keys = {_key(subgraph, dispatch) for subgraph in subgraphs}
        others = [key for key in self._kept if key not in keys]
        while others and sum(reference.size for reference in self._kept.values()) > keeping.KEPT_BYTES:
            self._forget(others.pop(0))

    def close(self) -> None:
        """Free the references; the worker ends with its fork server."""
        self._lose()

    def again(self, reference: Reference, chosen: int, windows: Windows) -> Expected:
        """Eager's outputs on windows of set `chosen`, as on a set of its own."""
        request = run_request(reference, chosen, [windows], keep=True)
        eager = self._read(self._ask(request).reply.returned.outputs)
        states: list[States] = []
        if reference.mutated:
            of_states = of_eager(worker_messages.States, reference, chosen, windows)
            states = self._states(reference, chosen, windows, self._ask(of_states).reply)
        is_known = reference.expected[chosen].known
        exact = self._float64(reference, chosen, windows) if is_known else None
        of_set = reference.expected[chosen]
        values = eager + [state.after[-1] for state in states]
        return Expected(values, of_set.facts, exact, states, usual_sizes=of_set.sizes)

    def look_closer(
        self, reference: Reference, expected: Expected, chosen: int, windows: Windows | None = None
    ) -> Expected:
        """`expected` of a call on windows of a set, in float64, and with its `spread` where that tells.

        On sets that outputs are not compared on it is with its `room`. Without `windows` it is what the set
        expects, which keeps that.
        """
        seed = {"seed": secrets.randbits(40)}
        where = reference.rotation.first() if windows is None else windows
        if expected.room or expected.spread:
            return expected
        if chosen >= SETS:
            of_room = of_eager(worker_messages.Room, reference, chosen, where).model_copy(update=seed)
            try:
                room = self._read(self._run(of_room, reference.subgraph).tensors or [])
            except EagerError:  # it raises on values beside these, so it judges nobody here
                room = [torch.full_like(room_of(value, [value]), torch.inf) for value in expected.eager]
            closer = replace(expected, room=room)
        else:
            closer = expected
            if expected.float64 is None:  # it is large, or does not run so
                closer = replace(expected, float64=self._float64(reference, chosen, where))
            if closer.is_ill_conditioned:
                of_spread = of_eager(worker_messages.Spread, reference, chosen, where).model_copy(update=seed)
                closer = replace(closer, spread=self._read(self._ask(of_spread).reply.tensors or []))
        if windows is None:
            reference.expected[chosen] = closer
        return closer

    def _ask(self, request: Request[R]) -> WorkerAnswer[R]:
        """Ask about a subgraph at hand. Raises InfrastructureError: eager did answer before."""
        assert self._worker is not None
        try:
            answer = self._worker.ask(request, self._config.timeout_s)
        except (WorkerDied, WorkerTimeout) as error:
            self._lose()
            raise endings.lost("the baseline's worker was lost", error) from error
        if answer.error is not None:
            raise endings.failed("eager fails where it ran before", answer.error)
        return answer

    def _read(self, described: Sequence[Described]) -> list[torch.Tensor]:
        """Return the tensors that a reply of this worker describes."""
        assert self._outputs is not None
        return [self._outputs.read(item) for item in described]

    def _draw(self, name: str, subgraph: Subgraph, dispatch: str) -> Reference:
        """Values as far beyond what was recorded as the graph allows; where eager fails there, less far."""
        captured = self.capture(subgraph)
        values, narrowed = begin_wider(subgraph, captured), list[str]()
        is_special = self._config.special_values
        while True:
            try:
                reference = self._drawn(subgraph, values.subgraph, dispatch, captured, is_special)
            except SpecialError:
                is_special, narrowed = False, ["no special values: eager fails on them"]
                if self._worker is not None and self._config.device != "cpu":  # an assertion ends its context
                    self._worker.kill()
                    self._lose()
                continue
            except TaskError as error:
                if isinstance(error.__cause__, WorkerTimeout | WorkerDied) or is_recorded(values.subgraph):
                    raise
                values = Wider(as_recorded(subgraph), ["every input: eager fails on other values"])
                continue
            closer = come_closer(values, reference)
            if closer.subgraph == values.subgraph:
                reference.narrowed = values.kept + narrowed
                return reference
            values = closer
            reference.close()
            self._ask(worker_messages.Release(ids=[name]))

    def _drawn(
        self, subgraph: Subgraph, wider: Subgraph, dispatch: str, graph: captures.KeptGraph, is_special: bool
    ) -> Reference:
        """Draw the sets of a reference, as draw_sets does, and run eager on them."""
        name, rotation = _key(subgraph, dispatch), Rotation.of(wider)
        with self._lease.host():
            arena, sets = draw_sets(subgraph, wider, rotation, graph if is_special else None)
        drawn = (arena, [*sets.values()], [*sets])
        try:
            captured = (rotation, graph.nodes, graph.order)
            reference = Reference(name, subgraph, dispatch, *drawn, *captured)
            self._prepare(reference)
        except BaseException:
            arena.close()
            raise
        return reference

    def _prepare(self, reference: Reference) -> None:
        """Have the worker take the subgraph, run it on every set, and see what refreshing inputs costs."""
        subgraph, device = reference.subgraph, self._config.device
        self.begin(subgraph)
        begun = time.monotonic()
        reply = self._take(reference)
        reference.operators = len(_operators(reference))
        reference.dispatches, reference.operator_ns = reply.dispatches, reply.operator_ns
        reference.moved_bytes = input_bytes(subgraph)
        reference.unread_bytes = unread_bytes(reference.nodes, reference.order, subgraph)
        reference.flops = count_flops(reference.nodes, reference.order, subgraph)
        chosen, is_small, is_slow, reference.call_s = 0, keeping.is_small(subgraph), False, math.inf
        has_many = False
        first, drawn = reference.rotation.first(), list[tuple[list[torch.Tensor], list[Fact]]]()
        try:
            for chosen, kind in enumerate(reference.kinds):
                if (kind in FOR_SMALL and not is_small) or (kind in FOR_FAST and is_slow):
                    break
                if kind in FOR_FEW and has_many:
                    break
                ran = self._run(run_request(reference, chosen, [first], keep=True), subgraph)
                call, eager = ran.returned, self._read(ran.returned.outputs)
                if chosen == 0:
                    reference.note_outputs(eager, call.outputs)
                    count = sum(tensor.numel() for tensor in eager)
                    is_small, has_many = is_small and count <= keeping.SMALL, count > _LARGE
                shapes = [output.shape for output in eager]
                if chosen in reference.special and shapes != [output.shape for output in drawn[0][0]]:
                    raise TaskError(f"{subgraph.path}: the shapes of eager's outputs depend on values")
                # a busy machine may disturb one call
                reference.call_s = min(reference.call_s, *(sample / 1e9 for sample in ran.samples))
                is_slow = is_slow or (chosen == SETS and reference.is_slow)
                reference.mutated = sorted({*reference.mutated, *call.mutated})
                drawn.append((eager, [Fact(item.contiguous, item.device, item.own) for item in call.outputs]))
            for chosen, (eager, facts) in enumerate(drawn):
                reference.expected.append(self._expected(reference, chosen, eager, facts, is_small))
        except TaskError as error:
            raise (SpecialError(str(error)) if chosen in reference.special else error) from error.__cause__
        if reference.dispatch == "graph" and device != "cpu":
            reference.repeats = hostless.repeats_of(reference.moved_bytes, reference.mutated)
            reference.captures = hostless.captures_of(reference.moved_bytes, reference.repeats)
            self._take(reference)
        reference.often = affordable_inputs(reference, self._ask)
        reference.eager_s = time.monotonic() - begun

    def _take(self, reference: Reference) -> worker_messages.GraphReply:
        """Have the worker take the subgraph, ready to be run; it is started where there is none."""
        self.begin(reference.subgraph)
        assert self._outputs is not None
        arenas = (reference.arena.fd, self._outputs.fd)
        return self._run(reference.request(self._outputs), reference.subgraph, arenas)

    def _expected(
        self, reference: Reference, chosen: int, eager: list[torch.Tensor], facts: list[Fact], is_small: bool
    ) -> Expected:
        first, states = reference.rotation.first(), list[States]()
        if reference.mutated:
            request = of_eager(worker_messages.States, reference, chosen, first)
            states = self._states(reference, chosen, first, self._run(request, reference.subgraph))
        exact = self._float64(reference, chosen, first) if chosen < SETS and is_small else None
        return Expected(eager + [state.after[-1] for state in states], facts, exact, states)

    def _float64(self, reference: Reference, chosen: int, windows: Windows) -> list[torch.Tensor] | None:
        """The outputs in float64, see worker_messages.Float64."""
        request = of_eager(worker_messages.Float64, reference, chosen, windows)
        described = self._run(request, reference.subgraph).tensors
        return None if described is None else self._read(described)

    def _states(
        self, reference: Reference, chosen: int, windows: Windows, reply: worker_messages.StatesReply
    ) -> list[States]:
        return [
            States(position, reference.values(position, chosen, windows), self._read(after), due)
            for position, after, due in zip(reference.mutated, reply.states, reply.due, strict=True)
        ]

    def _run(self, request: Request[R], subgraph: Subgraph, fds: tuple[int, ...] = ()) -> R:
        assert self._worker is not None
        try:
            answer = self._worker.ask(request, self._config.timeout_s, fds)
        except WorkerTimeout as error:
            self._lose()
            message = f"{subgraph.path}: eager takes more than {self._config.timeout_s:.0f} s"
            raise TaskError(message) from error
        except WorkerDied as death:
            self._lose()
            if death.killed_from_outside:
                raise InfrastructureError(f"the baseline's worker {death.describe()}") from death
            if death.status == "out_of_memory":
                raise keeping.too_large(subgraph, self._config.device) from death
            raise TaskError(f"{subgraph.path}: eager {death.describe()}{last_line(death.log)}") from death
        if answer.error is not None:
            fault = endings.named_by_worker(f"{subgraph.path}: eager", answer.error)
            if fault is not None:
                raise fault
            if answer.error.kind == "out_of_memory":
                raise keeping.too_large(subgraph, self._config.device)
            raise EagerError(f"{subgraph.path}: eager fails: {answer.error.message}")
        return answer.reply

    def _forget(self, key: str) -> None:
        """Drop a reference here and in the worker."""
        self._kept.pop(key).close()
        give_memory_back()
        if self._worker is not None:
            self._ask(worker_messages.Release(ids=[key]))

    def _see_whether_it_lives(self) -> None:
        if self._worker is not None and not self._worker.is_alive():
            self._lose()

    def _lose(self) -> None:
        """The worker is gone, and with it what it held."""
        self._worker = None
        if self._outputs is not None:
            self._outputs.close()
            self._outputs = None
        for reference in self._kept.values():
            reference.close()
        self._kept.clear()


def _operators(reference: Reference) -> list[str]:
    """The names of the graph's operators."""
    computing = (node for node in reference.nodes if node["op"] not in ("placeholder", "output"))
    return [operator_name(node["target"]) for node in computing]


def _key(subgraph: Subgraph, dispatch: str) -> str:
    return f"{dispatch}:{hashlib.sha256(repr(subgraph).encode()).hexdigest()[:32]}"
