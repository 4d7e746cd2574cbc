"""`passagent run`, `resume` and `fork`: three beginnings of one search, which is shown and summed up here."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from passagent.errors import EXIT_INTERRUPTED, PassagentError
from passagent.options import ForkOptions, ResumeOptions, RunOptions, config_of, settings_of
from passagent.tasks.reader import load_task

if TYPE_CHECKING:
    from passagent.search.session import Session
    from passagent.search.setup import Parts
    from passagent.search.thread import Stoppable
    from passagent.tasks import Task
    from passagent.view.progress import Screen

ECHO_S = 0.1
"""Two signals within this time are one: `timeout` sends its own to the process, then to its group."""


class Interrupted(PassagentError):
    """A person stopped the work; what was made is stored."""

    exit_code = EXIT_INTERRUPTED


def started(
    task: Task | str | Path, options: RunOptions, parts: Parts | None = None
) -> AbstractContextManager[Session]:
    """Have a search of a task ready: the equal one that was left unfinished, unless `new`.

    Raises PassagentError.
    """
    from passagent.search import setup

    loaded = load_task(task) if isinstance(task, str | Path) else task
    config, place = config_of(RunOptions, options), options.get("runs_dir", "runs")
    return setup.started(place, loaded, config, options.get("new", False), parts)


def resumed(name: str, options: ResumeOptions, parts: Parts | None = None) -> AbstractContextManager[Session]:
    """Have a run ready that goes on where it was left. Raises PassagentError."""
    from passagent.search import setup

    settings = settings_of(ResumeOptions, options)
    return setup.resumed(options.get("runs_dir", "runs"), name, settings, parts)


def run(
    task_path: str,
    options: RunOptions,
    as_json: bool,
    parts: Parts | None = None,
) -> None:
    """Search for passes for a task; see `started`. Raises PassagentError; Interrupted after Ctrl-C."""
    with started(task_path, options, parts) as session:
        if session.is_resumed:
            same = "it has this task and these settings (--new starts another)"
            print(f"going on with run {session.run.id}: {same}", file=sys.stderr)
        search_run(session, as_json)


def resume(name: str, options: ResumeOptions, as_json: bool, parts: Parts | None = None) -> None:
    """Go on with a run where it was left. Raises PassagentError; Interrupted after Ctrl-C."""
    with resumed(name, options, parts) as session:
        search_run(session, as_json)


def fork(
    name: str, node_id: int, options: ForkOptions, runs_dir: str, as_json: bool, parts: Parts | None = None
) -> None:
    """Search on from a node of a run, in a new run. Raises PassagentError; Interrupted after Ctrl-C."""
    from passagent.search import setup

    settings = settings_of(ForkOptions, options)
    with setup.forked(runs_dir, name, node_id, settings, parts) as session:
        run = session.run
        print(f"run {run.id} starts from node {node_id} of run {run.forked_run}", file=sys.stderr)
        search_run(session, as_json)


def search_run(session: Session, as_json: bool) -> None:
    """Run a session and print its summary. Raises what the search raises, with how to go on."""
    from passagent.search import setup
    from passagent.store import runs
    from passagent.store.pass_library import library_path, library_text
    from passagent.store.sessions import resume_command
    from passagent.view.progress import SearchProgress
    from passagent.view.run_summary import run_data, run_text
    from passagent.view.text import counted

    store, run, task, config = session.store, session.run, session.task, session.config
    go_on = f"go on with: {resume_command(store, run.id)}"
    interrupted = f"interrupted; everything is stored, {go_on}"
    stream = sys.stderr if as_json else sys.stdout
    print(
        f"run {run.id}: {task.name} ({counted(len(task.subgraphs), 'graph')}), {config.model.label}, "
        f"{config.evaluator.device}, {counted(run.islands, 'island')}, "
        f"{counted(config.search.iters, 'episode')}, "
        f"seed {run.seed}; {library_text(library_path(config.experience.library, store.runs_dir))}; "
        f"log: {store.runs_dir / run.id / 'run.log'}",
        file=stream,
        flush=True,
    )
    progress = SearchProgress(store, run, stream)

    async def search() -> None:
        stop_on_signals(session, progress, go_on)
        await setup.work(session, progress.on_event)

    try:
        asyncio.run(search())
    except KeyboardInterrupt as error:  # before or after the search, which takes signals itself
        raise Interrupted(interrupted) from error
    finally:
        progress.close()
    run = runs.get_run(store, run.id)
    data = run_data(store, run)
    print(json.dumps(data) if as_json else run_text(store, data))
    if session.is_interrupted:
        raise Interrupted(interrupted)


def stop_on_signals(work: Stoppable, progress: Screen, go_on: str) -> None:
    """Take Ctrl-C and SIGTERM in the running loop: the first stops the work cleanly, the second at once.

    `go_on` says how to go on, to one who stops at once.
    """
    loop = asyncio.get_running_loop()
    last_signal_s = -math.inf

    def on_signal() -> None:
        nonlocal last_signal_s
        before, last_signal_s = last_signal_s, loop.time()
        if last_signal_s - before < ECHO_S:
            return
        if work.is_interrupted:
            progress.close()
            print(f"passagent: killed; everything is stored, {go_on}", file=sys.stderr, flush=True)
            os._exit(EXIT_INTERRUPTED)  # the evaluator ends with its parent
        progress.say("stopping: model calls in flight are finished and stored; Ctrl-C again stops at once")
        work.stop("interrupted", interrupted=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
