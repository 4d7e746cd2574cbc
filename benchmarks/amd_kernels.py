"""Do the expert's Triton kernels compile for AMD's GPUs? From their IR, without such a GPU; nothing is run.

    python benchmarks/amd_kernels.py TASKS... [--out FILE]

For each task the expert's pass for `cuda` is recorded as for an evaluation, and the IR of each distinct
kernel is compiled by Triton's AMD back end for gfx942 (CDNA 3) and gfx950 (CDNA 4), down to machine code.
Functions of NVIDIA's libdevice are named as AMD's OCML has them. Raw results go to
benchmarks/results/amd-kernels-cpu-<date>.json.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluator_repeatability import keep

from passagent.errors import PassagentError
from passagent.evaluator.result import Candidate
from passagent.expert.author import author
from passagent.expert.choices import default
from passagent.expert.read import graphs
from passagent.plan import ir, record, recorder_process
from passagent.plan.facts import device_facts
from passagent.plan.messages import Recorded
from passagent.plan.model import TritonKernel
from passagent.sandbox.environment import describe
from passagent.tasks import Task, load_task
from passagent.tasks.tasklist import find_tasks

TARGETS = ("gfx942", "gfx950")
WAVEFRONT = 64
"""Threads that run together on these GPUs."""


def kernels_of(process: Any, task: Task) -> Iterator[TritonKernel]:
    """The Triton kernels of the expert's pass, each once. Raises PassagentError where none is recorded."""
    files = author(list(graphs(str(task.path))), "cuda", default("cuda")).files
    if not files:
        return
    subgraphs = record.subgraphs_of(task, "cuda")
    found = record.record(process, Candidate(files), subgraphs, "cuda", device_facts("cpu"))
    if not isinstance(found, Recorded):
        raise PassagentError(found.message)
    kernels = (k for one in found.recording.passes for plan in one.plans for k in plan.kernels.values())
    yield from {kernel.ttir: kernel for kernel in kernels if isinstance(kernel, TritonKernel)}.values()


def with_ocml(ttir: str) -> str:
    """The IR with `__nv_expf` and its like as `__ocml_exp_f32`."""

    def renamed(match: re.Match[str]) -> str:
        name, between, kind = match.groups()
        return f"__ocml_{name.removesuffix('f') if kind == 'f32' else name}_{kind}{between}{kind}"

    return re.sub(r"__nv_(\w+)(\"[^\n]*-> (?:tensor<[\dx]*x)?)(f32|f64)", renamed, ttir)


def problem(kernel: TritonKernel, arch: str) -> str | None:
    """Why the kernel does not compile for `arch`; None if it does."""
    from triton.backends.compiler import GPUTarget, Language
    from triton.compiler.compiler import make_backend

    backend = make_backend(GPUTarget("hip", arch, WAVEFRONT))
    given = kernel.options.model_dump(include={"num_warps", "num_stages"}, exclude_none=True)
    options = backend.parse_options(given)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, Language.TRITON)
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
            file.write(with_ocml(kernel.ttir))
            file.flush()
            made = ir.parsed(file.name, backend)
        metadata = dict(vars(options))
        for stage in stages.values():
            made = stage(made, metadata)
    except (RuntimeError, ValueError, KeyError) as error:  # MLIR, the linker, a libdevice that is not AMD's
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"
    return None if made.startswith(b"\x7fELF") else "no machine code came out"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    with recorder_process.recording_process() as process:
        for path in find_tasks([str(one) for one in args.tasks]):
            row: dict[str, Any] = {"task": path.name, "kernels": 0, "failed": []}
            try:
                for kernel in kernels_of(process, load_task(path)):
                    row["kernels"] += 1
                    whys = {arch: why for arch in TARGETS if (why := problem(kernel, arch))}
                    row["failed"] += [{"kernel": kernel.entry, **whys}] if whys else []
            except PassagentError as error:
                row["error"] = str(error)
            rows.append(row)
            if row["failed"] or "error" in row:
                print(row, flush=True)
    count, failed = sum(row["kernels"] for row in rows), sum(len(row["failed"]) for row in rows)
    print(f"{count} kernels of {len(rows)} tasks: {failed} do not compile for {' and '.join(TARGETS)}")
    data = {"environment": describe("cpu", 1), "targets": TARGETS, "kernels": count, "failed": failed}
    print(keep("amd-kernels", "cpu", args.out, data | {"rows": rows}))


if __name__ == "__main__":
    main()
