"""What each page shows, from the store as plain data: by the functions that the commands print."""

from __future__ import annotations

import json
from typing import Any

from passagent.agent.prompt import plain_note, short_note
from passagent.errors import TaskError, UsageError
from passagent.search.comparison import confirmed_evaluation
from passagent.search.episode_context import unified
from passagent.search.migration import why_none
from passagent.search.setup import stored_config
from passagent.store import Store, bests, confirmations, hint_uses, ledger, nodes, runs
from passagent.store.nodes import Node
from passagent.store.runs import SEEDS, Run
from passagent.store.sessions import runs_dir_flag
from passagent.store.trajectories import find_episode, trajectory
from passagent.view import course, difference, spending, status, why
from passagent.view.evaluation import failure_lines, figure_notes, graph_cells
from passagent.view.page import charts
from passagent.view.run_summary import finalists_data, finalists_text, found_since_text, run_row
from passagent.view.tree import node_row
from passagent.view.tree_layout import layout

PAGE = 50
"""Rows of a list."""
NEWEST = 10
"""Nodes that are shown of a live run."""


def all_runs(store: Store, first: str = "0") -> dict[str, Any]:
    """The runs, the newest first."""
    found, start = runs.list_runs(store), _number(first)
    rows = [run_row(store, run) for run in found[start : start + PAGE]]
    more = start + PAGE if start + PAGE < len(found) else None
    return {"runs": rows, "first": start, "count": len(found), "more": more}


def run(store: Store, name: str) -> dict[str, Any]:
    """A run: what does not change."""
    found = runs.get_run(store, name)
    others = store.rows(
        "SELECT id, model, created_at FROM runs WHERE task_key = :task AND id != :run "
        "ORDER BY rowid DESC LIMIT 20",
        {"task": found.task_key, "run": found.id},
    )
    return {"run": found, "others": others} | now(store, name)


def now(store: Store, name: str) -> dict[str, Any]:
    """A run as it is now, without a look at all of its nodes."""
    found = runs.get_run(store, name)
    data = status.live_data(store, found)
    newest = store.all(
        Node, "SELECT * FROM nodes WHERE run_id = :run ORDER BY id DESC LIMIT :n", {"run": name, "n": NEWEST}
    )
    return {
        "run": found,
        "now": data,
        "doing": {one["island"]: one for one in data["under_way"]},
        "used": [status.used_text(key, of) for key, of in data["budget"].items()],
        "newest": [node_row(node) | {"repeat_of": node.repeat_of} for node in newest],
        "is_live": data["is_driven"],
        "go_on": f"passagent resume {name}{runs_dir_flag(store)}",
        "since": found_since_text(store, name),
    }


def figures(store: Store, name: str) -> dict[str, Any]:
    """A run's course, what it took, how it failed, what migrated."""
    found = runs.get_run(store, name)
    made = course.course(course.made(store, name))
    spent = ledger.spent(store, name)
    finalists = finalists_data(store, found)
    moved = bests.list_migrations(store, name)
    roles = {one.island: f"{one.island} {one.role}" for one in runs.islands(store, name)}
    again = finalists[0]["as_score"] if finalists else None
    return {
        "run": found,
        "course": made,
        "best_chart": charts.best_so_far(made, again and {"as_low": again["low"], "as_high": again["high"]}),
        "island_chart": charts.by_island(made, roles),
        "spending_chart": charts.spending(course.spending(store, name)),
        "spending": spending.spending_cells(spent),
        "spending_notes": spending.spending_notes(spent),
        "failures": [_failure(store, made, of) for of in made.statuses if of not in ("ok", *_OPEN)],
        "finalists": finalists,
        "finalists_text": finalists_text(finalists),
        "migrations": moved,
        "no_migration": None if moved else why_none(store, found, stored_config(found).search),
    }


_OPEN = ("proposed", "evaluating")


def _failure(store: Store, made: course.Course, status_: str) -> dict[str, Any]:
    """How often candidates failed so, and what the newest one's diagnosis says."""
    node = nodes.get_node(store, made.newest[status_])
    said = node.diagnosed
    return {
        "status": status_,
        "count": made.statuses[status_],
        "newest": node.id,
        "said": short_note(said["text"], 200) if said else "",
    }


def tree(store: Store, name: str, before: str = "") -> dict[str, Any]:
    """A run's tree, and a list of its nodes, the newest first."""
    found = runs.get_run(store, name)
    best = confirmations.winner(store, name)
    placed = layout(course.made(store, name), best.id if best else None)
    last = _number(before) if before else 2**62
    listed = store.all(
        Node,
        "SELECT * FROM nodes WHERE run_id = :run AND id < :before ORDER BY id DESC LIMIT :n",
        {"run": name, "before": last, "n": PAGE},
    )
    return {
        "run": found,
        "best": best,
        "tree": placed,
        "islands": runs.islands(store, name),
        "rows": [node_row(node) | {"repeat_of": node.repeat_of} for node in listed],
        "before": listed[-1].id if len(listed) == PAGE else None,
    }


