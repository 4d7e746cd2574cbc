"""Two nodes side by side: their files, and their speedups by subgraph."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from passagent.agent.context import changes, unified
from passagent.agent.prompt import plain_note, short_note
from passagent.evaluator.result import Evaluation
from passagent.search.finalists import confirmed_evaluation
from passagent.store import Store, nodes, runs
from passagent.store.nodes import Node
from passagent.view.run_summary import score_data
from passagent.view.text import are_separate, interval, number, printable, table

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def diff_data(store: Store, first: Node, second: Node) -> dict[str, Any]:
    """Return both nodes, what differs in their files, and their subgraphs' speedups."""
    pair = (first, second)
    before, after = nodes.get_files(store, first), nodes.get_files(store, second)
    results = [confirmed_evaluation(store, node) if node.state == "done" else None for node in pair]
    is_one_task = len({runs.get_run(store, node.run_id).task_key for node in pair}) == 1
    return {
        "nodes": [
            {
                "node": node.id,
                "run": node.run_id,
                "status": node.status or node.state,
                "note": plain_note(node.note),
                **score_data(node, result),
            }
            for node, result in zip(pair, results, strict=True)
        ],
        "changed": [change._asdict() for change in changes(before, after)],
        "diff": "\n".join(unified(before, after, (f"node {first.id}", f"node {second.id}"))),
        "not_comparable": _not_comparable(store, pair) if is_one_task else "they are of different tasks",
        "graphs": _graphs(results) if is_one_task else [],
    }


def _not_comparable(store: Store, pair: tuple[Node, Node]) -> str | None:
    """Say why the scores of two nodes of one task say nothing about each other; None if they do."""
    versions, environments = list[str](), list[str]()
    for node in pair:
        row = store.row(
            "SELECT evaluator_version, environment FROM nodes JOIN evaluations "
            "ON evaluations.id = nodes.evaluation_id JOIN conditions ON conditions.id = conditions_id "
            "WHERE nodes.id = :id",
            {"id": node.id},
        )
        if row is None:
            return f"node {node.id} has not been evaluated"
        versions.append(row["evaluator_version"])
        environments.append(row["environment"])
    if versions[0] != versions[1]:
        return f"they are of two evaluators, {' and '.join(versions)}"
    if environments[0] != environments[1]:
        return f"they were measured under other conditions: {' | '.join(environments)}"
    return None


def _graphs(results: list[Evaluation | None]) -> list[dict[str, Any]]:
    """Return a row for each subgraph that both know; `ratio`: of the speedups where both are correct."""
    if results[0] is None or results[1] is None:
        return []
    second = {graph.name: graph for graph in results[1].graphs}
    rows = []
    for graph in results[0].graphs:
        pair = graph, second.get(graph.name)
        speedups = [side.speedup if side else None for side in pair]
        statuses = [side.status if side else None for side in pair]
        before, after = speedups
        rows.append(
            {
                "graph": graph.name,
                "dtype": graph.dtype,
                "status": statuses,
                "speedup": [speedup.model_dump() if speedup else None for speedup in speedups],
                "ratio": after.e2e / before.e2e if before and after and set(statuses) == {"ok"} else None,
                "separate": before and after and are_separate(*((s.low, s.high) for s in (before, after))),
            }
        )
    return rows


def diff_text(data: dict[str, Any]) -> Text:
    """Write the data of two nodes for a terminal."""
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
        first, second = (side["node"] for side in data["nodes"])
        header = ["graph", "dtype", f">node {first}", f">node {second}", ">ratio", "the intervals"]
        verdicts = {True: "separate", False: "overlap", None: "-"}
        rows = []
        for graph in data["graphs"]:
            cells = [
                interval(speedup["e2e"], speedup["low"], speedup["high"]) if speedup else (status or "-")
                for status, speedup in zip(graph["status"], graph["speedup"], strict=True)
            ]
            ratio = number(graph["ratio"])
            rows.append([graph["graph"], graph["dtype"], *cells, ratio, verdicts[graph["separate"]]])
        text.append(table(header, rows, drop=["dtype", "the intervals"]))
    text.rstrip()
    return text
