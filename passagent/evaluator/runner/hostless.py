"""`dispatch: graph`: calls without the host's share of their time, as inside a whole compiled model.

On a GPU timed calls are replays of a CUDA graph. Launching one has a cost, too, so it holds several calls,
where eager does not write into its inputs. Each of them has inputs and outputs of its own, with values of
their own: a kernel that finds in memory what the call before it left finds wrong values, as in other timed
calls. What a short call takes depends on where its tensors lie, so a worker holds several such graphs in
other memory. Which one is replayed, and which of its calls is judged, is drawn for every replay: a kernel
knows its place by its addresses.

On the CPU there is nothing like it. What the operators and plans of a graph take on empty tensors, where they
only dispatch, is subtracted from each sample: an estimate (samples.counted). Each worker says how many empty
operators its side is worth; what one takes the baseline's says for both, so that equal sides stay equal.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import torch

from passagent.evaluator.runner.calls import Graph, no_collection, refresh_all
from passagent.evaluator.runner.fresh import Draw, Rotation, Slots, alike
from passagent.plan.arguments import ValueArg
from passagent.plan.model import Alloc, Plan
from passagent.plan.replay import Replay
from passagent.plan.values import InputValue, MadeValue

REPEATS = 20
"""Calls of a CUDA graph: its launch, about 8 us, is shared by them."""
CAPTURES = 4
"""CUDA graphs of a worker at most. On an H200 eight of 24 captures of a product of 13 us took 3 to 5% more
than others, and those of calls of 3 to 7 us differed by 4%."""
COPIED_BYTES = 1 << 28
"""Inputs and outputs of all calls of a graph: large ones are fewer, and long beside the launch."""
_GAP_BYTES, _GAPS = 512, 1024
"""Gaps between the memory of captures are multiples of so many bytes, fewer than so many."""
_TRIES, _CALLS = 30, 200
_unfinished: list[torch.cuda.CUDAGraph] = []
"""Captures that failed: torch's allocator of pinned memory goes on to ask them."""


