"""Torch's own sample inputs against the evaluator: no false alarm, and no off-by-one mask that gets through.

    python benchmarks/opinfo_check.py --work /tmp/opinfo

Fifty operators of torch's op_db, all sample inputs of each, become tasks (`--jobs` at a time). Eager is
judged against itself on each: nothing may be refused or wrong. For ten operators the expert's kernel is
judged as it is, and with a loop that ends one element early: that must be caught, ten times. As many
evaluations are made at once as there are cores for. Tasks and eager's verdicts stay in --work: the same
command goes on.
max_pool2d is not among them: torch has 1,440 samples of it.
Raw results: benchmarks/results/opinfo-check-cpu-DATE.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from evaluator_repeatability import keep

from passagent.config import load_config
from passagent.data.bench.measure import first_pass
from passagent.errors import PassagentError
from passagent.evaluator.candidate import Candidate
from passagent.evaluator.fleet.opening import open_pool
from passagent.sandbox.environment import describe
from passagent.tasks import load_task
from passagent.tasks.reader import GRAPH_LIST
from passagent.tasks.suites.import_problems import import_problems
from passagent.tasks.suites.problems import How, find_problems

OPERATORS = [
    "abs",
    "add",
    "addcmul",
    "addmm",
    "amax",
    "amin",
    "argmax",
    "atan2",
    "bmm",
    "cat",
    "clamp",
    "cos",
    "cumsum",
    "div",
    "erf",
    "exp",
    "expm1",
    "fmax",
    "gather",
    "index_select",
    "log",
    "log1p",
    "logsumexp",
    "matmul",
    "maximum",
    "mean",
    "minimum",
    "mul",
    "neg",
    "nn.functional.avg_pool2d",
    "nn.functional.conv2d",
    "nn.functional.gelu",
    "nn.functional.group_norm",
    "nn.functional.hardswish",
    "nn.functional.layer_norm",
    "nn.functional.leaky_relu",
    "nn.functional.linear",
    "nn.functional.elu",
    "nn.functional.relu",
    "nn.functional.silu",
    "nn.functional.softplus",
    "pow",
    "rsqrt",
    "sigmoid",
    "softmax",
    "sqrt",
    "sub",
    "sum",
    "tanh",
    "where",
]
PLANTED = [
    "abs",
    "tanh",
    "neg",
    "nn.functional.relu",
    "nn.functional.gelu",
    "sqrt",
    "log1p",
    "erf",
    "nn.functional.hardswish",
    "expm1",
    "exp",
    "sigmoid",
    "nn.functional.silu",
    "cos",
    "nn.functional.softplus",
]
"""The first ten that the expert serves whole, and in whose kernel the loop is found."""
LOOP = re.compile(r"j < count;")
TOGETHER = 20
"""Subgraphs that are judged at once."""
QUICK = {
    "evaluator.budget_s": 1e-6,
    "evaluator.threads": 1,
}
"""Verdicts are asked for, not speed."""


def main() -> None:
    """Import, judge, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=86400.0, help="begin no evaluation after this time")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    work, end = Path(asked.work), time.monotonic() + asked.seconds
    rows = imported(work / "tasks", asked.jobs)
    tasks = {row.name: row.tasks for row in rows if row.reason is None}
    planted, own = asyncio.run(verdicts(work, tasks, end))
    data: dict[str, Any] = {
        "environment": describe("cpu", 1),
        "operators": len(tasks),
        "not_imported": {row.name: f"{row.reason}: {row.message}" for row in rows if row.reason},
        "calls_left_out": {row.name: row.left_out for row in rows if row.left_out},
        "eager": own,
        "planted": planted,
    }
    alarms = sum(sum(one["statuses"].values()) - one["statuses"].get("ok", 0) for one in own)
    judged = sum(sum(one["statuses"].values()) for one in own)
    caught = sum(one["planted"] == "wrong_result" for one in planted)
    print(f"eager against itself: {alarms} of {judged} samples of {len(tasks)} operators were not ok")
    print(f"off-by-one masks: {caught} of {len(planted)} caught")
    print(f"wrote {keep('opinfo-check', 'cpu', asked.out, data)}")


