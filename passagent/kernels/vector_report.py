"""GCC's report on a C++ kernel: the loops that became vector code, and why not the others."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from passagent.kernels import build, toolchain
from passagent.kernels.build import Signature
from passagent.sandbox.tools import Access

_LINE = re.compile(
    r"^(?P<file>[^:\n]*):(?P<line>\d+):\d+: (?P<kind>optimized|missed): +(?P<text>.*)$", re.MULTILINE
)
_VECTOR = "loop vectorized"
_SCALAR = "couldn't vectorize loop"
_REASON = "not vectorized: "


class VectorReport(NamedTuple):
    """The report on one kernel."""

    vector_loops: int
    scalar_loops: int
    missed: list[str]
    """`line N: reason` of loops that stayed scalar, each once."""


def vector_report(written: str, name: str, signature: Signature) -> VectorReport:
    """Ask GCC about kernel `name` in the source `written`, which has been built before.

    Raises KernelRefused and KernelBuildError as `build.build`.
    """
    prelude = toolchain.prelude()
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        (scratch / "kernel.cpp").write_bytes(build.program(written, name, signature).encode())
        command = [toolchain.compiler(), *toolchain.CHECKED, "-fopt-info-vec-optimized-missed=report", "-w"]
        command += ["-include", str(prelude), "-c", "kernel.cpp", "-o", "kernel.o"]
        toolchain.run(command, name, scratch, access=Access((prelude, Path(f"{prelude}.gch"))))
        report = scratch / "report"
        return read_report(report.read_text(errors="replace") if report.exists() else "", f"{name}.cpp")


def read_report(text: str, file: str) -> VectorReport:
    """Read the report on the loops in `file`, by their lines; one that was vectorised once is vector."""
    vector, scalar, reasons = set[int](), set[int](), dict[int, str]()
    for match in _LINE.finditer(text):
        if match["file"] != file:
            continue
        line = int(match["line"])
        if match["kind"] == "optimized" and match["text"].startswith(_VECTOR):
            vector.add(line)
        elif match["text"].startswith(_SCALAR):
            scalar.add(line)
        elif match["text"].startswith(_REASON):
            reasons.setdefault(line, match["text"].removeprefix(_REASON).rstrip("."))
    scalar_lines = sorted(scalar - vector)
    missed = [f"line {line}: {reasons.get(line, 'no reason is given')}" for line in scalar_lines]
    return VectorReport(len(vector), len(scalar_lines), missed)