def repeats_of(moved_bytes: int, written: Collection[int]) -> int:
    """Calls of a subgraph in a CUDA graph, by its inputs and outputs and those that eager writes into."""
    return 1 if written else max(1, min(REPEATS, COPIED_BYTES // max(1, moved_bytes)))


def captures_of(moved_bytes: int, repeats: int) -> int:
    """CUDA graphs of `repeats` calls each that a worker holds: their copies take COPIED_BYTES at most."""
    return max(1, min(CAPTURES, COPIED_BYTES // max(1, moved_bytes * repeats))) if repeats > 1 else 1


def protocol(dispatch: str, device: str) -> str:
    """How the host's share counts, for people."""
    if dispatch != "graph":
        return "counted"
    if device == "cpu":
        return "left out, an estimate: less what as many operators take on empty tensors, at most nine tenths"
    return f"left out: replays of a CUDA graph of {REPEATS} calls, of fewer if inputs are large or written"


def capture(graph: Graph, repeats: int, captures: int, rotation: Rotation) -> None:
    """Make a call of `graph` the replay of one of `captures` CUDA graphs of `repeats` calls each.

    What it returns are the outputs of its slot. Raises RuntimeError, in one line, for what cannot be
    captured.
    """
    tensors = [value for value in graph.live if isinstance(value, torch.Tensor)]
    if not all(value.is_cuda for value in tensors):
        raise RuntimeError("a CUDA graph cannot hold it: an input stays on the CPU")
    draw, call = Draw(rotation), graph.call
    gaps = [_gap()]
    if repeats > 1:
        graph.slots = [Slots(graph.live, repeats, draw)]
    for _ in range(captures - 1):
        graph.slots.append(Slots(alike(graph.live), repeats, draw))
        gaps.append(_gap())
    refresh_all(graph, 0, rotation.first())
    graphs, outputs = [], []
    for inputs_of_slots in [slots.inputs for slots in graph.slots] or [[graph.live]]:
        args_of_slots = [[inputs[i] for i in graph.order] for inputs in inputs_of_slots]
        captured, returned = record(
            functools.partial(call, *args_of_slots[0]), functools.partial(_calls, call, args_of_slots)
        )
        graphs.append(captured)
        outputs.append(returned)

    def replay(*_: Any) -> Any:
        number, slot = graph.slot
        graphs[number].replay()
        return outputs[number][slot]

    graph.call = replay


def _calls(call: Callable[..., Any], args_of_slots: list[list[Any]]) -> list[Any]:
    """The outputs of a call on each of `args_of_slots`, behind a gap in the memory of the capture."""
    gap = _gap()
    outputs = [call(*args) for args in args_of_slots]
    del gap
    return outputs


def _gap() -> torch.Tensor:
    """Memory that moves what is allocated after it, by chance."""
    return torch.empty(secrets.randbelow(_GAPS) * _GAP_BYTES, dtype=torch.uint8, device="cuda")


def record(
    warm: Callable[[], Any], call: Callable[[], Any], errors: str = "global"
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The CUDA graph of a call, `warm` before it, and what the call returns: its outputs.

    `errors`: with `thread_local` calls of other threads do not end the capture. Raises RuntimeError, in one
    line, for what cannot be captured; the device can be used as before.
    """
    stream, pool, captured = torch.cuda.Stream(), torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        # A collection may free another graph, which must not happen meanwhile. Where the capture fails, it is
        # the outer context that makes the old stream the current one again.
        with no_collection(), torch.cuda.stream(stream):
            warm()  # libraries get their workspaces for this stream
            with torch.cuda.graph(captured, pool=pool, stream=stream, capture_error_mode=errors):
                outputs = call()
    except Exception as error:
        _unfinished.append(captured)
        _recover(pool, stream)
        first = error.__context__ or error  # the end of a broken capture fails, too
        if isinstance(first, torch.OutOfMemoryError):
            raise first from None
        why = next(iter(str(first).splitlines()), type(first).__name__)
        raise RuntimeError(f"a CUDA graph cannot hold it: {why}") from None
    torch.cuda.synchronize()
    return captured, outputs


def _recover(pool: Any, stream: torch.cuda.Stream) -> None:
    """After a capture that failed: torch's allocator and generator go on as if it were still under way."""
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        torch.zeros(1, device="cuda")  # the end of a capture that succeeds brings the generator back


def dispatches(operators: int, replacements: int) -> float:
    """So many operators, and replays of plans on empty tensors, in empty operators."""
    return operators + (replacements * _replay_ns() / operator_ns() if replacements else 0.0)


@functools.cache
def compiled_dispatches(inputs: int) -> float:
    """Calling what torch.compile made of a function of so many tensors, empty ones, in empty operators."""

    class Total(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            total = tensors[0] + 1
            for tensor in tensors[1:]:
                total = total + tensor
            return total

    empty = [torch.empty(0) for _ in range(max(1, inputs))]
    call = torch.compile(Total(), dynamic=False)
    return _fastest_ns(lambda: call(*empty)) / operator_ns()


@functools.cache
def operator_ns() -> float:
    """The time of an operator on empty tensors, ns."""
    empty = torch.empty(0)
    return _fastest_ns(lambda: torch.add(empty, empty))


@functools.cache
def _replay_ns() -> float:
    nothing: dict[str, Any] = {"shape": (0,), "stride": (1,), "dtype": "float32", "device": "cpu"}
    first, second, result = (ValueArg(value=number) for number in range(3))
    plan = Plan(
        inputs=(first, second),
        values=(InputValue(**nothing), InputValue(**nothing), MadeValue(**nothing)),
        steps=(Alloc(value=result.value),),
        result=result,
        kernels={},
        constants={},
    )
    replay, inputs = Replay(plan, {}), [torch.empty(0), torch.empty(0)]
    return _fastest_ns(lambda: replay.call(*inputs))


def _fastest_ns(call: Callable[[], Any]) -> float:
    """The least of several mean times of a call, ns."""
    call()
    times = []
    for _ in range(_TRIES):
        begun = time.perf_counter_ns()
        for _ in range(_CALLS):
            call()
        times.append((time.perf_counter_ns() - begun) / _CALLS)
    return min(times)
