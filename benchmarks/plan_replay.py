"""What a call of a replacement costs on the host: its Python of today, beside the replay of its plan.

    python benchmarks/plan_replay.py

For honest cases of tests/ whose kernels are C++, on the inputs of their first subgraph. `today` is the graph
that the evaluator times, with the candidate's function in it. `planned` is that graph with replays in it.
`replay` are the replays' own calls, one for each match. All run in one process, in blocks of ten calls that
are interleaved in random order; medians in ns of a call. Raw samples go to
benchmarks/results/plan-replay-<date>.json.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import cases  # noqa: E402
import plans  # noqa: E402

from passagent.evaluator.matching.passes import load_passes  # noqa: E402
from passagent.evaluator.matching.rewrite import apply_passes  # noqa: E402
from passagent.plan import record  # noqa: E402
from passagent.plan.compile import compile_plan  # noqa: E402
from passagent.plan.recorder_process import recording_process  # noqa: E402
from passagent.plan.replay import Replay  # noqa: E402
from passagent.sandbox.child import ForkServer  # noqa: E402
from passagent.sandbox.environment import describe  # noqa: E402
from passagent.tasks import graphio  # noqa: E402
from passagent.tasks.inputs import make_inputs  # noqa: E402

BLOCK = 10
CASES = (
    "pass_with_its_own_cpp", "cpp_pairwise_recursion", "cpp_source_from_a_template", "cpp_boolean_output",
    "cpp_openmp_reduction",
)  # fmt: skip


def sides(process: ForkServer, case: Any, root: Path) -> dict[str, Callable[[], object]]:
    """`today`, `planned` and `replay` of a case, as functions without arguments."""
    task = cases.write_task(root / "task", case.task)
    answer, _ = plans.recorded(process, case, task)
    if answer.kind == "refused":
        raise SystemExit(f"{case.name} is not recorded: {answer.message}")
    calls, recorded = answer.recording.subgraphs[0].calls, record.subgraphs_of(task, "cpu")[0]
    inputs = make_inputs(task.subgraphs[0], "cpu", 11)
    given = [inputs[position] for position in recorded.order]
    plain = graphio.load_graph(recorded.nodes)
    today = apply_passes(copy.deepcopy(plain), load_passes(case.candidate, root)).graph_module
    made: list[tuple[Callable[..., object], list[tuple[Any, ...]]]] = []

    def replay(plan: Any) -> Callable[..., object]:
        call, seen = Replay(plan, compile_plan(plan)).call, []
        made.append((call, seen))

        def noted(*args: Any) -> object:
            seen.append(args)
            return call(*args)

        return noted

    plans.rewritten(copy.deepcopy(plain), answer.recording, calls, replay)(*given)
    planned = plans.rewritten(
        copy.deepcopy(plain), answer.recording, calls, lambda p: Replay(p, compile_plan(p)).call
    )
    torch.testing.assert_close(planned(*given), today(*given))
    alone = [(call, args) for call, seen in made for args in seen]

    def replays() -> None:
        for call, args in alone:
            call(*args)

    return {
        "today": lambda: today.forward(*given),
        "planned": lambda: planned.forward(*given),
        "replay": replays,
    }


def measure(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[int]]:
    """Samples in ns of each function, one for a call."""
    clock, samples = time.perf_counter_ns, {name: [] for name in functions}
    for _ in range(rounds):
        for name in random.sample(list(functions), len(functions)):
            call, kept = functions[name], samples[name]
            for number in range(2 * BLOCK):
                start = clock()
                call()
                taken = clock() - start
                if number >= BLOCK:  # the first half of a block warms caches up
                    kept.append(taken)
    return samples


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(args.threads)
    honest = {case.values[0].name: case.values[0] for case in cases.suite("honest")}
    found = {}
    print(f"{'case':32} {'today ns':>9} {'planned':>9} {'replay':>9}")
    with recording_process() as process:
        for name in args.cases:
            with tempfile.TemporaryDirectory() as scratch:
                found[name] = measure(sides(process, honest[name], Path(scratch)), args.rounds)
            medians = [statistics.median(taken) for taken in found[name].values()]
            print(f"{name:32} {medians[0]:9.0f} {medians[1]:9.0f} {medians[2]:9.0f}", flush=True)
    today = datetime.date.today().isoformat()
    out = args.out or ROOT / f"benchmarks/results/plan-replay-{today}.json"
    command = " ".join(["python", *(Path(word).name for word in sys.argv)])
    head = {
        "command": command,
        "date": today,
        "threads": args.threads,
        "columns": ["today", "planned", "replay"],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        json.dumps(head | {"environment": describe("cpu", args.threads), "samples_ns": found}) + "\n"
    )


if __name__ == "__main__":
    main()
