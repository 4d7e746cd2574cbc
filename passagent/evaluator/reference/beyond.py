"""How far inputs go beyond what was recorded: as far as the graph allows, and eager's results are finite."""

from __future__ import annotations

import torch

from passagent.evaluator.captures import KeptGraph
from passagent.evaluator.correctness.sets import BEYOND_SET
from passagent.evaluator.reference.reference import Reference
from passagent.tasks.graphio import load_graph
from passagent.tasks.reader import Subgraph
from passagent.tasks.uses import Wider, narrower, wider

_LOST = 0.01
"""Share of eager's results that may not be finite on values beyond the recorded and are elsewhere."""


def begin(subgraph: Subgraph, captured: KeptGraph | None) -> Wider:
    """The wider values that the graph allows; floats only where it is not known yet."""
    if captured is None:
        return Wider(subgraph, [])
    return wider(subgraph, load_graph(captured.nodes), captured.order)


def closer(values: Wider, reference: Reference) -> Wider:
    """One input less beyond the recorded where eager's results are not finite there; else the same."""
    pairs = zip(reference.expected[1].eager, reference.expected[BEYOND_SET].eager, strict=True)
    is_lost = any(_lost(beyond) > _lost(ordinary) + _LOST for ordinary, beyond in pairs)
    return narrower(values) if is_lost else values


def _lost(values: torch.Tensor) -> float:
    """The share of values that are not finite."""
    return 1 - int(values.isfinite().count_nonzero()) / values.numel() if values.numel() else 0.0
