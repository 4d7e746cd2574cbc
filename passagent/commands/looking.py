"""`passagent runs` and `show`: what the store holds."""

from __future__ import annotations

import json

from passagent.agent.prompt import plain_note
from passagent.report.run_summary import run_data, run_text, shown_state
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
                    "note": plain_note(node.note),
                    "files": node.candidate_key,
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
