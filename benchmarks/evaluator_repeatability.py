"""How far a measurement can be trusted: eager against itself, repeats, and a planted slow-down of 5%.

    python benchmarks/evaluator_repeatability.py TASKS... --device cuda --subgraphs 60 --repeats 10

Three parts, on subgraphs chosen by a fixed seed. Files of 2026-11-24 and before hold PassBench's protocol
beside passagent's; passbench_process.py measures by it.

- A/A: eager judged in a candidate's place. 1.00 is the truth.
- Planted: the same, with calls in the candidate's place that really take 5% longer. The A/A measurement of
  the subgraph is what is planted with 0%: what is seen there is a false alarm.
- Repeats: the same candidate (the expert's; eager where it declines) judged again and again, in rounds.

`--budget` stops after so many seconds and reports what was measured until then. Raw results, all samples
included, go to benchmarks/results/evaluator-repeatability-<device>-<date>.json.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from planted_slowdown import PlantedGraph, PlantedReply, planting

from passagent.config import EvaluatorConfig
from passagent.errors import PassagentError
from passagent.evaluator.judging.judging import Subject
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.result import Candidate
from passagent.evaluator.runner.process import Worker
from passagent.evaluator.runner.worker_messages import Request, TakeGraph
from passagent.expert.author import author
from passagent.expert.choices import default, neighbours
from passagent.expert.read import graph_of
from passagent.tasks import load_task
from passagent.tasks.reader import Task

ROOT = Path(__file__).resolve().parents[1]
SEED = 0
PLANTED = 0.05
REPEATED = 3
"""Tasks whose candidates are judged again and again."""
GRAPHS = 3
"""Subgraphs of each, the first ones."""
ELEMENTS = 1 << 24
"""Of a subgraph's inputs, in tasks that are repeated, at most: drawing more takes longer than measuring."""
SHARES = {"pairs": 0.5, "repeats": 1.0}
"""Of the budget: each part may start something until then."""
LARGE = 5_000_000
"""Bytes of raw results from which on they are compressed."""


class Budget:
    """Seconds for everything; a step is started only if the last ones tell that it will end in time."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._started = time.monotonic()
        self._last: deque[float] = deque([0.0], maxlen=5)

    def allows(self, share: float = 1.0) -> bool:
        """Whether one more step fits into so much of the budget."""
        return self.seconds is None or self.elapsed() + max(self._last) < share * self.seconds

    def elapsed(self) -> float:
        """Since the start, s."""
        return time.monotonic() - self._started

    @contextmanager
    def step(self) -> Iterator[None]:
        """Something that `allows` will be asked for again."""
        begun = time.monotonic()
        yield
        self._last.append(time.monotonic() - begun)


@contextmanager
def slowed(share: float, planted: set[float]) -> Iterator[None]:
    """During an evaluation: plant `share`; `planted`: the shares that workers confirm."""
    ask = Worker.ask

    def asking(self: Worker, request: Request[Any], *args: Any) -> Any:
        if isinstance(request, TakeGraph) and share:
            request = PlantedGraph(**dict(request), planted=share)
        answer = ask(self, request, *args)
        if isinstance(answer.said, PlantedReply) and answer.said.planted is not None:
            planted.add(answer.said.planted)
        return answer

    Worker.ask = asking  # type: ignore[method-assign]
    try:
        yield
    finally:
        Worker.ask = ask  # type: ignore[method-assign]


def judge(referee: Referee, task: Task, subject: Subject, planted: float = 0.0) -> dict[str, Any]:
    """One evaluation as plain data; its failure as `error`."""
    confirmed: set[float] = set()
    referee.workers.eager.close()  # what is planted is planted as a worker takes a graph
    name = subject if isinstance(subject, str) else "expert"
    record: dict[str, Any] = {"task": task.name, "subject": name, "planted": planted}
    started = time.monotonic()
    try:
        with slowed(planted, confirmed):
            evaluation = referee.evaluate(task, subject)
    except PassagentError as error:
        return record | {"error": str(error), "seconds": time.monotonic() - started}
    record |= {"status": evaluation.status, "error": evaluation.error, "as_score": evaluation.as_score}
    record |= {"seconds": time.monotonic() - started, "environment": evaluation.environment}
    record["graphs"] = [_graph(graph) for graph in evaluation.graphs]
    if planted and planted not in confirmed and any(graph["speedup"] for graph in record["graphs"]):
        raise SystemExit("nothing was planted: the fork server did not read sitecustomize.py")
    return record


def _graph(graph: Any) -> dict[str, Any]:
    found = {"name": graph.name, "status": graph.status, "speedup": None, "unstable": graph.unstable}
    if graph.speedup is not None:
        found |= {"speedup": graph.speedup.e2e, "low": graph.speedup.low, "high": graph.speedup.high}
        found |= {"eager_ns": _ns(graph.eager_samples_ms), "compiled_ns": _ns(graph.compiled_samples_ms)}
        found |= {"blocks": graph.blocks}
    return found


def _ns(samples_ms: list[float]) -> list[int]:
    return [round(sample * 1e6) for sample in samples_ms]


def expert_candidates(task: Task, device: str, count: int) -> list[Candidate]:
    """Up to `count` candidates of the expert's, of different plans; none where it finds nothing to fuse."""
    target = device.partition(":")[0]
    graphs = [graph_of(subgraph) for subgraph in task.subgraphs]
    first = author(graphs, target, default(target))
    plans = neighbours(default(target), target, "memory", first.operators, SEED)
    written = itertools.chain([first], (author(graphs, target, plan) for plan in plans))
    files = (authored.files for authored in itertools.islice(written, 4 * count))
    return [Candidate(one) for one in itertools.islice(filter(None, files), count)]


