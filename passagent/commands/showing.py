"""`passagent show`: a run, or an episode of it."""

from __future__ import annotations

import json

from passagent.report.run_summary import run_data, run_text
from passagent.report.text import console
from passagent.report.trajectory import print_trajectory
from passagent.report.tree import node_row, tree_text
from passagent.search.setup import stored_config
from passagent.store import Store, confirmations, nodes, runs
from passagent.store.trajectories import find_episode, trajectory


def show(name: str, runs_dir: str, as_json: bool) -> None:
    """Print a run: summary, islands, tree."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        config = stored_config(run)
        found = nodes.of_run(store, run.id)
        best = confirmations.winner(store, run.id)
        if as_json:
            tree = [node_row(node) for node in found]
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
