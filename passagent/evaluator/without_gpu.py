"""What a pass for a GPU finds where there is none, in Triton's interpreter: a device to ask, and aliases.

Nothing is timed there. A pass may size its grid by the number of multiprocessors, enter the device of its
inputs or call `tl.exp` by another name; without this an honest pass would fail on the CPU only.
Seen in triton 3.9.
"""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

_MULTIPROCESSORS = 8
"""Few: the interpreter runs the programs of a grid one after the other."""
_FACTS = {
    "name": "Triton's interpreter",
    "major": 9,
    "minor": 0,
    "multi_processor_count": _MULTIPROCESSORS,
    "warp_size": 32,
    "total_memory": 80 << 30,
    "L2_cache_size": 50 << 20,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_block": 1024,
    "max_threads_per_multi_processor": 2048,
    "shared_memory_per_block": 48 << 10,
    "shared_memory_per_block_optin": 227 << 10,
    "shared_memory_per_multiprocessor": 228 << 10,
}
_OF_THE_DRIVER = {
    "max_shared_mem": 227 << 10,
    "max_num_regs": 65536,
    "multiprocessor_count": _MULTIPROCESSORS,
    "warpSize": 32,
    "max_threads_per_sm": 2048,
}


def stand_in() -> None:
    """Answer for a GPU, and let functions of triton.language be called by any name, in this process."""
    _devices()
    _aliases()


class OnGpu(ast.NodeTransformer):
    """Answers `x.is_cuda` with True, and `x.device.type` with "cuda" where it is compared with a text.

    A pass may demand tensors that its kernels can be launched on.
    """

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        asked = node.attr == "is_cuda" and isinstance(node.ctx, ast.Load)
        return ast.copy_location(ast.Constant(True), node) if asked else node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Compare(left=ast.Attribute(attr="type", value=ast.Attribute(attr="device")), ops=[_]):
                if _is_text(node.comparators[0]):
                    node.left = ast.copy_location(ast.Constant("cuda"), node.left)
        return node


def _is_text(node: ast.expr) -> bool:
    """A string, or several."""
    parts = node.elts if isinstance(node, (ast.List, ast.Set, ast.Tuple)) else [node]
    return all(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts)


class _Device:
    """In place of `torch.cuda.device`: there is one device, and it is current."""

    def __init__(self, device: Any) -> None:
        self.idx = 0

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def _devices() -> None:
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    properties = types.SimpleNamespace(**_FACTS)
    answers: dict[str, Callable[..., Any]] = {
        "current_device": lambda: 0,
        "synchronize": lambda device=None: None,
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "current_stream": lambda device=None: types.SimpleNamespace(cuda_stream=0),
        "device": _Device,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    asked = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_active_torch_device=lambda: torch.device("cpu"),
        get_current_device=lambda: 0,
        utils=types.SimpleNamespace(get_device_properties=lambda index: dict(_OF_THE_DRIVER)),
    )
    driver.set_active(asked)  # type: ignore[arg-type]


def _aliases() -> None:
    """The interpreter replaces the functions in triton.language; the candidate's names keep the old."""
    import triton.language as tl
    from triton.runtime import interpreter

    for module in (tl.core, tl.math, tl):
        for name, member in list(vars(module).items()):
            if tl.core.is_builtin(member):
                setattr(module, name, _anywhere(module, name, member))
    patch = interpreter._patch_lang

    def patched(fn: Any) -> Any:
        seen = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        return patch(fn if seen else types.SimpleNamespace(__globals__={"tl": tl}))

    interpreter._patch_lang = patched


def _anywhere(module: Any, name: str, member: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which called by another name does as the one does that the interpreter put there."""

    @functools.wraps(member)
    def call(*args: Any, **kwargs: Any) -> Any:
        current = getattr(module, name)
        if kwargs.get("_semantic") is None and current is not call:
            return current(*args, **kwargs)
        return member(*args, **kwargs)

    return call
