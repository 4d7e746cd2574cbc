"""One subgraph as CUDA graphs of its sides, in a process of its own (see graph_dispatch.py)."""

from __future__ import annotations

import copy
import ctypes
import gc
import itertools
import multiprocessing
import statistics
import tempfile
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx

from passagent.evaluator.correctness.double import in_float64
from passagent.evaluator.correctness.precision import Expected, is_as_exact
from passagent.evaluator.matching.loaded_passes import load_passes
from passagent.evaluator.matching.rewrite import apply_passes
from passagent.evaluator.result import Candidate
from passagent.evaluator.score import T_RANGE, tolerance
from passagent.tasks import load_task
from passagent.tasks.capture import Captured, capture
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph

DEVICE = "cuda:0"
CALLS = 20
"""Of a graph: launching one is shared by them."""
ROUNDS, LEAST_US = 30, 200.0
"""Samples of each side, and what one takes at least: a short graph is replayed several times for it."""
MOST_S = 0.6
"""Of replays of one subgraph, about."""
SLOWER = 1.1
"""Above this ratio to Inductor a subgraph is listed, with a profile."""
DRAWS = ("inductor 1", "inductor 2")
"""Its own choices of a configuration differ from one time to the next."""
Call = Callable[..., Any]


@dataclass
class Asked:
    """A subgraph, and the passes of each expert for its task."""

    task: str
    subgraph: str
    passes: dict[str, dict[str, str]]
    """Of each side its files; none: it leaves the task alone."""
    row: dict[str, Any] = field(default_factory=dict)


def captured_of(subgraph: Subgraph, device: str) -> Captured:
    """Its graph, as passes are matched against it."""
    return capture(load_module(subgraph, device), make_inputs(subgraph, device, 0))


def inductor(graph_module: fx.GraphModule, args: list[Any]) -> Call:
    """What TorchInductor makes of a graph, without Dynamo's guards; compiled, or from its cache on disk."""
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.utils import clear_caches

    clear_caches()  # kernels of the process, whose configurations are chosen
    if not all(isinstance(value, torch.Tensor) for value in args):
        torch._dynamo.reset_code_caches()
        return torch.compile(copy.deepcopy(graph_module), dynamic=False)  # type: ignore[no-any-return]
    with torch._inductor.config.patch(autotune_local_cache=False):
        return compile_fx(copy.deepcopy(graph_module), args)  # type: ignore[no-any-return]


def sides_of(asked: Asked, stack: ExitStack) -> tuple[dict[str, Call], Captured, Subgraph, dict[str, int]]:
    """Eager and each expert's rewritten graph; and how many replacements each expert has made."""
    subgraph = next(s for s in load_task(asked.task).subgraphs if s.name == asked.subgraph)
    found = captured_of(subgraph, DEVICE)
    sides: dict[str, Call] = {"eager": found.graph_module.forward}
    replaced: dict[str, int] = {}
    for name, files in asked.passes.items():
        if files:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            rewritten = apply_passes(
                copy.deepcopy(found.graph_module), load_passes(Candidate(files), scratch)
            )
            replaced[name] = len(rewritten.applied)
            if rewritten.applied:
                sides[name] = rewritten.graph_module.forward
    return sides, found, subgraph, replaced


def fresh(inputs: list[Any], order: list[int]) -> list[Any]:
    """Arguments of a call: copies of the inputs."""
    return [inputs[i].clone() if isinstance(inputs[i], torch.Tensor) else inputs[i] for i in order]


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors of a call's result."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def agrees_from(eager: list[torch.Tensor], ours: list[torch.Tensor]) -> int | None:
    """The least t at which results agree; None: at none."""
    if [(t.dtype, t.shape) for t in eager] != [(t.dtype, t.shape) for t in ours]:
        return None
    for t in T_RANGE:
        limits = [tolerance(str(want.dtype).removeprefix("torch."), t) for want in eager]
        if all(
            torch.allclose(have, want, rtol, atol, equal_nan=True)
            for want, have, (atol, rtol) in zip(eager, ours, limits, strict=True)
        ):
            return t
    return None


