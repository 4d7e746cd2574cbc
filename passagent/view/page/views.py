"""Each page's data, from the store as plain data: by the functions that the commands print."""

from __future__ import annotations

import json
from typing import Any

from passagent.agent.context import unified
from passagent.agent.observe import failures
from passagent.agent.prompt import short_note
from passagent.errors import TaskError, UsageError
from passagent.search import finalists
from passagent.search.finalists import confirmed_evaluation
from passagent.store import Store, episodes, ledger, nodes, runs
from passagent.store.nodes import Node
from passagent.store.runs import SEEDS, Run
from passagent.store.sessions import runs_dir_flag
from passagent.store.trajectories import find_episode, trajectory
from passagent.view import charts, node_changes, run_summary
from passagent.view.evaluation import graph_table
from passagent.view.hint_report import hint_data, uplift_text
from passagent.view.trajectory import arguments_of
from passagent.view.tree import layout, node_row

PAGE = 50
"""Rows of a list."""
NEWEST = 10
"""Nodes that are shown of a live run."""


def all_runs(store: Store, first: str = "0") -> dict[str, Any]:
    """The runs, the newest first."""
    stored, start = runs.list_runs(store), _number(first)
    rows = [run_summary.run_row(store, run) for run in stored[start : start + PAGE]]
    more = start + PAGE if start + PAGE < len(stored) else None
    return {"runs": rows, "first": start, "count": len(stored), "more": more}


def now(store: Store, name: str) -> dict[str, Any]:
    """A run and how it is doing, without a look at all of its nodes."""
    record = runs.get_run(store, name)
    data = run_summary.status_data(store, record, counting=False)
    return {
        "run": record,
        "now": data,
        "doing": {episode_data["island"]: episode_data for episode_data in data["under_way"]},
        "newest": _newest(store, name, NEWEST),
        "is_live": data["is_driven"],
        "go_on": f"passagent resume {name}{runs_dir_flag(store)}",
        "since": run_summary.found_since_text(store, name),
    }


def figures(store: Store, name: str) -> dict[str, Any]:
    """A run's course, what it took, how it failed, what migrated."""
    record = runs.get_run(store, name)
    course = charts.course(charts.read_nodes(store, name))
    finalists = run_summary.finalists_data(store, record)
    roles = {island.island: f"{island.island} {island.role}" for island in runs.islands(store, name)}
    again = finalists[0]["as_score"] if finalists else None
    return {
        "run": record,
        "course": course,
        "best_chart": charts.best_so_far(course, again),
        "island_chart": charts.by_island(course, roles),
        "spending": run_summary.spending_table(ledger.spent(store, name)),
        "failures": [_failure(store, course, of) for of in course.statuses if of not in ("ok", *_OPEN)],
        "finalists": finalists,
        "finalists_text": run_summary.finalists_text(finalists),
        "migrations": episodes.list_migrations(store, name),
    }


_OPEN = ("proposed", "evaluating")


def _failure(store: Store, course: charts.Course, status_: str) -> dict[str, Any]:
    """How often candidates failed so, and what the newest one's diagnosis says."""
    node = nodes.get_node(store, course.newest[status_])
    diagnosis = node.diagnosed
    return {
        "status": status_,
        "count": course.statuses[status_],
        "newest": node.id,
        "said": short_note(diagnosis["text"], 200) if diagnosis else "",
    }


def tree(store: Store, name: str, before: str = "") -> dict[str, Any]:
    """A run's tree, and a list of its nodes, the newest first."""
    record = runs.get_run(store, name)
    best = finalists.winner(store, name)
    placed = layout(charts.read_nodes(store, name), best.id if best else None)
    rows = _newest(store, name, PAGE, _number(before) if before else 2**62)
    return {
        "run": record,
        "best": best,
        "tree": placed,
        "islands": runs.islands(store, name),
        "rows": rows,
        "before": rows[-1]["node"] if len(rows) == PAGE else None,
    }


def _newest(store: Store, run_id: str, count: int, before: int = 2**62) -> list[dict[str, Any]]:
    """Return a run's last nodes of those before one, the newest first."""
    listed = store.all(
        Node,
        "SELECT * FROM nodes WHERE run_id = :run AND id < :before ORDER BY id DESC LIMIT :n",
        {"run": run_id, "before": before, "n": count},
    )
    return [node_row(node) | {"repeat_of": node.repeat_of} for node in listed]


