"""`passagent bench`: measure compilers and passes on many tasks, and print PassNet's Table 1."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from passagent.cli.commands.running import Interrupted
from passagent.data.bench.measure import Measured, run
from passagent.errors import PassagentError
from passagent.options import BenchOptions
from passagent.view import bench_table
from passagent.view.bench_table import BenchProgress

Form = Literal["table", "json", "markdown"]


def bench(tasks: Sequence[str], options: BenchOptions, plots: str | None, form: Form) -> None:
    """Measure what is not measured yet, then print the table in the form asked for.

    Raises PassagentError if a task could not be measured (after the table), Interrupted after Ctrl-C.
    """
    stream = sys.stdout if form == "table" else sys.stderr  # who reads the data gets the data alone
    progress = BenchProgress(stream)

    async def until_stopped() -> Measured:
        task = asyncio.ensure_future(run(tasks, options, progress))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await task

    try:
        measured = asyncio.run(until_stopped())
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise Interrupted(f"interrupted; {progress.go_on}") from None
    finally:
        progress.close()
    _print(form, measured, stream)
    if plots:
        from passagent.view.pictures import draw_bench

        rows = [row for row in measured.rows if row.error is None and row.evaluation is not None]
        for path in draw_bench(Path(plots), measured.summaries, rows):
            print(f"wrote {path}", file=stream)
    if measured.failed:
        first = measured.failed[0]
        raise PassagentError(
            f"{len(measured.failed)} not measured, such as {first['task']}: {first['reason']}; "
            "the same command tries them again"
        )


def _print(form: Form, measured: Measured, stream: Any) -> None:
    """Print the table in its form, and below it what it leaves out."""
    rows = [row for row in measured.rows if row.error is None]
    match form:
        case "json":
            data = bench_table.data(measured.summaries, rows)
            if measured.suite:
                data["suite"] = bench_table.suite_data(measured.suite)
            if measured.losses:
                data["losses"] = [asdict(losses) for losses in measured.losses]
            data |= {"failed": measured.failed, "identity": measured.identity}
            print(json.dumps(data | {"results_files": [*map(str, measured.paths)]}))
        case "markdown":
            sys.stdout.write(bench_table.bench_table(measured.summaries).markdown())
        case "table":
            print(bench_table.bench_table(measured.summaries))
            if measured.suite:
                print(bench_table.suite_text(measured.suite))
            for losses in measured.losses:
                print(f"\n{bench_table.losses_text(losses)}")
    if form != "json":
        for item in measured.failed:
            print(f"not measured: {item['task']} {item['compiler'] or ''}: {item['reason']}", file=stream)
        if names := sorted({row.task for row in rows if row.left}):
            print(f"left whole to eager by the expert, counted as 1.0: {', '.join(names)}", file=stream)
    compilers = [summary.compiler for summary in measured.summaries]
    if len({frozenset(row.task_key for row in rows if row.compiler == name) for name in compilers}) > 1:
        print(
            "the compilers were not measured on the same tasks: their lines cannot be compared", file=stream
        )
