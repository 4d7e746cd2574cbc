"""A dispatch mode that does not wait for Dynamo."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):
    """Sees every call of an operator.

    torch has Dynamo leave a mode's handler alone, and imports it for that, which takes seconds in every
    worker: here only where Dynamo is imported anyway.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handle = _left_alone if "torch._dynamo" in sys.modules else _handle
        return handle(self, func, args, kwargs or {})

    def on_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call and return its result."""
        raise NotImplementedError


def _handle(mode: Mode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.on_call(func, args, kwargs)


_left_alone = torch._disable_dynamo(_handle)
