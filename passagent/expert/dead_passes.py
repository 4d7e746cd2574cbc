"""Passes that would match nothing: passes before them take the same operators.

Families are told apart by how an operator is written, and by which operators a kernel is to hold. A pattern
matches more than that: `cat(x, 1)` where it says `cat(x, dim=1)`, and operators that the expert has left to
two smaller passes in a graph of other sizes.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from passagent.evaluator.matching.matcher import first_match
from passagent.evaluator.matching.pattern import trace_pattern
from passagent.evaluator.matching.rewrite import PlannedPass, replace_match
from passagent.expert.family import Family
from passagent.expert.pattern_text import write_pattern


def matching(families: Sequence[Family], graphs: Sequence[fx.Graph]) -> list[bool]:
    """Of each family whether its pass matches in a graph, after the passes of the families before it."""
    passes = [PlannedPass(str(number), "", _pattern(family)) for number, family in enumerate(families)]
    found = [False] * len(passes)
    for graph in map(copy.deepcopy, graphs):
        for number, one in enumerate(passes):
            while (match := first_match(one.pattern_graph, graph)) is not None:
                replace_match(graph, one, match, replacement=_call)
                found[number] = True
    return found


def _pattern(family: Family) -> fx.Graph:
    """The graph of the family's pattern, as the evaluator reads it."""
    text = "\n".join(write_pattern(family.regions[0], family.parameters, family.names))
    names: dict[str, Any] = {"torch": torch, "operator": operator}
    exec(text, names)
    return trace_pattern(names["pattern"], text, "pattern")


def _call(bindings: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    return _replaced, tuple(bindings.values())


def _replaced(*_: Any) -> None:
    """What stands in a graph for a pass's function."""
