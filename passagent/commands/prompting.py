"""`passagent prompt`: what a model was, or would be, shown at the beginning of an episode."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from passagent.agent.context import ParentView
from passagent.agent.prompt import compose
from passagent.cluster.opening import device_label, machine_of
from passagent.config import Config
from passagent.errors import UsageError
from passagent.evaluator.hardware.machine import Machine
from passagent.evaluator.reference.eager import EagerGraph
from passagent.experience import load_hints
from passagent.experience.hints import Hint
from passagent.models.types import Message
from passagent.search.describing import kept_eager
from passagent.search.gathering import episode_context
from passagent.search.relatives import Told
from passagent.search.run_memory import Memory, open_memory
from passagent.search.setup import stored_config, stored_task
from passagent.store import Store, episodes, nodes, runs
from passagent.store.episodes import episode_seed
from passagent.store.nodes import Node
from passagent.store.runs import Run
from passagent.tasks import Task


@dataclass
class _Known:
    """What a prompt is composed from (search.context.Known)."""

    store: Store
    run: Run
    task: Task
    config: Config
    hints: list[Hint]
    device_name: str
    machine: Machine | None
    eager: tuple[EagerGraph, ...]
    memory: Memory | None
    views: dict[tuple[object, ...], ParentView] = field(default_factory=dict)
    told: Told = field(default_factory=dict)
    bests: dict[int, tuple[int, float | None]] = field(default_factory=dict)


def prompt(name: str, node_id: int, runs_dir: str, is_next: bool, as_json: bool) -> None:
    """Print the first messages of the episode that made the node, or of one that would start from it.

    Raises UsageError if the run has no such node.
    """
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        node = next((node for node in nodes.of_run(store, run.id) if node.id == node_id), None)
        if node is None:
            raise UsageError(f"run {run.id} has no node {node_id}; passagent show {run.id} lists them")
        messages = would_be_shown(store, run, node) if is_next else was_shown(store, node)
        if not messages:
            source = episodes.get_episode(store, node.episode_id).model
            if run.forked_node is not None:
                source = f"node {run.forked_node} of run {run.forked_run}"
            raise UsageError(f"node {node.id} was not written in this run; it is {source}")
        if as_json:
            print(json.dumps({"run": run.id, "node": node.id, "messages": messages}))
            return
        for message in messages:
            print(f"===== {message['role']} =====\n{message['content']}\n")
        tools = messages[0].get("tools", [])
        print("===== tools =====\n" + "\n".join(tool["name"] for tool in tools))


def was_shown(store: Store, node: Node) -> list[Message]:
    """The system and the task message, from the store."""
    return episodes.conversation(store, node.episode_id)[:2]


def would_be_shown(store: Store, run: Run, parent: Node) -> list[Message]:
    """What the next episode of the node's island would begin with, on this machine, if it started from it."""
    if parent.state != "done":
        raise UsageError(f"node {parent.id} has not been evaluated yet; resume run {run.id} first")
    config = stored_config(run)
    last = store.row(
        "SELECT max(number) AS number FROM episodes WHERE run_id = :run AND island = :island",
        {"run": run.id, "island": parent.island},
    )
    number = (last["number"] if last else 0) + run.islands
    episode = replace(
        episodes.get_episode(store, parent.episode_id),
        id=0,
        number=number,
        parent_id=parent.id,
        migrated=0,
        seed=episode_seed(run.seed, number),
    )
    task = stored_task(run)
    known = _Known(
        store,
        run,
        task,
        config,
        load_hints(),
        device_label(config.evaluator),
        machine_of(config.evaluator),
        kept_eager(task, config.evaluator),
        open_memory(config, task, store.runs_dir),
    )
    return compose(episode_context(known, episode, parent))
