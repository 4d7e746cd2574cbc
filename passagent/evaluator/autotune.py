"""Triton's autotuner where there is no GPU to time configurations on: in the interpreter."""

from __future__ import annotations

import functools
import os
from typing import Any


def is_interpreting() -> bool:
    """This process runs Triton kernels in the interpreter (`TRITON_INTERPRET=1`)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def settle_autotuners() -> None:
    """Let every autotuner made from now on keep its first configuration, in this process."""
    from triton.runtime.autotuner import Autotuner

    original = Autotuner.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.configs = self.configs[:1]

    Autotuner.__init__ = init
