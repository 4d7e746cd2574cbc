"""Python imports this as it starts (see ../timeline.py): every process of passagent's notes what takes time.

A line a note: seconds since the machine started, process, seconds that it took, what it was.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_IMPORTS = {"numpy", "sympy", "torch", "torch._dynamo", "torch._inductor", "triton"}
"""Libraries that take long to import: noted as it begins."""
_CALLS = {
    "passagent.evaluator.judging.judging": [
        "Judging.run",
        "Judging._ready",
        "Judging._check",
        "Judging._time",
    ],
    "passagent.evaluator.judging.referee": ["Referee.prepare", "Referee.evaluate"],
    "passagent.evaluator.reference.baseline": ["Baseline.reference"],
    "passagent.evaluator.runner.process": ["Worker.ask", "Zygote._ask", "Zygote._take"],
    "passagent.evaluator.judging.loaded_worker": ["LoadedWorker.take", "LoadedWorker.release"],
    "passagent.evaluator.judging.eager_worker": ["EagerWorker.take"],
    "passagent.evaluator.judging.agreement": ["judge_sets", "judge_timed", "_judge_drift"],
    "passagent.evaluator.timing.timing": ["measure", "_device_times"],
    "passagent.expert.expert_model": ["answer"],
}
"""Functions and methods by module: noted when they return."""


class _Noting(MetaPathFinder):
    """Finds nothing itself: notes imports, and wraps what is to be noted once its module is there."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname in _IMPORTS:
            _note(0.0, f"import {fullname}")
        if fullname not in _CALLS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                for name in _CALLS[fullname]:
                    _wrap(module, name)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def _wrap(module: ModuleType, name: str) -> None:
    owner: Any = module
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    called: Callable[..., Any] = getattr(owner, last)

    @functools.wraps(called)
    def noted(*args: Any, **kwargs: Any) -> Any:
        begun = time.monotonic()
        try:
            return called(*args, **kwargs)
        finally:
            _note(time.monotonic() - begun, " ".join([name, *filter(None, map(_about, args[1:]))]))

    setattr(owner, last, noted)


def _about(argument: Any) -> str:
    """What tells a call from others: a request's name, a subgraph's."""
    if hasattr(argument, "op"):
        return str(argument.op)
    return str(getattr(argument, "name", "")) if hasattr(argument, "inputs") else ""


def _note(took_s: float, text: str) -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    with open(f"{os.environ['PASSAGENT_TIMELINE']}/{os.getpid()}", "a") as file:
        file.write(f"{now:.3f} {os.getpid()} {took_s:.3f} {text}\n")


if "PASSAGENT_TIMELINE" in os.environ and any("passagent" in part for part in sys.orig_argv):
    module = next((part for part in sys.orig_argv if part.startswith("passagent")), sys.orig_argv[-1])
    _note(0.0, f"begin {module[-60:]}")
    atexit.register(_note, 0.0, "end")
    sys.meta_path.insert(0, _Noting())
