"""The program of a worker process: load a candidate (or none: the baseline), run a subgraph, report times.

A worker compares nothing and judges nothing. The baseline's worker and a candidate's run the same code on the
same graph, so that both sides cost the same but for the rewritten regions. What it can be asked for is in
worker_messages.py.
"""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from passagent.evaluator.correctness.double import in_float64, spread_of
from passagent.evaluator.correctness.inplace import states_of
from passagent.evaluator.correctness.settled import settle
from passagent.evaluator.integrity.blocks import Blocks
from passagent.evaluator.result import Violation
from passagent.evaluator.runner import calls, subgraphs
from passagent.evaluator.runner import worker_messages as messages
from passagent.evaluator.runner.fresh import Windows, window_of
from passagent.evaluator.runner.lockstep import Turn, TurnLost
from passagent.evaluator.runner.marks import mark_by
from passagent.evaluator.runner.planned import Planned, Plans
from passagent.evaluator.score import SETS
from passagent.evaluator.sizes import ERROR, plain
from passagent.plan import extension
from passagent.sandbox.channel import Channel, ChannelClosed
from passagent.sandbox.environment import give_memory_back
from passagent.sandbox.unseen import Unseen
from passagent.tasks.module import full_device

_NO_MEMORY = ("can't allocate memory", "CUDACachingAllocator.cpp")
"""The second: a GPU's allocator that finds none asks NVML who holds it, and fails at that in the sandbox."""


class _State:
    def __init__(self, channel: Channel, folder: Path, is_shut_in: bool) -> None:
        self.channel, self.folder, self.is_shut_in = channel, folder, is_shut_in
        self.device = "cpu"
        self.is_prepared = False
        self.compiler: str | None = None
        self.loaded: Planned | None = None
        self.blocks = Blocks()
        """The memory of the candidate's audited calls."""
        self.graphs: dict[str, calls.Graph] = {}


def serve(channel: Channel, protections: dict[str, str], folder: Path) -> None:
    """Answer requests until the channel closes; `protections`: the layers of its sandbox, if it is in one.

    Files are written into `folder`.
    """
    state = _State(channel, folder, is_shut_in=bool(protections))
    torch.set_grad_enabled(False)
    while True:
        try:
            message, fds = channel.receive(max_fds=2)
        except ChannelClosed:
            return
        try:
            reply = _answer(state, messages.request(message), fds)
        except Exception as error:
            reply = messages.Failure(error=_explain(error))
        if state.loaded is not None:
            violations = [_reported(violation) for violation in state.blocks.take()[: messages.VIOLATIONS]]
            reply = reply.model_copy(update={"violations": violations})
        channel.send(reply.model_dump(exclude_unset=True))


def _answer(state: _State, request: messages.Request[Any], fds: list[int]) -> messages.Reply:
    match request:
        case messages.Prepare():
            _prepare(state, request.device)
        case messages.Load():
            _load(state, request)
        case messages.TakeGraph():
            return _take(state, request, fds)
        case messages.Run():
            return _run(state, request, fds)
        case messages.Lockstep():
            return _lockstep(state, request, fds)
        case messages.Audit():
            return _audit(state, request)
        case messages.Float64() | messages.Room() | messages.Spread():
            return _tensors_of_eager(state, request)
        case messages.States():
            return _states(state, request)
        case messages.Release():
            _release(state, request.ids)
    return messages.Reply()


def _prepare(state: _State, device: str) -> None:
    """Make the device's context and load what every worker calls there, so that nobody waits for it later."""
    if device.startswith("cuda") and not state.is_prepared:
        torch.cuda.set_device(full_device(device))
        # NVML counts none now and then in a sandbox; torch.cuda.synchronize then finds no device to wait for
        os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
        calls.load_kernels(device)
    state.is_prepared = True


def _load(state: _State, request: messages.Load) -> None:
    state.device, state.compiler = request.device, request.compiler
    _prepare(state, request.device)
    if request.plans is not None:
        plans = Plans.read(request.plans, state.folder / "built", builds=not state.is_shut_in)
        state.loaded = Planned(plans, state.device, state.blocks)
        if state.is_shut_in:
            extension.library().watch_faults()


def _take(state: _State, request: messages.TakeGraph, fds: list[int]) -> messages.GraphReply:
    _drop(state, request.id)
    graph, reply = subgraphs.take(request, fds, state.device, state.loaded, state.compiler)
    state.graphs[request.id] = graph
    return reply


