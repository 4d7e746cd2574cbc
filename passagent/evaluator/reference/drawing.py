"""The input sets of a subgraph, drawn into shared memory, and how far they go beyond what was recorded."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from passagent.errors import TaskError
from passagent.evaluator.captures import KeptGraph
from passagent.evaluator.reference import keeping
from passagent.evaluator.reference.reference import Reference, describe
from passagent.evaluator.runner.fresh import Rotation
from passagent.evaluator.runner.worker_messages import Given
from passagent.evaluator.score import BEYOND_SET
from passagent.sandbox.channel import Arena
from passagent.tasks.graphio import load_graph
from passagent.tasks.inputs import BEYOND, RARE, generator_of, make_inputs
from passagent.tasks.reader import Subgraph
from passagent.tasks.special import KINDS, SINGLE, exchanged, may_exchange, numbers_of
from passagent.tasks.uses import Wider, narrower, wider

_VARIANTS = {
    "as recorded": 0, "of the recorded spread": 1, "of half that spread": 2, "of large magnitude": 4,
    "beyond the recorded range": BEYOND, "with a few large values": RARE,
}  # fmt: skip
"""Variants of make_inputs, by the kind of the set."""
SET_KINDS = (*list(_VARIANTS)[:5], *KINDS[:2], "with a few large values", KINDS[4], *KINDS[2:4])
"""Kinds of the input sets, in order."""
FOR_SMALL, FOR_FAST, FOR_FEW = SET_KINDS[7:], SET_KINDS[8:], SET_KINDS[9:]
"""Large subgraphs do without the first, for the memory, slow ones without the second, and those of many
results without the third."""
_NUMBERS = 256
"""Numbers of the graph that are drawn, at most."""


class EagerError(TaskError):
    """Eager raises."""


class SpecialError(TaskError):
    """Eager fails on special values, or returns other shapes."""


def draw_sets(
    subgraph: Subgraph,
    wider: Subgraph,
    rotation: Rotation,
    graph: KeptGraph | None,
    wanted: Sequence[str] = SET_KINDS,
) -> tuple[Arena, dict[str, list[Given]]]:
    """Draw the input sets: return the arena that holds them, and the sets by their kinds.

    `wider`: the subgraph with what its inputs may be; `graph`: None where no special values are
    drawn; `wanted`: kinds of sets.
    """
    seed, more, is_small = secrets.randbits(62), secrets.randbits(62), keeping.is_small(subgraph)
    kinds = [kind for kind in wanted if is_small or kind not in FOR_SMALL]
    kinds = [kind for kind in kinds if kind in _VARIANTS or graph is not None]

    def drawn(kind: str) -> list[Any] | None:
        if kind not in _VARIANTS:
            return None
        variant = _VARIANTS[kind]
        values = make_inputs(wider if variant else subgraph, "cpu", seed, variant)
        return [
            rotation.reservoir(i, v, more, variant) if isinstance(v, torch.Tensor) else v
            for i, v in enumerate(values)
        ]

    def exchange(kind: str, numbers: list[float], inputs: list[Given], arena: Arena) -> list[Given]:
        # What follows in a reservoir stays: only the first window of such a set is judged.
        varied = [i for i, meta in enumerate(wider.inputs) if may_exchange(meta)]
        if kind in SINGLE and varied:
            floats = [i for i in varied if wider.inputs[i].is_floating] if kind == KINDS[4] else []
            varied = floats or varied  # a kernel may look at all of a small input, which costs it little
            sizes = [wider.inputs[i].numel for i in varied]
            varied = secrets.SystemRandom().choices(varied, sizes)
        for i in varied:
            meta, placed = wider.inputs[i], inputs[i].tensor
            assert placed is not None
            values, rng = arena.view(placed), generator_of(seed, kind, meta.name)
            new = exchanged(meta, values[: meta.numel].reshape(meta.shape), kind, numbers, rng).reshape(-1)
            tensor = arena.write_flat([new, values[meta.numel :]])
            inputs[i] = inputs[i].model_copy(update={"tensor": tensor})
        return inputs

    nodes = graph.nodes if graph is not None else []
    scalars = [meta.data for meta in subgraph.inputs if meta.numel == 1]
    texts = [[node["args"], node.get("kwargs")] for node in nodes]
    numbers = sorted({*numbers_of([*texts, *scalars])})[:_NUMBERS]
    # A small tensor's generator takes one core. Of large ones each set takes all, and much memory.
    arena, sets = None, dict[str, list[Given]]()
    try:
        with ThreadPoolExecutor(min(len(_VARIANTS), len(os.sched_getaffinity(0)))) as threads:
            for kind, values in zip(kinds, (threads.map if is_small else map)(drawn, kinds), strict=True):
                if values is not None:
                    arena = arena or Arena.create(len(kinds) * keeping.room_of(values))
                    sets[kind] = describe(values, subgraph, arena)
                elif arena is not None:
                    sets[kind] = exchange(kind, numbers, list(sets["of the recorded spread"]), arena)
        assert arena is not None
        arena.seal()
    except BaseException:
        if arena is not None:
            arena.close()
        raise
    return arena, sets


_LOST = 0.01
"""Share of eager's results that may not be finite on values beyond the recorded and are elsewhere."""


def begin_wider(subgraph: Subgraph, captured: KeptGraph | None) -> Wider:
    """The wider values that the graph allows; floats only where it is not known yet."""
    if captured is None:
        return Wider(subgraph, [])
    return wider(subgraph, load_graph(captured.nodes), captured.order)


def come_closer(values: Wider, reference: Reference) -> Wider:
    """One input less beyond the recorded where eager's results are not finite there; else the same."""
    pairs = zip(reference.expected[1].eager, reference.expected[BEYOND_SET].eager, strict=True)
    is_lost = any(_lost(beyond) > _lost(ordinary) + _LOST for ordinary, beyond in pairs)
    return narrower(values) if is_lost else values


def _lost(values: torch.Tensor) -> float:
    """The share of values that are not finite."""
    return 1 - int(values.isfinite().count_nonzero()) / values.numel() if values.numel() else 0.0
