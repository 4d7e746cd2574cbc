"""What runs in a worker process: load a candidate (or none: the baseline), run a subgraph, report times.

A worker compares nothing and judges nothing. The baseline's worker and a candidate's run the same code on the
same graph, so that both sides cost the same but for the rewritten regions. Requests: `prepare`, `load`,
`graph` (take a subgraph), `run` and `lockstep` (timed calls), `device` (device time), `audit`, `float64`,
`rounding`, `states`, `release`.
"""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from passagent.confine.channel import Channel, ChannelClosed
from passagent.confine.environment import give_memory_back
from passagent.confine.unseen import Unseen
from passagent.evaluator.correctness.double import in_float64
from passagent.evaluator.correctness.eager_rounding import operators_that_show
from passagent.evaluator.correctness.inplace import states_of
from passagent.evaluator.correctness.rounding import round_as_hardware_does
from passagent.evaluator.correctness.sets import SETS
from passagent.evaluator.integrity.blocks import Blocks
from passagent.evaluator.matching.passes import load_passes
from passagent.evaluator.result import Candidate
from passagent.evaluator.runner import asked_toolchain, calls, subgraphs, worker_messages
from passagent.evaluator.runner.explain import explain, told
from passagent.evaluator.runner.fresh import Windows, window_of
from passagent.evaluator.runner.lockstep import Turn, TurnLost
from passagent.evaluator.runner.marks import mark_by
from passagent.evaluator.runner.planned import Planned, Plans
from passagent.evaluator.runner.subgraphs import Loaded
from passagent.plan.interpret import is_interpreting
from passagent.tasks.module import full_device


def warm_up_dynamo(cuda: bool) -> None:
    """In the zygote: import Dynamo and, on the CPU, capture something small: it prepares much at first use.

    Where workers use CUDA it may not run here: it asks for the devices, and what has been asked for cannot be
    forked.
    """
    from passagent.tasks.capture import capture

    if cuda:
        return

    class Tiny(torch.nn.Module):
        def forward(self, a: torch.Tensor) -> tuple[torch.Tensor]:
            return (torch.nn.functional.silu(a) + 1.0,)

    capture(Tiny(), [torch.ones(2)])


class _State:
    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.device = "cpu"
        self.is_prepared = False
        self.compiler: str | None = None
        self.root = Path.cwd() / "candidate"
        self.loaded: Loaded | Planned | None = None
        self.blocks = Blocks()
        """The memory of the candidate's audited calls."""
        self.graphs: dict[str, calls.Graph] = {}


def serve(channel: Channel, protections: dict[str, str]) -> None:
    """Answer requests until the channel closes. In a sandbox (`protections`) the referee builds kernels."""
    state = _State(channel)
    if protections:
        asked_toolchain.install(lambda request: _built_by_referee(channel, request))
    torch.set_grad_enabled(False)
    handlers = {
        "prepare": _prepare,
        "load": _load,
        "graph": _graph,
        "run": _run,
        "lockstep": _lockstep,
        "device": _device,
        "audit": _audit,
        "float64": _float64,
        "rounding": _rounding,
        "states": _states,
        "release": _release,
    }
    while True:
        try:
            message, fds = channel.receive(max_fds=2)
        except ChannelClosed:
            return
        try:
            reply = handlers[message["op"]](state, message, fds)
        except Exception as error:
            reply = {"error": explain(error, state.root)}
        if state.loaded is not None:
            reply["violations"] = [told(found) for found in state.blocks.take()[: worker_messages.VIOLATIONS]]
        channel.send(reply)


