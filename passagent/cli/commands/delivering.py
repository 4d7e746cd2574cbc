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
from passagent.sandbox.cache import write_whole
from passagent.sandbox.faults import os_fault
from passagent.search import finalists
from passagent.search.finalists import confirmed_evaluation
from passagent.search.setup import stored_config, stored_task
from passagent.store import Store, nodes, runs
from passagent.store.nodes import author_of
from passagent.store.runs import Run
from passagent.tasks import Task
from passagent.view.run_summary import found_since_text

if TYPE_CHECKING:
    from passagent.deploy.delivery.deliver import Delivery


def best(name: str, options: BestOptions, as_json: bool) -> None:
    """Write the run's best pass to directory `out`: for review, or as a suite's own evaluator takes it.

    For review it is formatted, described and has a test; `standalone`: it then needs no passagent at run
    time. `format`: `kernelbench` is the problem as a `ModelNew`, `flashinfer` a Solution. Raises UsageError
    if files are there and not `force`, and where the task was not imported from that suite.
    """
    path, form = Path(options["out"]), options["format"]
    with Store.open(options["runs_dir"], create=False) as store:
        run = runs.find_run(store, name)
        task = stored_task(run)
        if form != "review":
            from passagent.deploy.delivery import suite_modules

            path /= suite_modules.file_name(task, form, run.id)
        _check_place(path, form == "review", options["force"])
        delivery = _delivered(store, run, task, options["standalone"] or form != "review")
        files, recording = delivery.files, delivery.recording
        if form != "review" and recording is None:
            raise UsageError(f"run {run.id}: {delivery.notes[0]} --format {form} is made of plans")
        try:
            if recording is not None and form == "kernelbench":
                write_whole(path, suite_modules.kernelbench_module(task, recording, files))
            elif recording is not None and form == "flashinfer":
                solution = suite_modules.solution(task, recording, files, run.id)
                write_whole(path, json.dumps(solution, indent=2) + "\n")
            else:
                _clear(path)
                path.mkdir(parents=True, exist_ok=True)
                Candidate(files).write(path)
        except OSError as error:
            raise os_fault(error, path, "--out") from error
        since = found_since_text(store, run.id)
    data = {"run": run.id, "node": delivery.node, "path": str(path.absolute())}
    if form != "review":
        print(json.dumps(data) if as_json else f"node {delivery.node} of run {run.id}: {path}")
    elif as_json:
        score, notes = delivery.evaluation.as_score, delivery.notes
        print(json.dumps(data | {"as_score": score, "notes": notes, "files": sorted(files)}))
    else:
        from passagent.deploy.delivery.deliver import figures

        figure = figures(delivery.evaluation)
        print(f"node {delivery.node} ({figure}) of run {run.id}: {path}, see its README.md")
        for line in (*delivery.notes, *([since] if since else [])):
            print(line)
        places = f"{shlex.quote(run.task_path)} --pass-dir {shlex.quote(str(path))}"
        print(f"evaluate again: passagent eval {places} --device {run.device}")


def _check_place(path: Path, is_directory: bool, force: bool) -> None:
    if is_directory and path.exists() and not path.is_dir():
        raise UsageError(f"--out {path}: is a file; name a directory")
    if not force and path.exists() and (not is_directory or any(path.iterdir())):
        what = "holds files" if is_directory else "is there"
        raise UsageError(f"--out {path}: {what}; name another directory, or --force to replace them")


def _delivered(store: Store, run: Run, task: Task, stands_alone: bool) -> Delivery:
    """The run's best pass as it is to be written. Raises UsageError where there is none."""
    node = finalists.winner(store, run.id)
    if node is None or node.evaluation_id is None:
        raise UsageError(f"run {run.id} has no correct pass yet; passagent show {run.id} tells what it tried")
    files = nodes.get_files(store, node)
    author, evaluation = author_of(store, run, node), confirmed_evaluation(store, node)
    with recording_process() as process:  # it imports torch while this process does
        from passagent.deploy.delivery.deliver import Delivery, deliver
        from passagent.deploy.delivery.standalone import standalone

        written = standalone(files) if stands_alone else files
        delivery = Delivery(run.id, node.id, author, task.name, evaluation, written)
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