def first_subgraphs(paths: list[Path], count: int) -> list[Task]:
    """The first subgraph of `count` tasks, each as a task of its own."""
    chosen = random.Random(SEED).sample(sorted(paths), min(count, len(paths)))
    tasks = [load_task(path) for path in chosen]
    return [replace(task, subgraphs=task.subgraphs[:1]) for task in tasks]


def pairs(referee: Referee, tasks: list[Task], budget: Budget) -> list[dict[str, Any]]:
    """Of each subgraph an A/A measurement and a planted one, in random order."""
    coin = random.Random(SEED)
    records = []
    for task in tasks:
        if not budget.allows(SHARES["pairs"]):
            break
        with budget.step():
            for planted in coin.sample([0.0, PLANTED], 2):
                records.append(judge(referee, task, "eager", planted))
    return records


def right_candidates(
    referee: Referee, paths: list[Path], device: str, budget: Budget
) -> list[tuple[Task, Subject]]:
    """Tasks with a candidate that is right on their first subgraphs; eager where the expert's is not."""
    found: list[tuple[Task, Subject]] = []
    for path in random.Random(SEED + 1).sample(sorted(paths), len(paths)):
        task = load_task(path)
        task = replace(task, subgraphs=task.subgraphs[:GRAPHS])
        if max(sum(meta.numel for meta in graph.inputs) for graph in task.subgraphs) > ELEMENTS:
            continue
        if len(found) == REPEATED or not budget.allows(SHARES["repeats"]):
            break
        with budget.step():
            try:
                written: list[Subject] = [*expert_candidates(task, device, 1)]
            except PassagentError:
                written = []
            right = [one for one in written if judge(referee, task, one).get("status") == "ok"]
            found.append((task, right[0] if right else "eager"))
    return found


def repeats(
    referee: Referee, subjects: list[tuple[Task, Subject]], count: int, budget: Budget
) -> list[dict[str, Any]]:
    """`count` rounds over the candidates."""
    records = []
    for number, (task, subject) in itertools.product(range(count), subjects):
        if not budget.allows(SHARES["repeats"]):
            break
        with budget.step():
            records.append(judge(referee, task, subject) | {"repeat": number})
    return records


def table_a_a(measured: list[dict[str, Any]]) -> list[str]:
    """Rows of the A/A table."""
    lines = [
        f"{'A/A':20} {'n':>4} {'within 1%':>9} {'2%':>5} {'5%':>5} {'sd of log':>9} "
        f"{'interval holds 1':>16} {'unstable':>8}"
    ]
    graphs = timed(measured, 0.0)
    held = f"{share(g['low'] <= 1 <= g['high'] for g in graphs):>16}" if graphs else ""
    ours = f" {held} {sum(g['unstable'] for g in graphs):>8}"
    lines.append(_spread("passagent", [g["speedup"] for g in graphs]) + ours)
    failed = [r for r in measured if not any(g["speedup"] for g in r.get("graphs", []))]
    for record in failed:
        lines.append(f"not measured: {record['task']}: {record['error']}")
    return lines


def _spread(name: str, speedups: list[float]) -> str:
    if len(speedups) < 2:
        return f"{name:20} {len(speedups):>4}"
    within = [share(abs(s - 1) <= limit for s in speedups) for limit in (0.01, 0.02, 0.05)]
    deviation = statistics.stdev(math.log(s) for s in speedups)
    return f"{name:20} {len(speedups):>4} {within[0]:>9} {within[1]:>5} {within[2]:>5} {deviation:>9.2%}"


