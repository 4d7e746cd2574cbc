"""Six kernels whose limits are known, each profiled and diagnosed several times: is it the same, and right?

    python benchmarks/known_limits.py [--repeats 5] [--report copy.ncu-rep]

Needs a GPU, ncu and ncu-report. For each kernel a process traces a call with torch.profiler, and another
runs under ncu; `passagent.experience.profiling` makes a record of both and names the limit. With `--report`
the report of the copy is kept as a file. Raw results go to benchmarks/results/known-limits-cuda-<date>.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from evaluator_repeatability import keep

from passagent.experience.profiling import nsight, plan_process
from passagent.experience.profiling.evidence import examine
from passagent.experience.profiling.profile_record import GraphProfile, KernelProfile, Profile
from passagent.sandbox.environment import describe

WANTED = {
    "copy": "memory",
    "matmul": "tensor",
    "tiny_adds": "latency",
    "spills": "spill",
    "one_block": "occupancy",
    "transpose": "memory",
}
"""What each kernel is limited by."""


@triton.jit
def copy_kernel(x, y, BLOCK: tl.constexpr):
    """A copy; torch's own is the driver's, which ncu does not see."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))


@triton.jit
def one_block_kernel(x, y, n, BLOCK: tl.constexpr):
    """The whole sum in one block."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < n, other=0.0)
    tl.store(y, tl.sum(total))


@triton.jit
def spills_kernel(x, y, steps, SIZE: tl.constexpr):
    """A product whose tiles do not fit into the registers of one warp."""
    at = tl.program_id(0) * SIZE * SIZE + tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    a, b, c = tl.load(x + at), tl.load(x + at + 1), tl.load(x + at + 2)
    for _ in range(steps):
        a, b, c = a * b + c, b * c + a, c * a + b
    tl.store(y + at, a + b + c)


@triton.jit
def transpose_kernel(x, y, n, BLOCK: tl.constexpr):
    """Each thread reads from another row."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + (at % n) * n + at // n))


def call_of(name: str) -> Callable[[], Any]:
    """The kernel, with its inputs on the GPU."""
    on = {"device": "cuda"}
    if name == "copy":
        source = torch.ones(1 << 28, **on)  # 1 GB
        target = torch.empty_like(source)
        return lambda: copy_kernel[(source.numel() // 4096,)](source, target, BLOCK=4096, num_warps=8)
    if name == "matmul":
        left = torch.randn(8192, 8192, dtype=torch.bfloat16, **on)
        return lambda: left @ left
    if name == "tiny_adds":
        tiny = torch.ones(16, **on)

        def adds() -> None:
            for _ in range(1000):
                tiny.add_(1.0)

        return adds
    if name == "spills":
        size, blocks = 64, 2048
        values, out = torch.rand(size * size * blocks + 2, **on), torch.empty(size * size * blocks, **on)
        return lambda: spills_kernel[(blocks,)](values, out, 20, SIZE=size, num_warps=1)
    if name == "one_block":
        values, out = torch.ones(1 << 22, **on), torch.empty(1, **on)
        return lambda: one_block_kernel[(1,)](values, out, values.numel(), BLOCK=1024)
    n = 8192
    matrix, turned = torch.rand(n, n, **on), torch.empty(n, n, **on)
    return lambda: transpose_kernel[(n * n // 1024,)](matrix, turned, n, BLOCK=1024)


def profile_of(name: str, report: Path) -> Profile:
    """The kernel's record, by two processes of its own."""
    this = [sys.executable, __file__, "--one", name]
    traced = subprocess.run([*this, "--trace"], capture_output=True, text=True, check=True)
    found = json.loads(traced.stdout.strip().splitlines()[-1])
    nsight.collect(this, report, launches=8)
    launches = sum(kernel["launches"] for kernel in found["kernels"])
    graph = GraphProfile(
        name=name,
        wall_us=found["wall_us"],
        busy_us=found["busy_us"],
        launches=launches,
        kernels=nsight.read_report(report),
    )
    count = torch.cuda.get_device_properties(0).multi_processor_count
    return Profile(tier="deep", device="cuda", multiprocessors=count, graphs=[graph])


def traced(name: str) -> dict[str, Any]:
    """What torch.profiler sees of a call."""
    wall_us, busy_us, kernels = plan_process.trace(call_of(name))
    return {"wall_us": wall_us, "busy_us": busy_us, "kernels": [one.model_dump() for one in kernels]}


def shown(kernel: KernelProfile) -> dict[str, Any]:
    """A kernel's figures for the results."""
    told = {"name": kernel.name, "duration_us": kernel.duration_us, "registers": kernel.registers}
    return told | {"metrics": kernel.metrics}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kernels", nargs="*", default=list(WANTED))
    parser.add_argument("--report", type=Path, help="keep the report of one kernel here")
    parser.add_argument("--report-of", default="copy")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        if args.trace:
            print(json.dumps(traced(args.one)))
        else:
            plan_process.mark(call_of(args.one))
        return
    rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.kernels:
            said: list[dict[str, Any]] = []
            for repeat in range(args.repeats):
                report = Path(scratch) / f"{name}.ncu-rep"
                try:
                    profile = profile_of(name, report)
                except nsight.ProfilerUnavailable as error:
                    said.append({"limit": None, "error": str(error)})
                    continue
                evidence = examine(profile)
                graph = profile.graphs[0]
                first = {"kernels": [shown(kernel) for kernel in graph.kernels[:2]]}
                said.append(
                    {
                        "limit": evidence.main,
                        "findings": [finding.model_dump() for finding in evidence.limits],
                        "missing": evidence.missing,
                        "wall_us": graph.wall_us,
                        "busy_us": graph.busy_us,
                        "launches": graph.launches,
                        **(first if repeat == 0 else {}),
                    }
                )
                if args.report and name == args.report_of:
                    shutil.copyfile(report, args.report)
            limits = Counter(str(one["limit"]) for one in said)
            is_right = set(limits) == {WANTED[name]}
            rows[name] = {"wanted": WANTED[name], "limits": limits, "right": is_right, "repeats": said}
            first_found = said[0]["findings"][0] if said[0].get("findings") else said[0].get("error")
            print(
                f"{name:10} {WANTED[name]:10} {dict(limits)} {'right' if is_right else 'WRONG'}", flush=True
            )
            print(f"    {first_found}", flush=True)
    right = sum(row["right"] for row in rows.values())
    print(f"{right} of {len(rows)} right, {args.repeats} times alike")
    data = {"environment": describe("cuda", 1), "right": right, "kernels": rows}
    print(keep("known-limits", "cuda", args.out, data))


if __name__ == "__main__":
    main()
