"""The cheating validator in a search: a candidate that would become an elite is looked at by a model first.

Kernel Foundry 3.2.2. Its calls are counted as the agent's are, under the role `validator`; measurement and
opinion are stored as they come, so that neither is paid for twice.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from passagent.agent import validator
from passagent.agent.validator import ROLE, Opinion
from passagent.evaluator.result import Candidate, Evaluation
from passagent.evaluator.service.known import keep
from passagent.models.meter import metered
from passagent.models.types import Reply
from passagent.search.islandview import IslandView, fitness
from passagent.search.session import Session
from passagent.search.writers import meter_of
from passagent.store import episodes, ledger
from passagent.store.nodes import Node


def is_wanted(session: Session, node: Node, evaluation: Evaluation) -> bool:
    """Whether the validator is to be asked: the node would be an elite of its island, and it was not yet."""
    if session.validator is None or validator.is_settled(evaluation, session.config.validator):
        return False
    limit = session.config.search.elites
    elites = IslandView(session.store, node.run_id, node.island).elites(limit)
    score = -1.0 if evaluation.as_score is None else evaluation.as_score
    return len(elites) < limit or score > fitness(elites[-1])


async def ask(
    session: Session, node: Node, candidate: Candidate, environment: str, evaluation: Evaluation
) -> tuple[int, Evaluation]:
    """The evaluation with the validator's opinion, as stored: its id and itself.

    Raises what the model raises, and Stopping where a budget has no room.
    """
    assert session.validator is not None
    store, config = session.store, session.config
    episode = replace(episodes.get_episode(store, node.episode_id), model=session.validator.name)
    meter = meter_of(session, episode, ROLE)
    kept: list[tuple[int, Evaluation]] = []

    def save(reply: Reply, opinion: Opinion | None) -> None:
        with store.transaction():
            meter.settle(reply.usage, reply.stop_reason)
            ledger.count(store, episode, asdict(reply.usage))
            if opinion is not None:
                judged = validator.with_opinion(evaluation, opinion, config.evaluator)
                kept.append((keep(store, session.task, candidate, environment, judged), judged))
        session.events.look()

    model = metered(session.validator, meter)
    await validator.ask(model, session.task, candidate, config.validator, save)
    return kept[-1]