def _drop(state: _State, name: str) -> None:
    graph = state.graphs.pop(name, None)
    if graph is not None:
        graph.sets.close()
        graph.outputs.close()


def _holding(state: _State, name: str, *sets: int) -> calls.Graph:
    """The subgraph, about to be called on these input sets."""
    graph = state.graphs[name]
    graph.hold(*sets)
    return graph


def _run(state: _State, request: messages.Run, fds: list[int]) -> messages.RunReply:
    """Timed calls of one side alone; asked to `keep`, what the last one returned, too."""
    graph, core = _holding(state, request.id, request.set), request.core
    windows = Unseen(fds[0], len(graph.live))
    mark, marked = mark_by(fds[1]) if fds[1:] else (None, None)
    everywhere = os.sched_getaffinity(0)
    try:
        if core is not None:
            os.sched_setaffinity(0, {core})
        refresh = graph.refresher(request.set, request.often)
        before = request.settle
        calls.refresh_all(graph, request.set, (windows.of(0) or []) if before is None else before)
        if before is not None:
            calls.settle(graph, request.set, before, request.often)
        with calls.no_collection():
            state.channel.send({"mark": "start"})
            if core is not None:
                state.channel.receive()
            samples, copying, last = calls.timed(graph, request.set, windows, refresh, request.keep, mark)
            state.channel.send({"mark": "end"})
    finally:
        windows.close()
        if marked is not None:
            marked.close()
        os.sched_setaffinity(0, everywhere)
    if state.loaded is not None:
        state.blocks.check(graph.zoned)
    return messages.RunReply(samples=samples, copying=copying, kept=last)


def _lockstep(state: _State, request: messages.Lockstep, fds: list[int]) -> messages.LockstepReply:
    """Timed calls in turn with the other side's worker; outputs of the groups' kept calls are handed back."""
    graph = _holding(state, request.id, *(group.set for group in request.groups))
    turn = Turn(fds[0])
    try:
        with calls.no_collection():
            groups, kept_calls = calls.lockstep(graph, request.groups, request.often, request.side, turn)
    except TurnLost:
        turn.abort()
        graph.outputs.reset()
        return messages.LockstepReply(ended_early=True)
    except BaseException:
        turn.abort()
        raise
    finally:
        turn.close()
    graph.outputs.reset()
    return messages.LockstepReply(groups=groups, kept=[_kept(graph, kept_call) for kept_call in kept_calls])


def _audit(state: _State, request: messages.Audit) -> messages.AuditReply:
    """One call on each of `sets`, each at addresses of its own, all outputs alive until the end; those are
    what adds up. Inputs are freed when the call after theirs is over (Blocks.begin).

    One on set `before` goes first, whose values are not judged: the memory of the first of `sets` holds what
    it left. That of sets of large values, which a kernel can tell, is poisoned. `stable`: no later call
    changed the outputs of an earlier one.
    """
    assert state.loaded is not None
    graph, audit = state.graphs[request.id], state.blocks
    assert graph.audited is not None
    results: list[torch.Tensor] = []
    kept_calls: list[messages.Kept] = []
    graph.outputs.reset()
    for number, chosen in enumerate([request.before, *request.sets]):
        audit.begin(results, poisoned=chosen >= SETS)
        graph.hold(chosen)
        inputs = [_placed(audit, graph, chosen, i) for i in range(len(graph.live))]
        if number and request.wrong is not None:
            inputs[request.wrong[0]].view(-1)[request.wrong[1]] = request.wrong[2]
        out = graph.audited(*[inputs[i] for i in graph.order])
        as_called = replace(graph, live=inputs, refreshers={})
        call = calls.keep_call(as_called, out, chosen, [0] * len(inputs))
        if number:
            results += calls.tensors(out)
            kept_calls.append(_kept(graph, call))
        del call
    audit.check_zones()
    if not graph.is_warm and audit.is_clean:
        graph.call(*graph.args)
        graph.is_warm = True
    then = [output for kept_call in kept_calls for output in kept_call.outputs]
    stable = all(_is_still(graph, *pair) for pair in zip(results, then, strict=True))
    results.clear()
    audit.close()
    graph.hold()
    return messages.AuditReply(kept=kept_calls, stable=stable)


def _is_still(graph: calls.Graph, now: torch.Tensor, then: messages.Output) -> bool:
    """Tell whether an output is still what was written of it; read without mapping the arena."""
    return calls.same_bytes(now, graph.outputs.unmapped(then)[:].to(now.device))