async def verdicts(work: Path, tasks: dict[str, list[str]], end: float) -> tuple[list[Any], list[Any]]:
    """Rows of the planted masks, and of eager against itself."""
    pool = open_pool(load_config(None, QUICK).evaluator, tell=lambda text: print(text, flush=True))
    try:
        planted = [one async for one in with_masks(pool, work / "tasks", tasks, end)]
        return planted, await against_itself(pool, work, tasks, end)
    finally:
        await pool.close()


def imported(out: Path, jobs: int) -> list[Any]:
    """A row for each operator; all of its samples are its task's subgraphs."""
    every = {"arguments": [{"samples": 10**6}]}
    problems = [one.model_copy(update=every) for one in find_problems("opinfo", ",".join(OPERATORS), ())]
    rows = []
    for row in import_problems(problems, out, How(timeout_s=1200, jobs=jobs)):
        rows.append(row)
        print(f"{len(rows)}/{len(problems)} {row.name}: {row.reason or 'imported'} {row.message}", flush=True)
    return rows


async def against_itself(pool: Any, work: Path, tasks: dict[str, list[str]], end: float) -> list[Any]:
    """Eager in the candidate's place, on the samples of several operators at a time."""
    places = [
        str(graph.path.resolve())
        for names in tasks.values()
        for name in names
        for graph in load_task(work / "tasks" / name).subgraphs
    ]
    groups = [places[first : first + TOGETHER] for first in range(0, len(places), TOGETHER)]
    waiting, rows = iter(enumerate(groups)), dict[int, Any]()

    async def in_turn() -> None:
        for number, own in waiting:
            group = work / f"group_{number}"
            kept = group / "verdicts.json"
            if kept.exists():
                rows[number] = json.loads(kept.read_text())
            elif time.monotonic() < end:
                group.mkdir(exist_ok=True)
                (group / GRAPH_LIST).write_text("".join(f"{one}\n" for one in own))
                graphs = (await pool.evaluate(group, "eager")).graphs
                wrong = {one.name: f"{one.status}: {one.error}" for one in graphs if one.status != "ok"}
                rows[number] = {"statuses": dict(Counter(one.status for one in graphs)), "not_ok": wrong}
                kept.write_text(json.dumps(rows[number]))
                print(number, rows[number], flush=True)

    await asyncio.gather(*(in_turn() for _ in range(pool.size)))
    left = sum(len(own) for number, own in enumerate(groups) if number not in rows)
    print(f"{left} of {len(places)} samples were not judged")
    return [rows[number] for number in sorted(rows)]


async def with_masks(pool: Any, place: Path, tasks: dict[str, list[str]], end: float) -> Any:
    """The expert's kernels of ten operators, as they are and with one element less."""
    done = 0
    for word in PLANTED:
        if done == 10 or time.monotonic() > end:
            return
        name = word.replace(".", "_")
        try:
            task = load_task(place / tasks[name][0])
            files = first_pass(task, "cpu").files
        except (PassagentError, KeyError) as error:
            print(f"{name}: {error}", flush=True)
            continue
        short = {key: LOOP.sub("j < count - 1;", text) for key, text in files.items()}
        if short == files:
            print(f"{name}: no loop to cut short", flush=True)
            continue
        statuses = [(await pool.evaluate(task.path, Candidate(one))).status for one in (files, short)]
        row = {
            "operator": word,
            "subgraphs": len(task.subgraphs),
            "as_is": statuses[0],
            "planted": statuses[1],
        }
        print(row, flush=True)
        if statuses[0] == "ok":  # else samples of several ranks, not all of which it serves
            done += 1
            yield row


if __name__ == "__main__":
    main()
