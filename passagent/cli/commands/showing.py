"""`passagent show`: a run, an episode, a node, a task, a data set or a row of one."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from passagent.data.export.writing import CARD, MANIFEST, provenance, read_manifest, texts
from passagent.data.pipeline.inspection import RECORD
from passagent.errors import UsageError
from passagent.search.comparison import confirmed_evaluation
from passagent.search.setup import stored_config
from passagent.store import Store, confirmations, episodes, nodes, runs
from passagent.store.episodes import Episode
from passagent.store.nodes import Node
from passagent.store.runs import Run
from passagent.store.sessions import runs_dir_flag
from passagent.store.trajectories import find_episode, trajectory
from passagent.tasks import load_task
from passagent.tasks.examples import PREFIX, locate
from passagent.tasks.tasklist import is_task
from passagent.view.evaluation import evaluation_text
from passagent.view.run_summary import run_data, run_text
from passagent.view.text import console, interval, print_answer, printable, table
from passagent.view.trajectory import print_row, print_trajectory
from passagent.view.tree import node_row, run_tree
from passagent.view.why import why_data, why_text

Part = Literal["why", "prompt", "conversation"]
PARTS: tuple[Part, ...] = ("why", "prompt", "conversation")


def show(what: str, number: int | None, part: Part | None, runs_dir: str, as_json: bool) -> None:
    """Print what `what` is: a number is a node, a path or `example:NAME` a task or data set, else a run.

    number: an episode of the run, or a row of the data set.
    part: of a node, of an episode (its best node) or of a run (its best node).
    Raises UsageError for what is not there, and TaskError for a task that cannot be read.
    """
    path = Path(what)
    is_export, is_built = (path / MANIFEST).is_file(), (path / RECORD).is_file()
    if is_export or is_built or what.startswith(PREFIX) or is_task(path):
        if part is not None:
            raise UsageError(f"--{part} is of a node, an episode or a run; {what} is none")
        if is_export:
            _show_export(path, number, as_json)
            return
        if number is not None:
            raise UsageError(f"{what}: has no rows; passagent show TASK takes one of its tasks")
        if is_built:
            _show_built(path, as_json)
        else:
            _show_task(what, as_json)
        return
    with Store.open(runs_dir, create=False) as store:
        node, episode = None, None
        is_run = store.rows(
            "SELECT 1 FROM runs WHERE id = :name OR (substr(id, 1, length(:name)) = :name "
            "AND NOT EXISTS (SELECT 1 FROM nodes WHERE CAST(nodes.id AS TEXT) = :name))",
            {"name": what},
        )
        if what.isdecimal() and number is None and not is_run:
            node = nodes.get_node(store, int(what))
            run = runs.get_run(store, node.run_id)
        else:
            run = runs.find_run(store, what)
            episode = None if number is None else find_episode(store, run, number)
        if node is None and (part == "why" or (part and episode is None)):
            node = _best(store, run, episode)
        if node is not None and episode is None:
            episode = episodes.get_episode(store, node.episode_id)
        if part == "why" and node is not None:
            data = why_data(store, node)
            print_answer(as_json, data, lambda: why_text(store, data))
        elif part == "prompt" and episode is not None:
            _show_prompt(store, run, episode, as_json)
        elif node is not None and part is None:
            _show_node(store, node, as_json)
        elif episode is not None:
            _show_episode(store, run, episode, as_json)
        else:
            _show_run(store, run, as_json)


def _best(store: Store, run: Run, episode: Episode | None) -> Node:
    """Return the best node of the episode, or of the run where it is None. Raises UsageError."""
    if episode is None:
        node = confirmations.winner(store, run.id)
        if node is None:
            raise UsageError(f"run {run.id}: has no best node yet; give a node or an episode")
        return node
    if episode.best_node is None:
        raise UsageError(f"episode {episode.number} of run {run.id} has no correct node")
    return nodes.get_node(store, episode.best_node)


def _show_run(store: Store, run: Run, as_json: bool) -> None:
    """Print the run's tree and summary."""
    config = stored_config(run)
    if as_json:
        tree = [node_row(node) for node in nodes.of_run(store, run.id)]
        print(json.dumps(run_data(store, run, config) | {"tree": tree}))
    else:
        print(f"{run_tree(store, run.id)}\n\n{run_text(store, run, config)}")


def _show_episode(store: Store, run: Run, episode: Episode, as_json: bool) -> None:
    """Print the conversation: readably, or as one line of `passagent.trajectory/1`."""
    conversation = trajectory(store, run, episode)
    if as_json:
        print(conversation.model_dump_json())
    else:
        print_trajectory(conversation, console(soft_wrap=True))


