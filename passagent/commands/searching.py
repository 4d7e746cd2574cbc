"""`passagent run` and `passagent resume`: set up, search, and say what came of it."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

from passagent.commands.beginning import Parts, begin
from passagent.commands.operating import lift_pause
from passagent.commands.signals import stop_on_signals
from passagent.config import Config, override
from passagent.errors import EXIT_INTERRUPTED, PassagentError, UsageError
from passagent.evaluator.service.pool import EvaluatorPool
from passagent.faults import os_fault
from passagent.models import open_model
from passagent.report.board import Board
from passagent.report.progress import Progress, open_progress
from passagent.report.run_summary import run_data, run_text, runs_dir_flag
from passagent.report.text import counted
from passagent.search.controller import Outcome, search
from passagent.search.events import Trouble
from passagent.search.runlog import run_log
from passagent.search.session import Session
from passagent.search.setup import (
    check_money,
    given_seed,
    new_run,
    open_session,
    same_run,
    stored_config,
    stored_task,
)
from passagent.store import Store, confirmations, nodes, runs
from passagent.store.runs import Run
from passagent.tasks import Task

log = logging.getLogger("passagent.commands")


class Interrupted(PassagentError):
    """A person stopped the search; everything is stored."""

    exit_code = EXIT_INTERRUPTED


def start(task: Task, config: Config, runs_dir: str, as_json: bool, new: bool, parts: Parts) -> None:
    """Search for passes for a task; an equal search that was left unfinished is gone on with, unless `new`.

    Raises PassagentError; Interrupted after Ctrl-C.
    """
    model = parts.model or open_model(config.model)
    check_money(config, model)
    given_seed(config)  # a wrong one is an error before anything is stored
    with Store.open(runs_dir) as store:
        with store.transaction():  # of two that begin at the same moment one makes the run
            found = None if new else same_run(store, task, config)
            begun = found or new_run(store, task, config)
        if found:
            same = "it has this task and these settings (--new starts another)"
            print(f"going on with run {found.id}: {same}", file=sys.stderr)
        search_run(store, begun, task, config, model, as_json, parts)


def resume(
    name: str, settings: dict[str, Any], runs_dir: str, as_json: bool, parts: Parts | None = None
) -> None:
    """Go on with a run where it was left; of a live one, lift the pause.

    Raises PassagentError; Interrupted after Ctrl-C.
    """
    parts = parts or Parts()
    with Store.open(runs_dir, create=False) as store:
        found = runs.find_run(store, name)
        before = stored_config(found)
        config = _with(before, settings)
        if lift_pause(store, found, config != before, as_json):
            return
        task = stored_task(found)
        with begin(config, task, parts) as parts:
            model = parts.model or open_model(config.model)
            check_money(config, model)
            search_run(store, found, task, config, model, as_json, parts)


FIXED = ("search.islands", "search.roles", "search.seed", "search.seed_dir")
"""Settings that a run keeps for its life: its tree is made of them."""


def _with(config: Config, settings: dict[str, Any]) -> Config:
    """A run's settings with others, for its next session. Raises UsageError for one that cannot change."""
    for key in FIXED:
        if key in settings:
            raise UsageError(f"{key}: is fixed for a run's life; passagent fork starts a new one from a node")
    return override(config, settings)


def search_run(
    store: Store, run: Run, task: Task, config: Config, model: Any, as_json: bool, parts: Parts
) -> None:
    """Run a session and print its summary. Raises what the search raises, with how to go on."""
    go_on = f"passagent resume {run.id}{runs_dir_flag(store)}"
    told = f"interrupted; everything is stored, go on with: {go_on}"
    with run_log(store.runs_dir / run.id) as log_path:
        stream = sys.stderr if as_json else sys.stdout
        print(
            f"run {run.id}: {task.name} ({counted(len(task.subgraphs), 'graph')}), {config.model.label}, "
            f"{config.evaluator.device}, {counted(run.islands, 'island')}, "
            f"{counted(config.search.iters, 'episode')}, "
            f"seed {run.seed}; log: {log_path}",
            file=stream,
            flush=True,
        )
        progress = open_progress(Board.of(store, run), stream)

        def tell(line: str) -> None:
            log.warning(line)
            progress.on_event(Trouble(line))

        try:
            evaluator = parts.evaluator or EvaluatorPool(config.evaluator, tell=tell, ahead=parts.ahead)
            session = open_session(
                store, run, task, config, progress.on_event, model, evaluator, parts.diagnose
            )
            is_last = asyncio.run(_run_session(session, progress, go_on)).is_last
        except PassagentError as error:
            log.exception("the search ended with an error")
            if not isinstance(error, UsageError):
                error.args = (f"{error}; everything so far is stored, go on with: {go_on}",)
            raise
        except KeyboardInterrupt as error:  # before or after the search, which takes signals itself
            raise Interrupted(told) from error
        except Exception:
            log.exception("the search ended with an error of passagent's own")
            raise
        finally:
            progress.close()
    run = runs.get_run(store, run.id)
    exported = export_best(store, run) if is_last else None
    if as_json:
        print(json.dumps(run_data(store, run, config, exported)))
    else:
        print(run_text(store, run, config, exported))
    if session.is_interrupted:
        raise Interrupted(told)


async def _run_session(session: Session, progress: Progress, go_on: str) -> Outcome:
    """Search until it ends; the first Ctrl-C stops it cleanly, the second at once."""
    stop_on_signals(session, progress, f"go on with: {go_on}")
    try:
        return await search(session)
    finally:
        await session.model.close()
        if session.validator is not None:
            await session.validator.close()
        await session.evaluator.close()


def export_best(store: Store, run: Run) -> Path | None:
    """Write the best pass to `<runs_dir>/<run>/best`; None if nothing is correct. Raises PassagentError.

    An older one is replaced when the new one is whole: of processes that end together, by one at a time.
    """
    best = confirmations.winner(store, run.id)
    if best is None:
        return None
    path = store.runs_dir / run.id / "best"
    fresh = path.with_name("best.new")
    try:
        with store.transaction():
            shutil.rmtree(fresh, ignore_errors=True)  # a dead process's
            write_files(nodes.get_files(store, best), fresh)
            shutil.rmtree(path, ignore_errors=True)
            fresh.rename(path)
    except OSError as error:
        raise os_fault(error, path) from error
    return path


def write_files(files: dict[str, str], path: Path) -> None:
    """Write a candidate's files under `path`."""
    from passagent.evaluator.result import Candidate

    path.mkdir(parents=True, exist_ok=True)
    Candidate(files).write(path)