def node(store: Store, number: int) -> dict[str, Any]:
    """A candidate: what it is, what it is worth, how it came to be."""
    record = nodes.get_node(store, number)
    whole = node_changes.why_data(store, record)
    chain = whole["chain"]
    evaluation = confirmed_evaluation(store, record) if record.state == "done" else None
    neighbours = store.row(
        "SELECT (SELECT max(id) FROM nodes WHERE run_id = :run AND id < :id) AS previous, "
        "(SELECT min(id) FROM nodes WHERE run_id = :run AND id > :id) AS next",
        {"run": record.run_id, "id": number},
    )
    files = chain[-1]["files"]
    before = chain[-2]["files"] if len(chain) > 1 else {}
    return {
        "node": record,
        "run": runs.get_run(store, record.run_id),
        "row": node_row(record),
        "why": whole,
        "step": chain[-1],
        "chain": chain,
        "beside": neighbours,
        "evaluation": evaluation,
        "graphs": graph_table(evaluation) if evaluation else None,
        "failures": failures(evaluation.graphs, {}) if evaluation else [],
        "files": files,
        "diff": "\n".join(unified(before, files, ("parent", f"node {number}"))) if before else "",
        "has_plan": bool(evaluation and evaluation.plans),
        "is_seed": record.island == SEEDS,
    }


def compared_nodes(store: Store, number: int, other: int) -> dict[str, Any]:
    """Compare two candidates: `other`, and `number` that came of it."""
    before, after = nodes.get_node(store, other), nodes.get_node(store, number)
    return {"one": before, "two": after, "run": runs.get_run(store, after.run_id)} | {
        "data": node_changes.diff_data(store, before, after)
    }


def plan(store: Store, number: int) -> dict[str, Any]:
    """Show a candidate's plan, as it was recorded and measured. Imports torch."""
    record = nodes.get_node(store, number)
    files = nodes.get_plans(store, record)
    if not files:
        raise UsageError(f"node {number}: no plan was kept of it, as of a candidate that is not correct")
    from passagent.plan import artefact
    from passagent.plan.show import recording_text

    text = recording_text(artefact.read(files).recording)
    return {"node": record, "run": runs.get_run(store, record.run_id), "text": text, "files": files}


def episode(store: Store, name: str, number: str) -> dict[str, Any]:
    """A conversation as it was; a seed's number is below 1."""
    record = runs.get_run(store, name)
    below = number.startswith("-")
    stored = find_episode(store, record, -_number(number[1:]) if below else _number(number))
    conversation = trajectory(store, record, stored)
    return {
        "run": record,
        "episode": conversation,
        "made": {node_data.call_id: node_data for node_data in conversation.nodes},
        "hints": stored.shown_hints,
        "arguments": _arguments,
    }


def _arguments(call: dict[str, str]) -> dict[str, str]:
    """Return a tool call's arguments, name to text; as they are where they are no JSON object."""
    arguments = arguments_of(call)
    if arguments is None:
        return {"arguments": call["arguments"]}
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}


def task(store: Store, key: str) -> dict[str, Any]:
    """A task: its subgraphs, and the runs on it."""
    on_task = store.all(Run, "SELECT * FROM runs WHERE task_key = :key ORDER BY rowid DESC", {"key": key})
    if not on_task:
        raise UsageError(f"{key:.80}: no run of {store.runs_dir} is on such a task")
    from passagent.tasks import load_task

    loaded, missing = None, None
    try:
        loaded = load_task(on_task[0].task_path)
        if loaded.key != key:
            missing = f"{on_task[0].task_path}: was changed since; what is there now is shown"
    except (UsageError, TaskError) as error:
        missing = str(error)
    rows = [run_summary.run_row(store, other) for other in on_task[:PAGE]]
    rows.sort(key=lambda row: -(row["best_as"] or 0.0))
    return {
        "run": on_task[0],
        "operators": json.loads(on_task[0].operators),
        "task": loaded,
        "missing": missing,
        "rows": rows,
        "count": len(on_task),
    }


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise UsageError(f"{text:.40}: not a place in a list")
    return int(text)


def hints(store: Store) -> dict[str, Any]:
    """The hints that models wrote and the curated ones, with the uplift of showing learned hints."""
    return hint_data(store) | {"text": uplift_text}
