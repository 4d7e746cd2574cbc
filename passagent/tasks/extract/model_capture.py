"""One Dynamo capture of a model: the graphs that deployment will meet, with the values of a real call.

`FILE.py:factory` is a user's own code, which gives a model and its inputs. It runs unsandboxed.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.utils._pytree as pytree
from torch import fx

from passagent.errors import PassagentError, UsageError, nearest
from passagent.evaluator.matching.effects import is_random, name_of, written
from passagent.tasks.capture import Piece, forget
from passagent.tasks.constraints import set_aside

_HOW = (
    "a factory takes nothing and returns `module, example_inputs` (of several inputs a list of (inputs, "
    "weight)), or a module with --inputs FILE.py:function"
)


@dataclass(frozen=True)
class Model:
    """A model and the inputs of one call."""

    name: str
    module: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    """How often a call has such inputs, beside others."""
    others: tuple[Model, ...] = ()
    """This model with other inputs, of less weight."""

    @property
    def shapes(self) -> str:
        """The shapes of the tensors that a call is given."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return ", ".join(str(tuple(leaf.shape)) for leaf in leaves if isinstance(leaf, torch.Tensor))

    @property
    def is_training(self) -> bool:
        """True if a call is one of training: it keeps gradients."""
        return isinstance(self.module, torch.nn.Module) and self.module.training


def load_model(spec: str, inputs: str | None = None) -> Model:
    """The model of `FILE.py:factory`, its inputs by the factory or by `inputs` (`FILE.py:function`).

    Raises UsageError where a file or function is not as it must be, PassagentError where one fails.
    """
    returned = _called(spec)
    name = spec.rpartition(":")[2]
    if inputs is None:
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise UsageError(f"{spec}: returned a {type(returned).__name__}; {_HOW}")
        module, example = returned
    else:
        module = returned[0] if isinstance(returned, tuple) and len(returned) == 2 else returned
        example = _called(inputs)
    if not callable(module):
        raise UsageError(f"{spec}: returned a {type(module).__name__} for a module; {_HOW}")
    return model_of(name, module, example)


def model_of(name: str, module: Callable[..., Any], example: Any) -> Model:
    """The model with its inputs: a tuple, a dict for keyword arguments, or a list of (inputs, weight).

    Raises UsageError for a weight that is not positive.
    """
    if isinstance(example, tuple) and len(example) == 1 and _are_weighted(example[0]):
        [example] = example
    if _are_weighted(example):
        models = [replace(model_of(name, module, inputs), weight=float(weight)) for inputs, weight in example]
        if not all(model.weight > 0 for model in models):
            raise UsageError(f"{name}: the weights of its inputs must be positive")
        heaviest, *others = sorted(models, key=lambda model: -model.weight)
        return replace(heaviest, others=tuple(others))
    if isinstance(example, Mapping):
        return Model(name, module, (), dict(example))
    return Model(name, module, tuple(example) if isinstance(example, Sequence) else (example,))


def _are_weighted(example: Any) -> bool:
    return (
        isinstance(example, list)
        and bool(example)
        and all(isinstance(pair, tuple) and len(pair) == 2 for pair in example)
        and all(isinstance(inputs, tuple | Mapping) for inputs, _ in example)
        and all(isinstance(weight, int | float) for _, weight in example)
    )


def _called(spec: str) -> Any:
    """Return what `FILE.py:FUNCTION` returns."""
    file, separator, name = spec.rpartition(":")
    path = Path(file)
    if not separator or path.suffix != ".py":
        raise UsageError(f"{spec}: is not FILE.py:FUNCTION")
    if not path.is_file():
        raise UsageError(f"{file}: no such file")
    module_name = f"passagent_factory_{path.stem}"
    spec_of_file = importlib.util.spec_from_file_location(module_name, path)
    assert spec_of_file is not None and spec_of_file.loader is not None
    module = importlib.util.module_from_spec(spec_of_file)
    sys.modules[module_name] = module  # Dynamo and pickle look for it there
    here = str(path.parent.resolve())
    if here not in sys.path:
        sys.path.insert(0, here)
    function: Any = None
    try:
        spec_of_file.loader.exec_module(module)
        function = getattr(module, name, None)
        if callable(function):
            return function()
    except Exception as error:
        place = place_in(error, [path]) or (file if function is None else spec)
        raise PassagentError(f"{place}: fails: {type(error).__name__}: {error}") from error
    functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    raise UsageError(f"{file}: defines no function {name!r}{nearest(name, functions) if functions else ''}")


