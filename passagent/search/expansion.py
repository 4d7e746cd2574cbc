"""One episode of the search: choose its parent, compose its prompt, let the agent work, and take stock."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from passagent.agent.editor import file_editor
from passagent.agent.episode import run_episode
from passagent.agent.evaluator_tool import pass_evaluator
from passagent.agent.prompt import compose
from passagent.agent.taskfiles import read_task_files
from passagent.agent.tool_specs import CHECK, CODE, EDITOR, EVALUATOR, KNOWLEDGE, PROFILE, Tool
from passagent.agent.toolbox import check, own_tool, profile, search_code, search_knowledge
from passagent.agent.workspace import Workspace
from passagent.evaluator.result import Candidate
from passagent.evaluator.target import target_of
from passagent.events import EpisodeContinued
from passagent.experience import knowledge
from passagent.models.meter import metered
from passagent.models.types import Message, Usage
from passagent.search.candidates import limits_of, outline, submitter
from passagent.search.episode_context import describe, episode_context
from passagent.search.islands import (
    Greedy,
    IslandView,
    choose_migrant,
    gains_after,
    is_draft,
    is_first,
    is_progress,
    log_gain,
    policy_of,
)
from passagent.search.run_models import choose_model, meter_of, writer_of
from passagent.search.session import Session
from passagent.store import episodes, hint_uses, nodes, runs
from passagent.store.episodes import Episode
from passagent.store.nodes import Node
from passagent.store.redaction import redacted
from passagent.store.runs import SEEDS


async def run_claimed(session: Session, episode: Episode) -> Episode:
    """Run an episode to its end, from the beginning or from where a dead process left it.

    Raises Stopping where it is left to be continued, and what model and evaluator raise.
    """
    messages = episodes.conversation(session.store, episode.id)
    is_resumed = bool(messages)
    if not messages:
        await describe(session, episode)
        episode, messages = begin(session, episode)
    parent = nodes.get_node(session.store, episode.parent_id) if episode.parent_id is not None else None
    if is_resumed:
        session.events.tell(
            EpisodeContinued,
            episode=episode.number,
            island=episode.island,
            model=episode.model,
            parent=episode.parent_id,
            parent_as=parent.as_score if parent else None,
        )

    meter = meter_of(session, episode)

    def save(message: Message, usage: Usage | None) -> None:
        # at once: what was paid and has arrived is never asked for again
        with session.store.transaction():
            episodes.add_messages(session.store, episode, [message])
            if usage:
                meter.settle(usage, message.get("stop_reason"))
        session.events.look()
        if usage:
            session.check()

    files = nodes.get_files(session.store, parent) if parent else {}
    workspace = Workspace(read_task_files(session.task.path), files)
    agent_tools = tools(session, episode, workspace, parent)
    model = metered(writer_of(session, episode), meter)
    end = await run_episode(model, messages, agent_tools, save, session.config.agent, session.left)
    episode = conclude(session, episode, parent, end.reason)
    session.events.look()
    return episode


def begin(session: Session, episode: Episode) -> tuple[Episode, list[Message]]:
    """Choose the parent and store it with the hints shown and the first two messages, all or nothing."""
    store = session.store
    parent, reason = choose_parent(session, episode, random.Random(f"parent:{episode.seed}"))
    parent_id = parent.id if parent else None
    model = choose_model(session, episode)
    episode = replace(episode, parent_id=parent_id, migration=reason, model=model)
    context = episode_context(session, episode, parent)
    messages, shown = redacted(compose(context)), [hint.id for hint in context.hints]
    if shown or context.held_out:
        episode = replace(episode, hints=json.dumps(shown), held_out=json.dumps(context.held_out))
    with store.transaction():
        episodes.set_start(store, episode)
        episodes.add_messages(store, episode, messages)
    session.events.look()
    return episode, messages


def choose_parent(session: Session, episode: Episode, rng: random.Random) -> tuple[Node | None, str | None]:
    """The parent (None: the task itself) and, where it comes from another island, why."""
    search, run, store = session.config.search, session.run, session.store
    if is_draft(search, episode.number):
        return None, None
    is_seed = episode.island == SEEDS
    if is_seed or is_first(search.drafts, run.islands, episode.number):
        seed = Greedy().select(IslandView(store, run.id, SEEDS), rng)
        if is_seed or seed:
            return seed, None
    policy = policy_of(search)
    stagnant = runs.get_island(store, run.id, episode.island).stagnant
    if policy.scope == "islands" and stagnant >= search.stagnation:
        migrant = choose_migrant(store, run, episode.island, episode.number)
        if migrant is not None:
            return migrant
    return policy.select(IslandView(store, run.id, episode.island), rng), None


def conclude(session: Session, episode: Episode, parent: Node | None, reason: str) -> Episode:
    """Close the episode and count the island's stagnation, all or nothing.

    With progress, a hint is to be distilled from it, if there is a distiller.
    """
    store, island = session.store, episode.island
    right = [node for node in nodes.of_episode(store, episode.id) if node.status == "ok"]
    best = max((node.as_score for node in right if node.as_score is not None), default=None)
    # a program that was there before is no progress, whatever a second measurement of it says
    new = max((node.as_score or 0.0 for node in right if node.repeat_of is None), default=None)
    gain = log_gain(parent, best)
    scores = [IslandView(store, session.run.id, island).best_before(episode.number)]
    scores += [parent.as_score] if parent and parent.status == "ok" else []
    before = max((score for score in scores if score is not None), default=None)
    gained = is_progress(before, new)
    with store.transaction():
        done = episodes.finish(store, episode, reason, gain, gained)
        if island != SEEDS:
            _count_gain(session, new, right)
        if session.distiller is not None and island != SEEDS and gained:
            hint_uses.want_distilled(store, done)
    return done


def _count_gain(session: Session, best: float | None, correct: list[Node]) -> None:
    """Count what an episode that left `best` and these correct nodes gained for the run."""
    store, run_id = session.store, session.run.id
    before, start = runs.get_run(store, run_id).gained, None
    if before is None:
        seed = next(iter(nodes.best_of_island(store, run_id, SEEDS, 1)), None)
        start = seed.as_score if seed else None
        correct = [*correct, *([seed] if seed else [])]
    headrooms = [(node.diagnosed or {}).get("headroom") for node in correct]
    headroom = min((value for value in headrooms if value is not None), default=None)
    after = gains_after(before, start, best, session.elapsed_s, headroom)
    runs.update_run(store, run_id, gains=json.dumps(vars(after)))


def tools(
    session: Session,
    episode: Episode,
    workspace: Workspace,
    parent: Node | None,
) -> list[Tool]:
    """The agent's tools that `agent.tools` asks for, bound to this episode."""
    start_as = parent.as_score if parent and parent.status == "ok" else None
    target = target_of(session.config.evaluator)
    makers: dict[str, Callable[[], Tool]] = {
        EDITOR: partial(file_editor, workspace),
        CHECK: partial(check, workspace, lambda files: outline(session, Candidate(files))),
        EVALUATOR: partial(pass_evaluator, workspace, submitter(session, episode), start_as),
        KNOWLEDGE: partial(
            search_knowledge,
            partial(knowledge.search, operators=session.task.operators, target=target),
            partial(knowledge.read, target=target),
        ),
        PROFILE: partial(profile, workspace, partial(limits_of, session)),
        CODE: partial(search_code, target),
    }
    return [
        makers[name]() if name in makers else own_tool(name, workspace) for name in session.config.agent.tools
    ]
