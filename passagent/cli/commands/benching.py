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
from passagent.data.bench.measure import NO_PASSES, PASS_DIR, Watch
from passagent.data.bench.sweep import Measured, Planned, Request, run
from passagent.errors import PassagentError
from passagent.options import BenchOptions
from passagent.view import bench_table
from passagent.view.bench_table import BenchProgress

Form = Literal["table", "json", "markdown"]


def bench(tasks: Sequence[str], options: BenchOptions, plots: str | None, form: Form) -> None:
    """Measure what is not measured yet, then print the table in the form asked for.

    Raises PassagentError if a task could not be measured (after the table), Interrupted after Ctrl-C.
    """
    if plots:
        from passagent.view.pictures import check_matplotlib

        check_matplotlib("--plots")  # now, rather than when the curves are drawn
    from passagent.api import bench_request

    stream = sys.stdout if form == "table" else sys.stderr  # who reads the data gets the data alone
    measured = _measure(bench_request(tasks, options), stream)
    _show(measured, plots, form, stream)
    if measured.failed:
        first = measured.failed[0]
        raise PassagentError(
            f"{len(measured.failed)} not measured, such as {first['task']}: {first['reason']}; "
            "the same command tries them again"
        )


def _show(measured: Measured, plots: str | None, form: Form, stream: Any) -> None:
    """Print the table, and draw the curves."""
    _print(form, measured, stream)
    if plots:
        from passagent.view.pictures import draw_bench

        rows = [row for row in measured.rows if row.error is None and row.evaluation is not None]
        for path in draw_bench(Path(plots), measured.summaries, rows):
            print(f"wrote {path}", file=stream)


def _measure(request: Request, stream: Any) -> Measured:
    """The measurements, shown as they come. Raises Interrupted, and what the benchmark raises."""
    shown: list[BenchProgress] = []
    go_on = "nothing was measured"

    def watched(planned: Planned) -> Watch:
        nonlocal go_on
        go_on = planned.go_on
        count, done = len(planned.works), len(planned.works) - len(planned.todo)
        print(
            f"{count} measurements on {planned.device}, {done} of them made before; "
            f"{planned.library}{'; ' if planned.library else ''}results: {planned.path}",
            file=stream,
            flush=True,
        )
        missing = sum(work.subject is NO_PASSES for work in planned.works)
        if missing:
            asked = sum(work.compiler == PASS_DIR for work in planned.works)
            print(f"no passes for {missing} of {asked} tasks: judged as passes that do not load", file=stream)
        shown.append(BenchProgress(count, done, stream))
        return shown[0]

    async def until_stopped() -> Measured:
        task = asyncio.ensure_future(run(request, watched))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await task

    try:
        return asyncio.run(until_stopped())
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise Interrupted(f"interrupted; {go_on}") from None
    finally:
        for progress in shown:
            progress.close()


def _print(form: Form, found: Measured, stream: Any) -> None:
    measured = [row for row in found.rows if row.error is None]
    match form:
        case "json":
            shown = bench_table.data(found.summaries, measured)
            if found.unseen:
                shown["unseen_shapes"] = [asdict(one) | {"ratio": one.ratio} for one in found.unseen]
            if found.suite:
                shown["suite"] = bench_table.suite_data(found.suite)
            if found.losses:
                shown["losses"] = [asdict(one) for one in found.losses]
            shown |= {
                "failed": found.failed,
                "identity": found.identity,
                "results_files": [*map(str, found.paths)],
            }
            print(json.dumps(shown))
        case "markdown":
            sys.stdout.write(bench_table.bench_table(found.summaries).markdown())
        case "table":
            print(bench_table.bench_table(found.summaries))
            if found.unseen:
                print(bench_table.unseen_text(found.unseen))
            if found.suite:
                print(bench_table.suite_text(found.suite))
            for one in found.losses:
                print(f"\n{bench_table.losses_text(one)}")
    if form != "json":
        for item in found.failed:
            print(f"not measured: {item['task']} {item['compiler'] or ''}: {item['reason']}", file=stream)
        if left := sorted({row.task for row in measured if row.left}):
            print(f"left whole to eager by the expert, counted as 1.0: {', '.join(left)}", file=stream)
    measured_tasks = {
        frozenset(row.task_key for row in measured if row.compiler == s.compiler) for s in found.summaries
    }
    if len(measured_tasks) > 1:
        print(
            "the compilers were not measured on the same tasks: their lines cannot be compared", file=stream
        )
