"""Why nothing was recorded: messages that say what to write instead, and the line at fault."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from passagent.evaluator.matching.loaded_passes import PACKAGE

COMPUTES = "{operator} computes in host code; compute it in a kernel"
CONVERTS = "aten.copy_ converts or repeats what it copies; give it a source that has been cast and expanded"
READS_A_VALUE = (
    "{operator} reads a value of a tensor; a plan follows from shapes, strides, dtypes and constants only: "
    "read the value in a kernel"
)
OLD_TENSOR = "uses a tensor that was made before this call; allocate in every call"
OLD_ADDRESS = "uses an address that was read before this call; ask for data_ptr() in every call"
NO_ADDRESS = "reads a tensor's address outside of a call of the replacement; ask for data_ptr() in the call"
NO_CALL = (
    "launches a kernel outside of a call of the replacement; launch it in the function of replacement_func"
)
TWICE = "records another plan the second time for the same arguments; keep nothing that counts calls"
LARGE_CONSTANT = "uses a constant tensor of {size} bytes; at most 1 MiB: make it in a kernel"
ODD_CONSTANT = (
    "uses a constant tensor that is not contiguous, or not on the CPU; make it by torch.tensor([...])"
)
BETWEEN_DEVICES = "copies a tensor from {source} to {target}; keep the work on the device of the inputs"
OWN_STREAM = "uses a CUDA stream, event or graph of its own; launch kernels one after the other"
NO_STEP = "aten.{operator} has no step in a plan; allocate by torch.empty_like, write in a kernel"
NO_DEVICE_GUARD = (
    "this build of torch has no CUDA and cannot follow what is done here to a CUDA tensor; "
    "record with a CUDA build of torch"
)


class Refused(BaseException):
    """Recording cannot go on. No Exception: what a candidate catches does not hold it."""

    def __init__(self, message: str, file: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.message, self.file, self.line = message, file, line


class NotCompiled(Exception):
    """Kernels that Triton does not compile, a line for each."""


def running_place(root: Path, frame: FrameType) -> tuple[str, int]:
    """File and line of the innermost frame of the candidate's that `frame` was called from; else ("", 0)."""
    return _innermost(root, traceback.extract_stack(frame))


def raised_place(root: Path, error: BaseException) -> tuple[str, int]:
    """File and line of the innermost of the candidate's frames in a traceback; ("", 0): none."""
    return _innermost(root, traceback.extract_tb(error.__traceback__))


def _innermost(root: Path, frames: Sequence[traceback.FrameSummary]) -> tuple[str, int]:
    package = f"{root / PACKAGE}/"
    places = ((frame.filename, frame.lineno or 0) for frame in reversed(frames))
    own = ((file.removeprefix(package), line) for file, line in places if file.startswith(package))
    return next(own, ("", 0))
