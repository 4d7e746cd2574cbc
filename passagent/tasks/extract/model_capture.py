"""One Dynamo capture of a model: the graphs that deployment will meet, with the values of a real call."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
import torch.utils._pytree as pytree
from torch import fx

from passagent.errors import PassagentError
from passagent.evaluator.matching.effects import is_random, name_of, written
from passagent.tasks.capture import forget
from passagent.tasks.extract.factories import Model
from passagent.tasks.large_tensors import crowds, equal, in_host_memory, set_aside

_TRAINING = "is in training mode, with dropout or batch statistics; for inference call its eval() first"


@dataclass
class Piece:
    """One graph of the model. Where Dynamo breaks a graph there are several, in the order of their runs."""

    graph_module: fx.GraphModule
    inputs: list[Any]
    """Inputs of its first call, before the call: one for each placeholder."""
    outputs: list[Any]
    """Outputs of that call. Large tensors of a GPU are in host memory here."""
    runs: int = 1
    """How often one call of the model runs it."""


@dataclass
class Capture:
    """A capture by Dynamo of one call of a model."""

    pieces: list[Piece]
    result: Any
    """The value that the call returned."""
    breaks: list[str]
    """Why there are several pieces: `FILE:LINE: reason`."""


@contextmanager
def restored_transforms() -> Iterator[None]:
    """End the transforms of torch.func (vmap, grad) that a graph begins and, where it fails, does not end."""
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


@restored_transforms()
def capture_model(
    model: Model, dynamic: bool = False, saves_memory: bool = False, breaks_at_data: bool = False
) -> Capture:
    """Capture a call of the model with Dynamo. Raises PassagentError with Dynamo's reason.

    `dynamic`: sizes of the model's own inputs, above 1, are symbolic where Dynamo can keep them so.
    `saves_memory`: for a caller that writes the model's arguments no more. A graph's inputs may lie in their
    memory, and large tensors that the call returns on a GPU are moved to host memory.
    `breaks_at_data`: a size or number that depends on data breaks the graph, as in torch.compile.
    """
    pieces: list[Piece] = []
    breaks: list[str] = []

    def backend(graph_module: fx.GraphModule, _example: list[Any]) -> Callable[..., Any]:
        reason = getattr(graph_module, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            breaks.append(_told(reason))
        piece: list[Piece] = []

        def run(*args: Any) -> Any:
            if piece:
                piece[0].runs += 1
                return graph_module.forward(*args)
            inputs = copied(args, _unwritten(args, leaves, originals) if saves_memory else None)
            outputs = graph_module.forward(*args)
            piece.append(Piece(graph_module, inputs, _as_now(outputs)))
            pieces.append(piece[0])
            return outputs

        return run

    originals, spec = pytree.tree_flatten((model.args, model.kwargs))
    leaves = copied(originals)  # what the model writes does not change the caller's
    if dynamic:
        for value in leaves:
            _mark(value)
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    forget()
    settings = torch._dynamo.config.patch(
        capture_scalar_outputs=not breaks_at_data,
        capture_dynamic_output_shape_ops=not breaks_at_data,
        specialize_float=True,
        allow_rnn=True,
        suppress_errors=False,
    )
    try:
        with torch.set_grad_enabled(model.is_training), settings, quiet():
            compiled = torch.compile(model.module, backend=backend, dynamic=None if dynamic else False)
            result = compiled(*args, **kwargs)
    except Exception as error:
        so_far = f" (after {len(pieces)} graphs)" if pieces else ""
        raise PassagentError(f"{model.name}: cannot be captured{so_far}: {_line_of(error)}") from error
    finally:
        forget()
    if not pieces:
        raise PassagentError(f"{model.name}: Dynamo finds no operator on tensors in it; nothing to extract")
    if model.is_training and any(map(_differs_in_training, pieces)):
        warnings.warn(f"{model.name} {_TRAINING}", stacklevel=3)
    if saves_memory:
        values, spec = pytree.tree_flatten(result)
        result = pytree.tree_unflatten(set_aside(values), spec)
    return Capture(pieces, result, list(dict.fromkeys(breaks)))


@contextmanager
def quiet() -> Iterator[None]:
    """Without the log of Dynamo, which says the same as our errors in many lines."""
    registered = logging.root.manager.loggerDict.items()
    named = [log for name, log in registered if name.startswith("torch.")]
    loggers = [log for log in named if isinstance(log, logging.Logger)]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def _differs_in_training(piece: Piece) -> bool:
    """Return whether a graph has dropout, or a norm that updates its running statistics."""
    nodes = piece.graph_module.graph.nodes
    return any(is_random(node) or (name_of(node).endswith("_norm") and written(node)) for node in nodes)


def _told(reason: Any) -> str:
    """Where the graph breaks, in the user's code, and why."""
    frame = reason.user_stack[-1] if reason.user_stack else None
    place = f"{frame.filename}:{frame.lineno}: " if frame is not None else ""
    return place + _explained(reason.reason)


