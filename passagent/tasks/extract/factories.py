"""`FILE.py:factory`: a user's own code, which gives a model and its inputs. It runs unsandboxed."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from passagent.errors import PassagentError, UsageError, nearest

_HOW = (
    "a factory takes nothing and returns `module, example_inputs`, or a module with --inputs FILE.py:function"
)


@dataclass(frozen=True)
class Model:
    """A model and the inputs of one call."""

    name: str
    module: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

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
    if isinstance(example, Mapping):
        return Model(name, module, (), dict(example))
    args = tuple(example) if isinstance(example, Sequence) else (example,)
    return Model(name, module, args)


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
