"""The constant tensors of a plan in memory: written once, read only where memory can be, compared again."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import warnings

import torch

from passagent.plan import memory
from passagent.plan.model import Plan
from passagent.plan.values import ConstantValue


class Constants:
    """The constants of a plan on a device. In the host's memory a write into one is a fault (SIGSEGV)."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.tensors: dict[int, torch.Tensor] = {}
        """By the numbers of their values."""
        self._digests: dict[int, str] = {}
        for number, value in enumerate(plan.values):
            if isinstance(value, ConstantValue):
                raw = plan.constant(value.data)
                self._digests[number] = value.data
                flat = _read_only(raw) if raw else torch.empty(0, dtype=torch.uint8)
                typed = flat.to(device).view(memory.dtype_of(value))
                self.tensors[number] = typed.as_strided(value.shape, value.stride)

    def are_intact(self) -> bool:
        """Tell whether all still have their bytes; waits for the device."""
        return all(
            hashlib.sha256(_bytes(self.tensors[number])).hexdigest() == digest
            for number, digest in self._digests.items()
        )


def _read_only(raw: bytes) -> torch.Tensor:
    """The bytes in pages of their own that nothing in this process may write."""
    descriptor = os.memfd_create("constant")
    try:
        os.write(descriptor, raw)
        mapped = mmap.mmap(descriptor, len(raw), prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, which says that it should not be written
        return torch.frombuffer(mapped, dtype=torch.uint8)


def _bytes(tensor: torch.Tensor) -> bytes:
    host = tensor.cpu()
    return ctypes.string_at(host.data_ptr(), host.numel() * host.itemsize) if host.numel() else b""
