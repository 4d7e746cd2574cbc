"""Calls of a subgraph in a worker: with fresh values each, timed, alone or in turn with the other side."""

from __future__ import annotations

import gc
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from passagent.evaluator.integrity.zones import Zoned
from passagent.evaluator.runner import worker_messages as messages
from passagent.evaluator.runner.fresh import (
    MIX,
    PIECE,
    Refresh,
    Slots,
    Windows,
    pieces_of,
    refresher,
)
from passagent.evaluator.runner.lockstep import Turn
from passagent.evaluator.runner.marks import GAPS, Mark
from passagent.evaluator.runner.reservoirs import InputSets
from passagent.evaluator.runner.worker_messages import GroupTimes, Turns
from passagent.sandbox.channel import Arena, Placed
from passagent.tasks.graphio import load_graph

_clock = time.perf_counter_ns
_WARM_NS = 1_000_000
"""A block starts with unmeasured calls for this long, ns: caches and device come back from the other side."""
_WARM_CALLS = 3
_WARM_ENOUGH_NS = 50_000_000
"""After which no more of them are made: beside such a call caches do not matter."""


@dataclass
class Kept:
    """The results of a call: copies, what the originals were like, and the inputs that it changed."""

    copies: list[torch.Tensor]
    facts: list[dict[str, Any]]
    mutated: list[int]
    left: list[torch.Tensor | None]
    """Copies of the inputs `written` of the graph; none of those that it did not change."""


@dataclass
class Graph:
    """A subgraph: what to call, with which arguments, and the values to refresh them from."""

    call: Callable[..., Any]
    audited: Callable[..., Any] | None
    on_gpu: bool
    order: list[int]
    live: list[Any]
    sets: InputSets
    outputs: Arena
    nodes: list[dict[str, Any]]
    written: list[int]
    """Inputs that eager writes into: what a call leaves there is handed back."""
    zoned: list[Zoned] = field(default_factory=list)
    """The memory of `live` and the content of its zones."""
    refreshers: dict[tuple[int, tuple[int, ...]], Refresh] = field(default_factory=dict)
    slots: list[Slots] = field(default_factory=list)
    """For each CUDA graph that `call` may replay (hostless.py) the inputs of each call in it."""
    slot: tuple[int, int] = 0, 0
    """The graph that is replayed next and the call in it whose inputs are `live`, drawn with every refresh.

    That call gets the values that are asked for, and its outputs are what `call` returns.
    """
    is_warm: bool = True
    """Called at least once. What may write beside its tensors is audited before."""

    @cached_property
    def plain(self) -> torch.fx.GraphModule:
        """Eager's graph, as it was captured."""
        return load_graph(self.nodes)

    @property
    def args(self) -> list[Any]:
        """The live inputs in the call's order."""
        return [self.live[i] for i in self.order]

    def hold(self, *chosen: int) -> None:
        """Keep only these of large input sets on the device; what is freed is there for other workers."""
        if self.sets.are_large and self.sets.keep(chosen):
            self.refreshers = {key: fn for key, fn in self.refreshers.items() if key[0] in chosen}
            torch.cuda.empty_cache()

    def refresher(self, chosen: int, which: Sequence[int]) -> Refresh:
        """The function that copies windows of set `chosen` into the live inputs `which`."""
        key = (chosen, tuple(which))
        if key not in self.refreshers:
            self.refreshers[key] = self._refresher(chosen, which)
        return self.refreshers[key]

    def _refresher(self, chosen: int, which: Sequence[int]) -> Refresh:
        values = self.sets[chosen]
        if not self.slots:
            return refresher(self.live, values, which)
        whole = [slots.refresher(values, which) for slots in self.slots]
        each = [[refresher(inputs, values, which) for inputs in slots.inputs] for slots in self.slots]

        def refresh_slots(windows: Sequence[int]) -> None:
            captured = secrets.randbelow(len(each))
            slot = secrets.randbelow(len(each[captured]))
            self.slot, self.live = (captured, slot), self.slots[captured].inputs[slot]
            whole[captured]()
            each[captured][slot](windows)

        return refresh_slots


def refresh_all(graph: Graph, chosen: int, windows: Windows) -> None:
    """New values for every input, the same in all slots."""
    everything = range(len(graph.live))
    if not graph.slots:
        graph.refresher(chosen, everything)(windows)
        return
    refresher(graph.live, graph.sets[chosen], everything)(windows)
    for slots in graph.slots:
        slots.fill_alike(graph.live)


