"""How far a measurement can be trusted: eager against itself, repeats, and a planted slow-down of 5%.

    python benchmarks/evaluator_repeatability.py TASKS... --device cuda --subgraphs 60 --repeats 10

Three parts, on subgraphs chosen by a fixed seed; PassBench's protocol (25 + 100 calls of the candidate, then
the same of eager, medians) is measured beside passagent's. `direct`: in the same workers, right after
passagent's own calls, which leave them warm; `as it is`: evaluations of their own with protocol `passbench`.

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
from passagent.evaluator import score
from passagent.evaluator.judging import judging
from passagent.evaluator.judging.judging import Subject
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.result import Candidate, Evaluation
from passagent.evaluator.runner.process import Worker
from passagent.evaluator.runner.worker_messages import Request, TakeGraph
from passagent.evaluator.timing.passbench import measure_passbench
from passagent.expert.author import author
from passagent.expert.choices import default, neighbours
from passagent.expert.read.reading import graph_of
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
SHARES = {"pairs": 0.5, "as it is": 0.54, "repeats": 0.96, "repeats as it is": 1.0}
"""Of the budget: each part may start something until then."""
LARGE = 5_000_000
"""Bytes of raw results from which on they are compressed."""
OURS, DIRECT, AS_IT_IS = "passagent", "PassBench, direct", "PassBench, as it is"


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
def beside(share: float, measured: dict[str, Any], planted: set[float]) -> Iterator[None]:
    """During an evaluation: plant `share`, and measure by PassBench's protocol in the same workers.

    `measured`: of a subgraph's name the Timing by that protocol; `planted`: the shares that workers confirm.
    """
    ask, measure = Worker.ask, judging.measure

    def asking(self: Worker, request: Request[Any], *args: Any) -> Any:
        if isinstance(request, TakeGraph) and share:
            request = PlantedGraph(**dict(request), planted=share)
        answer = ask(self, request, *args)
        if isinstance(answer.said, PlantedReply) and answer.said.planted is not None:
            planted.add(answer.said.planted)
        return answer

    def both(pair: Any) -> Any:
        timing = measure(pair)
        name = pair.reference.subgraph.name
        if name not in measured:  # in the first of the pairs of workers
            measured[name] = measure_passbench(pair.candidate, pair.baseline, pair.reference, pair.config)
        return timing

    Worker.ask, judging.measure = asking, both  # type: ignore[method-assign]
    try:
        yield
    finally:
        Worker.ask, judging.measure = ask, measure  # type: ignore[method-assign]


def judge(referee: Referee, task: Task, subject: Subject, planted: float = 0.0) -> dict[str, Any]:
    """One evaluation as plain data; its failure as `error`."""
    measured: dict[str, Any] = {}
    confirmed: set[float] = set()
    referee.workers.eager.close()  # what is planted is planted as a worker takes a graph
    name = subject if isinstance(subject, str) else "expert"
    record: dict[str, Any] = {"task": task.name, "subject": name, "planted": planted}
    started = time.monotonic()
    try:
        with beside(planted, measured, confirmed):
            evaluation = referee.evaluate(task, subject)
    except PassagentError as error:
        return record | {"error": str(error), "seconds": time.monotonic() - started}
    record |= {"status": evaluation.status, "error": evaluation.error, "as_score": evaluation.as_score}
    record |= {"seconds": time.monotonic() - started, "environment": evaluation.environment}
    record["graphs"] = [_graph(graph, measured.get(graph.name)) for graph in evaluation.graphs]
    if planted and planted not in confirmed and any(graph["speedup"] for graph in record["graphs"]):
        raise SystemExit("nothing was planted: the zygote did not read sitecustomize.py")
    record["passbench_as"] = _passbench_as(evaluation, measured)
    return record


def _graph(graph: Any, passbench: Any) -> dict[str, Any]:
    found = {"name": graph.name, "status": graph.status, "speedup": None, "unstable": graph.unstable}
    if graph.speedup is not None:
        found |= {"speedup": graph.speedup.e2e, "low": graph.speedup.low, "high": graph.speedup.high}
        found |= {"eager_ns": _ns(graph.eager_samples_ms), "compiled_ns": _ns(graph.compiled_samples_ms)}
        found |= {"blocks": graph.blocks}
    if passbench is not None:
        found["passbench"] = {"speedup": passbench.speedup}
        found["passbench"] |= {"eager_ns": passbench.eager.e2e, "compiled_ns": passbench.compiled.e2e}
    return found


def _ns(samples_ms: list[float]) -> list[int]:
    return [round(sample * 1e6) for sample in samples_ms]


def _passbench_as(evaluation: Evaluation, measured: dict[str, Any]) -> float | None:
    """AS of the same evaluation with the speedups by PassBench's protocol."""
    if evaluation.status != "ok" or len(measured) < len(evaluation.graphs):
        return None
    scores = [score.GraphScore(measured[g.name].speedup, g.passes_from_t) for g in evaluation.graphs]
    return score.as_score(scores)


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


