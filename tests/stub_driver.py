"""A CUDA driver that launches nothing and remembers what it was given; a Triton that compiles for a GPU."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from passagent.kernels import driver, launch

SOURCE = r"""
#include <stdint.h>
#include <string.h>
struct { int calls, code, count; void *function, *stream; uint32_t sizes[7]; uint64_t values[16]; } seen;
int stub_launch(void* function, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
                uint32_t shared, void* stream, void** parameters, void** extra) {
  uint32_t sizes[7] = {gx, gy, gz, bx, by, bz, shared};
  seen.calls++;
  seen.function = function;
  seen.stream = stream;
  memcpy(seen.sizes, sizes, sizeof sizes);
  for (int i = 0; i < seen.count; ++i) memcpy(&seen.values[i], parameters[i], 8);
  return seen.code;
}
int stub_error_text(int code, const char** text) { *text = "invalid argument"; return 0; }
"""


class Seen(ctypes.Structure):
    """The last launch. Set `count` to the parameters that are to be read, `code` to what a launch returns."""

    _fields_ = (
        ("calls", ctypes.c_int),
        ("code", ctypes.c_int),
        ("count", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("sizes", ctypes.c_uint32 * 7),
        ("values", ctypes.c_uint64 * 16),
    )

    def value(self, position: int, ctype: Any) -> Any:
        """Parameter `position` as the kernel would read it."""
        return ctype.from_buffer_copy(ctypes.c_uint64(self.values[position])).value


class Target:
    """What Triton asks of its driver to compile for an H200."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def stub(folder: Path) -> Iterator[Seen]:
    """Launches on CPU tensors go to the stub; loaded kernels get the handles 1000, 1001, ..."""
    (folder / "stub.c").write_text(SOURCE)
    command = ["gcc", "-shared", "-fPIC", "-o", "stub.so", "stub.c"]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "stub.so"))
    loaded: list[tuple[bytes, str]] = []

    def load(image: bytes, entry: str) -> int:
        loaded.append((image, entry))
        return 999 + len(loaded)

    host = launch._Host.in_dll(launch.library(), "host")
    before = host.launch, host.error_text, host.empty[1]
    host.launch, host.error_text = (
        ctypes.cast(f, ctypes.c_void_p).value for f in (library.stub_launch, library.stub_error_text)
    )
    host.empty[1] = host.empty[0]
    seen = Seen.in_dll(library, "seen")
    seen.count = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "current_device", lambda: -1)  # CPU tensors say that they are on device -1
        patch.setattr(driver, "architecture", lambda: "sm_90")
        patch.setattr(driver, "device", lambda: torch.device("cpu"))
        patch.setattr(driver, "empty", lambda size, dtype: torch.empty(size, dtype=dtype))
        patch.setattr(driver, "load", load)
        patch.setattr(driver, "allow_shared", lambda *_: None)
        patch.setattr(driver, "parameter_sizes", lambda _: None)
        try:
            yield seen
        finally:
            host.launch, host.error_text, host.empty[1] = before


@contextmanager
def triton_target() -> Iterator[None]:
    """Triton compiles for a GPU that need not be here."""
    from triton.runtime.driver import driver as active

    before = active.__dict__.get("_active")
    active.set_active(Target())
    try:
        yield
    finally:
        active._active = before
