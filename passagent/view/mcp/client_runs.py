"""The run behind a task: what clients have evaluated on it are its nodes, what they called its episodes.

An episode is what one client, by name and version, does on the task while a server runs. It holds the calls
that the server saw, not what the client's model said: what is exported of it is marked `partial`. An episode
with a job under way stays open when the server ends, and the next server goes on with it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from passagent.config import Config, override
from passagent.evaluator.hardware.devices import first_device
from passagent.evaluator.hardware.machine import measure_machine
from passagent.models.scripted import ScriptedModel
from passagent.models.types import Message, assistant
from passagent.search.controller import driving, watch_run
from passagent.search.expansion import conclude
from passagent.search.remeasure import environment_of
from passagent.search.session import Evaluator, Session
from passagent.search.setup import Parts, new_run, open_session, same_run
from passagent.store import Store, episodes, nodes, runs, sessions
from passagent.store.episodes import Episode
from passagent.store.events import Event, Noted
from passagent.store.nodes import CANCELLED
from passagent.store.runs import CLIENTS
from passagent.tasks import Task

ENDLESS = 10**9
"""Episodes: as many as clients begin."""
Call = tuple[str, dict[str, Any], str]
"""Tool, arguments, answer."""


def served_config(config: Config) -> Config:
    """The configuration of a run that clients fill."""
    fixed = {"model.name": CLIENTS, "model.ensemble": [], "search.islands": 1, "search.iters": ENDLESS}
    return override(config, fixed | {"search.expert_seeds": 0, "search.drafts": 0, "search.seed_dir": None})


@dataclass
class ClientRun:
    """A run that this process drives: what clients evaluate on a task are its nodes."""

    session: Session
    held: ExitStack
    """Ends with the work on the run."""
    watching: asyncio.Task[None]
    episodes: dict[str, Episode]
    """One for each client."""

    @property
    def is_over(self) -> bool:
        """A person stopped it, or its database is gone."""
        return self.session.stop_reason is not None or self.watching.done()

    def record(self, episode: Episode, call: Call, call_id: str | None = None) -> None:
        """Append a call and its answer to the conversation, both or none."""
        name, arguments, text = call
        call_id = call_id or f"call_{episode.id}_{time.monotonic_ns()}"
        request = {"id": call_id, "name": name, "arguments": json.dumps(arguments)}
        answer: Message = {"role": "tool", "tool_call_id": call_id, "name": name, "content": text}
        # what a client's model took of tokens is not known
        episodes.add_messages(self.session.store, episode, [assistant("", [request]), answer])

    async def close(self, reason: str) -> None:
        """Leave the run. Episodes are concluded, but for those with a job that is not done."""
        session, store = self.session, self.session.store
        self.watching.cancel()
        await asyncio.wait({self.watching})
        with self.held, store.transaction():
            open_nodes = nodes.unfinished(store, session.run.id)
            waiting = {node.episode_id for node in open_nodes if node.status != CANCELLED}
            for episode in self.episodes.values():
                if episode.id not in waiting:
                    conclude(session, episode, None, reason)
            sessions.end(store, session.run.id, "stopped", reason, session.elapsed_s)


async def open_run(
    store: Store, task: Task, config: Config, evaluator: Evaluator, note: Callable[[str], None]
) -> ClientRun:
    """Drive the run that clients fill on `task` under `config` (served_config), made if there is none yet.

    Scores of another evaluator are not compared: then a new run begins, and while another server has the
    run. `note` gets lines for people. Raises PassagentError.
    """
    await asyncio.to_thread(measure_machine, first_device(config.evaluator.device))

    def on_event(event: Event) -> None:
        if isinstance(event, Noted):
            note(event.message)

    parts = Parts(ScriptedModel([], CLIENTS), evaluator)  # nobody asks it: candidates come from clients

    def session_on(run: runs.Run) -> Session:
        return open_session(store, run, task, config, parts, on_event)

    with store.transaction():
        chosen_run = same_run(store, task, config)
        if chosen_run is None or sessions.is_driven(store, chosen_run.id):
            chosen_run = new_run(store, task, config)
        session = session_on(chosen_run)
        if session.run.environment not in (None, environment_of(session)):
            session = session_on(new_run(store, task, config))
    held = ExitStack()
    held.enter_context(driving(session))
    if session.run.environment is None:
        runs.update_run(store, session.run.id, environment=environment_of(session))
    open_episodes = {episode.model or "": episode for episode in episodes.running(store, session.run.id)}
    return ClientRun(session, held, asyncio.create_task(watch_run(session)), open_episodes)
