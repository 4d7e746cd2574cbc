"""`passagent collect`: several trials of many tasks; `export` and `check`: what trainers read of them."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from passagent.cli.commands.running import Interrupted, stop_on_signals
from passagent.cli.groups import ExportOptions
from passagent.data.collect.campaign import Collection, open_collection
from passagent.data.collect.trials import outcomes
from passagent.data.export.making import check_directory, make
from passagent.data.pipeline import grouping
from passagent.data.pipeline.grouping import RECORD
from passagent.errors import PassagentError, UsageError
from passagent.options import CollectOptions
from passagent.search.setup import Parts
from passagent.store.pass_library import library_path, library_text
from passagent.view import collect_table
from passagent.view.progress import CollectProgress
from passagent.view.text import counted
from passagent.view.trajectory import summary_text

_GO_ON = "interrupted; everything is stored, the same command goes on"


def collect(tasks: Sequence[str], options: CollectOptions, as_json: bool, parts: Parts | None = None) -> None:
    """Make the trials that are not made yet, then print the table.

    Raises PassagentError if too many tasks are broken or the machine failed a trial (after the table),
    Interrupted after Ctrl-C, UsageError before anything is written.
    """
    stream = sys.stderr if as_json else sys.stdout
    with open_collection(tasks, options, parts) as collection:
        config, broken = collection.config, len(collection.broken)
        print(
            f"{counted(collection.tasks - broken, 'task')}, {counted(len(collection.trials), 'trial')}, "
            f"{len(collection.done)} of them made before; {config.model.label}, {config.evaluator.device}; "
            f"{library_text(library_path(config.experience.library, collection.store.runs_dir))}; "
            f"log: {collection.log}",
            file=stream,
            flush=True,
        )
        if broken:
            print(f"note: {counted(broken, 'task')} cannot be loaded, see the end", file=stream)
        before = [outcomes(collection.store, run_id)[0] for run_id in collection.done.values()]
        progress = CollectProgress(config.model.label, before, len(collection.trials), stream)

        def begun(collection: Collection) -> None:
            stop_on_signals(collection, progress, "the same command goes on")

        try:
            collected = asyncio.run(collection.run(progress, begun))
        except KeyboardInterrupt as error:  # before or after the conversations, which take signals themselves
            raise Interrupted(_GO_ON) from error
        finally:
            progress.close()
    if as_json:
        print(json.dumps(collect_table.all_data(collected)))
    else:
        _print_collected(collected)
    if collected.is_interrupted:
        raise Interrupted(_GO_ON)
    if collected.failed:
        run_id, reason = next(iter(collected.failed.items()))
        raise PassagentError(
            f"{counted(len(collected.failed), 'trial')} failed, such as run {run_id}: {reason}; "
            "the same command tries again"
        )
    if collected.too_broken is not None:
        raise collected.too_broken


def _print_collected(collected: Collection) -> None:
    print(collect_table.figures_table(collected.summaries))
    for path, reason in collected.broken.items():
        print(f"broken: {path}: {reason}")
    for run_id, reason in collected.failed.items():
        print(f"failed: run {run_id}: {reason}")
    if collected.is_interrupted:
        return
    if collected.stop_reason is not None:
        print(f"stopped: {collected.stop_reason}; with a larger limit the same command goes on")
    elif unfinished := collected.unfinished:
        print(
            f"{counted(len(unfinished), 'trial')} not finished, such as run {unfinished[0]['run']}: "
            f"{unfinished[0]['reason']}; the same command goes on"
        )


def export(runs_dirs: list[str], options: ExportOptions, as_json: bool) -> None:
    """Write the data set. Raises UsageError, and PassagentError for what must not go out."""
    summary, out = make(runs_dirs, options, shlex.join(["passagent", *sys.argv[1:]])), str(options["out"])
    print(json.dumps({"out": out, **vars(summary)}) if as_json else summary_text(out, summary))


def check(directory: str, against: list[str], runs_dirs: list[str], as_json: bool) -> None:
    """Compare what `export` or `tasks build` wrote with its record, evaluation tasks and its databases.

    Raises PassagentError where something is not in order, UsageError for another directory.
    """
    if (Path(directory) / RECORD).is_file():
        if runs_dirs:
            raise UsageError(f"{directory}: tasks build made it of no runs; leave out --runs-dir")
        problems = grouping.check(Path(directory))
        problems += grouping.leaks([directory], against) if against else []
        if as_json:
            print(json.dumps({"directory": directory, "ok": not problems, "problems": problems}))
        else:
            print("\n".join(problems) or f"{directory}: in order; training and evaluation share nothing")
        if problems:
            raise PassagentError(f"{directory}: {counted(len(problems), 'problem')}: {problems[0]}")
        return
    rows = check_directory(Path(directory), against, runs_dirs)
    with_what = ["hashes", "secrets", *(["overlap"] if against else []), *(["database"] if runs_dirs else [])]
    if as_json:
        print(json.dumps({"directory": directory, "rows": rows, "checked": with_what}))
    else:
        print(f"{directory}: {counted(rows, 'row')} in order ({', '.join(with_what)})")
