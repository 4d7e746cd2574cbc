"""AS of a candidate and of the files that `passagent best` writes of it, measured in one process.

    python benchmarks/delivered.py --device cpu
    python benchmarks/delivered.py --device cuda --rounds 3

The passes are those of tests/exported.py: four of the expert's for example tasks, and one as a language model
writes it. Each is written out twice, as usual and with `--standalone`, and evaluated like any candidate. The
order turns from round to round: as found, as written, standalone. `same` tells if the plans are equal. An
export keeps its AS if the intervals of both overlap.

Raw results go to benchmarks/results/delivered-<device>-<date>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from evaluator_repeatability import keep
from search_overhead import ROOT

from passagent.config import EvaluatorConfig
from passagent.evaluator.candidate import PLANS, Candidate
from passagent.evaluator.result import Evaluation
from passagent.evaluator.service.pool import EvaluatorPool
from passagent.plan import artefact
from passagent.plan.model import Recording
from passagent.plan.recorder_process import recording_process
from passagent.sandbox.environment import describe

sys.path.insert(0, str(ROOT / "tests"))
from exported import TEN, candidate, delivered

FORMS = ("found", "written", "standalone")


def programs(recording: Recording) -> dict[str, list[str]]:
    """The plans of each subgraph's calls by their digests: equal for candidates that do the same."""
    return {
        subgraph.name: [recording.passes[call.number].plans[call.plan].digest() for call in subgraph.calls]
        for subgraph in recording.subgraphs
    }


def figures(evaluation: Evaluation) -> dict[str, Any]:
    """What is kept of an evaluation."""
    return {
        "status": evaluation.status,
        "as": evaluation.as_score,
        "low": evaluation.as_low,
        "high": evaluation.as_high,
        "speedups": {one.name: one.speedup.e2e if one.speedup else None for one in evaluation.graphs},
    }


def shown(one: dict[str, Any]) -> str:
    """`1.234 [1.200, 1.270]`, or the status."""
    if one["as"] is None:
        return str(one["status"])
    return f"{one['as']:.3f} [{one['low']:.3f}, {one['high']:.3f}]"


def overlaps(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two intervals have a value in common."""
    return bool(one["as"] and other["as"] and one["low"] <= other["high"] and other["low"] <= one["high"])


async def measure(args: argparse.Namespace, root: Path) -> None:
    """For each pass the evaluations of all forms; after each the results so far are written."""
    target = "cpu" if args.device == "cpu" else "cuda"
    found: dict[str, Any] = {}
    pool = EvaluatorPool(EvaluatorConfig(device=args.device))
    try:
        with recording_process() as process:
            for name in args.passes or TEN[target]:
                task, files = candidate(name, target, root / name)
                forms, recorded = {"found": files}, {}
                for form in FORMS[1:]:
                    written = await asyncio.to_thread(
                        delivered, files, task, process, args.device, form == "standalone"
                    )
                    forms[form] = code(written.files)
                    recorded[form] = programs(written.recording)
                rounds = []
                for number in range(args.rounds):
                    order = FORMS[number % 3 :] + FORMS[: number % 3]
                    results = {form: await pool.evaluate(task.path, Candidate(forms[form])) for form in order}
                    first = results["found"]
                    plans = programs(artefact.read(first.plan_files).recording) if first.plan_files else None
                    rounds.append({form: figures(results[form]) for form in forms})
                    same = [form for form in recorded if recorded[form] == plans]
                    print(f"{name:28}", *(f"{form} {shown(rounds[-1][form])}" for form in forms), flush=True)
                found[name] = {"same_plans": same, "rounds": rounds}
                write(args, found)
    finally:
        await pool.close()


def write(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """The results so far, and how many intervals of the found and the written form overlap."""
    rounds = [one for each in found.values() for one in each["rounds"]]
    kept = {form: sum(overlaps(one["found"], one[form]) for one in rounds) for form in FORMS[1:]}
    data = {"environment": describe(args.device, 1), "overlap": kept, "passes": found}
    place = keep("delivered", args.device, args.out, data)
    print(f"of {len(rounds)} comparisons the intervals overlap in {kept}; {place.name}", flush=True)


def code(files: dict[str, str]) -> dict[str, str]:
    """The files of a delivered directory that are the candidate."""
    return {
        name: text
        for name, text in files.items()
        if name.endswith((".py", ".json")) and not name.startswith(PLANS)
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--passes", nargs="*", help="only these")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        asyncio.run(measure(args, Path(root)))


if __name__ == "__main__":
    main()
