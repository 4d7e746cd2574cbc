"""`passagent runs`, `show` and `best`: what the store holds."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

from passagent.errors import UsageError
from passagent.evaluator.candidate import PLANS, Candidate
from passagent.faults import os_fault
from passagent.report.summary import found_since_text, run_data, run_text, shown_state
from passagent.report.text import clock, console, number, table
from passagent.report.trajectory import print_trajectory
from passagent.report.tree import tree_text
from passagent.search.setup import stored_config
from passagent.store import Store, confirmations, nodes, runs
from passagent.store.trajectories import find_episode, trajectory


def list_runs(runs_dir: str, as_json: bool) -> None:
    """Print all runs, the newest first."""
    with Store.open(runs_dir, create=False) as store:
        found = [
            (run, confirmations.winner(store, run.id), runs.islands(store, run.id))
            for run in runs.list_runs(store)
        ]
        if as_json:
            data = [
                {
                    "run": run.id,
                    "task": run.task,
                    "model": run.model,
                    "device": run.device,
                    "state": shown_state(store, run),
                    "episodes": sum(island.episodes for island in islands),
                    "iters": run.iters,
                    "best_as": confirmations.score_of(store, best) if best else None,
                    "created_at": run.created_at,
                    "elapsed_s": round(run.elapsed_s, 3),
                }
                for run, best, islands in found
            ]
            print(json.dumps({"runs": data}))
            return
        rows = [
            [
                run.id,
                run.created_at[:16].replace("T", " "),
                run.task,
                run.model,
                run.device,
                shown_state(store, run),
                f"{sum(island.episodes for island in islands)}/{run.iters}",
                number(confirmations.score_of(store, best) if best else None),
                clock(run.elapsed_s),
            ]
            for run, best, islands in found
        ]
        header = ["run", "begun (UTC)", "task", "model", "device", "state", ">episodes", ">best AS", ">time"]
        print(table(header, rows, indent="", drop=["device", "begun (UTC)", "time", "model"]))


def show(name: str, runs_dir: str, as_json: bool) -> None:
    """Print a run: summary, islands, tree."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        config = stored_config(run)
        found = nodes.of_run(store, run.id)
        best = confirmations.winner(store, run.id)
        if as_json:
            tree = [
                {
                    "node": node.id,
                    "parent": node.parent_id,
                    "island": node.island,
                    "episode": node.episode_id,
                    "state": node.state,
                    "status": node.status,
                    "as_score": node.as_score,
                    "note": node.note,
                    "files": node.files,
                    "created_at": node.created_at,
                }
                for node in found
            ]
            print(json.dumps(run_data(store, run, config) | {"tree": tree}))
            return
        again = confirmations.scores(confirmations.last_series(store, run.id))
        print(tree_text(found, best.id if best else None, again))
        print()
        print(run_text(store, run, config))


def show_episode(name: str, number: int, runs_dir: str, as_json: bool) -> None:
    """Print an episode of a run: readably, or as one line of `passagent.trajectory/1`."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        found = trajectory(store, run, find_episode(store, run, number))
        if as_json:
            print(found.model_dump_json())
        else:
            print_trajectory(found, console(soft_wrap=True))


def best(name: str, out: str, runs_dir: str, force: bool, as_json: bool) -> None:
    """Write the run's best pass to directory `out`. Raises UsageError if it holds files and not `force`."""
    path = Path(out)
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        node = confirmations.winner(store, run.id)
        if node is None:
            raise UsageError(
                f"run {run.id} has no correct pass yet; passagent show {run.id} tells what it tried"
            )
        files = nodes.get_files(store, node)
        if path.exists() and not path.is_dir():
            raise UsageError(f"--out {path}: is a file; name a directory")
        if path.is_dir() and any(path.iterdir()):
            if not force:
                raise UsageError(
                    f"--out {path}: holds files; name another directory, or --force to replace them"
                )
            _clear(path)
        plans = nodes.get_plans(store, node)
        try:
            path.mkdir(parents=True, exist_ok=True)
            Candidate(files).write(path)
            Candidate(plans).write(path / PLANS)
        except OSError as error:
            raise os_fault(error, path, "--out") from error
        as_score = confirmations.score_of(store, node)
        if as_json:
            data = {"run": run.id, "node": node.id, "as_score": as_score, "path": str(path.absolute())}
            found = sorted([*files, *(f"{PLANS}/{name}" for name in plans)])
            print(json.dumps(data | {"files": found}))
        else:
            score = number(as_score, 4)
            print(f"node {node.id} (AS {score}) of run {run.id}: {len(files)} files in {path}")
            if since := found_since_text(store, run.id):
                print(since)
            places = f"{shlex.quote(run.task_path)} --pass-dir {shlex.quote(str(path))}"
            print(f"evaluate again: passagent eval {places} --device {run.device}")


def _clear(path: Path) -> None:
    """Remove an earlier candidate's files from `path`; whatever else lies there stays."""
    for file in path.rglob("*"):
        if file.is_file() and file.suffix in {".py", ".json"}:
            file.unlink()
    shutil.rmtree(path / PLANS, ignore_errors=True)
