"""How a node came to be, and what two nodes differ in: as plain data for `--json`, and as text for people."""

from __future__ import annotations

import json
from typing import Any

from rich.text import Text

from passagent.agent.context import Change, changes, unified
from passagent.agent.prompt import plain_note, short_note
from passagent.evaluator.result import Evaluation
from passagent.search import finalists
from passagent.search.finalists import confirmed_evaluation
from passagent.search.islands import is_first
from passagent.store import Store, episodes, nodes, runs
from passagent.store.episodes import Episode
from passagent.store.nodes import Node, ancestors
from passagent.store.runs import SEEDS, Run
from passagent.store.sessions import runs_dir_flag
from passagent.view.run_summary import score_data
from passagent.view.text import are_separate, counted, interval, number, percent, printable, table

_COLOURS = {"ok": "green", "wrong_result": "yellow", "mismatch": "yellow", "refused": "red"}


def why_data(store: Store, node: Node) -> dict[str, Any]:
    """The chain that ends in `node`, with all that is known of each step."""
    run = runs.get_run(store, node.run_id)
    best = finalists.winner(store, run.id)
    return {
        "run": run.id,
        "task": run.task,
        "device": run.device,
        "node": node.id,
        "is_best": best is not None and best.id == node.id,
        "best_node": best.id if best else None,
        "chain": _chain(store, run, node),
        "profiles": [
            {
                "deep": profile.deep,
                "text": profile.text,
                "record": json.loads(profile.record),
                "at": profile.created_at,
            }
            for profile in nodes.profiles_of(store, node)
        ],
    }


def lineage(store: Store, node: Node) -> list[Node]:
    """Return the node and all its ancestors, the eldest first."""
    return [*reversed(ancestors(store, node, 100_000)), node]


def _chain(store: Store, run: Run, node: Node) -> list[dict[str, Any]]:
    """The steps up to `node`; those that lead to the node that its run was forked from come first."""
    steps = lineage(store, node)
    origin = nodes.origin_of(store, run, steps[0])
    chain, before = [], dict[str, str]()
    if origin is not None:
        chain = _chain(store, runs.get_run(store, origin.run_id), origin)
        before = nodes.get_files(store, origin)
    of_episode: dict[int, dict[str, Any]] = {}
    for step in steps:
        files, number = nodes.get_files(store, step), step.episode_id
        if number not in of_episode:
            of_episode[number] = _episode_data(store, run, episodes.get_episode(store, number))
        facts = _step_data(store, step, files, changes(before, files))
        chain.append(facts | {"episode": of_episode[number]})
        before = files
    return chain


def _step_data(store: Store, node: Node, files: dict[str, str], changed: list[Change]) -> dict[str, Any]:
    """One node of the chain and its `files`; `changed` against the one before it."""
    evaluation = confirmed_evaluation(store, node) if node.state == "done" else None
    rounds = [row.status for row in finalists.last_series(store, node.run_id) if row.node_id == node.id]
    return score_data(node, evaluation) | {
        "node": node.id,
        "parent": node.parent_id,
        "state": node.state,
        "status": node.status,
        "failed_rounds": [status for status in rounds if status != "ok"],
        "error": evaluation.error if evaluation else None,
        "diagnosis": node.diagnosed,
        "note": plain_note(node.note),
        "repeat_of": node.repeat_of,
        "changed": [change._asdict() for change in changed],
        "files": files,
        "created_at": node.created_at,
    }


def _episode_data(store: Store, run: Run, episode: Episode) -> dict[str, Any]:
    """The episode that a node was made in, and why it began where it did."""
    parent = None if episode.parent_id is None else nodes.get_node(store, episode.parent_id)
    is_copy = episode.island == SEEDS and run.forked_node is not None
    return {
        "run": run.id,
        "episode": episode.number,
        "island": episode.island,
        "role": runs.get_island(store, run.id, episode.island).role,
        "model": episode.model or run.model,
        "parent": episode.parent_id,
        "parent_status": parent.status if parent else None,
        "chosen": _chosen(store, run, episode, parent),
        "forked_from": {"run": run.forked_run, "node": run.forked_node} if is_copy else None,
        "migrated": episode.migration is not None,
        "hints": episode.shown_hints,
        "state": episode.state,
        "end_reason": episode.end_reason,
        "steps": episode.steps,
        "tokens": episode.input_tokens + episode.output_tokens,
        "best_node": episode.best_node,
        "best_as": episode.best_as,
        "gain": episode.gain,
        "prompt": episodes.conversation(store, episode.id)[:2],
    }


def _chosen(store: Store, run: Run, episode: Episode, parent: Node | None) -> str:
    """Why the episode began where it did, in words."""
    if episode.migration is not None:
        return f"migration: {episode.migration}"
    if episode.island == SEEDS and run.forked_node is not None:
        return "fork: a copy of that node, measured under this run's conditions"
    if episode.island == SEEDS:
        return "seed: made before the search, for all islands to see"
    settings = json.loads(run.config)["search"]
    policy = settings["policy"]
    if parent is None:
        if episode.number <= settings.get("drafts", 0) or policy == "best_of_n":
            return "draft: from the task, told of no other attempt"
        if episode.number <= run.islands:
            return "the island's first episode, with nothing to go on from"
        return f"{policy} policy: from the task anew"
    if parent.island == SEEDS and is_first(settings.get("drafts", 0), run.islands, episode.number):
        return "seed: the island's first episode starts from the run's best seed"
    if parent.status != "ok":
        return f"{policy} policy: to be repaired, nothing was correct there"
    origin = {episode.island: "", SEEDS: ", a seed"}.get(parent.island, f", of island {parent.island}")
    return f"{policy} policy: a correct node{origin}"