def place_in(error: BaseException, files: Iterable[Path]) -> str:
    """`FILE:LINE` of the innermost line of the files in the error's traceback; empty if there is none."""
    own_files = {file.resolve() for file in files}
    frames = reversed(traceback.extract_tb(error.__traceback__))
    innermost = next((frame for frame in frames if Path(frame.filename).resolve() in own_files), None)
    return f"{Path(innermost.filename).name}:{innermost.lineno}" if innermost else ""


_TRAINING = "is in training mode, with dropout or batch statistics; for inference call its eval() first"


@dataclass
class Capture:
    """A capture by Dynamo of one call of a model."""

    pieces: list[Piece]
    result: Any
    """The value that the call returned. Large tensors of a GPU are in host memory here."""
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
def capture_model(model: Model, dynamic: bool = False, breaks_at_data: bool = False) -> Capture:
    """Capture a call of the model with Dynamo. Raises PassagentError with Dynamo's reason.

    `dynamic`: sizes of the model's own inputs, above 1, are symbolic where Dynamo can keep them so.
    `breaks_at_data`: a size or number that depends on data breaks the graph, as in torch.compile.
    """
    pieces: list[Piece] = []
    breaks: list[str] = []

    def backend(graph_module: fx.GraphModule, _example: list[Any]) -> Callable[..., Any]:
        reason = getattr(graph_module, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            frame = reason.user_stack[-1] if reason.user_stack else None
            place = f"{frame.filename}:{frame.lineno}: " if frame is not None else ""
            breaks.append(place + _explained(reason.reason))
        piece: list[Piece] = []

        def run(*args: Any) -> Any:
            if piece:
                piece[0].runs += 1
                return graph_module.forward(*args)
            inputs = copied(args)
            outputs = graph_module.forward(*args)
            piece.append(Piece(graph_module, inputs, copied(outputs, to_host=True)))
            pieces.append(piece[0])
            return outputs

        return run

    leaves, spec = pytree.tree_flatten((model.args, model.kwargs))
    leaves = copied(leaves)  # what the model writes does not change the caller's
    for value in leaves if dynamic else ():
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if size > 1:
                torch._dynamo.maybe_mark_dynamic(value, dim)
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
    nodes = [node for piece in pieces for node in piece.graph_module.graph.nodes]
    if model.is_training and any(
        is_random(node) or (name_of(node).endswith("_norm") and written(node)) for node in nodes
    ):
        warnings.warn(f"{model.name} {_TRAINING}", stacklevel=1)  # from one place: shown once
    values, spec = pytree.tree_flatten(result)
    return Capture(pieces, pytree.tree_unflatten(set_aside(values), spec), list(dict.fromkeys(breaks)))


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


def copied(values: Sequence[Any], to_host: bool = False) -> list[Any]:
    """Values as they are now: sizes, strides, requires_grad and which share memory.

    A parameter is kept itself: copies would need the model's memory again. `to_host`: large tensors of a GPU
    are copied to host memory.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    copies: dict[int, Any] = {}
    for value in values:
        if id(value) in copies:
            continue
        copies[id(value)] = value
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            [moved] = set_aside([value]) if to_host else [value]
            copies[id(value)] = _copied(value, storages) if moved is value else moved
    return [copies[id(value)] for value in values]


def _copied(value: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    if type(value) is not torch.Tensor or value.layout != torch.strided:
        return value.detach().clone().requires_grad_(value.requires_grad)
    storage = value.untyped_storage()
    if storage._cdata not in storages:
        storages[storage._cdata] = storage.clone()
    with torch.no_grad():
        copy = torch.empty(0, dtype=value.dtype, device=value.device)
        place = (value.storage_offset(), value.size(), value.stride())
        copy.set_(storages[storage._cdata], *place)  # type: ignore[call-overload]
    return copy.requires_grad_(value.requires_grad)
