"""Tensors in what a model returns, and where they differ from eager's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils._pytree as pytree

from passagent.evaluator.correctness.compare import compare
from passagent.evaluator.correctness.double import in_float64
from passagent.evaluator.correctness.precision import Expected, Fact, judge_precision
from passagent.evaluator.correctness.settled import first_beyond, room_of
from passagent.evaluator.result import Worst
from passagent.evaluator.score import STRICT_T, tolerance
from passagent.tasks.extract.model_capture import Model

Outputs = dict[str, torch.Tensor]
"""Copies on the CPU, by their place in what a model returns: `output.logits`, `output[1]['key']`."""


def read_outputs(returned: Any, place: str = "output", within: tuple[int, ...] = ()) -> Outputs:
    """The tensors in what a model returned: in tuples, dicts, nodes of torch's pytree, attributes of objects.

    `within`: ids of the objects that hold `returned`, which may hold each other.
    """
    outputs: Outputs = {}
    for path, value in pytree.tree_flatten_with_path(returned, _is_without_keys)[0]:
        where, inside = place + pytree.keystr(path), (*within, id(value))
        if isinstance(value, torch.Tensor):
            outputs[where] = value.detach().cpu().clone()
        elif _is_without_keys(value):
            parts = list(pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0])
            outputs |= read_outputs(parts, where, inside)
        elif isinstance(value, Mapping):
            outputs |= read_outputs(dict(value), where, inside)
        elif id(value) not in within:
            for name, part in _attributes(value).items():
                outputs |= read_outputs(part, f"{where}.{name}", inside)
    return outputs


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object that holds values: of a dataclass, of a cache of keys and values."""
    if callable(value):  # a module, a function, a class
        return {}
    if is_dataclass(value):
        return {part.name: getattr(value, part.name) for part in fields(value)}
    return getattr(value, "__dict__", {})


def _is_without_keys(value: Any) -> bool:
    node = pytree.SUPPORTED_NODES.get(type(value))
    return node is not None and node.flatten_with_keys_fn is None


def outputs_in_float64(model: Model) -> Outputs:
    """Return the model's outputs with all its floats carried in float64; nothing where it does not run so."""
    module, places, state = model.module, list[str](), dict[str, torch.Tensor]()
    if isinstance(module, torch.nn.Module):
        state = dict([*module.named_parameters(), *module.named_buffers()])
    leaves, spec = pytree.tree_flatten((state, model.args, model.kwargs))

    def forward(*values: Any) -> list[torch.Tensor]:
        state, args, kwargs = pytree.tree_unflatten(values, spec)
        if isinstance(module, torch.nn.Module):
            returned = torch.func.functional_call(module, state, args, kwargs)
        else:
            returned = module(*args, **kwargs)
        outputs = read_outputs(returned)
        places.extend(outputs)
        return list(outputs.values())

    try:
        values = in_float64(SimpleNamespace(forward=forward), leaves)  # type: ignore[arg-type]
    except Exception:  # a model's own code may raise anything where it meets another dtype
        values = None
    return dict(zip(places, values or [], strict=bool(values)))


def find_difference(eager: Outputs, exact: Outputs, got: Outputs) -> str:
    """Say where and by how much outputs differ from eager's; empty where they do not.

    As in the evaluator: infinities, NaN, integers and booleans are eager's; the error of floats against
    float64 is of the size of eager's own. A single value may be off by twice eager's largest error, relative
    to the tolerance there. Where float64 is not known, eager's values stand in its place.
    """
    if eager.keys() != got.keys():
        place = min(eager.keys() ^ got.keys())
        return f"{place} is returned by {'eager' if place in eager else 'it'} alone"
    for place, want in eager.items():
        have, compared = got[place], compare([want], [got[place]])
        if compared.problem:
            return compared.problem.replace("output 0", place)
        double = [exact[place]] if place in exact else None
        expected = Expected([want], [Fact(contiguous=True, device="cpu")], double)
        is_far = judge_precision([(expected, [have])]).kind != "right"
        worst = compared.worst if compared.passes_from_t is None or is_far else None
        if worst is None and double is not None:  # single values
            worst = first_beyond(0, want, room_of(want, double), have)
            if worst is not None and _is_as_near(double[0], want, have, worst):
                worst = None
        if worst is not None:
            at = f"{place}{worst.index}" if worst.index else place
            return f"{at} is {worst.got:.6g}, eager's is {worst.expected:.6g}"
    return ""


def _is_as_near(exact: torch.Tensor, eager: torch.Tensor, got: torch.Tensor, worst: Worst) -> bool:
    """Tell whether errors against float64 are at most twice eager's largest, all in tolerances."""
    if not eager.is_floating_point() or not exact[tuple(worst.index)].isfinite():
        return False
    atol, rtol = tolerance(str(eager.dtype).removeprefix("torch."), STRICT_T)
    allowed, is_finite = atol + rtol * exact.abs(), exact.isfinite()
    eager_error, error = (((values.double() - exact).abs() / allowed)[is_finite] for values in (eager, got))
    largest = eager_error[eager_error.isfinite()].max()
    return bool(error.nan_to_num(torch.inf).max() <= 2 * largest)
