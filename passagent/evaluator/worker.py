"""What runs in a worker process: load a candidate (or none: the baseline), run a subgraph, report times.

A worker answers four requests: `load`, `graph`, `run` and `release`. It compares nothing and judges nothing.
The baseline's worker and a candidate's run the same code, so that both sides cost the same but for the graph.
"""

from __future__ import annotations

import copy
import gc
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from passagent.evaluator.channel import Arena, Channel, ChannelClosed
from passagent.evaluator.guards.dispatch import DispatchGuard
from passagent.evaluator.passes import LoadedPass, PassLoadError, load_passes
from passagent.evaluator.result import Candidate
from passagent.evaluator.rewrite import apply_passes
from passagent.evaluator.rounding import round_as_hardware_does
from passagent.kernels import cpp
from passagent.kernels.build import KernelBuildError, KernelRefused, Signature
from passagent.tasks.capture import capture
from passagent.tasks.module import full_device, load_module
from passagent.tasks.reader import Subgraph, TensorMeta

_clock = time.perf_counter_ns
_SETTLE_S = 0.002
"""Rest before a timed block: the other side's OpenMP threads stop spinning."""
_WARM_NS = 1_500_000
"""A block starts with unmeasured calls for this long, ns: caches and device come back from the other side."""


def warm_up() -> None:
    """Capture something small, for all that Dynamo imports and prepares at first use.

    Only where workers use no CUDA: Dynamo asks for its devices, and what has been asked for cannot be forked.
    """

    class Tiny(torch.nn.Module):
        def forward(self, a: torch.Tensor) -> tuple[torch.Tensor]:
            return (torch.nn.functional.silu(a) + 1.0,)

    capture(Tiny(), [torch.ones(2)])


@dataclass
class _Graph:
    """The subgraph at hand: what to call, with which arguments, and the values to refresh them from."""

    call: Callable[..., Any]
    guarded: Callable[..., Any]
    order: list[int]
    inputs: list[Any]
    sets: list[list[Any]]
    outputs: Arena
    restore: list[int]
    """Inputs that eager mutates: refreshed before every call."""


class _State:
    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.device = "cpu"
        self.dispatch = "direct"
        self.passes: list[LoadedPass] | None = None
        self.root = Path.cwd()
        self.guard: DispatchGuard | None = None
        self.graph: _Graph | None = None


def serve(channel: Channel) -> None:
    """Answer requests until the channel closes."""
    state = _State(channel)
    cpp._builder[0] = lambda source, name, signature: _ask_for_build(channel, source, name, signature)
    handlers = {"load": _load, "graph": _graph, "run": _run, "release": _release}
    torch.set_grad_enabled(False)
    while True:
        try:
            message, fds = channel.receive(max_fds=2)
        except ChannelClosed:
            return
        try:
            reply = handlers[message["op"]](state, message, fds)
        except Exception as error:
            reply = {"error": _explain(error, state.root)}
        channel.send(reply)


