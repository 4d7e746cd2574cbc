"""A benchmark's further tables: KernelBench's, and where a compiler loses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from passagent.benchmark.kernelbench import LEVELS_P, Line
from passagent.benchmark.losses import BOUNDS, Group, Losses
from passagent.benchmark.summary import Estimate
from passagent.report.text import number, table


def suite_text(lines: Sequence[Line]) -> str:
    """A line for each compiler, base and level; the means' 95% intervals in brackets."""
    header = ["compiler", "against", "level", ">problems"]
    header += [f">fast_{p:g} (%)" for p in LEVELS_P] + [">G-mean", ">AS", ">of bandwidth (%)"]
    rows = [
        [
            line.compiler,
            line.base,
            line.level,
            str(line.problems),
            *(_cell(Estimate(line.fast[p].value), 100, 1) for p in LEVELS_P),
            _cell(line.gmean, 1, 3),
            _cell(line.as_score, 1, 3) if line.base == "eager" else "",
            _cell(Estimate(line.light.value), 100, 1) if line.base == "eager" else "",
        ]
        for line in lines
    ]
    drop = ["of bandwidth (%)", "fast_0 (%)", "AS", "fast_2 (%)", "problems"]
    return table(header, rows, indent="", drop=drop)


def suite_data(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The same as plain data; shares from 0 to 1."""
    return [
        asdict(line) | {"fast": {f"{p:g}": asdict(one) for p, one in line.fast.items()}} for line in lines
    ]


def losses_text(found: Losses) -> str:
    """PassNet's Tables 7 and 8 of one compiler, and a table by category."""
    total = sum(found.ranges)
    names = [
        f"< {BOUNDS[0]:g}x",
        *(f"{low:g}-{high:g}x" for low, high in itertools.pairwise(BOUNDS)),
    ]
    what = "kernel speedup" if found.is_kernel else "speedup end to end"
    spread = [
        [name, str(count), number(100 * count / total, 1)]
        for name, count in zip([*names, f">= {BOUNDS[-1]:g}x"], found.ranges, strict=True)
    ]
    parts = [
        f"{found.compiler}: {total} correct subgraphs, {found.inexact} of them 1e-3 or more from eager",
        table([what, ">subgraphs", ">share (%)"], spread, indent=""),
    ]
    if found.causes:
        slower = sum(one.subgraphs for one in found.causes)
        rows = [
            [one.name, str(one.subgraphs), number(100 * one.subgraphs / slower, 1), number(one.median, 2)]
            for one in found.causes
        ]
        parts.append(table(["slower, because of", ">subgraphs", ">share (%)", ">median"], rows, indent=""))
    rows = [_by_category(one) for one in found.categories]
    parts.append(table(["category", ">subgraphs", ">slower", ">wrong", ">median"], rows, indent=""))
    return "\n\n".join(parts)


def _by_category(one: Group) -> list[str]:
    return [one.name, str(one.subgraphs), str(one.slower), str(one.wrong), number(one.median, 2)]


def _cell(estimate: Estimate, scale: float, digits: int) -> str:
    def shown(value: float | None) -> str:
        return number(None if value is None else value * scale, digits)

    if estimate.low is None:
        return shown(estimate.value)
    return f"{shown(estimate.value)} [{shown(estimate.low)}-{shown(estimate.high)}]"
