"""`passagent best`: a run's best pass, as a directory that a person can review."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from passagent.cli.groups import BestOptions
from passagent.errors import UsageError
from passagent.evaluator.candidate import PLANS, Candidate
from passagent.plan.recorder_process import recording_process
from passagent.search.comparison import confirmed_evaluation
from passagent.search.setup import stored_config, stored_task
from passagent.store import Store, confirmations, nodes, runs
from passagent.store.runs import Run
from passagent.store.seeds import author_of
from passagent.system.faults import os_fault
from passagent.view.run_summary import found_since_text

if TYPE_CHECKING:
    from passagent.deploy.delivery.readme import Delivery


def best(name: str, options: BestOptions, as_json: bool) -> None:
    """Write the run's best pass to directory `out`, formatted, described and with a test.

    `standalone`: it then needs no passagent at run time. `format`: see `_best_for_suite`.

    Raises UsageError if `out` holds files and not `force`.
    """
    from passagent.deploy.delivery.readme import figures

    if options["format"] != "review":
        _best_for_suite(name, options, as_json)
        return
    path, runs_dir = Path(options["out"]), options["runs_dir"]
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        if path.exists() and not path.is_dir():
            raise UsageError(f"--out {path}: is a file; name a directory")
        if path.is_dir() and any(path.iterdir()) and not options["force"]:
            raise UsageError(f"--out {path}: holds files; name another directory, or --force to replace them")
        delivery = _delivered(store, run, options["standalone"])
        try:
            if path.is_dir():
                _clear(path)
            path.mkdir(parents=True, exist_ok=True)
            Candidate(delivery.files).write(path)
        except OSError as error:
            raise os_fault(error, path, "--out") from error
        node, figure = delivery.node, figures(delivery.evaluation)
        if as_json:
            data = {
                "run": run.id,
                "node": node,
                "as_score": delivery.evaluation.as_score,
                "notes": delivery.notes,
                "path": str(path.absolute()),
                "files": sorted(delivery.files),
            }
            print(json.dumps(data))
            return
        print(f"node {node} ({figure}) of run {run.id}: {path}, see its README.md")
        for note in delivery.notes:
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
        task = stored_task(run)
        problem = problem_of(task) if suite == "kernelbench" else None
        path = Path(options["out"]) / (
            f"{definition_of(task)}_{run.id}.json" if problem is None else problem.name
        )
        if path.exists() and not options["force"]:
            raise UsageError(f"{path}: is there; name another directory, or --force to replace it")
        delivery = _delivered(store, run, True)
    recording, node = delivery.recording, delivery.node
    if recording is None:
        raise UsageError(f"run {run.id}: {delivery.notes[0]} --format {suite} is made of plans")
    if problem is not None:
        text = kernelbench_module(task, problem, recording, delivery.files)
    else:
        text = json.dumps(solution(task, recording, delivery.files, run.id), indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise os_fault(error, path, "--out") from error
    if as_json:
        print(json.dumps({"run": run.id, "node": node, "path": str(path.absolute())}))
    else:
        print(f"node {node} of run {run.id}: {path}")


def _delivered(store: Store, run: Run, stands_alone: bool) -> Delivery:
    """The run's best pass as it is to be written. Raises UsageError where there is none."""
    from passagent.deploy.delivery.deliver import deliver
    from passagent.deploy.delivery.readme import Delivery
    from passagent.deploy.delivery.standalone import standalone

    node = confirmations.winner(store, run.id)
    if node is None or node.evaluation_id is None:
        raise UsageError(f"run {run.id} has no correct pass yet; passagent show {run.id} tells what it tried")
    task, files = stored_task(run), nodes.get_files(store, node)
    author, evaluation = author_of(store, run, node), confirmed_evaluation(store, node)
    written = standalone(files) if stands_alone else files
    delivery = Delivery(run.id, node.id, author, task.name, evaluation, written)
    with recording_process() as process:  # it imports torch while this process does
        deliver(delivery, task, process, stored_config(run).evaluator)
    return delivery


def _clear(path: Path) -> None:
    """Remove an earlier candidate's files from `path`; whatever else lies there stays."""
    for file in path.rglob("*"):
        if file.is_file() and file.suffix in {".py", ".json"}:
            file.unlink()
    for name in ("README.md", "plan.txt"):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / PLANS, ignore_errors=True)