def _tensors_of_eager(
    state: _State, request: messages.Float64 | messages.Room | messages.Spread
) -> messages.TensorsReply:
    """Answer what is asked of eager beyond its outputs."""
    graph, order = _holding(state, request.id, request.set), request.order
    values = _values(graph, request.set, request.windows)
    written = [order.index(i) for i in request.inputs]
    inputs = [values[i] for i in order]
    computed: list[torch.Tensor] | None
    match request:
        case messages.Float64():
            computed = in_float64(graph.plain, inputs, written)
        case messages.Room():
            computed = settle(graph.plain, inputs, written, request.seed)
        case messages.Spread():
            computed = spread_of(graph.plain, inputs, written, request.seed)
    graph.outputs.reset()
    tensors = None if computed is None else [_written(graph, tensor) for tensor in computed]
    return messages.TensorsReply(tensors=tensors)


def _states(state: _State, request: messages.States) -> messages.StatesReply:
    """Answer messages.States: what each operator writes into `inputs`, on `windows` of set `set`."""
    graph = _holding(state, request.id, request.set)
    values = _values(graph, request.set, request.windows)
    inputs = [values[i] for i in request.inputs]
    of_operators, due = states_of(graph.plain, [values[i] for i in request.order], inputs)
    graph.outputs.reset()
    states = [[_written(graph, tensor) for tensor in tensors] for tensors in of_operators]
    return messages.StatesReply(states=states, due=due)


def _values(graph: calls.Graph, chosen: int, windows: Windows) -> list[Any]:
    """Copies of the inputs on `windows` of set `chosen`."""
    return [
        window_of(values, where, live.numel()).reshape(live.shape).clone()
        if isinstance(live, torch.Tensor)
        else values
        for values, live, where in zip(graph.sets[chosen], graph.live, windows, strict=True)
    ]


def _release(state: _State, names: list[str]) -> None:
    for name in names:
        _drop(state, name)
    gc.collect()
    give_memory_back()
    if state.device.startswith("cuda"):
        torch.cuda.empty_cache()


def _placed(audit: Blocks, graph: calls.Graph, chosen: int, position: int) -> Any:
    """Input `position` of set `chosen`, at an address of its own between guard zones."""
    live, values = graph.live[position], graph.sets[chosen][position]
    if not isinstance(live, torch.Tensor):
        return values
    return audit.place(values[: live.numel()].reshape(live.shape))


def _kept(graph: calls.Graph, kept_call: calls.Kept) -> messages.Kept:
    """A call as the referee reads it: outputs described in the arena, and inputs that changed.

    `left`: what it left in the inputs that eager writes into, none where that is what was there.
    """
    outputs = [
        messages.Output(**vars(graph.outputs.write(tensor)), **facts)
        for tensor, facts in zip(kept_call.copies, kept_call.facts, strict=True)
    ]
    after = [tensor if tensor is None else _written(graph, tensor) for tensor in kept_call.left]
    return messages.Kept(outputs=outputs, mutated=kept_call.mutated, left=after)


def _written(graph: calls.Graph, tensor: torch.Tensor) -> messages.Tensor:
    """A copy in the outputs' arena."""
    return messages.Tensor(**vars(graph.outputs.write(tensor)))


def _explain(error: Exception) -> messages.Error:
    """The kind of failure (a Status) and its message, by the first cause."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    is_memory = any(
        isinstance(link, (MemoryError, torch.OutOfMemoryError))
        or any(words in str(link) for words in _NO_MEMORY)
        for link in chain
    )
    text = f"{type(chain[-1]).__name__}: {chain[-1]}"
    answer: dict[str, Any] = {
        "kind": "out_of_memory" if is_memory else "runtime_error",
        "message": plain(text[:ERROR]).strip()[: messages.TEXT],
    }
    system = next((link for link in chain if isinstance(link, OSError) and link.errno), None)
    if system is not None:  # believed of a worker that runs none but trusted code
        answer |= {"errno": system.errno, "path": plain(str(system.filename or ""))[: messages.NAME]}
    return messages.Error(**answer)


def _reported(violation: Violation) -> messages.ReportedViolation:
    """A violation as a worker reports it: cut to what the referee takes."""
    return messages.ReportedViolation(
        rule=violation.rule[: messages.NAME],
        file=plain(violation.file)[: messages.NAME],
        line=violation.line,
        message=plain(violation.message)[: messages.TEXT],
    )
