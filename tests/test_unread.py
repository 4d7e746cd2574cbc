"""What of its inputs a graph reads: of slices their bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny import write_subgraph
from torch import fx

from passagent.evaluator.reference.graph_costs import unread_bytes
from passagent.tasks.graphio import dump_graph
from passagent.tasks.reader import load_task

CASES: dict[str, tuple[Callable[..., object], int]] = {
    "all": (lambda x, y: x + y, 0),
    "a slice": (lambda x, y: x[:, :16] + y[:, :16], 2 * 48),
    "a view of a slice": (lambda x, y: x[:, :16].transpose(0, 1) + y.sum(), 48),
    "one part of several": (lambda x, y: x.chunk(4, 1)[0] * 2 + y.sum(), 48),
    "all parts": (lambda x, y: x.chunk(2, 1)[0] * x.chunk(2, 1)[1] + y.sum(), 0),
    "overlapping slices": (lambda x, y: x[:, :60] * x[:, 4:] + y.sum(), 0),
    "a slice and all": (lambda x, y: x[:, :16].sum() + x.sum() + y.sum(), 0),
    "an expanded view": (lambda x, y: x.unsqueeze(0).expand(5, 4, 64) + y, 0),
    "a value of another": (lambda x, y: (x * y)[:, :16], 0),
    "nothing": (lambda x, y: x + 1, 64),
}
"""Functions of two inputs of [4, 64], and how many elements of a row they leave in both together."""


@pytest.mark.parametrize("case", CASES)
def test_bytes_that_no_operator_reads_are_counted(case: str, tmp_path: Path) -> None:
    function, unread = CASES[case]

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> object:
            return function(x, y)

    write_subgraph(tmp_path / "t", [4, 64])
    (subgraph,) = load_task(tmp_path / "t").subgraphs
    nodes = dump_graph(fx.symbolic_trace(Module()).graph)
    assert unread_bytes(nodes, [0, 1], subgraph) == 4 * unread * 4