def _prepare(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Make the device's context and load what every worker calls there, so that nobody waits for it later."""
    if message["device"].startswith("cuda") and not state.is_prepared:
        torch.cuda.set_device(full_device(message["device"]))
        calls.load_kernels(message["device"])
    state.is_prepared = True
    return {}


def _built_by_referee(channel: Channel, request: dict[str, Any]) -> dict[str, Any]:
    channel.send({"build": request})
    return channel.receive()[0]


def _load(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    state.device, state.compiler = message["device"], message["compiler"]
    _prepare(state, message, fds)
    if is_interpreting():
        round_as_hardware_does()
    if message.get("plans") is not None:
        state.loaded = Planned(Plans.read(message["plans"], Path.cwd() / "built"), state.device, state.blocks)
    elif message["files"] is not None:
        state.root.mkdir()
        single = message["single_replacement_func"]
        state.loaded = load_passes(Candidate(message["files"]), state.root, single_replacement_func=single)
    return {}


def _graph(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    _drop(state, message["id"])
    graph, reply = subgraphs.take(message, fds, state.device, state.loaded, state.compiler)
    state.graphs[message["id"]] = graph
    return reply


def _drop(state: _State, name: str) -> None:
    graph = state.graphs.pop(name, None)
    if graph is not None:
        graph.sets.close()
        graph.outputs.close()


def _run(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Timed calls of one side alone; asked to `keep`, which one was kept and what it returned, too."""
    graph, core = state.graphs[message["id"]], message["core"]
    windows = Unseen(fds[0], len(graph.live))
    mark, marked = mark_by(fds[1]) if fds[1:] else (None, None)
    everywhere = os.sched_getaffinity(0)
    try:
        if core is not None:
            os.sched_setaffinity(0, {core})
        refresh = graph.refresher_of(message["set"], windows, message["often"])
        before = message["settle"]
        calls.refresh_all(graph, message["set"], windows.of(0) if before is None else before)
        if before is not None:
            calls.settle(graph, message["set"], before, message["often"])
        with calls.no_collection():
            state.channel.send({"mark": "start"})
            if core is not None:
                state.channel.receive()
            samples, kept = calls.timed(
                graph,
                message["set"],
                windows,
                refresh,
                windows.is_kept,
                lambda one: _kept(graph, one),
                mark,
            )
            state.channel.send({"mark": "end"})
    finally:
        windows.close()
        if marked is not None:
            marked.close()
        os.sched_setaffinity(0, everywhere)
    if state.loaded is not None:
        state.blocks.check(graph.zoned)
    graph.outputs.reset()
    reply: dict[str, Any] = {"samples": samples, "kept": None}
    if kept is not None:
        reply |= {"call": kept[0], "kept": kept[1]}
    return reply


def _lockstep(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Timed calls in turn with the other side's worker; outputs of the groups' kept calls are handed back.

    `ended_early`: the other side gave up, and is to blame.
    """
    graph = state.graphs[message["id"]]
    turn = Turn(fds[0])
    try:
        with calls.no_collection():
            groups, kept = calls.lockstep(graph, message["groups"], message["often"], message["side"], turn)
    except TurnLost:
        turn.abort()
        graph.outputs.reset()
        return {"ended_early": True}
    except BaseException:
        turn.abort()
        raise
    finally:
        turn.close()
    graph.outputs.reset()
    return {"groups": groups, "kept": [_kept(graph, one) for one in kept]}


def _device(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Time between events on the stream, ns, for a call on each of `windows`."""
    graph = state.graphs[message["id"]]
    return {"samples": calls.device_times(graph, message["set"], message["windows"], message["often"])}


def _audit(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """One call on each of `sets`, each at addresses of its own, all outputs alive until the end.

    One on set `before` goes first, whose values are not judged: the memory of the first of `sets` holds what
    it left. That of sets of large values, which a kernel can tell, is poisoned. `stable`: no later call
    changed the outputs of an earlier one. `copies`: for each call and output what torch had copied to where
    the candidate's kernel then wrote it, none where it had not.
    """
    assert state.loaded is not None
    graph, audit = state.graphs[message["id"]], state.blocks
    assert graph.audited is not None
    results, kept, copies = [], [], []
    for chosen in [message["before"], *message["sets"]]:
        audit.begin(poisoned=chosen >= SETS)
        given = [_placed(audit, graph, chosen, i) for i in range(len(graph.live))]
        out = graph.audited(*[given[i] for i in graph.order])
        seen = replace(graph, live=given, refreshers={})
        kept.append(calls.keep_call(seen, out, chosen, [0] * len(given)))
        results.append(calls.tensors(out))
        copies.append([audit.copy_of(tensor) for tensor in results[-1]])
    del results[0], kept[0], copies[0]
    audit.check_zones()
    stable = all(
        calls.same_bytes(now, then)
        for result, one in zip(results, kept, strict=True)
        for now, then in zip(result, one.copies, strict=True)
    )
    graph.outputs.reset()
    reply = {"kept": [_kept(graph, one) for one in kept], "stable": stable}
    reply["copies"] = [[one if one is None else graph.outputs.write(one) for one in row] for row in copies]
    results.clear()
    copies.clear()
    audit.close()
    return reply


def _float64(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """The outputs on `windows` of set `set`, and what is left in the inputs `inputs`, computed in float64;
    none where that does not run.
    """
    graph, order = state.graphs[message["id"]], message["order"]
    values = _values(graph, message["set"], message["windows"])
    written = [order.index(i) for i in message["inputs"]]
    outputs = in_float64(graph.plain, [values[i] for i in order], written)
    graph.outputs.reset()
    return {"outputs": None if outputs is None else [graph.outputs.write(tensor) for tensor in outputs]}


def _rounding(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """The operators of eager's whose rounding shows, on `windows` of set `set`."""
    graph = state.graphs[message["id"]]
    values = _values(graph, message["set"], message["windows"])
    inputs = [values[i] for i in message["order"]]
    return {"operators": operators_that_show(graph.plain, inputs)}


def _states(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """What each operator of the graph writes into the inputs `inputs`, on `windows` of set `set`."""
    graph = state.graphs[message["id"]]
    values = _values(graph, message["set"], message["windows"])
    inputs = [values[i] for i in message["inputs"]]
    found = states_of(graph.plain, [values[i] for i in message["order"]], inputs)
    graph.outputs.reset()
    return {"states": [[graph.outputs.write(tensor) for tensor in states] for states in found]}


def _values(graph: calls.Graph, chosen: int, windows: Windows) -> list[Any]:
    """Copies of the inputs on `windows` of set `chosen`."""
    return [
        window_of(values, where, live.numel()).reshape(live.shape).clone()
        if isinstance(live, torch.Tensor)
        else values
        for values, live, where in zip(graph.sets[chosen], graph.live, windows, strict=True)
    ]


def _release(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    for name in message["ids"]:
        _drop(state, name)
    gc.collect()
    give_memory_back()
    if state.device.startswith("cuda"):
        torch.cuda.empty_cache()
    return {}


def _placed(audit: Blocks, graph: calls.Graph, chosen: int, position: int) -> Any:
    """Input `position` of set `chosen`, at an address of its own between guard zones."""
    live, values = graph.live[position], graph.sets[chosen][position]
    if not isinstance(live, torch.Tensor):
        return values
    return audit.place(values[: live.numel()].reshape(live.shape))


def _kept(graph: calls.Graph, kept: calls.Kept) -> dict[str, Any]:
    """What the referee reads of a call: outputs described in the arena, and inputs that changed.

    `left`: what it left in the inputs that eager writes into, none where that is what was there.
    """
    outputs = [
        graph.outputs.write(tensor) | facts for tensor, facts in zip(kept.copies, kept.facts, strict=True)
    ]
    left = [one if one is None else graph.outputs.write(one) for one in kept.left]
    return {"outputs": outputs, "mutated": kept.mutated, "left": left}
