"""A problem's model and inputs, made by running its code. Only a throw-away process calls this."""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree

from passagent.tasks.constraints import close, equal, set_aside
from passagent.tasks.extract.model_capture import Model, copied
from passagent.tasks.suites.forked_jobs import Refused
from passagent.tasks.suites.problems import Problem

SEED = 0


@dataclass(frozen=True)
class Loaded:
    """The call that becomes a subgraph."""

    model: Model
    cut: dict[str, list[int]] = field(default_factory=dict)
    """Sizes that were made smaller: `{"batch_size": [4096, 64]}`, as written and as it is here."""
    source: str = ""
    """The text that was run, with what was cut."""


def load_problem(problem: Problem, place: Path, device: str, most_bytes: int | None) -> Loaded:
    """Return the call `Model(*get_init_inputs())(*get_inputs())`, each of the three seeded as by KernelBench.

    The code runs in `place`. Inputs take `most_bytes` at most: what is larger is cut along the leading
    dimension. Raises Refused.
    """
    for name, text in problem.files.items():
        (place / name).write_text(text, encoding="utf-8")
    sys.path.insert(0, str(place))
    name, text = next(iter(problem.files.items()))
    module = _module(place / name, text)
    for attribute in ("Model", "get_inputs", "get_init_inputs"):
        if not hasattr(module, attribute):
            raise Refused("no_model", f"{name}: defines no {attribute}")
    cut: dict[str, list[int]] = {}
    if most_bytes is not None:
        module, cut = _cut(place / name, text, most_bytes)
    model, inputs = _made(module, device)
    if most_bytes is not None and cut and not _works(model, inputs):  # equal sizes are written twice
        module, cut = _cut(place / name, text, most_bytes, together=True)
        model, inputs = _made(module, device)
    if most_bytes is not None and input_bytes(inputs) > most_bytes:
        raise Refused("too_large", f"{name}: its inputs take {input_bytes(inputs) >> 20} MiB")
    source = (place / name).read_text(encoding="utf-8")
    return Loaded(Model(problem.name, model.forward, tuple(inputs)), cut, source)


def input_bytes(inputs: Any) -> int:
    """Return the bytes of the tensors in `inputs`."""
    leaves = pytree.tree_leaves(inputs)
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))


def called_twice(
    call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] = MappingProxyType({})
) -> list[Any]:
    """Return the outputs of a call. Raises Refused where a second one differs, or there is no tensor."""
    torch.manual_seed(0)
    with torch.no_grad():
        first = set_aside(pytree.tree_leaves(call(*copied(args), **kwargs)))
        torch.manual_seed(1)
        second = pytree.tree_leaves(call(*copied(args), **kwargs))
    if not any(isinstance(output, torch.Tensor) for output in first):
        raise Refused("no_tensor", f"a call returns {type(first[0] if first else None).__name__}")
    for output, other in zip(first, second, strict=True):
        if isinstance(output, torch.Tensor) and not equal(output, other) and not close(output, other):
            raise Refused("random", "two calls with the same inputs give different outputs")
    return first


def seed_all() -> None:
    """Seed every generator that a problem may draw from."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    np.random.seed(SEED)


def _made(module: ModuleType, device: str) -> tuple[torch.nn.Module, list[Any]]:
    """The model and its inputs."""
    with torch.device(device):
        seed_all()
        arguments = module.get_init_inputs()
        seed_all()
        inputs = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), module.get_inputs())
        seed_all()
        return module.Model(*arguments).to(device), inputs


def _works(model: torch.nn.Module, inputs: list[Any]) -> bool:
    try:
        with torch.no_grad():
            model(*inputs)
    except RuntimeError:
        return False
    return True


def _module(path: Path, text: str) -> ModuleType:
    """Write and run a problem. An import could take the bytecode of an equally long text before it."""
    path.write_text(text, encoding="utf-8")
    module = ModuleType(f"problem_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(text, path, "exec"), vars(module))
    return module


def _size_of(module: ModuleType) -> int | None:
    """Return the bytes of the inputs without making them; None where only making them shows it."""
    try:
        with torch.device("meta"):
            return input_bytes(module.get_inputs())
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def _cut(
    path: Path, text: str, most_bytes: int, together: bool = False
) -> tuple[ModuleType, dict[str, list[int]]]:
    """The module with constants halved that are sizes of its inputs, until these take no more.

    What depends on a constant follows; `together`: so do equal numbers at the top level of the file. Raises
    Refused where that is not enough.
    """
    module, cut = _module(path, text), dict[str, list[int]]()
    size = _size_of(module)
    if size is None or size <= most_bytes:
        return module, cut
    with torch.device("meta"):
        leaves = pytree.tree_leaves(module.get_inputs())
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
    for name, value in _constants(module, tensors):
        now = value
        while size > most_bytes and now > 1:
            smaller = _with_constant(text, name, now // 2, now if together else None)
            try:
                smaller_module = _module(path, smaller)
            except Exception:  # it holds this number to be so large
                break
            smaller_size = _size_of(smaller_module)
            if smaller_size is None or smaller_size >= size:
                break
            now, size, text, module = now // 2, smaller_size, smaller, smaller_module
            cut[name] = [value, now]
    if size > most_bytes:
        raise Refused("too_large", f"{path.name}: its inputs take {size >> 20} MiB, and do not get smaller")
    return _module(path, text), cut


def _constants(module: ModuleType, tensors: list[torch.Tensor]) -> list[tuple[str, int]]:
    """Whole numbers at the top level of the file that are sizes of these tensors.

    First names with `batch`, then leading sizes, then the largest.
    """
    leading = {tensor.shape[0] for tensor in tensors}
    sizes = {size for tensor in tensors for size in tensor.shape}
    fitting = [(name, value) for name, value in vars(module).items() if type(value) is int and value in sizes]
    return sorted(
        fitting, key=lambda pair: ("batch" not in pair[0].lower(), pair[1] not in leading, -pair[1])
    )


def _with_constant(text: str, name: str, value: int, equal: int | None) -> str:
    """The text, without comments, with another number for `name`, and for top-level numbers `equal`."""
    tree = ast.parse(text)
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        for part in ast.walk(node.value):
            if isinstance(part, ast.Constant) and type(part.value) is int and part.value == equal:
                part.value = value
        if any(isinstance(target, ast.Name) and target.id == name for target in node.targets):
            node.value = ast.Constant(value)
    return ast.unparse(tree)
