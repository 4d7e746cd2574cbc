"""CUDA C++ kernels that are called directly: a stub takes the place of the driver, no GPU is needed."""

from __future__ import annotations

import ctypes
import types

import pytest
import torch

from passagent.kernels import build_cuda, cuda_kernel, driver

TYPES = ["void*", "int32_t", "uint64_t", "float", "bool", "double", "int8_t"]
KINDS = [
    ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_float, ctypes.c_bool, ctypes.c_double,
    ctypes.c_int8,
]  # fmt: skip


class Stub:
    """A driver that remembers what a launch is given."""

    def __init__(self) -> None:
        self.launches: list[tuple[list[int], list[object]]] = []
        self.code = 0

    def cuLaunchKernel(self, function, *words):
        *sizes, stream, pointers, extra = words
        assert (function.value, stream.value, extra) == (1000, None, None)
        values = [kind.from_address(pointer).value for kind, pointer in zip(KINDS, pointers, strict=True)]
        self.launches.append(([size.value for size in sizes], values))
        return self.code

    def cuGetErrorString(self, code, text):
        text._obj.value = b"invalid argument"


@pytest.fixture
def stub(monkeypatch, tmp_path):
    """The driver's place; CPU tensors say that they are on device -1."""
    one, built = Stub(), tmp_path / "f.kernel"
    built.write_bytes(build_cuda.pack(b"code", "_Z1f", TYPES))
    monkeypatch.setattr(build_cuda, "build", lambda *_: built)
    monkeypatch.setattr(driver, "_driver", lambda: one)
    monkeypatch.setattr(driver, "current_device", lambda: -1)
    monkeypatch.setattr(driver, "architecture", lambda: "sm_90")
    monkeypatch.setattr(driver, "load", lambda image, entry: 1000)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=0))
    return one


def test_cuda_kernel_gets_sizes_and_parameters_of_its_types(stub):
    x, kernel = torch.randn(4), cuda_kernel("", "f")
    kernel[(3, 2), 128, 64](x, -5, 1 << 40, 0.5, 7, 3, -1)
    again = kernel[4, 32]
    again(x[1:], 1, 1, 1.5, False, 2.5, 1)
    assert stub.launches == [
        ([3, 2, 1, 128, 1, 1, 64], [x.data_ptr(), -5, 1 << 40, 0.5, True, 3.0, -1]),
        ([4, 1, 1, 32, 1, 1, 0], [x.data_ptr() + 4, 1, 1, 1.5, False, 2.5, 1]),
    ]
    kernel[0, 32](x, 1, 1, 1.5, False, 2.5, 1)
    assert len(stub.launches) == 2


@pytest.mark.parametrize(("position", "wrong"), [(1, 1 << 31), (2, -1), (6, 128)])
def test_cuda_kernel_refuses_an_int_that_does_not_fit(stub, position, wrong):
    args = [torch.randn(4), 1, 1, 1.5, False, 2.5, 1]
    args[position] = wrong
    with pytest.raises(OverflowError, match=f"argument {position} \\({wrong}\\) does not fit"):
        cuda_kernel("", "f")[1, 1](*args)


def test_cuda_kernel_refuses_what_has_no_type_and_tells_a_failure_in_cudas_words(stub):
    x, kernel = torch.randn(4), cuda_kernel("", "f")[1, 1]
    with pytest.raises(TypeError, match="argument 1 is a str"):
        kernel(x, "1", 1, 1.5, False, 2.5, 1)
    with pytest.raises(TypeError, match="launch as kernel"):
        _ = cuda_kernel("", "f")[1]
    stub.code = 1
    with pytest.raises(RuntimeError, match=r"^f\[\[1, 1, 1\], \[1, 1, 1\]\]: CUDA error 1: invalid argument"):
        kernel(x, 1, 1, 1.5, False, 2.5, 1)
