"""A benchmark's tables for people, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from passagent.data.bench import measure
from passagent.data.bench.kernelbench import LEVELS_P, Line
from passagent.data.bench.measure import Work
from passagent.data.bench.results import Results, Row
from passagent.data.bench.summary import METRICS, Estimate, Summary
from passagent.store import Store, runs
from passagent.store.events import Event, OnEvent
from passagent.store.runs import Run
from passagent.view.evaluation import GRAPH_FIELDS
from passagent.view.progress import PROGRESS, Screen, event_line
from passagent.view.text import TableData, by_column, clock, number, table

HEADERS = {
    "fast_1": "fast_1 (%)",
    "sample_cr": "Samp. CR (%)",
    "subgraph_cr": "Sub. CR (%)",
    "gmean_speedup": "G-mean",
    "as_score": "AS",
}


def bench_table(summaries: Sequence[Summary]) -> TableData:
    """Return PassNet's Table 1: a row for each compiler, the 95% intervals in brackets."""
    columns: dict[str, Callable[[Summary], str]] = {
        "compiler": lambda summary: summary.compiler,
        "dispatch": lambda summary: summary.dispatch,
        ">tasks": lambda of: str(of.tasks) if of.tasks == of.asked else f"{of.tasks}/{of.asked}",
        ">subgraphs": lambda summary: str(summary.subgraphs),
        **{f">{HEADERS[metric]}": partial(cell, metric=metric) for metric in METRICS},
    }
    drop = ["dispatch", "subgraphs", "Sub. CR (%)", "fast_1 (%)", "Samp. CR (%)"]
    return TableData(*by_column(summaries, columns), drop, indent="")


def suite_text(lines: Sequence[Line]) -> str:
    """A line for each compiler, base and level; the means' 95% intervals in brackets."""

    def share_faster(line: Line, p: float) -> str:
        return _shown(Estimate(line.fast[p].value), 100, 1)

    def of_eager(line: Line, estimate: Estimate, scale: float, digits: int) -> str:
        return _shown(estimate, scale, digits) if line.base == "eager" else ""

    columns: dict[str, Callable[[Line], str]] = {
        "compiler": lambda line: line.compiler,
        "against": lambda line: line.base,
        "level": lambda line: line.level,
        ">problems": lambda line: str(line.problems),
        **{f">fast_{p:g} (%)": partial(share_faster, p=p) for p in LEVELS_P},
        ">G-mean": lambda line: _shown(line.gmean, 1, 3),
        ">AS": lambda line: of_eager(line, line.as_score, 1, 3),
        ">of bandwidth (%)": lambda line: of_eager(line, Estimate(line.light.value), 100, 1),
    }
    drop = ["of bandwidth (%)", "fast_0 (%)", "AS", "fast_2 (%)", "problems"]
    return table(*by_column(lines, columns), indent="", drop=drop)


def suite_data(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the lines as plain data; shares from 0 to 1."""
    return [
        asdict(line) | {"fast": {f"{p:g}": asdict(share) for p, share in line.fast.items()}} for line in lines
    ]


def cell(summary: Summary, metric: str) -> str:
    """A figure in the table's unit, its interval in brackets."""
    is_share = metric in ("fast_1", "sample_cr", "subgraph_cr")
    return _shown(getattr(summary, metric), *((100, 1) if is_share else (1, 3)))


def data(summaries: Sequence[Summary], rows: Sequence[Row]) -> dict[str, Any]:
    """The table and what it is made of, raw samples left out."""
    return {
        "compilers": [asdict(summary) for summary in summaries],
        "results": [
            {
                "task": row.task,
                "compiler": row.compiler,
                "run": row.run,
                "left_to_eager": row.left,
                "status": row.evaluation.status,
                "as_score": row.evaluation.as_score,
                "graphs": [
                    graph.model_dump(mode="json", include=GRAPH_FIELDS) for graph in row.evaluation.graphs
                ],
            }
            for row in rows
            if row.evaluation is not None
        ],
    }


def _shown(estimate: Estimate, scale: float, digits: int) -> str:
    """Return the value, times `scale`, with its interval in brackets if it has one."""

    def shown(value: float | None) -> str:
        return number(None if value is None else value * scale, digits)

    ends = "" if estimate.low is None else f" [{shown(estimate.low)}-{shown(estimate.high)}]"
    return shown(estimate.value) + ends


class BenchProgress(Screen, measure.Watch):
    """A line for each measurement. See Watch of a benchmark."""

    total = count = before = 0
    go_on = "nothing was measured"

    def planned(self, results: Results, works: list[Work], todo: list[Work], library: str) -> None:
        """Take the work that is planned, as Watch.planned does."""
        self.total, self.go_on = len(works), results.go_on
        self.count = self.before = self.total - len(todo)
        self.print(
            f"{self.total} measurements on {results.identity['device']}, {self.count} of them made before; "
            f"{library}results: {results.path}"
        )
        if missing := sum(work.subject is measure.NO_PASSES for work in works):
            count = sum(work.row.compiler == measure.PASS_DIR for work in works)
            self.print(f"no passes for {missing} of {count} tasks: judged as passes that do not load")

    def say(self, text: str) -> None:
        """Print a line."""
        self.print(f"          {text}")

    def search(self, store: Store, run: Run) -> OnEvent:
        """Return what prints the events of a search."""
        roles = {island.island: island.role for island in runs.islands(store, run.id)}

        def on_event(event: Event) -> None:
            if isinstance(event, PROGRESS):
                self.say(event_line(event, roles))

        return on_event

    def done(self, row: Row) -> None:
        """Print a result."""
        self.count += 1
        result = f"not measured: {row.error}"
        if row.left and row.error is None:
            result = "left whole to eager, counted as 1.0"
        elif row.evaluation is not None and row.error is None:
            judged = row.evaluation
            correct = sum(graph.status == "ok" for graph in judged.graphs)
            result = (
                f"{judged.status}, AS {number(judged.as_score)}, speedup {number(judged.gmean_speedup)}, "
                f"{correct}/{len(judged.graphs)} correct, {judged.seconds:.1f} s"
            )
        head = f"[{clock(self.elapsed_s):>5}] {self.count}/{self.total}"
        remaining = self.left_text(self.count - self.before, self.total - self.count)
        self.print(f"{head} {row.task} {row.compiler}: {result}{remaining}")