def table_planted(measured: list[dict[str, Any]]) -> list[str]:
    """Rows of the table of planted slow-downs."""
    low, high = 0.95 - 0.02, 0.95 + 0.02
    lines = [f"{'planted':26} {'n':>4} {'interval below 1':>16} {'0.95 +- 0.02':>12} {'median ratio':>12}"]
    for planted in (0.0, PLANTED):
        graphs = timed(measured, planted)
        if not graphs:
            continue
        ratios = [g["speedup"] for g in graphs]
        below, near = share(g["high"] < 1 for g in graphs), share(low <= r <= high for r in ratios)
        middle = statistics.median(ratios)
        lines.append(f"{planted:<26.0%} {len(ratios):>4} {below:>16} {near:>12} {middle:>12.4f}")
    return lines


def table_repeats(measured: list[dict[str, Any]]) -> list[str]:
    """Rows of the table of repeats: the standard deviation of log AS."""
    lines = [f"{'repeats':40} {'by':6} {'AS':>6} {'sd of log AS':>24}"]
    variances: list[float] = []
    for task in dict.fromkeys(record["task"] for record in measured):
        own = [r for r in measured if r["task"] == task]
        scores = [r["as_score"] for r in own if r.get("as_score")]
        logs = [math.log(value) for value in scores]
        cell = "-"
        if len(logs) > 1:
            variances.append(statistics.variance(logs))
            cell = f"{statistics.stdev(logs):.2%} ({len(logs)})"
        middle = statistics.median(scores or [math.nan])
        lines.append(f"{task[:40]:40} {own[0]['subject']:6} {middle:>6.3f} {cell:>24}")
    pooled = f"{math.sqrt(statistics.mean(variances)):.2%}" if variances else "-"
    lines.append(f"{'pooled over tasks':54} {pooled:>24}")
    return lines


def timed(records: list[dict[str, Any]], planted: float) -> list[dict[str, Any]]:
    """The timed subgraphs of the evaluations with so much planted."""
    graphs = [g for r in records if r["planted"] == planted for g in r.get("graphs", [])]
    return [graph for graph in graphs if graph["speedup"] is not None]


def share(hits: Iterator[bool]) -> str:
    """Of the values those that are true, in per cent."""
    values = list(hits)
    return f"{sum(values) / len(values):.0%}"


def keep(name: str, device: str, out: Path | None, data: dict[str, Any]) -> Path:
    """Write raw results with command, commit and date; compressed if they are large.

    A machine that holds a copy of the tree without its history is told the commit by PASSAGENT_COMMIT.
    """
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    commit = os.environ.get("PASSAGENT_COMMIT") or found.stdout.strip()
    today = datetime.date.today().isoformat()
    arguments = [str(Path(word).name) if "/" in word else word for word in sys.argv]
    head = {"command": " ".join(["python", *arguments]), "commit": commit or "unknown"}
    head["date"] = today
    text = json.dumps(head | data, separators=(",", ":")) + "\n"
    path = out or ROOT / "benchmarks/results" / f"{name}-{device.replace(':', '')}-{today}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if len(text) > LARGE and path.suffix != ".gz":
        path.unlink(missing_ok=True)
        path = path.with_name(path.name + ".gz")
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--subgraphs", type=int, default=60, help="of the A/A and planted measurements")
    parser.add_argument("--repeats", type=int, default=10, help="of each repeated candidate")
    parser.add_argument("--budget", type=float, help="seconds")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    budget = Budget(args.budget)
    tasks = first_subgraphs(args.tasks, args.subgraphs)
    data: dict[str, Any] = {"seconds": {}, "environment": {}}

    def done(part: str, before: float, lines: list[str]) -> None:
        data["seconds"][part] = round(budget.elapsed() - before, 1)
        data["environment"] = _environment(data) or data["environment"]
        path = keep(
            "evaluator-repeatability", args.device, args.out, data
        )  # at once: what is measured is kept
        print(f"{part}: {data['seconds'][part]} s ({path.name})", *lines, "", sep="\n", flush=True)

    config = EvaluatorConfig(device=args.device)
    with planting(), Referee(config) as ours:
        done("start", 0.0, [])
        begun = budget.elapsed()
        data["pairs"] = pairs(ours, tasks, budget)
        done("A/A and planted", begun, [*table_planted(data["pairs"]), *table_a_a(data["pairs"])])
        begun = budget.elapsed()
        subjects = right_candidates(ours, args.tasks, args.device, budget)
        data["repeats"] = repeats(ours, subjects, args.repeats, budget)
        done("repeats", begun, table_repeats(data["repeats"]))
    print(f"{budget.elapsed():.0f} s in all")


def _environment(data: dict[str, Any]) -> dict[str, Any]:
    """The machine, as the first evaluation tells it; it is taken out of all of them."""
    records = [record for value in data.values() if isinstance(value, list) for record in value]
    found = [record.pop("environment", {}) for record in records]
    return next((one for one in found if one), {})


if __name__ == "__main__":
    try:
        main()
    except PassagentError as problem:
        sys.exit(f"error: {problem}")
