"""What it gains that the next candidate's kernels are built while another one is judged.

    python benchmarks/evaluator_queue.py TASKS... --device cuda --candidates 8 --rounds 2

Different candidates of the expert's for a task are submitted all at once to an EvaluatorPool with one device,
as the islands of a search would, with looking ahead and without, in alternating order; on both sides timed
calls keep off the compilers' cores. Each time the cache of built kernels is empty but for what one candidate
of another task left there, which is judged first. Seconds are those from submitting to the last answer.

On the CPU nothing is built ahead unless `--compilers` says on how many cores.
Raw results go to benchmarks/results/evaluator-queue-<device>-<date>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator_repeatability import expert_candidates, keep

from passagent.config import EvaluatorConfig
from passagent.errors import PassagentError
from passagent.evaluator import pool
from passagent.evaluator.devices import find_devices
from passagent.evaluator.owner import Owner
from passagent.evaluator.pool import EvaluatorPool
from passagent.evaluator.result import Candidate
from passagent.tasks import load_task

WARM_UP = Path(__file__).resolve().parents[1] / "examples/tasks/quick_gelu"
FORESEE = Owner.foresee


async def judge(path: Path, candidates: list[Candidate], first: Candidate, device: str) -> dict[str, Any]:
    """All at once, on one device: seconds, and of each candidate status, AS and when it was answered."""
    evaluators = EvaluatorPool(EvaluatorConfig(device=device), find_devices(device)[:1])
    answers: list[dict[str, Any]] = []

    async def one(candidate: Candidate) -> None:
        evaluation = await evaluators.evaluate(path, candidate)
        found = {"candidate": candidate.key[:12], "status": evaluation.status, "as": evaluation.as_score}
        at = time.monotonic() - started
        answers.append(found | {"at": round(at, 3), "seconds": round(evaluation.seconds, 3)})

    try:
        await evaluators.evaluate(WARM_UP, first)
        started = time.monotonic()
        await asyncio.gather(*map(one, candidates))
        return {"seconds": time.monotonic() - started, "answers": answers}
    finally:
        await evaluators.close()


def measure(path: Path, candidates: list[Candidate], first: Candidate, device: str, ahead: bool) -> Any:
    """With an empty cache, looking ahead or not."""
    Owner.foresee = FORESEE if ahead else lambda self, request: None  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PASSAGENT_CACHE"] = cache
        found = asyncio.run(judge(path, candidates, first, device))
    return {"task": path.name, "ahead": ahead, **found}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--compilers", type=int, help="cores for compilers, on the CPU too")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds: nothing is begun after them")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.compilers:
        pool.set_apart = lambda shares, device: [share[-args.compilers :] for share in shares]
    begun = time.monotonic()
    warm = load_task(WARM_UP)
    (first,) = expert_candidates(replace(warm, subgraphs=warm.subgraphs[:1]), args.device, 1)
    data: dict[str, Any] = {"queues": []}
    for path in args.tasks:
        candidates = expert_candidates(load_task(path), args.device, args.candidates)
        for number in range(args.rounds):
            for ahead in (True, False) if number % 2 else (False, True):
                if time.monotonic() - begun > args.budget:
                    break
                found = measure(path, candidates, first, args.device, ahead)
                data["queues"].append(found)
                counted = [one["as"] for one in found["answers"]]
                print(
                    f"{path.name[:40]:40} {'ahead' if ahead else 'not  '} {found['seconds']:7.2f} s", counted
                )
    for ahead in (False, True):
        runs = [found for found in data["queues"] if found["ahead"] == ahead]
        seconds, count = (
            sum(x) for x in zip(*((r["seconds"], len(r["answers"])) for r in runs), strict=True)
        )
        own = [one["seconds"] for r in runs for one in r["answers"][1:]]
        print(
            f"{'with' if ahead else 'without'}: {60 * count / seconds:.1f} candidates a minute ({count}); "
            f"in its own turn each but a task's first takes {sum(own) / max(len(own), 1):.2f} s"
        )
    print("raw results:", keep("evaluator-queue", args.device, args.out, data))


if __name__ == "__main__":
    try:
        main()
    except PassagentError as problem:
        sys.exit(f"error: {problem}")
