"""Shape functions of torch called with sizes that are numbers: without what symbolic ones take.

Those that are written in Python import Dynamo, sympy and torch's symbolic shapes when they are called, which
takes seconds, to ask questions whose answers are plain where nothing is symbolic. Stand-ins give these
answers. Whoever asks for more gets an ImportError, as from a torch that does not have it.
"""

from __future__ import annotations

import operator
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any


def _same(value: Any, *_: Any, **__: Any) -> Any:
    """Return the value: it is known already."""
    return value


def _equal(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(map(_equal, a, b)) if _is_list(a) else bool(a == b)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


class _Symbol:
    """A class without instances."""


IMPORTING = threading.Lock()
"""Every thread finds the stand-ins: who needs the modules themselves imports them with this lock."""
_STAND_INS: dict[str, dict[str, Any]] = {
    # shape functions have Dynamo leave them alone; what is compiled in this process never calls them
    "torch._dynamo": {"disable": _same},
    "torch.fx.experimental.symbolic_shapes": {
        "expect_true": _same,
        "guard_or_false": _same,
        "guard_or_true": _same,
        "guard_size_oblivious": _same,
        "guard_int": _same,
        "guarding_hint_or_throw": _same,
        "has_guarding_hint": lambda _: True,
        "size_hint": _same,  # torch 2.11's names of these two
        "has_hint": lambda _: True,
        "statically_known_true": _same,
        "sym_eq": _equal,
        "sym_and": lambda *values: reduce(operator.and_, values),
        "sym_or": lambda *values: reduce(operator.or_, values),
        "is_nested_int": lambda _: False,
        "free_unbacked_symbols": lambda _: set(),
    },
    "torch.utils._sympy.functions": {"Max": max},
    "sympy": {"Basic": _Symbol},
}


@contextmanager
def concrete() -> Iterator[None]:
    """Put the stand-ins where the modules are not imported yet."""
    with IMPORTING:
        stand_ins = [_put(name, members) for name, members in _STAND_INS.items() if name not in sys.modules]
        try:
            yield
        finally:
            for stand_in in stand_ins:
                _take_away(stand_in)


def _put(name: str, members: dict[str, Any]) -> types.ModuleType:
    stand_in = types.ModuleType(name)
    stand_in.__dict__.update(members)
    sys.modules[name] = stand_in
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, stand_in)
    return stand_in


def _take_away(stand_in: types.ModuleType) -> None:
    parent, _, last = stand_in.__name__.rpartition(".")
    del sys.modules[stand_in.__name__]
    if getattr(sys.modules.get(parent), last, None) is stand_in:
        delattr(sys.modules[parent], last)
