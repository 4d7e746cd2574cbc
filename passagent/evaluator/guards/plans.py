"""An account of the plans that a candidate's modules hold: two are equal where no call could tell them apart.

It goes through everything that is reached from the modules' globals. Of each number and text it tells the
value; of each object what it leads to; and of all of them which are the same object, as a table that holds
one of two equal lists in turn is a count too. Of what is not looked into it tells the type and its text.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import operator
import sys
import types
from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch

from passagent.kernels import launch

MOST = 200_000
"""Objects that are looked at, at most: far more than a pass and its compiled kernels hold."""
_VALUES: tuple[Any, ...] = (bool, str, bytes, int, float, complex)
_CONTAINERS = (tuple, list, dict, set, frozenset)
_LANGUAGE = {
    "builtins", "collections", "contextlib", "dataclasses", "enum", "functools", "itertools", "operator",
    "types", "typing",
}  # fmt: skip
"""Whose objects are looked into: containers, views and iterators, functions, bound methods."""
_OPAQUE = (type, types.ModuleType)
_OF_TRITON = {
    "Autotuner": ("configs", "fn", "best_config"),
    "Config": ("__dict__",),
    "Heuristics": ("values", "fn"),
    "TensorDescriptor": ("__dict__",),
    "constexpr": ("value",),
}
"""Of its objects, attributes that a candidate can reach."""
_LINK = "_lru_list_elem"
"""In a bounded cache, the type of what holds a key and its answer: which holds which is nobody's business."""
_COLLECTED = 1 << 14
"""Of a type's flags: Python's collector knows what its objects lead to; not so those of a range."""
_FINGER = 7 * ctypes.sizeof(ctypes.c_void_p)
"""Where in a set CPython notes from which place on `pop` searches."""


class TooMuch(Exception):
    """More than MOST objects are held: what changes among them is not told."""


def held_plans(package: str) -> dict[tuple[str, str], Any]:
    """An account of each global of the package's modules (file, name), and of what libraries keep for it."""
    account = _Account(package)
    found: dict[tuple[str, str], Any] = {
        ("", f"the plan of {name}"): number for name, number in launch.variants.items()
    }
    loggers = logging.root.manager.loggerDict
    found["", "logging.getLogger"] = sum(type(name) is not str for name in loggers)  # it asks a new name more
    for file, name, value in globals_of(package):
        account.place = (file, name)
        found[file, name] = tuple(account.told(value))
    return found


def globals_of(package: str) -> Iterator[tuple[str, str, Any]]:
    """File, name and value of every global of the package's modules."""
    for module_name, module in sorted(sys.modules.items()):
        if module_name.split(".")[0] != package or not isinstance(module, types.ModuleType):
            continue
        file = f"{module_name.partition('.')[2].replace('.', '/') or '__init__'}.py"
        for name, value in sorted(vars(module).items()):
            if not name.startswith("__"):
                yield file, name, value


def namespaces() -> set[int]:
    """Of every module the dicts of its globals and built-ins, by id: functions lead there."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]
    return {id(space) for module in modules for space in (vars(module), vars(module).get("__builtins__"))}


class _Account:
    """What was seen so far, and where first."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.place: Any = None
        """The global that is gone through."""
        self.looked_into = 0
        self.skipped = namespaces()
        self.first: dict[int, tuple[Any, int]] = {}

    def told(self, value: object) -> Iterator[Any]:
        """All that the value leads to, and was not seen before."""
        pending, number = [value], 0
        while pending:
            part = pending.pop()
            if id(part) in self.skipped:
                continue
            value_of = next((kind for kind in _VALUES if isinstance(part, kind)), None)
            if value_of is not None:
                yield value_of.__repr__(part)  # not by what a class of the package's says of itself
            if id(part) in self.first:
                yield self.first[id(part)]
                continue
            self.first[id(part)] = self.place, number
            number += 1
            if value_of is type(part):
                continue
            if isinstance(part, Iterator):
                yield object()  # equal to nothing: how far it has come cannot be told of all
            elif self._is_looked_into(part):
                self.looked_into += 1
                if self.looked_into > MOST:
                    raise TooMuch
                yield type(part).__name__, operator.length_hint(part, 0)
                if isinstance(part, types.CodeType):
                    yield _Same(part)
                elif isinstance(part, types.BuiltinFunctionType):
                    yield part.__name__
                elif type(part) is set:
                    yield ctypes.c_ssize_t.from_address(id(part) + _FINGER).value
                pending += _parts(part)
            else:
                yield _leaf(part)

    def _is_looked_into(self, value: object) -> bool:
        """An object of the language's or of Triton's, a class of the package's or an instance of one."""
        kind = value if isinstance(value, type) else type(value)
        if _is_of_triton(value) or any(_home(base) == self.package for base in kind.__mro__):
            return True
        known = _home(kind) in _LANGUAGE or isinstance(value, _CONTAINERS)
        shows = bool(kind.__flags__ & _COLLECTED) or isinstance(value, types.CodeType)
        return known and shows and not isinstance(value, _OPAQUE)


def _parts(value: object) -> list[Any]:
    """What an object leads to."""
    if _is_of_triton(value):
        return [getattr(value, name, None) for name in _OF_TRITON[type(value).__name__]]
    return [value.co_consts] if isinstance(value, types.CodeType) else gc.get_referents(value)


def _leaf(value: object) -> Any:
    """What is told of an object that is not looked into."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.storage_offset(), str(value.dtype)
    kind = type(value)
    if kind.__name__ == _LINK:
        return _LINK
    return kind.__name__, _Same(value) if kind.__repr__ is object.__repr__ else repr(value)


class _Same:
    """Equal to itself only; holds the object, so that no other one takes its address."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)

    def __repr__(self) -> str:
        return f"{id(self._value)}"


def _home(kind: type) -> str:
    """The package that a class says it is of: one that is derived from a candidate's may say any."""
    return kind.__module__.split(".")[0]


def _is_of_triton(value: object) -> bool:
    kind = type(value)  # an enumeration may say that it is Triton's
    return _home(kind) == "triton" and kind.__name__ in _OF_TRITON and not issubclass(kind, Enum)
