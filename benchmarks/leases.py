"""Two programs on one device at once, by leases, against taking turns whole evaluation by whole evaluation.

    python benchmarks/leases.py --device cpu

Each program judges in turn the expert's candidates, with kernels that are built anew, and eager in a
candidate's place (A/A: 1.00 is the truth), under a bar as in a search, for `--seconds`. Three ways: a program
alone; two that take turns whole (each holds a lock around every evaluation); two with leases only. Reported:
evaluations a minute of all programs together, the longest wait for a lease, the part of an evaluation for
which timing had the device, and by how much A/A misses 1.

On the CPU two more, of one program on the first half of the cores: with the other half quiet, and with a
compiler running there all the time. They tell whether timing may lease a part of the cores. About 4 minutes
on a quiet machine.

Raw results go to benchmarks/results/leases-<device>-<date>.json. A machine that others use meanwhile changes
all of it: `load_1m` of each way says how busy it was.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator_repeatability import ROOT, expert_candidates, keep

from passagent.config import EvaluatorConfig
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.result import Candidate
from passagent.sandbox.environment import describe, worker_threads
from passagent.tasks import load_task

BAR = 1.0
"""The AS that a search has reached: under it less is timed."""


@contextmanager
def noting(waits: list[tuple[str, float]], holds: list[float]) -> Iterator[None]:
    """Note how long this process waits for its leases, and how long it has the device alone."""
    granted, end = DeviceLease._granted, DeviceLease._end

    def note_wait(self: DeviceLease, kind: int) -> Any:
        begun = time.monotonic()
        ticket = granted(self, kind)
        waits.append(("timing" if kind == fcntl.F_WRLCK else "step", ticket.granted - begun))
        return ticket

    def note_end(self: DeviceLease, ticket: Any) -> None:
        if ticket.kind == fcntl.F_WRLCK:
            holds.append(time.monotonic() - ticket.granted)
        end(self, ticket)

    DeviceLease._granted, DeviceLease._end = note_wait, note_end  # type: ignore[method-assign]
    try:
        yield
    finally:
        DeviceLease._granted, DeviceLease._end = granted, end  # type: ignore[method-assign]


COMPILER = """
import subprocess, sys
text = '#include <algorithm>\\n#include <regex>\\nstd::regex r("a*b"); int main() {}'
while True:
    subprocess.run(["g++", "-O3", "-x", "c++", "-c", "-o", "/dev/null", "-"], input=text.encode())
