"""Prefix analysis (PassNet 3.2): where a graph's prefixes have one kernel count, operators fuse.

The counts are those of Inductor's scheduler. Where two prefixes have the same count, and the one in the
middle, too, all between them have it. So few prefixes are scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Any

import torch

from passagent.data.pipeline.cutting import cut_ranges, empty_inputs, metas_of, operators, region_of
from passagent.data.pipeline.units import Refused
from passagent.errors import PassagentError
from passagent.tasks.extract.inductor_schedule import scheduled_kernels
from passagent.tasks.graphio import load_graph


def cut_fusible(payload: dict[str, Any]) -> dict[str, Any]:
    """Cut the fusible ranges out of a record. Raises Refused where Inductor cannot schedule a prefix."""
    graph_module, metas = load_graph(payload["nodes"]), metas_of(payload)
    inputs = dict(zip(graph_module.graph.find_nodes(op="placeholder"), empty_inputs(metas), strict=True))
    scheduled = 0

    def count(prefix: int) -> int:
        nonlocal scheduled
        scheduled += 1
        region = region_of(graph_module.graph, 0, prefix)
        if not region.outputs:
            return 0
        module = torch.fx.GraphModule(torch.nn.Module(), region.graph())
        with torch.no_grad():
            return scheduled_kernels(module, [inputs[node] for node in region.inputs]).launches

    try:
        counts = kernel_counts(len(operators(graph_module.graph)), count)
    except PassagentError as error:
        raise Refused("unscheduled", str(error)) from error
    found = [["fusible", start, end] for start, end in fusible_ranges(counts)]
    return cut_ranges({**payload, "ranges": found}) | {"kernels": counts, "scheduled": scheduled}


def kernel_counts(operators: int, count: Callable[[int], int]) -> list[int]:
    """The kernels of the prefixes of 1, 2, ... operators, by bisection between prefixes of equal count."""
    known: dict[int, int] = {}

    def at(prefix: int) -> int:
        if prefix not in known:
            known[prefix] = count(prefix)
        return known[prefix]

    stack = [(1, operators)] if operators else []
    while stack:
        low, high = stack.pop()
        if high - low < 2:
            at(low), at(high)
            continue
        middle = (low + high) // 2
        if at(low) == at(high) == at(middle):
            known.update(dict.fromkeys(range(low, high), at(low)))
        else:
            stack += [(low, middle), (middle, high)]
    return [known[prefix] for prefix in range(1, operators + 1)]


def fusible_ranges(counts: Sequence[int]) -> list[tuple[int, int]]:
    """The ranges of operators whose kernels fuse, as GraphNet finds them; `counts`: of each prefix.

    What lies between two prefixes of one count belongs to them. Where the count then falls, two plateaus are
    one. A plateau whose last change is a rise is none.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for prefix, kernels in enumerate(counts, start=1):
        first.setdefault(kernels, prefix)
        last[kernels] = prefix
    closed = [
        min(kernels for kernels in first if first[kernels] <= prefix <= last[kernels])
        for prefix in range(1, len(counts) + 1)
    ]
    plateaus = [
        [prefix for prefix, _ in group]
        for _, group in groupby(enumerate(closed, start=1), key=lambda pair: pair[1])
    ]
    merged: list[list[int]] = []
    for plateau in plateaus:
        merged.append(plateau)
        while len(merged) > 1 and counts[merged[-2][-1] - 1] >= counts[merged[-1][0] - 1]:
            merged[-2:] = [merged[-2] + merged[-1]]
    found = []
    for plateau in merged:
        own = [counts[prefix - 1] for prefix in plateau]
        changes = [later - earlier for earlier, later in pairwise(own) if later != earlier]
        if len(plateau) > 1 and own[0] >= own[-1] and (not changes or changes[-1] < 0):
            found.append((plateau[0] - 1, plateau[-1]))
    return [one for i, one in enumerate(found) if i == 0 or one[0] >= found[i - 1][1]]
