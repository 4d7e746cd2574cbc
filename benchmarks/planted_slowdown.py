"""Plant a slow-down in an evaluator's workers without a change to it. See evaluator_repeatability.py.

A sitecustomize.py on the import path that a fork server is given has it call `plant`; from then on a `graph`
request that says `planted: SHARE` makes the calls of eager in a candidate's place take that much longer, each
by its own time. A fork server imports this file before it forks, so it imports no more than a worker does.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from passagent.evaluator.runner import worker, worker_messages

FLOOR_NS = 1000
"""More than it takes to find out that the time is over."""


class PlantedGraph(worker_messages.TakeGraph):
    """A request for a graph whose calls take longer."""

    planted: float | None = None


class PlantedReply(worker_messages.GraphReply):
    """What a worker replies that has planted something."""

    planted: float | None = None


def plant() -> None:
    """In a fork server (see `planting`): what a worker calls takes longer if the request says so."""
    take = worker._take

    def planted(state: Any, request: PlantedGraph, fds: list[int]) -> worker_messages.GraphReply:
        reply = take(state, request, fds)
        if request.planted is None:
            return reply
        share = request.planted if state.compiler == "eager" else 0.0
        graph = state.graphs[request.id]
        graph.call = _longer(graph.call, share, graph.on_gpu)
        return PlantedReply(**reply.model_dump(exclude_unset=True), planted=share)

    worker._take = planted
    worker_messages._BY_NAME["graph"] = PlantedGraph


def _longer(call: Callable[..., Any], share: float, on_gpu: bool) -> Callable[..., Any]:
    """`call`, followed by `share` of the time that this very call took.

    With a share of 0 it is the other side's: both run the same code and spin for FLOOR_NS at least, so that
    what that costs is the same on both sides, and theirs differ by the share alone.
    """
    clock, wait = time.perf_counter_ns, torch.cuda.synchronize if on_gpu else _nothing
    own = FLOOR_NS + _idle(wait)  # who times the call waits once more

    def longer(*args: Any) -> Any:
        start = clock()
        out = call(*args)
        wait()
        now = clock()
        end = now + FLOOR_NS + share * (now - start + own)
        while clock() < end:
            pass
        return out

    return longer


def _idle(wait: Callable[[], Any]) -> float:
    """What it takes to wait for nothing, ns."""
    samples = []
    for _ in range(100):
        start = time.perf_counter_ns()
        wait()
        samples.append(time.perf_counter_ns() - start)
    return statistics.median(samples)


def _nothing() -> None:
    pass


@contextmanager
def planting() -> Iterator[None]:
    """Fork servers that are started meanwhile call `plant`, through a sitecustomize.py on their import path.

    The referee takes a reply that says what was planted.
    """
    with tempfile.TemporaryDirectory() as folder:
        lines = [
            "import sys",
            "if 'passagent.sandbox.fork_server' in sys.orig_argv:",
            "    from planted_slowdown import plant",
            "    plant()",
        ]
        (Path(folder) / "sitecustomize.py").write_text("\n".join(lines) + "\n")
        places = [folder, str(Path(__file__).parent)]
        sys.path[:0] = places
        worker_messages._KINDS[PlantedGraph] = PlantedReply
        try:
            yield
        finally:
            del worker_messages._KINDS[PlantedGraph]
            for place in places:
                sys.path.remove(place)