"""


@contextmanager
def compiling(cores: list[int]) -> Iterator[None]:
    """A compiler runs on these cores, each all the time."""
    running = [
        subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", COMPILER], start_new_session=True)
        for core in cores
    ]
    try:
        yield
    finally:
        for one in running:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def program(args: argparse.Namespace) -> None:
    """One program: ready, then evaluations for `--seconds` from the moment that a line comes; its figures."""
    task = load_task(args.task)
    task = replace(task, subgraphs=task.subgraphs[: args.subgraphs])
    candidates = expert_candidates(task, args.device, 8)
    waits: list[tuple[str, float]] = []
    holds: list[float] = []
    found: list[dict[str, Any]] = []
    with (
        open(args.turns or os.devnull, "w") as turns,
        Referee(EvaluatorConfig(device=args.device)) as referee,
    ):
        referee.evaluate(task, "eager", BAR)
        print("ready", flush=True)
        sys.stdin.readline()
        begun = time.monotonic()
        with noting(waits, holds):
            while time.monotonic() - begun < args.seconds:
                is_aa = len(found) % 2 == 1
                number = len(found) // 2
                subject = "eager" if is_aa else anew(candidates[number % len(candidates)], number)
                asked = time.monotonic()
                if args.turns:
                    fcntl.flock(turns, fcntl.LOCK_EX)
                waited = time.monotonic() - asked
                made = referee.evaluate(task, subject, BAR)
                fcntl.flock(turns, fcntl.LOCK_UN)
                speedups = [graph.speedup.e2e for graph in made.graphs if graph.speedup]
                found.append(
                    {
                        "a/a": is_aa,
                        "status": made.status,
                        "seconds": made.seconds,
                        "waited": waited,
                        "speedups": speedups,
                    }
                )
        seconds = time.monotonic() - begun
    print(json.dumps({"seconds": seconds, "evaluations": found, "waits": waits, "holds": holds}), flush=True)


def anew(candidate: Candidate, number: int) -> Candidate:
    """The same with other kernels, told apart by a comment or a name: nothing is built of them yet."""
    mark = f"{os.getpid()}_{time.time_ns()}_{number}"
    files = {
        name: re.sub(r"\b_\w+_kernel\b", rf"\g<0>_{mark}", text.replace('r"""\n', f'r"""\n// {mark}\n'))
        for name, text in candidate.files.items()
    }
    return Candidate(files)


def measured(
    args: argparse.Namespace, count: int = 1, turns: str = "", cores: list[int] | None = None
) -> dict[str, Any]:
    """So many programs at once, on these cores."""
    words = ["--program", "--device", args.device, "--task", args.task, "--seconds", str(args.seconds)]
    words += ["--subgraphs", str(args.subgraphs), *(["--turns", turns] if turns else [])]
    only = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
    command = [*only, sys.executable, __file__, *words]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    programs = [subprocess.Popen(command, **pipes) for _ in range(count)]
    try:
        for one in programs:
            assert one.stdout is not None and one.stdout.readline() == "ready\n"
        load = os.getloadavg()[0]
        for one in programs:
            assert one.stdin is not None
            one.stdin.close()
        found = [json.loads(one.stdout.readline()) for one in programs if one.stdout is not None]
    finally:
        for one in programs:
            one.kill()
            one.wait()
    return {"load_1m": round(load, 2), **summary(found), "programs": [compact(one) for one in found]}


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all programs that ran at once."""
    evaluations = [one for program in found for one in program["evaluations"]]
    errors = sorted(abs(math.log(s)) for one in evaluations if one["a/a"] for s in one["speedups"])
    waits = [wait for program in found for wait in program["waits"]]
    turns = [one["waited"] for one in evaluations]
    busy = sum(one["seconds"] for one in evaluations)
    return {
        "evaluations_a_minute": sum(60 * len(one["evaluations"]) / one["seconds"] for one in found),
        "longest_wait_s": {
            "evaluation": max(turns),
            **{kind: max([s for k, s in waits if k == kind], default=0.0) for kind in ("timing", "step")},
        },
        "timing_share": sum(sum(program["holds"]) for program in found) / busy,
        "a/a_median": statistics.median(errors) if errors else None,
        "a/a_p90": errors[int(0.9 * len(errors))] if errors else None,
        "a/a_subgraphs": len(errors),
        "statuses": sorted({one["status"] for one in evaluations}),
    }


def compact(found: dict[str, Any]) -> dict[str, Any]:
    """A program's figures without the thousands of waits."""
    lasting = sorted((round(seconds, 3), kind) for kind, seconds in found["waits"])[-20:]
    return {**found, "waits": {"count": len(found["waits"]), "longest": lasting}}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--task", default=str(ROOT / "examples/tasks/add_layer_norm"))
    parser.add_argument("--subgraphs", type=int, default=3, help="of the task, the first ones")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each way")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--program", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--turns", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.program:
        program(args)
        return
    with tempfile.NamedTemporaryFile() as lock:
        ways = {"alone": measured(args), "turns": measured(args, 2, lock.name), "leases": measured(args, 2)}
    cores = sorted(os.sched_getaffinity(0))
    first, rest = cores[: len(cores) // 2], cores[len(cores) // 2 :]
    if args.device == "cpu" and first:
        ways["half of the cores"] = measured(args, cores=first)
        with compiling(rest):
            ways["beside a compiler"] = measured(args, cores=first)
    for name, found in ways.items():
        waits = ", ".join(f"{kind} {s:.2f} s" for kind, s in found["longest_wait_s"].items())
        aa = "A/A none" if found["a/a_median"] is None else f"A/A {found['a/a_median']:.2%} at the median"
        print(
            f"{name:17} {found['evaluations_a_minute']:6.1f} evaluations a minute, longest waits: {waits}; "
            f"timing {found['timing_share']:.0%} of an evaluation; {aa}; load {found['load_1m']}"
        )
    gain = ways["leases"]["evaluations_a_minute"] / ways["turns"]["evaluations_a_minute"]
    print(f"leases / turns: {gain:.2f}x")
    environment = describe(args.device, worker_threads(None))
    data = {"environment": environment, "task": Path(args.task).name, "leases / turns": gain, "ways": ways}
    print(keep("leases", args.device, args.out, data))


if __name__ == "__main__":
    main()
