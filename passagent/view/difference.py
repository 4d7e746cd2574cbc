"""Two nodes side by side: their files, and their speedups by subgraph."""

from __future__ import annotations

from typing import Any, NamedTuple

from rich.text import Text

from passagent.agent.prompt import plain_note, short_note
from passagent.evaluator.result import Evaluation, GraphResult, Speedup
from passagent.search.comparison import confirmed_evaluation
from passagent.search.episode_context import changes, unified
from passagent.store import Store, nodes, runs
from passagent.store.nodes import Node
from passagent.view.run_summary import score_data
from passagent.view.text import interval, number, printable, table

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def diff_data(store: Store, one: Node, other: Node) -> dict[str, Any]:
    """Both nodes, what differs in their files, and their subgraphs' speedups."""
    before, after = nodes.get_files(store, one), nodes.get_files(store, other)
    results = [confirmed_evaluation(store, node) if node.state == "done" else None for node in (one, other)]
    tasks = [runs.get_run(store, node.run_id).task_key for node in (one, other)]
    return {
        "nodes": [_side(store, node, result) for node, result in zip((one, other), results, strict=True)],
        "changed": [change._asdict() for change in changes(before, after)],
        "diff": "\n".join(unified(before, after, (f"node {one.id}", f"node {other.id}"))),
        "not_comparable": _not_comparable(store, one, other, tasks),
        "graphs": _graphs(results) if tasks[0] == tasks[1] else [],
    }


def _side(store: Store, node: Node, result: Evaluation | None) -> dict[str, Any]:
    score = score_data(node, result)
    return {
        "node": node.id,
        "run": node.run_id,
        "status": node.status or node.state,
        "as_score": score["as_score"],
        "as_low": score["as_low"],
        "as_high": score["as_high"],
        "measured_again": score["measured_again"],
        "note": plain_note(node.note),
    }


def _not_comparable(store: Store, one: Node, other: Node, tasks: list[str]) -> str | None:
    """Why the two scores say nothing about each other; None if they do."""
    if tasks[0] != tasks[1]:
        return "they are of different tasks"
    first, second = (_conditions(store, node) for node in (one, other))
    if first is None or second is None:
        return f"node {one.id if first is None else other.id} has not been evaluated"
    if first.evaluator_version != second.evaluator_version:
        return f"they are of two evaluators, {first.evaluator_version} and {second.evaluator_version}"
    if first.environment != second.environment:
        return f"they were measured under other conditions: {first.environment} | {second.environment}"
    return None


class _Conditions(NamedTuple):
    """What a score depends on beside the candidate."""

    evaluator_version: str
    environment: str
    """Machine, device, versions and protocol."""


def _conditions(store: Store, node: Node) -> _Conditions | None:
    """Under which the node's newest evaluation was made; None before the first."""
    row = store.row(
        "SELECT evaluator_version, environment FROM nodes JOIN evaluations ON evaluations.id = coalesce("
        "(SELECT max(evaluation_id) FROM confirmations WHERE confirmations.run_id = nodes.run_id "
        "AND node_id = nodes.id), nodes.evaluation_id) JOIN conditions ON conditions.id = conditions_id "
        "WHERE nodes.id = :id",
        {"id": node.id},
    )
    return _Conditions(**row) if row else None


def _graphs(results: list[Evaluation | None]) -> list[dict[str, Any]]:
    """A row for each subgraph that both know."""
    if results[0] is None or results[1] is None:
        return []
    second = {graph.name: graph for graph in results[1].graphs}
    rows = []
    for graph in results[0].graphs:
        pair = graph, second.get(graph.name)
        speedups = [side.speedup if side else None for side in pair]
        rows.append(
            {
                "graph": graph.name,
                "dtype": graph.dtype,
                "status": [side.status if side else None for side in pair],
                "speedup": [speedup.model_dump() if speedup else None for speedup in speedups],
                "ratio": _ratio(*pair),
                "separate": _separate(*speedups),
            }
        )
    return rows


def _ratio(one: GraphResult, other: GraphResult | None) -> float | None:
    """The second speedup by the first; None unless both results are correct and timed."""
    if other is None or not one.status == other.status == "ok":
        return None
    return other.speedup.e2e / one.speedup.e2e if one.speedup and other.speedup else None


def _separate(one: Speedup | None, other: Speedup | None) -> bool | None:
    """Whether the intervals do not overlap; None where one is not known."""
    if one is None or other is None:
        return None
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return None
    return one.low > other.high or one.high < other.low


def diff_text(data: dict[str, Any]) -> Text:
    """The same for a terminal."""
    text = Text()
    for line in data["diff"].splitlines():
        style = "bold" if line.startswith(("+++", "---")) else _COLOURS.get(line[0], "") if line else ""
        text.append(printable(line) + "\n", style)
    if not data["diff"]:
        text.append("the files are the same\n")
    text.append("\n")
    for side in data["nodes"]:
        score = interval(side["as_score"], side["as_low"], side["as_high"], 4)
        note = f": {printable(short_note(side['note']))}" if side["note"] else ""
        again = ", measured again" if side["measured_again"] else ""
        text.append(f"node {side['node']}", "bold").append(f" {side['status']}, AS {score}{again}{note}\n")
    if data["not_comparable"]:
        text.append(f"the scores cannot be compared: {data['not_comparable']}\n", "yellow")
    if data["graphs"]:
        one, other = (side["node"] for side in data["nodes"])
        header = ["graph", "dtype", f">node {one}", f">node {other}", ">ratio", "the intervals"]
        text.append(table(header, [_row(graph) for graph in data["graphs"]], drop=["dtype", "the intervals"]))
    text.rstrip()
    return text


def _row(graph: dict[str, Any]) -> list[str]:
    cells = [
        interval(speedup["e2e"], speedup["low"], speedup["high"]) if speedup else (status or "-")
        for status, speedup in zip(graph["status"], graph["speedup"], strict=True)
    ]
    verdict = {True: "separate", False: "overlap", None: "-"}[graph["separate"]]
    return [graph["graph"], graph["dtype"], *cells, number(graph["ratio"]), verdict]
