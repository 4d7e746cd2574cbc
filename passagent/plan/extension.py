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


class Cell(ctypes.Structure):
    """struct cell."""

    _fields_ = (("value", ctypes.c_uint64), ("slot", ctypes.c_int32), ("map", ctypes.c_int32))


class Map(ctypes.Structure):
    """struct map."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "rank", "swizzle", "fill", "small")),
        ("box", ctypes.c_uint32 * 5),
        ("sizes", ctypes.c_uint64 * 5),
        ("strides", ctypes.c_uint64 * 5),
    )


class Object(ctypes.Structure):
    """struct object."""

    _fields_ = (
        ("fixed", ctypes.c_void_p),
        ("view", ctypes.c_void_p),
        ("slot", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class Step(ctypes.Structure):
    """struct step."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("first", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("sizes", ctypes.c_uint32 * launch.SIZES),
        ("function", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
        ("pattern", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
    )


class Input(ctypes.Structure):
    """struct input."""

    _fields_ = (
        ("equal", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("kind", "device", "ndim", "same", "slot")),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("alignment", ctypes.c_uint32),
        ("shape", ctypes.c_void_p),
        ("stride", ctypes.c_void_p),
    )


class Program(ctypes.Structure):
    """struct program."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
        *((name, ctypes.c_void_p) for name in ("explain", "look", "empty", "keep")),
        *((name, ctypes.c_int32) for name in ("cpu", "device", "running", "many")),
        *(
            (name, ctypes.c_uint32)
            for name in (
                "inputs",
                "slots",
                "outputs",
                "computed",
                "cells",
                "steps",
                "objects",
                "results",
                "maps",
            )
        ),
        *((name, ctypes.c_void_p) for name in ("input", "made", "cell", "object", "step", "map")),
        *((name, ctypes.c_void_p) for name in ("at", "values", "parameters", "tensor", "encoded")),
    )
