"""Answers to host code about the device and the versions, and a record of what was asked."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any

import torch

H100: dict[str, int | str] = {
    "name": "NVIDIA H100 80GB HBM3",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "warp_size": 32,
    "total_memory": 85_017_493_504,
    "L2_cache_size": 50 << 20,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_block": 1024,
    "max_threads_per_multi_processor": 2048,
    "shared_memory_per_block": 48 << 10,
    "shared_memory_per_block_optin": 227 << 10,
    "shared_memory_per_multiprocessor": 228 << 10,
}
"""The facts that are recorded where there is no GPU."""
_OF_TRITON = {
    "max_shared_mem": "shared_memory_per_block_optin",
    "max_num_regs": "regs_per_multiprocessor",
    "multiprocessor_count": "multi_processor_count",
    "warpSize": "warp_size",
    "max_threads_per_sm": "max_threads_per_multi_processor",
}
"""Triton's words for them."""


def device_facts(device: str = "cuda") -> dict[str, int | str]:
    """Facts of a GPU, read on the trusted side; an H100's for the CPU, and where there is no GPU."""
    if device == "cpu" or not torch.cuda.is_available():
        return dict(H100)
    properties = torch.cuda.get_device_properties(device)
    return {name: getattr(properties, name, default) for name, default in H100.items()}


class Facts:
    """The table, and what of it was asked (`asked`, as a plan keeps it).

    It is also what torch.cuda.get_device_properties returns.
    """

    def __init__(self, table: dict[str, int | str]) -> None:
        self.table = table
        self.asked: dict[str, str] = {"torch": str(torch.__version__)}

    def __getitem__(self, name: str) -> Any:
        value = self.table[name]
        self.asked[f"device.{name}"] = str(value)
        return value

    def __getattr__(self, name: str) -> Any:
        if name not in self.table:
            raise AttributeError(f"a plan's device has no fact {name}")
        return self[name]

    @property
    def capability(self) -> int:
        """`90` of an H100."""
        return int(self.table["major"]) * 10 + int(self.table["minor"])


class _Device(contextlib.nullcontext[None]):
    """In place of `torch.cuda.device`: there is one device, and it is current."""

    idx = 0


def answer_for_torch(facts: Facts) -> None:
    """Let torch.cuda answer from the table, for good, in this process."""
    stream = types.SimpleNamespace(cuda_stream=0)
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_device_capability": lambda device=None: (facts["major"], facts["minor"]),
        "get_device_name": lambda device=None: facts["name"],
        "get_device_properties": lambda device=None: facts,
        "current_stream": lambda device=None: stream,
        "device": _Device,
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    marks = ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA")
    torch.cuda.nvtx._nvtx = types.SimpleNamespace(**dict.fromkeys(marks, lambda *args: 0))  # type: ignore[assignment]


def answer_for_triton(facts: Facts) -> None:
    """Let Triton's driver answer from the table, for good, in this process."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    answers = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", facts.capability, 32),
        get_active_torch_device=lambda: torch.device("cuda", 0),
        get_current_device=lambda: 0,
        set_current_device=lambda device: None,
        get_current_stream=lambda device=None: 0,
        get_device_interface=lambda: torch.cuda,
        utils=types.SimpleNamespace(
            get_device_properties=lambda index: {name: facts[fact] for name, fact in _OF_TRITON.items()}
        ),
    )
    driver.set_active(answers)  # type: ignore[arg-type]
