"""How often a searching process looks for garbage in cycles: seldom, and not among what was there before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 50_000
"""After which garbage is looked for: a syntax tree has thousands, and none of it."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for garbage seldom meanwhile, and not among what is loaded by now, which stays.

    Inside of another one it changes nothing: what an ended search leaves must not be taken for loaded.
    """
    thresholds = gc.get_threshold()
    if thresholds[0] == _OBJECTS:
        yield
        return
    gc.freeze()
    gc.set_threshold(_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