def why_text(store: Store, data: dict[str, Any]) -> Text:
    """The chain for a terminal, from the task down to the node."""
    text, flag = Text(), runs_dir_flag(store)
    last = data["chain"][-1]
    count = len({(step["episode"]["run"], step["episode"]["episode"]) for step in data["chain"]})
    best = ", the run's best" if data["is_best"] else f"; the run's best is node {data['best_node']}"
    text.append(f"node {data['node']} of run {data['run']}", "bold")
    text.append(f": {_score(last)}{best if data['best_node'] else ''}\n")
    text.append(f"{counted(len(data['chain']), 'step')} in {counted(count, 'episode')} from the task\n\n")
    text.append(f"task {data['task']} on {data['device']}, eager: AS 1\n", "bold")
    last_episode, before = None, None
    for step in data["chain"]:
        if step["episode"] is not last_episode:
            last_episode = step["episode"]
            _append_episode(text, step, data["run"])
        _append_step(text, step, before)
        before = step
    for profile in data["profiles"][:1]:
        text.append("\nits profile: ", "bold")
        text.append(f"{printable(profile['text'])}\n")
    text.append(f"\nthe prompt:       passagent show {data['node']} --prompt{flag}\n", "dim")
    text.append(f"the conversation: passagent show {data['node']} --conversation{flag}", "dim")
    if last["parent"] is not None:
        text.append(f"\nthe change:       passagent diff {last['parent']} {data['node']}{flag}", "dim")
    return text


def _append_episode(text: Text, step: dict[str, Any], last_run: str) -> None:
    episode = step["episode"]
    start = "the task" if episode["parent"] is None else f"node {episode['parent']}"
    if episode["forked_from"] is not None:
        start = "node {node} of run {run}".format(**episode["forked_from"])
    text.append("│\n├─ ", "dim")
    text.append(f"episode {episode['episode']}", "bold cyan")
    text.append("" if episode["run"] == last_run else f" of run {episode['run']}")
    where = "" if episode["island"] == SEEDS else f"island {episode['island']} "
    text.append(f" {where}({episode['role']}), {episode['model']}, from {start}\n")
    _append_line(text, episode["chosen"])
    if episode["forked_from"] is not None:
        return
    if episode["hints"]:
        _append_line(text, f"hints: {', '.join(episode['hints'])}")
    if episode["state"] == "running":
        outcome = "still under way"
    elif episode["best_node"] is None:
        outcome = f"nothing correct in {counted(episode['steps'], 'step')}"
    else:
        outcome = f"best node {episode['best_node']}, AS {number(episode['best_as'])}"
        if episode["parent_status"] == "ok":
            outcome += f", {percent(episode['gain'])} against node {episode['parent']}"
    _append_line(text, f"what it left: {outcome}")


def _append_step(text: Text, step: dict[str, Any], before: dict[str, Any] | None) -> None:
    text.append("● ", _COLOURS.get(step["status"], ""))
    text.append(f"node {step['node']}", "bold")
    text.append(" ")
    text.append(_score(step), _COLOURS.get(step["status"], ""))
    if before and step["as_score"] and before["as_score"] and step["status"] == before["status"] == "ok":
        share = step["as_score"] / before["as_score"] - 1
        is_sure = are_separate(*((side["as_low"], side["as_high"]) for side in (step, before)))
        noise = "" if is_sure else " (intervals overlap)"
        text.append(f", {share:+.1%} against node {before['node']}{noise}")
    if step["repeat_of"]:
        text.append(f", equal to node {step['repeat_of']}")
    text.append("\n")
    if step["note"]:
        _append_line(text, short_note(step["note"]))
    changed = ", ".join(str(Change(**change)) for change in step["changed"]) or "nothing"
    if step["episode"]["forked_from"] is None:
        _append_line(text, f"{'changed' if step['parent'] is not None else 'written'}: {changed}")
    if step["diagnosis"]:
        _append_line(text, short_note(step["diagnosis"]["text"], 200))


def _append_line(text: Text, line: str) -> None:
    text.append("│    ", "dim")
    text.append(printable(" ".join(line.split())) + "\n")


def _score(step: dict[str, Any]) -> str:
    if step["state"] != "done":
        return str(step["state"])
    again = ""
    if step["measured_again"]:
        again = f", measured again (first {number(step['first_as'])})"
    elif step["failed_rounds"]:
        again = f", measured again: {', '.join(step['failed_rounds'])}"
    return f"{step['status']}, AS {interval(step['as_score'], step['as_low'], step['as_high'])}{again}"


_DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


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
        style = "bold" if line.startswith(("+++", "---")) else _DIFF_COLOURS.get(line[0], "") if line else ""
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
