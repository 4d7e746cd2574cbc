"""Explain an exception in a worker: the kind of failure, in words, with the candidate's own line."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch

from passagent.evaluator.matching.passes import PassLoadError
from passagent.evaluator.result import Violation
from passagent.evaluator.runner.build_requests import NAME
from passagent.evaluator.runner.worker_messages import TEXT, Error, ReportedViolation
from passagent.evaluator.sizes import ERROR
from passagent.evaluator.worker_text import plain
from passagent.kernels.build import KernelBuildError, KernelRefused


def explain(error: Exception, root: Path) -> Error:
    """The kind of failure (a Status), its message, and the candidate's own file and line if known."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    frames = [frame for link in chain for frame in traceback.extract_tb(link.__traceback__)]
    frames = [frame for frame in frames if str(root) in frame.filename]
    # where the error went no further up than to who asks, the candidate is on the stack
    own_frames = frames or [frame for frame in traceback.extract_stack() if str(root) in frame.filename]
    file = Path(own_frames[-1].filename).name if own_frames else ""
    line = (own_frames[-1].lineno or 0) if own_frames else 0
    where = f" ({file}:{line})" if own_frames else ""
    root_error = chain[-1]
    text = (
        str(error)
        if isinstance(error, (PassLoadError, KernelBuildError))
        else f"{type(root_error).__name__}: {root_error}"
    )
    answer: dict[str, Any] = {
        "kind": _kind(chain),
        "message": plain(text[:ERROR] + ("" if text.endswith(where) else where)).strip()[:TEXT],
    }
    system = next((link for link in chain if isinstance(link, OSError) and link.errno), None)
    if system is not None:  # believed of a worker that runs none but trusted code
        answer |= {"errno": system.errno, "path": plain(str(system.filename or ""))[:NAME]}
    refused = next((link for link in chain if isinstance(link, KernelRefused)), None)
    if refused is not None:
        message = f"{refused} (line {refused.line} of the kernel's source)"
        violation = Violation(rule=refused.rule, file=file, line=line or refused.line, message=plain(message))
        answer["violation"] = told(violation)
    return Error(**answer)


def told(violation: Violation) -> ReportedViolation:
    """A violation as a worker reports it: cut to what the referee takes."""
    return ReportedViolation(
        rule=violation.rule[:NAME],
        file=plain(violation.file)[:NAME],
        line=violation.line,
        message=plain(violation.message)[:TEXT],
    )


_NO_MEMORY = ("can't allocate memory", "CUDACachingAllocator.cpp")
"""The second: a GPU's allocator that finds none asks NVML who holds it, and fails at that in the sandbox."""


def _kind(chain: list[BaseException]) -> str:
    for link in chain:
        name, module, text = type(link).__name__, type(link).__module__, str(link)
        if isinstance(link, KernelRefused):
            return "refused"
        if isinstance(link, (MemoryError, torch.OutOfMemoryError)) or any(
            words in text for words in _NO_MEMORY
        ):
            return "out_of_memory"
        if isinstance(link, PassLoadError):
            return "load_error"
        if isinstance(link, KernelBuildError) or (
            module.startswith("triton") and ("Compil" in name or "OutOfRes" in name or "PTXAS" in name)
        ):
            return "compile_error"
    return "runtime_error"