def _load(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    state.device, state.dispatch = message["device"], message["dispatch"]
    if state.device.startswith("cuda"):
        torch.cuda.set_device(full_device(state.device))
    if message["files"] is None:
        return {"passes": []}
    state.root = Path.cwd() / "candidate"
    state.root.mkdir()
    if os.environ.get("TRITON_INTERPRET"):
        round_as_hardware_does()
    candidate = Candidate(message["files"])
    state.passes = load_passes(
        candidate, state.root, single_replacement_func=message["single_replacement_func"]
    )
    state.guard = DispatchGuard(state.root)
    return {"passes": [loaded.name for loaded in state.passes]}


def _graph(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    _release(state, message, [])
    inputs = Arena(fds[0], message["input_bytes"])
    outputs = Arena(fds[1], message["output_bytes"])
    sets = [[_value(item, inputs, state.device) for item in one] for one in message["sets"]]
    inputs.close()
    subgraph = _subgraph(message["subgraph"])
    module = load_module(subgraph, state.device)
    live = [
        _clone(value) for value in sets[-1]
    ]  # the last set is for capturing only: its results are never judged
    guard_wrap = state.guard.wrap if state.guard is not None else None
    report: dict[str, Any] = {
        "matches": 0,
        "applied": [],
        "mismatches": [],
        "nodes_before": 0,
        "nodes_after": 0,
    }
    if state.dispatch == "direct" or state.passes is None:
        captured = capture(module, live)
        plain, order = captured.graph_module, captured.order
        report["nodes_before"] = report["nodes_after"] = _operators(plain)
        guarded = plain
        if state.passes is not None:
            guarded = apply_passes(copy.deepcopy(plain), state.passes, wrap=guard_wrap).graph_module
            rewritten = apply_passes(plain, state.passes)
            plain = rewritten.graph_module
            _report(report, rewritten, plain)
        call, guarded_call = plain.forward, guarded.forward
        if state.dispatch == "dynamo":
            call = guarded_call = module
            order = list(range(len(live)))
    else:
        order = list(range(len(live)))
        passes = state.passes

        def compiled(wrap: Callable[..., Any] | None) -> Callable[..., Any]:
            def backend(graph_module: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
                report["nodes_before"] = _operators(graph_module)
                rewritten = apply_passes(graph_module, passes, wrap=wrap)
                _report(report, rewritten, rewritten.graph_module)
                return rewritten.graph_module.forward

            torch._dynamo.reset()
            return torch.compile(module, backend=backend, dynamic=False, fullgraph=True)

        call, guarded_call = compiled(None), compiled(guard_wrap)
        _call_once(call, live, order)
    state.graph = _Graph(call, guarded_call, order, live, sets, outputs, [])
    return report


def _report(report: dict[str, Any], rewritten: Any, graph_module: torch.fx.GraphModule) -> None:
    report["matches"] = len(rewritten.applied)
    report["applied"] = rewritten.applied
    report["mismatches"] = [mismatch.model_dump() for mismatch in rewritten.mismatches]
    report["nodes_after"] = _operators(graph_module)


def _run(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Refresh the inputs with set `set`, call `calls` times, hand back times and the last call's outputs.

    With `guard` the calls run under the dispatch guard and are not timed. What eager mutates is refreshed
    before each call. Times are ns: `e2e` from issue to completion, `device` between CUDA events.
    """
    graph = state.graph
    if graph is None:
        raise RuntimeError("run before graph")
    values = graph.sets[message["set"]]
    graph.restore = message.get("restore", [])
    _refresh(graph.inputs, values, range(len(values)))
    args = [graph.inputs[i] for i in graph.order]
    samples: dict[str, list[int]] = {"e2e": [], "device": []}
    violations: list[dict[str, Any]] = []
    if message["guard"] and state.guard is not None:
        with state.guard.active() as found:
            out = graph.guarded(*args)
            _synchronize(state.device)
        violations = [violation.model_dump() for violation in found]
    else:
        if message["timed"]:
            time.sleep(_SETTLE_S)
            begun = _clock()
            while _clock() - begun < _WARM_NS:
                _refresh(graph.inputs, values, graph.restore)
                out = graph.call(*args)
                _synchronize(state.device)
        timed = _timed_cuda if state.device.startswith("cuda") else _timed_cpu
        gc.disable()
        state.channel.send({"mark": "start"})
        out = timed(graph, args, values, message["calls"], samples)
        state.channel.send({"mark": "end"})
        gc.enable()
    reply: dict[str, Any] = {"samples": samples, "violations": violations}
    if message["outputs"]:
        graph.outputs.reset()
        reply["outputs"] = [graph.outputs.write(tensor) for tensor in _tensors(out)]
    if message.get("inputs_after"):
        reply["mutated"] = [i for i, value in enumerate(values) if not _same(value, graph.inputs[i])]
    return reply


def _timed_cpu(
    graph: _Graph, args: list[Any], values: list[Any], calls: int, samples: dict[str, list[int]]
) -> Any:
    call, restore, record = graph.call, graph.restore, samples["e2e"].append
    out = None
    for _ in range(calls):
        out = None
        if restore:
            _refresh(graph.inputs, values, restore)
        start = _clock()
        out = call(*args)
        record(_clock() - start)
    return out


def _timed_cuda(
    graph: _Graph, args: list[Any], values: list[Any], calls: int, samples: dict[str, list[int]]
) -> Any:
    call, restore, synchronize = graph.call, graph.restore, torch.cuda.synchronize
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)
    ]
    out = None
    for before, after in events:
        out = None
        if restore:
            _refresh(graph.inputs, values, restore)
        before.record()
        synchronize()
        start = _clock()
        out = call(*args)
        synchronize()
        samples["e2e"].append(_clock() - start)
        # Device time on its own: events inside the span above would lengthen it.
        out = None
        if restore:
            _refresh(graph.inputs, values, restore)
        before.record()
        out = call(*args)
        after.record()
    synchronize()
    samples["device"] = [round(before.elapsed_time(after) * 1e6) for before, after in events]
    return out


def _release(state: _State, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    if state.graph is not None:
        state.graph.outputs.close()
        state.graph = None
        torch._dynamo.reset()
        gc.collect()
        if state.device.startswith("cuda"):
            torch.cuda.empty_cache()
    return {"released": True}


def _call_once(call: Callable[..., Any], inputs: list[Any], order: list[int]) -> None:
    call(*[inputs[i] for i in order])


def _subgraph(data: dict[str, Any]) -> Subgraph:
    inputs = tuple(TensorMeta(**{**item, "shape": tuple(item["shape"])}) for item in data["inputs"])
    return Subgraph(**{**data, "path": Path(data["path"]), "inputs": inputs})


def _value(item: dict[str, Any], arena: Arena, device: str) -> Any:
    if "tensor" not in item:
        return item["value"]
    return arena.read(item["tensor"]).to("cpu" if item["host"] else device)


def _clone(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _refresh(inputs: list[Any], values: list[Any], which: Any) -> None:
    for i in which:
        if isinstance(inputs[i], torch.Tensor):
            inputs[i].copy_(values[i])


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor):
        return True
    return torch.equal(torch.isnan(a), torch.isnan(b)) and torch.equal(a.nan_to_num(), b.nan_to_num())


def _tensors(out: Any) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, (tuple, list)):
        return [tensor for item in out for tensor in _tensors(item)]
    return []


def _operators(graph_module: torch.fx.GraphModule) -> int:
    return sum(node.op not in ("placeholder", "output") for node in graph_module.graph.nodes)


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _ask_for_build(channel: Channel, source: str, name: str, signature: Signature) -> Path:
    channel.send({"build": {"source": source, "name": name, "types": list(signature.types)}})
    reply, _ = channel.receive()
    if "refused" in reply:
        raise KernelRefused(**reply["refused"])
    if "failed" in reply:
        raise KernelBuildError(reply["failed"])
    return Path(reply["path"])


def _explain(error: Exception, root: Path) -> dict[str, Any]:
    """The kind of failure (a Status), its message, and the candidate's own file and line if known."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    frames = [frame for link in chain for frame in traceback.extract_tb(link.__traceback__)]
    own = [frame for frame in frames if str(root) in frame.filename]
    file = Path(own[-1].filename).name if own else ""
    line = (own[-1].lineno or 0) if own else 0
    where = f" ({file}:{line})" if own else ""
    root_error = chain[-1]
    text = (
        str(error)
        if isinstance(error, (PassLoadError, KernelBuildError))
        else f"{type(root_error).__name__}: {root_error}"
    )
    kind = _kind(chain)
    answer: dict[str, Any] = {
        "kind": kind,
        "message": (text[:4000] + ("" if text.endswith(where) else where)).strip(),
    }
    refused = next((link for link in chain if isinstance(link, KernelRefused)), None)
    if refused is not None:
        message = f"{refused} (line {refused.line} of the kernel's source)"
        answer["violation"] = {
            "rule": refused.rule,
            "file": file,
            "line": line or refused.line,
            "message": message,
        }
    return answer


def _kind(chain: list[BaseException]) -> str:
    for link in chain:
        name, module, text = type(link).__name__, type(link).__module__, str(link)
        if isinstance(link, KernelRefused):
            return "refused"
        if isinstance(link, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in text:
            return "out_of_memory"
        if isinstance(link, PassLoadError):
            return "load_error"
        if isinstance(link, KernelBuildError) or (
            module.startswith("triton") and ("Compil" in name or "OutOfRes" in name)
        ):
            return "compile_error"
    return "runtime_error"
