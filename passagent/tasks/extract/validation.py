"""The four stages of validation (GraphNet 4.1), on what was written: read, run, extract again, compare.

The last one compares outputs and nodes. It is done with the inputs and weights of the model's own call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from passagent.errors import TaskError
from passagent.tasks.capture import capture
from passagent.tasks.constraints import check_subgraph
from passagent.tasks.extract.graph_text import CleanGraph, clean_graph, specialised
from passagent.tasks.extract.input_metadata import input_metas
from passagent.tasks.extract.model_capture import copied, quiet
from passagent.tasks.extract.structural_hash import structural_hash
from passagent.tasks.large_tensors import close, equal
from passagent.tasks.module import load_module
from passagent.tasks.reader import read_subgraph

STAGES = ("read", "run", "extract", "compare")
_RTOL, _ATOL = 1.3e-6, 1e-5
"""Where outputs are not equal bit for bit; times the precision of the dtype over that of float32."""


@dataclass(frozen=True)
class Validation:
    """How far a directory came."""

    passed: tuple[str, ...]
    """The stages of STAGES that it passed."""
    problems: tuple[str, ...]
    is_exact: bool
    """The outputs are those of the model, bit for bit."""

    @property
    def ok(self) -> bool:
        """All stages."""
        return not self.problems


def validate(
    path: Path, clean: CleanGraph, expected: Sequence[Any], device: str, is_training: bool = False
) -> Validation:
    """Validate the subgraph directory `path`, written of `clean`, whose outputs are `expected`."""
    passed: list[str] = []
    is_exact = False

    def ended(*problems: str) -> Validation:
        return Validation(tuple(passed), tuple(problems), is_exact)

    try:
        subgraph = read_subgraph(path, path.name)
        module = load_module(subgraph, device)
    except TaskError as error:
        return ended(str(error))
    passed.append("read")
    try:
        with torch.set_grad_enabled(is_training):
            outputs = pytree.tree_leaves(module(*copied(clean.values)))
    except Exception as error:
        return ended(f"does not run: {type(error).__name__}: {str(error).splitlines()[0]}")
    differing, is_exact = _difference(outputs, expected)
    del outputs  # their memory is needed
    if differing:
        return ended(differing)
    passed.append("run")
    with quiet():
        checked = check_subgraph(subgraph, device)
    if not checked.ok:
        return ended(*checked.problems)
    passed.append("extract")
    try:
        problem = _other_nodes(clean, module)
    except TaskError as error:
        problem = f"captured again: {error}"
    if problem:
        return ended(problem)
    passed.append("compare")
    return ended()


def _difference(outputs: Sequence[Any], expected: Sequence[Any]) -> tuple[str, bool]:
    """In what the outputs differ from the model's, if they do; whether they are equal bit for bit."""
    if len(outputs) != len(expected):
        return f"gives {len(outputs)} outputs, the model {len(expected)}", False
    is_exact = True
    for number, (one, other) in enumerate(zip(outputs, expected, strict=True)):
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            if one != other:
                return f"output {number} is {one!r}, of the model {other!r}", False
            continue
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"output {number} is of another shape or dtype than the model's", False
        if equal(one, other):
            continue
        is_exact = False
        scale = torch.finfo(one.dtype).eps / torch.finfo(torch.float32).eps if one.is_floating_point() else 0
        if not close(one, other, _RTOL * scale, _ATOL * scale):
            return f"output {number} differs from the model's", False
    return "", is_exact


def _other_nodes(clean: CleanGraph, module: torch.nn.Module) -> str:
    """In what a graph that is captured again differs; empty if it does not."""
    own = specialised(clean)
    with quiet():
        again = capture(module, clean.values)
    other = clean_graph(again.graph_module, [clean.values[position] for position in again.order])
    first = structural_hash(own.graph, input_metas(own.names, own.values)).instance
    second = structural_hash(other.graph, input_metas(other.names, other.values)).instance
    if first == second:
        return ""
    counts = [sum(node.op.startswith("call") for node in graph.nodes) for graph in (own.graph, other.graph)]
    return f"captured again it is another graph: {counts[1]} operators, the model's {counts[0]}"
