"""Choose the configuration of a kernel that is fastest here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from passagent.plan.model import Plan
from passagent.plan.replay import Replay, choices_of

_TRIES, _CALLS = 3, 20
"""An alternative's time is the least of so many times of so many calls."""


def fastest_choices(plan: Plan, args: Sequence[Any], replay: Callable[[list[int]], Replay]) -> list[int]:
    """For each Choice of a plan the fastest alternative, timed on copies of `args`."""
    counts = choices_of(plan)
    chosen = [0] * len(counts)
    for position, count in enumerate(counts):
        times = []
        for number in range(count):
            chosen[position] = number
            times.append(_time(replay, list(chosen), args))
        chosen[position] = times.index(min(times))
    return chosen


def _time(replay: Callable[[list[int]], Replay], choices: list[int], args: Sequence[Any]) -> float:
    """Seconds of an alternative's calls; infinite if it cannot run."""
    copies = tree_map_only(torch.Tensor, _copy, list(args))
    try:
        replayed = replay(choices)
        replayed.call(*copies)
    except RuntimeError:  # it asks for more than the device has
        return float("inf")
    wait = torch.cuda.synchronize if replayed.device.type == "cuda" else lambda: None
    times = []
    for _ in range(_TRIES):
        wait()
        begun = time.perf_counter()
        for _ in range(_CALLS):
            replayed.call(*copies)
        wait()
        times.append(time.perf_counter() - begun)
    return min(times)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    copy = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)
