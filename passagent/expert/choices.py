"""The expert's choices for a task, and the order in which it tries them."""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Plan:
    """A point in the expert's space. The first line of a pass carries it, so that nothing is tried twice."""

    block: int = 512
    """cpu: elements of a row handled at a time; cuda: elements a program handles at a time, at most."""
    grain: int = 16384
    """cpu: elements below which one thread does it all."""
    keep: int = 4
    """cpu: values of a row that cost this many operations are kept for later stages; 0: none."""
    warps: int = 0
    """cuda: warps a program; 0: by the size of the block."""
    stages: int = 3
    """cuda: blocks of keys that an attention's loop loads ahead."""
    without: tuple[str, ...] = ()
    """Operators kept out of the regions."""

    def note(self, target: str) -> str:
        """The plan in words, as the first line of a pass says it: `block 512, grain 16384, keep 4`."""
        used = ["block", "warps", "stages"] if target == "cuda" else ["block", "grain", "keep"]
        text = ", ".join(f"{name} {getattr(self, name)}" for name in used)
        return text + (f", without {' '.join(self.without)}" if self.without else "")

    def json(self) -> str:
        return json.dumps(asdict(self))


CHOICES: dict[str, dict[str, tuple[Any, ...]]] = {
    "cpu": {
        "block": (512, 1024, 256, 2048),
        "grain": (16384, 65536, 4096, 262144, 2048),
        "keep": (4, 12, 1, 0),
    },
    "cuda": {"block": (1024, 2048, 512, 4096, 256), "warps": (0, 4, 8, 2, 1), "stages": (3, 2, 4, 1)},
}
"""Values of each number, the first is where it starts; per target."""

_FIRST = {
    "fusion": ("without",),
    "memory": ("block", "keep"),
    "launch": ("grain", "warps", "block", "stages"),
    "parameters": ("block", "grain", "warps", "stages"),
    "numerics": ("keep", "without"),
    "algorithm": ("keep", "without", "block"),  # what is computed twice, and in how many passes
}
_START: dict[str, dict[str, Any]] = {
    "memory": {"block": 1024},
    "launch": {"grain": 65536, "warps": 4},
    "parameters": {"block": 256, "warps": 8},
    "numerics": {"keep": 1, "block": 2048},
    "algorithm": {"keep": 0, "warps": 2},
}
"""The first changes of a role, and the differences of its first draft from the default."""


INEXACT = [
    "layer_norm", "group_norm", "rms_norm", "batch_norm", "softmax", "log_softmax", "norm", "gelu", "silu",
    "sigmoid", "tanh", "exp", "mean", "sum", "adaptive_avg_pool2d", "rsqrt", "pow", "div", "truediv", "add",
]  # fmt: skip
"""Operators that differ from eager in the last place, which a cancellation turns into a wrong result."""


def safer(plan: Plan, operators: Iterable[str]) -> Iterator[Plan]:
    """The plan with one more of the inexact operators left to eager."""
    present = set(operators) - set(plan.without)
    for op in INEXACT:
        if op in present:
            yield replace(plan, without=tuple(sorted((*plan.without, op))))


def default(target: str) -> Plan:
    return replace(Plan(), **{name: values[0] for name, values in CHOICES[target].items()})


def neighbours(
    plan: Plan,
    target: str,
    role: str,
    operators: Iterable[str],
    seed: int,
    cost: Callable[[Plan], float] = lambda plan: 0.0,
) -> Iterator[Plan]:
    """Plans one change away (then two), what the role looks at first; the order depends on `seed`.

    Of changes that the role holds equal, what `cost` finds cheap comes first.
    """
    draw = random.Random(seed)
    once = list(_changes(plan, target, list(operators)))
    draw.shuffle(once)
    first = _FIRST.get(role, ())
    once.sort(key=lambda change: (change[0] not in first, cost(change[1])))
    yield from (p for _, p in once)
    twice = [p for _, near in once for _, p in _changes(near, target, list(operators))]
    draw.shuffle(twice)
    yield from twice


def _changes(plan: Plan, target: str, operators: list[str]) -> Iterator[tuple[str, Plan]]:
    for name, values in CHOICES[target].items():
        for value in values:
            if value != getattr(plan, name):
                yield name, replace(plan, **{name: value})
    for op in operators:
        if op in plan.without:
            yield "without", replace(plan, without=tuple(o for o in plan.without if o != op))
        elif len(plan.without) < 2:
            yield "without", replace(plan, without=tuple(sorted((*plan.without, op))))


def start(target: str, role: str) -> Plan:
    """The first draft of a role: islands begin at different points."""
    names = CHOICES[target]
    return replace(default(target), **{k: v for k, v in _START.get(role, {}).items() if k in names})


def read_plans(text: str) -> list[Plan]:
    """Every plan written in a text as `[plan: {...}]`."""
    plans = []
    for plan in re.findall(r"\[plan: (\{.*?\})\]", text):
        with contextlib.suppress(ValueError, TypeError):  # a model's own text
            data = json.loads(plan)
            plans.append(Plan(**data | {"without": tuple(data.get("without", ()))}))
    return plans
