"""What makes a result on a task worth little: robust-kbench's filters on outputs.

A kernel that writes constants passes where outputs are constant, or do not depend on the inputs. Such a task
is in order, and may be meant so; it is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from passagent.tasks.large_tensors import equal, slices

TINY = 0.01
"""robust-kbench's least range, standard deviation, and change from inputs to inputs, of outputs."""
_MOST_INPUTS = 16
"""Of which each is changed alone."""


def spread(outputs: Sequence[Any]) -> list[str]:
    """Of the outputs of one call: a word on each way in which they are alike."""
    found = []
    for one in outputs:
        if not _counts(one):
            continue
        values = one.detach().float()
        low, high = values.aminmax()
        if low == high:
            found.append("constant output")
        elif float(high - low) < TINY or float(values.std()) < TINY:
            found.append("outputs close to each other")
    return list(dict.fromkeys(found))


def dependence(
    call: Callable[[list[Any]], list[Any]],
    inputs: Sequence[Any],
    others: Sequence[Any],
    outputs: Sequence[Any],
) -> list[str]:
    """Of calls with other inputs: on which inputs no output depends.

    `call`: the outputs for inputs, which it does not change. `others`: the same inputs with other values.
    """
    places = [place for place, value in enumerate(inputs) if _differs(value, others[place])]
    if not places or not any(map(_counts, outputs)):
        return []
    if not _changed(outputs, call(list(others))):
        return ["outputs hardly depend on the inputs"]
    found = []
    for place in places[:_MOST_INPUTS]:
        given = [others[place] if at == place else value for at, value in enumerate(inputs)]
        if not _differ(outputs, call(given)):
            found.append(f"no output depends on input {place}")
    return found


def _counts(value: Any) -> bool:
    """Whether there is something to compare: more than one number."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 1


def _differs(value: Any, other: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and not equal(value, other)


def _changed(outputs: Sequence[Any], others: Sequence[Any]) -> bool:
    pairs = [(a, b) for a, b in zip(outputs, others, strict=True) if _counts(a)]
    return any(
        a.shape != b.shape
        or any(float((c.float() - d.float()).nan_to_num_().abs_().max()) >= TINY for c, d in slices(a, b))
        for a, b in pairs
    )


def _differ(outputs: Sequence[Any], others: Sequence[Any]) -> bool:
    tensors = [(a, b) for a, b in zip(outputs, others, strict=True) if isinstance(a, torch.Tensor)]
    return any(
        a.shape != b.shape or any(not torch.equal(c.nan_to_num(), d.nan_to_num()) for c, d in slices(a, b))
        for a, b in tensors
    )