def settle(graph: Graph, chosen: int, windows: Windows, often: Sequence[int]) -> None:
    """Unmeasured calls, so that caches and device come back from the other side."""
    refresh = graph.refresher(chosen, often)
    begun, count, args = _clock(), 0, graph.args
    while (spent := _clock() - begun) < _WARM_ENOUGH_NS and (
        count < _WARM_CALLS or (not graph.on_gpu and spent < _WARM_NS)
    ):
        refresh(windows)
        graph.call(*args)
        synchronize(graph)
        count += 1
    refresh(windows)


def timed(
    graph: Graph,
    chosen: int,
    windows: Iterable[Windows],
    refresh: Refresh,
    keep: bool,
    mark: Mark | None = None,
) -> tuple[list[int], list[int], messages.Kept | None]:
    """Times of a call on each of `windows`, ns from issue to completion; with `keep` those of copying what
    it returned, and what the last call did.

    The inputs that `refresh` is for get their window before every call; the others hold what they hold. With
    a `mark` the times are nothing: who reads the marks knows them (marks.py). What a call returned goes into
    the outputs' arena, which is not mapped here: no native code changes it there. Each call's does, as what
    is left undone until then counts as the call's (clocks.py).
    """
    call, args = graph.call, graph.args
    wait = torch.cuda.synchronize if graph.on_gpu else _nothing
    now = _clock if mark is None else mark
    samples: list[int] = []
    copying: list[int] = []
    out, window, offsets = None, None, []
    for number, window in enumerate(windows):
        out = None
        refresh(window)
        wait()
        if mark is not None and number < GAPS:
            mark()
        start = now()
        out = call(*args)
        wait()
        end = now()
        samples.append(max(1, end - start))
        if keep:
            offsets = graph.outputs.write_all(returned(graph, out))
            copying.append(max(1, now() - end))
    if not keep or window is None:
        return samples, copying, None
    places = [vars(Placed.of(value, at)) for value, at in zip(returned(graph, out), offsets, strict=True)]
    each = facts(tensors(out), graph.live)
    outputs = [messages.Output(**place, **fact) for place, fact in zip(places, each, strict=False)]
    after: list[messages.Tensor | None] = [messages.Tensor(**place) for place in places[len(each) :]]
    kept = messages.Kept(outputs=outputs, mutated=changed(graph, chosen, window), left=after)
    return samples, copying, kept


def returned(graph: Graph, out: Any) -> list[torch.Tensor]:
    """The values of a call that are judged: its results, and the inputs `written`."""
    return tensors(out) + [graph.live[i] for i in graph.written]


def lockstep(
    graph: Graph, groups: Sequence[Turns], often: Sequence[int], side: int, turn: Turn
) -> tuple[list[GroupTimes], list[Kept]]:
    """Calls in turn with the other side: A B, B A, A B, ..., both on one core, another one for each group.

    The side that a group names as its `first` begins; sides are 0 and 1.

    What a call takes differs by a few per cent between cores and between processes on different cores, and
    from one millisecond to the next. A turn is a few calls, as the first one after the other side's finds
    cold caches. `turns` of a group holds for each of its turns the windows of the calls. Returns for each
    group the times of all calls (`samples`), how long the side held the turn and how long the other one did
    (`held`, `without`), ns; and what the groups' calls `keep` (turn, call) returned.
    """
    call, args = graph.call, graph.args
    wait = torch.cuda.synchronize if graph.on_gpu else _nothing
    refreshers = [graph.refresher(group.set, often) for group in groups]  # no clock runs meanwhile
    reports, kept_calls = [], []
    everywhere = os.sched_getaffinity(0)
    begun = _clock()
    taken = 1
    if side == 0:
        turn.give()  # from here on its clock sees all of the other side's turns
    try:
        for group, refresh in zip(groups, refreshers, strict=True):
            os.sched_setaffinity(0, {group.core})
            samples: list[int] = []
            held = 0
            for place, windows in enumerate(group.turns):
                turn.wait(taken + (side ^ group.first ^ (place & 1)))
                got = _clock()
                for position, window in enumerate(windows):
                    out = None
                    if place == 0 and position == 0:
                        refresh_all(graph, group.set, window)
                    if graph.slots or place or position:
                        refresh(window)
                    wait()
                    start = _clock()
                    out = call(*args)
                    wait()
                    samples.append(_clock() - start)
                    if (place, position) == group.keep:
                        kept_calls.append(keep_call(graph, out, group.set, window))
                out = None
                held += _clock() - got
                taken += 2
                turn.give()
            turn.wait(taken)
            ended = _clock()
            reports.append(GroupTimes(samples=samples, held=held, without=ended - begun - held))
            begun = ended
    finally:
        os.sched_setaffinity(0, everywhere)
    return reports, kept_calls