def compared(sides: dict[str, Call], found: Captured, subgraph: Subgraph) -> dict[str, Any]:
    """Of each side the least t at which it agrees with eager on two input sets, and whether it is as exact.

    Results and the inputs that eager writes into are compared.
    """
    levels: dict[str, list[int | None]] = {name: [] for name in sides if name != "eager"}
    exact = dict.fromkeys(levels, True)
    for variant in (0, 1):
        inputs = make_inputs(subgraph, DEVICE, 0, variant)
        given = fresh(inputs, found.order)
        want = [*tensors(sides["eager"](*given)), *tensors(given)]
        for name, seen in levels.items():
            given = fresh(inputs, found.order)
            have = [*tensors(sides[name](*given)), *tensors(given)]
            seen.append(agrees_from(want, have))
            if seen[-1] is None or seen[-1] > -5:
                given = fresh(inputs, found.order)
                count = len(want) - len(tensors(given))
                known = Expected(want[:count], [], in_float64(found.graph_module, given))
                exact[name] = exact[name] and is_as_exact(known, have[:count])
    worst = {name: None if None in seen else max(seen) for name, seen in levels.items()}  # type: ignore[type-var]
    return {"t": worst, "as_exact": exact}


def graph_of_calls(call: Call, args: list[Any], calls: int) -> tuple[torch.cuda.CUDAGraph, int]:
    """A CUDA graph of so many calls, and the kernels of one."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph(keep_graph=True)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call(*args)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                call(*args)
    graph.instantiate()
    return graph, round(nodes(graph) / calls)


def nodes(graph: torch.cuda.CUDAGraph) -> int:
    """Kernels, copies and fills of a captured graph."""
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
    handle = ctypes.c_void_p(graph.raw_cuda_graph())
    if driver.cuGraphGetNodes(handle, None, ctypes.byref(count)):
        raise RuntimeError("cuGraphGetNodes failed")
    return count.value


def timed(graphs: dict[str, torch.cuda.CUDAGraph], calls: int) -> dict[str, list[float]]:
    """Microseconds a call, samples of all sides in turn: each round begins with another side."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def sample(name: str, replays: int) -> float:
        begin.record()
        for _ in range(replays):
            graphs[name].replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1000

    replays = {}
    for name in graphs:
        sample(name, 2)
        replays[name] = max(1, round(LEAST_US / sample(name, 1)))
    round_us = sum(sample(name, count) for name, count in replays.items())
    rounds = max(5, min(ROUNDS, int(MOST_S * 1e6 / round_us)))
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    names = list(graphs)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            samples[name].append(sample(name, replays[name]) / replays[name] / calls)
    return samples


def prepared(asked: Asked) -> dict[str, Any]:
    """Compile all sides, so that the process that measures finds them in the caches on disk."""
    with ExitStack() as stack, torch.no_grad():
        sides, found, subgraph, _ = sides_of(asked, stack)
        inputs = make_inputs(subgraph, DEVICE, 0)
        sides[DRAWS[0]] = inductor(found.graph_module, fresh(inputs, found.order))
        for call in sides.values():
            call(*fresh(inputs, found.order))
        torch.cuda.synchronize()
    return {}