def _show_prompt(store: Store, run: Run, episode: Episode, as_json: bool) -> None:
    """Print the system and the task message that the episode began with, and the tools' names."""
    messages = episodes.conversation(store, episode.id)[:2]
    if not messages:
        source = episode.model
        if run.forked_node is not None:
            source = f"node {run.forked_node} of run {run.forked_run}"
        raise UsageError(f"episode {episode.number} was not written in this run; it is {source}")
    parts = [f"===== {message['role']} =====\n{message['content']}\n" for message in messages]
    parts.append("===== tools =====\n" + "\n".join(tool["name"] for tool in messages[0].get("tools", [])))
    data = {"run": run.id, "episode": episode.number, "messages": messages}
    print_answer(as_json, data, lambda: "\n".join(parts))


def _show_node(store: Store, node: Node, as_json: bool) -> None:
    """Print the node: where it comes from, its evaluation and its files."""
    episode = episodes.get_episode(store, node.episode_id)
    evaluation = confirmed_evaluation(store, node) if node.state == "done" else None
    files = nodes.get_files(store, node)
    judged = json.loads(evaluation.model_dump_json()) if evaluation else None
    data = node_row(node) | {"run": node.run_id, "episode": episode.number}
    score = interval(evaluation.as_score, evaluation.as_low, evaluation.as_high, 4) if evaluation else "none"
    start = "the task" if node.parent_id is None else f"node {node.parent_id}"
    lines = [
        f"node {node.id} of run {node.run_id}: {node.status or node.state}, AS {score}",
        f"from {start}, in episode {episode.number} of island {node.island}",
        *([printable(node.note)] if node.note else []),
        *([evaluation_text(evaluation)] if evaluation else []),
        *(f"\n--- {name}\n{printable(text.rstrip())}" for name, text in files.items()),
        f"\nhow it came to be: passagent show {node.id} --why{runs_dir_flag(store)} "
        "(or --prompt, --conversation)",
    ]
    print_answer(as_json, data | {"files": files, "evaluation": judged}, lambda: "\n".join(lines))


def _show_task(name: str, as_json: bool) -> None:
    """Print a task: its subgraphs with their inputs, where they come from, and the first one's text."""
    task = load_task(locate(name))
    graphs = list[dict[str, Any]]()
    for graph in task.subgraphs:
        facts_file = graph.path / "graph_net.json"
        facts = json.loads(facts_file.read_text(encoding="utf-8")) if facts_file.is_file() else {}
        inputs = [f"{meta.name} {meta.dtype}{list(meta.shape)}" for meta in graph.inputs]
        graphs.append({
            "name": graph.name, "inputs": inputs, "origin": facts.get("origin"), "sizes": facts.get("sizes")
        })  # fmt: skip
    lines = [f"{task.name} ({task.path}): {', '.join(task.operators)}\n{task.subgraphs[0].source}"]
    for row in graphs:
        lines.append(f"{row['name']}: {', '.join(row['inputs'])}")
        if row["origin"]:
            lines.append("  from " + ", ".join(f"{key} {value}" for key, value in row["origin"].items()))
    data = {"task": task.name, "path": str(task.path), "key": task.key, "operators": task.operators}
    print_answer(as_json, data | {"subgraphs": graphs}, lambda: "\n".join(lines))


def _show_export(path: Path, number: int | None, as_json: bool) -> None:
    """Print what an export holds, or one row of it (from 1)."""
    manifest, rows = read_manifest(path), provenance(path)
    if number is None:
        print_answer(as_json, manifest, lambda: (path / CARD).read_text(encoding="utf-8"))
        return
    row, text = next(islice(texts(path, rows), max(number, 1) - 1, None), (None, None))
    if row is None or text is None or number < 1:
        raise UsageError(f"{path}: has no row {number}; it has 1 to {manifest['rows']}")
    if as_json:
        print(json.dumps({"provenance": row, "row": json.loads(text)}))
    else:
        print_row(row, json.loads(text), console(soft_wrap=True))


def _show_built(path: Path, as_json: bool) -> None:
    """Print what `tasks build` wrote: what was lost at each step, and the tasks of each list."""
    from passagent.cli.commands.task_commands import funnel_text
    from passagent.data.pipeline.inspection import read_record

    record = read_record(path)
    lists_table = table(["list", ">tasks"], [[name, str(count)] for name, count in record["tasks"].items()])
    text = f"{funnel_text(record['funnel'])}\n{lists_table}"
    print_answer(as_json, {"directory": str(path), **record}, lambda: text)