@contextmanager
def no_collection() -> Iterator[None]:
    """Python's collector rests while calls are timed."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def load_kernels(device: str) -> None:
    """Call those of torch's kernels that audits and copies take: CUDA loads each at its first call."""
    floats, integers = (torch.float32, torch.float16, torch.bfloat16), (torch.int16, torch.int32, torch.int64)
    for dtype in (*floats, *integers, torch.bool):
        values = torch.full((2, 64), 1, dtype=dtype, device=device)
        torch._foreach_copy_([values.clone()], [values])
        if dtype.is_floating_point:
            torch._foreach_lerp_([values.clone()], [values], MIX)
            torch.lerp(values, values, MIX)
        values.t().contiguous()
    zone = torch.full((64,), 1, dtype=torch.uint8, device=device)
    same_bytes(torch.cat([zone[:8], zone[-8:]]), zone[:16].repeat(1))


def synchronize(graph: Graph) -> None:
    """Wait for the device."""
    if graph.on_gpu:
        torch.cuda.synchronize()


def keep_call(graph: Graph, out: Any, chosen: int, windows: Windows) -> Kept:
    """Everything about a call that is judged, taken right after it."""
    synchronize(graph)
    mutated = changed(graph, chosen, windows)
    after = [graph.live[i].clone() if i in mutated else None for i in graph.written]
    return Kept(copies(out), facts(tensors(out), graph.live), mutated, after)


def changed(graph: Graph, chosen: int, windows: Windows) -> list[int]:
    """The inputs that do not hold their windows of set `chosen` any more."""
    return [
        i
        for i, (value, where) in enumerate(zip(graph.live, windows, strict=True))
        if isinstance(value, torch.Tensor) and not _unchanged(value, graph.sets[chosen][i], where)
    ]


def facts(outputs: list[torch.Tensor], inputs: list[Any]) -> list[dict[str, Any]]:
    """Facts of each output besides its shape, dtype and values; `new`: it is no view of an input or of
    an output before it; `own`: each of its elements has a place of its own, though it may be in their memory.
    """
    tensors_in = [value for value in inputs if isinstance(value, torch.Tensor)]
    memories, spans = {_memory_of(value) for value in tensors_in}, [_span(value) for value in tensors_in]
    records: list[dict[str, Any]] = []
    for tensor in outputs:
        is_new, span = _memory_of(tensor) not in memories, _span(tensor)
        is_apart = tensor.numel() == 0 or not any(span[0] < end and start < span[1] for start, end in spans)
        memories.add(_memory_of(tensor))
        spans.append(span)
        records.append({"contiguous": tensor.is_contiguous(), "strides": list(tensor.stride())})
        records[-1] |= {"device": tensor.device.type}
        records[-1] |= {"new": is_new, "own": is_apart and not repeats(tensor)}
    return records


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses between which a tensor's elements lie; empty for none."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps) if tensor.numel() else -1
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.itemsize


def repeats(tensor: torch.Tensor) -> bool:
    """Several elements may lie in one place, as those of an expanded tensor do."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit by bit, NaN included."""
    return torch.equal(_bytes(a), _bytes(b))


def _unchanged(value: torch.Tensor, reservoir: torch.Tensor, where: int) -> bool:
    pieces = value.reshape(-1).split(PIECE)
    return all(map(same_bytes, pieces, pieces_of(reservoir, where, value.numel())))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def copies(out: Any) -> list[torch.Tensor]:
    """Contiguous copies of the tensors that a call returned."""
    return [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors(out)]


def tensors(out: Any) -> list[torch.Tensor]:
    """The tensors that a call returned, in order."""
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, (tuple, list)):
        return [tensor for item in out for tensor in tensors(item)]
    return []


def _nothing() -> None:
    pass