def _line_of(error: BaseException) -> str:
    """Why Dynamo or the model failed, and the line of the model where it did."""
    lines = [line.strip() for line in str(error).splitlines()]
    where = next((line for line in reversed(lines) if line.startswith('File "')), "")
    text = _explained(str(error))
    return f"{type(error).__name__}: {text}" + (f" ({where})" if where else "")


def _explained(text: str) -> str:
    """The first line of what Dynamo says, and its explanation."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    why = next((line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")), "")
    return ": ".join([*lines[:1], *([why.partition(": got ")[2] or why] if why else [])])


Storages = dict[int, torch.UntypedStorage]
"""Stand-ins for storages, by their addresses."""


def copied(values: Sequence[Any], stand_ins: Storages | None = None) -> list[Any]:
    """Values as they are now: sizes, strides, requires_grad and which share memory.

    A parameter is kept itself: copies would need the model's memory again. `known`: storages that are copied
    already.
    """
    storages = dict(stand_ins or {})
    copies: dict[int, Any] = {}
    for value in values:
        if id(value) in copies:
            continue
        copies[id(value)] = value
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            copies[id(value)] = _copied(value, storages)
    return [copies[id(value)] for value in values]


def _copied(value: torch.Tensor, storages: Storages) -> torch.Tensor:
    if not _is_plain(value):
        return value.detach().clone().requires_grad_(value.requires_grad)
    storage = value.untyped_storage()
    if storage._cdata not in storages:
        storages[storage._cdata] = storage.clone()
    storage_copy = storages[storage._cdata]
    with torch.no_grad():
        copy = torch.empty(0, dtype=value.dtype, device=value.device)
        copy.set_(storage_copy, value.storage_offset(), value.size(), value.stride())  # type: ignore[call-overload]
    return copy.requires_grad_(value.requires_grad)


def _is_plain(value: Any) -> bool:
    return type(value) is torch.Tensor and value.layout == torch.strided


def _unwritten(values: Sequence[Any], copies: Sequence[Any], originals: Sequence[Any]) -> Storages:
    """For each storage of the values that was copied of an original, and still equals it: the original's."""
    needed = {value.untyped_storage()._cdata for value in values if _is_plain(value)}
    equal_storages: Storages = {}
    for mine, original in zip(copies, originals, strict=True):
        if not _is_plain(mine):
            continue
        storage = mine.untyped_storage()
        if storage._cdata not in needed - equal_storages.keys():
            continue
        if equal(_bytes(storage), _bytes(original.untyped_storage())):
            equal_storages[storage._cdata] = original.untyped_storage()
    return equal_storages


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)  # type: ignore[call-overload]


def _as_now(values: Sequence[Any]) -> list[Any]:
    """Copies, of large tensors of a GPU in host memory."""
    small = copied([None if crowds(value) else value for value in values])
    return [
        in_host_memory(value) if crowds(value) else copy for value, copy in zip(values, small, strict=True)
    ]


def _mark(value: Any) -> None:
    if isinstance(value, torch.Tensor):
        for dim, size in enumerate(value.shape):
            if size > 1:
                torch._dynamo.maybe_mark_dynamic(value, dim)