def as_it_is(referee: Referee, tasks: list[Task], budget: Budget) -> list[dict[str, Any]]:
    """A/A of the same subgraphs with protocol `passbench`."""
    records = []
    for task in tasks:
        if not budget.allows(SHARES["as it is"]):
            break
        with budget.step():
            records.append(judge(referee, task, "eager"))
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
    referee: Referee, subjects: list[tuple[Task, Subject]], count: int, budget: Budget, share: float
) -> list[dict[str, Any]]:
    """`count` rounds over the candidates."""
    records = []
    for number, (task, subject) in itertools.product(range(count), subjects):
        if not budget.allows(share):
            break
        with budget.step():
            records.append(judge(referee, task, subject) | {"repeat": number})
    return records


def table_a_a(measured: list[dict[str, Any]], strict: list[dict[str, Any]]) -> list[str]:
    """Rows of the A/A table."""
    lines = [
        f"{'A/A':20} {'n':>4} {'within 1%':>9} {'2%':>5} {'5%':>5} {'sd of log':>9} "
        f"{'interval holds 1':>16} {'unstable':>8}"
    ]
    graphs = timed(measured, 0.0)
    held = f"{share(g['low'] <= 1 <= g['high'] for g in graphs):>16}" if graphs else ""
    ours = f" {held} {sum(g['unstable'] for g in graphs):>8}"
    lines.append(_spread(OURS, [g["speedup"] for g in graphs]) + ours)
    lines.append(_spread(DIRECT, [g["passbench"]["speedup"] for g in graphs if "passbench" in g]))
    lines.append(_spread(AS_IT_IS, [g["speedup"] for g in timed(strict, 0.0)]))
    failed = [r for r in [*measured, *strict] if not any(g["speedup"] for g in r.get("graphs", []))]
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
        for name, ratios in (
            (OURS, [g["speedup"] for g in graphs]),
            (DIRECT, [g["passbench"]["speedup"] for g in graphs if "passbench" in g]),
        ):
            below = share(g["high"] < 1 for g in graphs) if name == OURS else "-"
            near = share(low <= r <= high for r in ratios)
            label = f"{planted:4.0%}  {name}"
            lines.append(
                f"{label:26} {len(ratios):>4} {below:>16} {near:>12} {statistics.median(ratios):>12.4f}"
            )
    return lines


def table_repeats(measured: list[dict[str, Any]], strict: list[dict[str, Any]]) -> list[str]:
    """Rows of the table of repeats: the standard deviation of log AS."""
    columns = (OURS, DIRECT, AS_IT_IS)
    lines = [f"{'sd of log AS':40} {'by':6} {'AS':>6} " + " ".join(f"{name:>24}" for name in columns)]
    found: dict[str, list[float]] = {name: [] for name in columns}
    for task in dict.fromkeys(record["task"] for record in measured):
        own = [r for r in measured if r["task"] == task]
        scores = {
            OURS: [r.get("as_score") for r in own],
            DIRECT: [r.get("passbench_as") for r in own],
            AS_IT_IS: [r.get("as_score") for r in strict if r["task"] == task],
        }
        cells = []
        for name in columns:
            logs = [math.log(value) for value in scores[name] if value]
            if len(logs) > 1:
                found[name].append(statistics.variance(logs))
            cells.append(f"{f'{statistics.stdev(logs):.2%} ({len(logs)})' if len(logs) > 1 else '-':>24}")
        middle = statistics.median([value for value in scores[OURS] if value] or [math.nan])
        lines.append(f"{task[:40]:40} {own[0]['subject']:6} {middle:>6.3f} " + " ".join(cells))
    pooled = [f"{f'{math.sqrt(statistics.mean(v)):.2%}' if v else '-':>24}" for v in found.values()]
    lines.append(f"{'pooled over tasks':54} " + " ".join(pooled))
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
    with planting(), Referee(config) as ours, Referee(passbench_config(config)) as theirs:
        done("start", 0.0, [])
        begun = budget.elapsed()
        data["pairs"] = pairs(ours, tasks, budget)
        done("A/A and planted", begun, table_planted(data["pairs"]))
        begun = budget.elapsed()
        data["as_it_is"] = as_it_is(theirs, tasks, budget)
        done("A/A as PassBench has it", begun, table_a_a(data["pairs"], data["as_it_is"]))
        begun = budget.elapsed()
        subjects = right_candidates(ours, args.tasks, args.device, budget)
        data["repeats"] = repeats(ours, subjects, args.repeats, budget, SHARES["repeats"])
        last = SHARES["repeats as it is"]
        data["repeats_as_it_is"] = repeats(theirs, subjects, args.repeats, budget, last)
        done("repeats", begun, table_repeats(data["repeats"], data["repeats_as_it_is"]))
    print(f"{budget.elapsed():.0f} s in all")


def passbench_config(config: EvaluatorConfig) -> EvaluatorConfig:
    """The same settings with PassBench's protocol."""
    return EvaluatorConfig(**config.model_dump() | {"protocol": "passbench"})


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
