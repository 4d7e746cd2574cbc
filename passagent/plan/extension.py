"""replay.c, built and loaded, and its structures."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from passagent.kernels import launch

LAUNCH, FILL, COPY, ADDRESS, CALL = range(5)
"""`enum step_kind`."""
NOWHERE = -1
_SOURCE = Path(__file__).with_name("replay.c")


def build() -> Path:
    """The shared object of replay.c, built unless it is cached."""
    return launch.build(_SOURCE)


_builder: list[Callable[[], Path]] = [build]
"""Where the shared object comes from; a process that can build nothing puts another function here."""


@functools.cache
def library() -> ctypes.PyDLL:
    """Load replay.c and hand it torch's functions."""
    loaded = launch.load(_builder[0]())
    loaded.replay_new.argtypes, loaded.replay_new.restype = [ctypes.c_void_p], ctypes.py_object
    loaded.dtype_of.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p]
    return loaded


def array(kind: Any, items: Sequence[Any]) -> Any:
    """A C array, which has a place even if it is empty."""
    return (kind * max(len(items), 1))(*items)


def _fields(kind: Any, names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, kind) for name in names.split())


class Cell(ctypes.Structure):
    """struct cell: `value`, plus where the tensor of a slot lies if `slot` is not negative. Bytes.

    `map`: the number of a tensor map with this address, which a kernel is given in its place.
    """

    _fields_ = (("value", ctypes.c_uint64), *_fields(ctypes.c_int32, "slot map"))

    def __init__(self, value: int, slot: int = NOWHERE) -> None:
        super().__init__(value, slot, NOWHERE)  # negative ones wrap around


class Map(ctypes.Structure):
    """struct map."""

    _fields_ = (
        *_fields(ctypes.c_int32, "kind rank swizzle fill small"),
        ("box", ctypes.c_uint32 * 5),
        *_fields(ctypes.c_uint64 * 5, "sizes strides"),
    )


class Object(ctypes.Structure):
    """struct object."""

    _fields_ = (*_fields(ctypes.c_void_p, "fixed view"), *_fields(ctypes.c_int32, "slot unused"))


class Step(ctypes.Structure):
    """struct step."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        *_fields(ctypes.c_uint32, "first count"),
        ("sizes", ctypes.c_uint32 * launch.SIZES),
        ("function", ctypes.c_void_p),
        *_fields(ctypes.c_uint64, "size pattern"),
        ("name", ctypes.c_char_p),
    )


class Input(ctypes.Structure):
    """struct input."""

    _fields_ = (
        ("equal", ctypes.c_void_p),
        *_fields(ctypes.c_int32, "kind device ndim same slot"),
        *_fields(ctypes.c_uint8, "code bits"),
        ("lanes", ctypes.c_uint16),
        ("alignment", ctypes.c_uint32),
        *_fields(ctypes.c_void_p, "shape stride"),
    )


class Program(ctypes.Structure):
    """struct program."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
        *_fields(ctypes.c_void_p, "explain look empty keep"),
        *_fields(ctypes.c_int32, "cpu device running many"),
        *_fields(ctypes.c_uint32, "inputs slots outputs computed cells steps objects results maps"),
        *_fields(ctypes.c_void_p, "input made cell object step map at values parameters tensor encoded"),
    )
