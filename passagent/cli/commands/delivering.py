"""`passagent best`: a run's best pass, as a directory that a person can review."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from passagent.cli.groups import BestOptions
from passagent.config import EvaluatorConfig
from passagent.errors import UsageError
from passagent.evaluator.candidate import PLANS, Candidate
from passagent.evaluator.fleet.opening import check_devices, environment_key, open_pool
from passagent.evaluator.result import Evaluation
from passagent.evaluator.service import known
from passagent.evaluator.service.pool import EvaluatorPool
from passagent.plan.recorder_process import recording_process
from passagent.sandbox.fork_server import ForkServer
from passagent.search.comparison import confirmed_evaluation
from passagent.search.setup import stored_config, stored_task
from passagent.store import Store, confirmations, nodes, runs
from passagent.store.nodes import Node
from passagent.store.runs import Run
from passagent.store.seeds import author_of
from passagent.system.faults import os_fault
from passagent.tasks import Task
from passagent.view.run_summary import found_since_text

if TYPE_CHECKING:
    from passagent.deploy.delivery.deliver import Delivered


def best(name: str, options: BestOptions, as_json: bool) -> None:
    """Write the run's best pass to directory `out`, formatted, described and with a test.

    `standalone`: it then needs no passagent at run time. `format`: see `best_for_suite`.

    Raises UsageError if `out` holds files and not `force`, and PassagentError where it cannot be measured.
    """
    from passagent.deploy.delivery.readme import figures

    if options["format"] != "review":
        _best_for_suite(name, options, as_json)
        return
    path, runs_dir, force = Path(options["out"]), options["runs_dir"], options["force"]
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        node = _winner(store, run)
        _check_place(path, force)
        with recording_process() as process:  # it imports torch while this process does
            delivered = asyncio.run(_deliver(store, node, process, options))
        story = delivered.story
        if path.is_dir():
            _clear(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            Candidate(delivered.files).write(path)
        except OSError as error:
            raise os_fault(error, path, "--out") from error
        if as_json:
            data = {
                "run": run.id,
                "node": node.id,
                "as_score": story.evaluation.as_score,
                "measured_as_written": story.is_own,
                "notes": story.notes,
                "path": str(path.absolute()),
                "files": sorted(delivered.files),
            }
            print(json.dumps(data))
            return
        print(f"node {node.id} ({figures(story.evaluation)}) of run {run.id}: {path}, see its README.md")
        for note in story.notes:
            print(note)
        if since := found_since_text(store, run.id):
            print(since)
        places = f"{shlex.quote(run.task_path)} --pass-dir {shlex.quote(str(path))}"
        print(f"evaluate again: passagent eval {places} --device {run.device}")


def _best_for_suite(name: str, options: BestOptions, as_json: bool) -> None:
    """Write the best pass as a suite's own evaluator takes it, under the suite's name for it.

    `kernelbench`: the problem as a `ModelNew`; `flashinfer`: a Solution. Raises UsageError where the task was
    not imported from there, or the file is there and not `force`.
    """
    from passagent.deploy.delivery.suite_modules import (
        definition_of,
        kernelbench_module,
        problem_of,
        solution,
    )

    suite = options["format"]
    with Store.open(options["runs_dir"], create=False) as store:
        run = runs.find_run(store, name)
        node, task = _winner(store, run), stored_task(run)
        problem = problem_of(task) if suite == "kernelbench" else None
        path = Path(options["out"]) / (
            f"{definition_of(task)}_{run.id}.json" if problem is None else problem.name
        )
        if path.exists() and not options["force"]:
            raise UsageError(f"{path}: is there; name another directory, or --force to replace it")
        with recording_process() as process:
            delivered = asyncio.run(_deliver(store, node, process, options | {"standalone": True}))
    recording = delivered.story.recording
    if recording is None:
        raise UsageError(f"run {run.id}: {delivered.story.notes[0]} --format {suite} is made of plans")
    if problem is not None:
        text = kernelbench_module(task, problem, recording, delivered.files)
    else:
        text = json.dumps(solution(task, recording, delivered.files, run.id), indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise os_fault(error, path, "--out") from error
    if as_json:
        print(json.dumps({"run": run.id, "node": node.id, "path": str(path.absolute())}))
    else:
        print(f"node {node.id} of run {run.id}: {path}")


def _winner(store: Store, run: Run) -> Node:
    node = confirmations.winner(store, run.id)
    if node is None:
        raise UsageError(f"run {run.id} has no correct pass yet; passagent show {run.id} tells what it tried")
    return node


def _check_place(path: Path, force: bool) -> None:
    if path.exists() and not path.is_dir():
        raise UsageError(f"--out {path}: is a file; name a directory")
    if path.is_dir() and any(path.iterdir()) and not force:
        raise UsageError(f"--out {path}: holds files; name another directory, or --force to replace them")


async def _deliver(store: Store, node: Node, process: ForkServer, options: BestOptions) -> Delivered:
    from passagent.deploy.delivery.deliver import MeasuredCandidate, deliver
    from passagent.deploy.delivery.readme import Origin
    from passagent.deploy.delivery.standalone import standalone

    run = runs.get_run(store, node.run_id)
    task, config = stored_task(run), stored_config(run).evaluator
    if node.evaluation_id is None:
        raise UsageError(f"node {node.id} has no evaluation; resume run {run.id} first")
    files = nodes.get_files(store, node)
    winner = MeasuredCandidate(
        standalone(files) if options["standalone"] else files,
        nodes.get_plans(store, node),
        confirmed_evaluation(store, node),
    )
    today = datetime.now(UTC).date().isoformat()
    origin = Origin(run.id, node.id, author_of(store, run, node), task.name, today)
    measuring = Measuring(store, task, config)
    try:
        measure = measuring.measure if options["measure"] else None
        return await deliver(winner, task, origin, process, config, measure)
    finally:
        await measuring.close()


class Measuring:
    """Evaluates as the run did; its workers start with the first candidate that is not known."""

    def __init__(self, store: Store, task: Task, config: EvaluatorConfig) -> None:
        self.store, self.task, self.config = store, task, config
        self.pool: EvaluatorPool | None = None

    async def measure(self, candidate: Candidate) -> Evaluation:
        """The evaluation, from the store or made now. Raises PassagentError."""
        try:
            check_devices(self.config)
        except UsageError as error:
            raise UsageError(f"{error}; --no-measure writes the pass without measuring it again") from error
        if self.pool is None:
            self.pool = open_pool(self.config, tell=lambda text: print(f"passagent: {text}", file=sys.stderr))
        case = known.Case(self.task, candidate, environment_key(self.config))
        found = await known.evaluate(self.pool.evaluate, self.store, case)
        return found.evaluation

    async def close(self) -> None:
        """End the workers, if there are any."""
        if self.pool is not None:
            await self.pool.close()


def _clear(path: Path) -> None:
    """Remove an earlier candidate's files from `path`; whatever else lies there stays."""
    for file in path.rglob("*"):
        if file.is_file() and file.suffix in {".py", ".json"}:
            file.unlink()
    for name in ("README.md", "plan.txt"):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / PLANS, ignore_errors=True)
