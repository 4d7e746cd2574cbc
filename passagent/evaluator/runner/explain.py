"""Explain an exception in a worker: the kind of failure, in words."""

from __future__ import annotations

from typing import Any

import torch

from passagent.evaluator.result import Violation
from passagent.evaluator.runner.worker_messages import NAME, TEXT, Error, ReportedViolation
from passagent.evaluator.sizes import ERROR
from passagent.evaluator.worker_text import plain

_NO_MEMORY = ("can't allocate memory", "CUDACachingAllocator.cpp")
"""The second: a GPU's allocator that finds none asks NVML who holds it, and fails at that in the sandbox."""


def explain(error: Exception) -> Error:
    """The kind of failure (a Status) and its message, by the first cause."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    is_memory = any(
        isinstance(link, (MemoryError, torch.OutOfMemoryError))
        or any(words in str(link) for words in _NO_MEMORY)
        for link in chain
    )
    text = f"{type(chain[-1]).__name__}: {chain[-1]}"
    answer: dict[str, Any] = {
        "kind": "out_of_memory" if is_memory else "runtime_error",
        "message": plain(text[:ERROR]).strip()[:TEXT],
    }
    system = next((link for link in chain if isinstance(link, OSError) and link.errno), None)
    if system is not None:  # believed of a worker that runs none but trusted code
        answer |= {"errno": system.errno, "path": plain(str(system.filename or ""))[:NAME]}
    return Error(**answer)


def told(violation: Violation) -> ReportedViolation:
    """A violation as a worker reports it: cut to what the referee takes."""
    return ReportedViolation(
        rule=violation.rule[:NAME],
        file=plain(violation.file)[:NAME],
        line=violation.line,
        message=plain(violation.message)[:TEXT],
    )
