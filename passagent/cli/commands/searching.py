"""`passagent run`, `resume` and `fork`: three beginnings of one search, which is shown and summed up here."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from passagent.cli.commands.signals import Interrupted, stop_on_signals
from passagent.config import Config
from passagent.events import Event, OnEvent
from passagent.search import setup
from passagent.search.session import Session
from passagent.search.setup import Prepared
from passagent.search.startup import Parts
from passagent.store import runs
from passagent.store.pass_library import library_path, library_text
from passagent.store.sessions import resume_command
from passagent.system.faults import os_fault
from passagent.tasks import Task
from passagent.view.board import Board
from passagent.view.progress import open_progress
from passagent.view.run_summary import run_data, run_text
from passagent.view.text import counted


def start(
    task: Task,
    config: Config,
    runs_dir: str,
    as_json: bool,
    new: bool,
    parts: Parts,
    events_file: str | None = None,
) -> None:
    """Search for passes for a task; an equal search that was left unfinished is gone on with, unless `new`.

    `events_file`: what happens is appended to it, a JSON object a line (docs/operators.md).
    Raises PassagentError; Interrupted after Ctrl-C.
    """
    with setup.started(runs_dir, task, config, new, parts) as prepared:
        if prepared.is_found:
            same = "it has this task and these settings (--new starts another)"
            print(f"going on with run {prepared.run.id}: {same}", file=sys.stderr)
        with _appended(events_file) as follow:
            search_run(prepared, as_json, follow)


@contextmanager
def _appended(path: str | None) -> Iterator[OnEvent | None]:
    """What writes events to a file as they happen; None where none is asked for. Raises UsageError."""
    if path is None:
        yield None
        return
    try:
        file = Path(path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115
    except OSError as error:
        raise os_fault(error, Path(path), "--events") from error

    def write(event: Event) -> None:
        try:
            file.write(json.dumps(event.as_json()) + "\n")
        except OSError as error:
            raise os_fault(error, Path(path), "--events") from error

    with file:
        yield write


def resume(
    name: str, settings: dict[str, Any], runs_dir: str, as_json: bool, parts: Parts | None = None
) -> None:
    """Go on with a run where it was left. Raises PassagentError; Interrupted after Ctrl-C."""
    with setup.resumed(runs_dir, name, settings, parts or Parts()) as prepared:
        search_run(prepared, as_json)


def fork(
    name: str,
    node_id: int,
    settings: dict[str, Any],
    runs_dir: str,
    as_json: bool,
    parts: Parts | None = None,
) -> None:
    """Search on from a node of a run, in a new run. Raises PassagentError; Interrupted after Ctrl-C."""
    with setup.forked(runs_dir, name, node_id, settings, parts or Parts()) as prepared:
        run = prepared.run
        print(f"run {run.id} starts from node {node_id} of run {run.forked_run}", file=sys.stderr)
        search_run(prepared, as_json)


def search_run(prepared: Prepared, as_json: bool, follow: OnEvent | None = None) -> None:
    """Run a session and print its summary. Raises what the search raises, with how to go on."""
    store, run, task, config = prepared.store, prepared.run, prepared.task, prepared.config
    go_on = f"go on with: {resume_command(store, run.id)}"
    told = f"interrupted; everything is stored, {go_on}"
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
    progress = open_progress(Board.of(store, run), stream)
    sessions: list[Session] = []

    def on_event(event: Event) -> None:
        progress.on_event(event)
        if follow is not None:
            follow(event)

    def begun(session: Session) -> None:
        sessions.append(session)
        stop_on_signals(session, progress, go_on)

    try:
        exported = asyncio.run(setup.work(prepared, on_event, begun))
    except KeyboardInterrupt as error:  # before or after the search, which takes signals itself
        raise Interrupted(told) from error
    finally:
        progress.close()
    run = runs.get_run(store, run.id)
    if as_json:
        print(json.dumps(run_data(store, run, config, exported)))
    else:
        print(run_text(store, run, config, exported))
    if sessions[0].is_interrupted:
        raise Interrupted(told)
