"""One episode of the search: choose its parent, compose its prompt, let the agent work, and take stock."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

from passagent.agent.episode import run_episode
from passagent.agent.prompt import compose
from passagent.agent.toolbox import Services, open_tools
from passagent.evaluator.result import Candidate, Evaluation
from passagent.evaluator.target import target_of
from passagent.models.types import Message, Usage
from passagent.search.candidates import limits_of, submitter
from passagent.search.episode_context import describe, episode_context
from passagent.search.islands import IslandView, gains_after, is_progress, log_gain
from passagent.search.policies import choose_parent
from passagent.search.run_models import choose_model, metered, writer_of
from passagent.search.session import Session
from passagent.store import SEEDS, Episode, Node, episodes, hint_uses, nodes, runs
from passagent.store.events import EpisodeContinued
from passagent.store.redaction import redacted


async def expand(session: Session, episode: Episode) -> None:
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

    model = metered(session, episode, writer_of(session, episode))

    def save(message: Message, usage: Usage | None) -> None:
        # at once: what was paid and has arrived is never asked for again
        with session.store.transaction():
            episodes.add_messages(session.store, episode, [message])
            if usage:
                model.settle(usage, message.get("stop_reason"))
        session.events.look()
        if usage:
            session.check()

    async def outline(files: dict[str, str]) -> Evaluation | list[str]:
        return await session.in_time(session.evaluator.outline(session.task.path, Candidate(files)))

    config, target = session.config, target_of(session.config.evaluator)
    files = nodes.get_files(session.store, parent) if parent else {}
    start_as = parent.correct_as if parent else None
    services = Services(submitter(session, episode), outline, partial(limits_of, session))
    tools = open_tools(config.agent.tools, session.task, files, target, services, start_as)
    reason = await run_episode(model, messages, tools, save, config.agent, session.left)
    conclude(session, episode, parent, reason)
    session.events.look()


def begin(session: Session, episode: Episode) -> tuple[Episode, list[Message]]:
    """Choose the parent and store it with the hints shown and the first two messages, all or nothing."""
    store = session.store
    parent, reason = choose_parent(store, session.run, session.config.search, episode)
    parent_id = parent.id if parent else None
    model = choose_model(session, episode)
    episode = replace(episode, parent_id=parent_id, migration=reason, model=model)
    context = episode_context(session, episode, parent)
    messages, hint_ids = redacted(compose(context)), [hint.id for hint in context.hints]
    if hint_ids or context.held_out:
        episode = replace(episode, hints=json.dumps(hint_ids), held_out=json.dumps(context.held_out))
    with store.transaction():
        episodes.set_start(store, episode)
        episodes.add_messages(store, episode, messages)
    session.events.look()
    return episode, messages


def conclude(session: Session, episode: Episode, parent: Node | None, reason: str) -> None:
    """Close the episode and count the island's stagnation, all or nothing.

    With progress, a hint is to be distilled from it, if there is a distiller.
    """
    store, island = session.store, episode.island
    right = nodes.correct_of_episode(store, episode.id)
    best = max((node.as_score for node in right if node.as_score is not None), default=None)
    # a program that was there before is no progress, whatever a second measurement of it says
    new = max((node.as_score or 0.0 for node in right if node.repeat_of is None), default=None)
    gain = log_gain(parent, best)
    scores = [IslandView(store, session.run.id, island).best_before(episode.number)]
    scores += [parent.correct_as] if parent else []
    before = max((score for score in scores if score is not None), default=None)
    gained = is_progress(before, new)
    with store.transaction():
        done = episodes.finish(store, episode, reason, gain, gained)
        if island != SEEDS:
            _count_gain(session, new, right)
        if session.distiller is not None and island != SEEDS and gained:
            hint_uses.want_distilled(store, done)


def _count_gain(session: Session, best: float | None, correct: list[Node]) -> None:
    """Count what an episode that left `best` and these correct nodes gained for the run."""
    store, run_id = session.store, session.run.id
    before = runs.get_run(store, run_id).gained
    for seed in nodes.best_of_island(store, run_id, SEEDS, 1) if not before.episodes else []:
        before = replace(before, best_as=seed.as_score, marked_as=seed.as_score)
        correct = [*correct, seed]
    headrooms = [(node.diagnosed or {}).get("headroom") for node in correct]
    headroom = min((value for value in headrooms if value is not None), default=None)
    after = gains_after(before, best, session.elapsed_s, headroom)
    runs.update_run(store, run_id, gains=json.dumps(vars(after)))