def measured(asked: Asked) -> dict[str, Any]:
    """The row of a subgraph."""
    with ExitStack() as stack, torch.no_grad():
        sides, found, subgraph, replaced = sides_of(asked, stack)
        inputs = make_inputs(subgraph, DEVICE, 0)
        args = fresh(inputs, found.order)
        for name in DRAWS:
            sides[name] = inductor(found.graph_module, args)
            sides[name](*fresh(inputs, found.order))  # its configurations are chosen
        row = compared(sides, found, subgraph)
        row |= {"replaced": replaced, "operators": operators(found.graph_module)}
        outputs = tensors(sides["eager"](*fresh(inputs, found.order)))
        row["input_bytes"] = sum(t.nbytes for t in tensors(args))
        row["output_bytes"] = sum(t.nbytes for t in outputs)
        calls = max(1, min(CALLS, (4 << 30) // max(1, row["output_bytes"])))
        del outputs
        graphs, row["kernels"] = {}, {}
        for name, call in sides.items():
            graphs[name], row["kernels"][name] = graph_of_calls(call, args, calls)
        samples = timed(graphs, calls)
        row["us"] = {name: round(statistics.median(values), 4) for name, values in samples.items()}
        theirs = min(DRAWS, key=row["us"].__getitem__)
        if row["us"][theirs] * SLOWER < row["us"].get("expert", row["us"]["eager"]):
            ours = "expert" if "expert" in graphs else "eager"
            row["profile"] = {name: profiled(graphs[name], calls) for name in (ours, theirs)}
    return row


def profiled(graph: torch.cuda.CUDAGraph, calls: int) -> list[list[Any]]:
    """The kernels of one call, in order: name, microseconds."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        graph.replay()
        torch.cuda.synchronize()
    events = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda e: e.time_range.start)
    count = len(events) // calls
    times = [
        statistics.median(e.time_range.elapsed_us() for e in events[k :: max(1, count)]) for k in range(count)
    ]
    return [[e.name[:80], round(us, 2)] for e, us in zip(events, times, strict=False)]


def operators(graph_module: fx.GraphModule) -> list[str]:
    """Names of what a graph calls, in order."""
    nodes = [n for n in graph_module.graph.nodes if n.op.startswith("call_")]
    return [getattr(n.target, "__name__", str(n.target)) for n in nodes]


def copy_gb_s() -> dict[str, float]:
    """What copies of some sizes reach here, bytes read and written."""
    reached = {}
    for size in (32 << 20, 128 << 20, 512 << 20):
        source = torch.empty(size, dtype=torch.uint8, device=DEVICE)
        graph, _ = graph_of_calls(torch.empty_like(source).copy_, [source], CALLS)
        reached[str(size)] = round(2 * size / statistics.median(timed({"copy": graph}, CALLS)["copy"]) / 1e3)
    return reached


TASKS: dict[str, Callable[[Asked], dict[str, Any]]] = {"prepare": prepared, "measure": measured}


def serve(channel: Connection, share: int) -> None:
    """A process's life: do what is asked until the channel closes."""
    torch.set_num_threads(max(1, share))
    while (asked := channel.recv()) is not None:
        what, given = asked
        try:
            found = {"device": facts()} if what == "facts" else TASKS[what](given)
        except Exception as error:
            first = next(iter(str(error).splitlines()), "")
            where = traceback.extract_tb(error.__traceback__)[-1]
            found = {"error": f"{type(error).__name__}: {first} ({Path(where.filename).name}:{where.lineno})"}
        gc.collect()
        channel.send(found)
        if "CUDA error" in found.get("error", ""):
            return  # nothing works in this process any more
        torch.cuda.empty_cache()


def facts() -> dict[str, Any]:
    """What the figures depend on."""
    import triton

    found = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    return found | {"copy_gb_s": copy_gb_s()}


class Helper:
    """A process that does one thing at a time, and is started anew when it dies or takes too long."""

    def __init__(self, share: int) -> None:
        self._share = share
        self._process: Any = None

    def ask(self, what: str, asked: Asked | None, seconds: float) -> dict[str, Any]:
        """What it answers, or {"error": why}."""
        if self._process is None or not self._process.is_alive():
            context = multiprocessing.get_context("spawn")
            self._channel, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs, self._share), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._channel.send((what, asked))
            if self._channel.poll(seconds):
                return self._channel.recv()  # type: ignore[no-any-return]
            why = f"not done after {seconds:.0f} s"
        except (EOFError, OSError):
            self._process.join(5)
            why = f"the process died (exit code {self._process.exitcode})"
        self.close()
        return {"error": why}

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def resampled(groups: list[list[float]], draws: int = 2000) -> tuple[float, float, float]:
    """Geometric mean of exp(values), and its 95% interval, groups drawn anew with replacement."""
    generator = torch.Generator().manual_seed(0)
    sums = torch.tensor([[sum(group), len(group)] for group in groups], dtype=torch.float64)
    picks = torch.randint(len(groups), (draws, len(groups)), generator=generator)
    drawn = sums[picks].sum(1)
    means = (drawn[:, 0] / drawn[:, 1]).exp()
    centre = sum(itertools.chain(*groups)) / sums[:, 1].sum().item()
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(torch.tensor(centre, dtype=torch.float64).exp()), low, high