def node(store: Store, number: int) -> dict[str, Any]:
    """A candidate: what it is, what it is worth, how it came to be."""
    found = nodes.get_node(store, number)
    whole = why.why_data(store, found)
    chain = whole["chain"]
    evaluation = confirmed_evaluation(store, found) if found.state == "done" else None
    beside = store.row(
        "SELECT (SELECT max(id) FROM nodes WHERE run_id = :run AND id < :id) AS previous, "
        "(SELECT min(id) FROM nodes WHERE run_id = :run AND id > :id) AS next",
        {"run": found.run_id, "id": number},
    )
    files = chain[-1]["files"]
    before = chain[-2]["files"] if len(chain) > 1 else {}
    return {
        "node": found,
        "run": runs.get_run(store, found.run_id),
        "row": node_row(found),
        "why": whole,
        "step": chain[-1],
        "chain": chain,
        "beside": beside,
        "evaluation": evaluation,
        "cells_of_graphs": graph_cells(evaluation) if evaluation else None,
        "notes": figure_notes(evaluation) if evaluation else [],
        "failures": failure_lines(evaluation.graphs) if evaluation else [],
        "speedups": _speedups(evaluation) if evaluation else None,
        "files": files,
        "diff": "\n".join(unified(before, files, ("parent", f"node {number}"))) if before else "",
        "has_plan": bool(evaluation and evaluation.plans),
        "is_seed": found.island == SEEDS,
    }


def _speedups(evaluation: Any) -> dict[str, Any] | None:
    """The subgraphs' speedups with their intervals, for a picture; None where nothing was timed."""
    timed = [graph for graph in evaluation.graphs if graph.speedup]
    if not timed:
        return None
    ends = [end for g in timed for end in (g.speedup.e2e, g.speedup.low, g.speedup.high) if end]
    return {"graphs": timed, "low": min([*ends, 1.0]) * 0.97, "high": max([*ends, 1.0]) * 1.03}


def compared_nodes(store: Store, number: int, other: int) -> dict[str, Any]:
    """What two candidates differ in: `other`, and `number` that came of it."""
    one, two = nodes.get_node(store, other), nodes.get_node(store, number)
    return {"one": one, "two": two, "run": runs.get_run(store, two.run_id)} | {
        "data": difference.diff_data(store, one, two)
    }


def plan(store: Store, number: int) -> dict[str, Any]:
    """What a candidate's host code decided, as it was recorded and measured. Imports torch."""
    found = nodes.get_node(store, number)
    files = nodes.get_plans(store, found)
    if not files:
        raise UsageError(f"node {number}: no plan was kept of it, as of a candidate that is not correct")
    from passagent.plan import artefact
    from passagent.plan.show import recording_text

    text = recording_text(artefact.read(files).recording)
    return {"node": found, "run": runs.get_run(store, found.run_id), "text": text, "files": files}


def episode(store: Store, name: str, number: str) -> dict[str, Any]:
    """A conversation as it was; a seed's number is below 1."""
    found = runs.get_run(store, name)
    below = number.startswith("-")
    record = find_episode(store, found, -_number(number[1:]) if below else _number(number))
    told = trajectory(store, found, record)
    return {
        "run": found,
        "episode": told,
        "made": {one.call_id: one for one in told.nodes},
        "hints": hint_uses.shown_in(store, record.id),
        "arguments": _arguments,
    }


def _arguments(call: dict[str, str]) -> dict[str, str]:
    """A tool call's arguments, name to text; as they are where they are no JSON object."""
    try:
        found = json.loads(call["arguments"] or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return {"arguments": call["arguments"]}
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items()}


def task(store: Store, key: str) -> dict[str, Any]:
    """A task: its subgraphs, and the runs on it."""
    found = store.all(Run, "SELECT * FROM runs WHERE task_key = :key ORDER BY rowid DESC", {"key": key})
    if not found:
        raise UsageError(f"{key:.80}: no run of {store.runs_dir} is on such a task")
    from passagent.tasks import load_task

    loaded, missing = None, None
    try:
        loaded = load_task(found[0].task_path)
        if loaded.key != key:
            missing = f"{found[0].task_path}: was changed since; what is there now is shown"
    except (UsageError, TaskError) as error:
        missing = str(error)
    rows = [run_row(store, one) for one in found[:PAGE]]
    rows.sort(key=lambda row: -(row["best_as"] or 0.0))
    return {
        "run": found[0],
        "operators": json.loads(found[0].operators),
        "task": loaded,
        "missing": missing,
        "rows": rows,
        "count": len(found),
    }


def compare(store: Store, a: str = "", b: str = "") -> dict[str, Any]:
    """Two runs side by side; the winners paired subgraph by subgraph."""
    if not a or not b:
        raise UsageError("compare: give two runs, ?a=RUN&b=RUN")
    found = [runs.find_run(store, name) for name in (a, b)]
    sides = [status.status_data(store, one) for one in found]
    courses = [course.course(course.made(store, one.id)) for one in found]
    best = [confirmations.winner(store, one.id) for one in found]
    paired = difference.diff_data(store, best[0], best[1]) if best[0] and best[1] else None
    names = [f"{one.id} {one.model}" for one in found]
    return {
        "runs": found,
        "sides": sides,
        "used": [[status.used_text(key, of) for key, of in side["budget"].items()] for side in sides],
        "statuses": [made.statuses for made in courses],
        "chart_spec": charts.side_by_side(list(zip(names, courses, strict=True))),
        "paired": paired,
        "notes": [plain_note(one.note) if one else "" for one in best],
    }


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise UsageError(f"{text:.40}: not a place in a list")
    return int(text)
