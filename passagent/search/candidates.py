"""From an episode's files to a node: stored, evaluated once, diagnosed, and told to the model."""

from __future__ import annotations

import asyncio
import hashlib
import json
import platform
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib import metadata

from passagent.agent.observe import observation
from passagent.agent.prompt import note_of
from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError
from passagent.evaluator.environment import evaluator_version
from passagent.evaluator.result import Candidate, Evaluation
from passagent.search.events import NodeDone, NodeStarted, Trouble
from passagent.search.session import Session
from passagent.store import evaluations, nodes
from passagent.store.episodes import Episode
from passagent.store.nodes import Node

RETRY_AFTER_S = (1.0, 10.0)
"""Waits before an evaluation that the machine failed is tried again, s."""


def submitter(session: Session, episode: Episode) -> Callable[[dict[str, str], str], Awaitable[str]]:
    """`submit(files, call_id)` of an episode; a call that is repeated after a crash finds its node again."""

    async def submit(files: dict[str, str], call_id: str) -> str:
        candidate = Candidate(files)
        earlier = nodes.of_episode(session.store, episode.id)
        node = nodes.propose(
            session.store,
            episode,
            call_id,
            files,
            candidate.key,
            note_of(files),
            parent_id=_parent(earlier, call_id, episode),
        )
        if node.state == "done":
            assert node.evaluation_id is not None
            evaluation = Evaluation.model_validate(
                evaluations.get_evaluation(session.store, node.evaluation_id)
            )
        else:
            node, evaluation = await judge(session, node, candidate)
        parent = nodes.get_node(session.store, node.parent_id) if node.parent_id is not None else None
        return observation(
            evaluation, parent.as_score if parent else None, nodes.best_as_before(session.store, node)
        )

    return submit


def _parent(earlier: list[Node], call_id: str, episode: Episode) -> int | None:
    """A candidate is made from the one before it in its episode, the first from the episode's parent."""
    before = [node for node in earlier if node.call_id != call_id]
    return before[-1].id if before else episode.parent_id


async def judge(session: Session, node: Node, candidate: Candidate) -> tuple[Node, Evaluation]:
    """Evaluate the node, or answer from the store; store and diagnose. Raises what the evaluator raises."""
    store, task = session.store, session.task
    nodes.start(store, node.id, session.owner)
    session.on_event(NodeStarted(node))
    environment = environment_key(session.config.evaluator)
    async with session.candidate_locks.setdefault(candidate.key, asyncio.Lock()):
        found = None
        if session.config.search.reuse:
            found = evaluations.find_evaluation(
                store,
                candidate_key=candidate.key,
                task_key=task.key,
                evaluator_version=evaluator_version(),
                environment=environment,
            )
        if found:
            evaluation = Evaluation.model_validate(found[1])
            node = _finish(session, node, found[0], evaluation, _diagnosis(session, evaluation))
        else:
            evaluation = await evaluate(session, candidate)
            diagnosis = _diagnosis(session, evaluation)
            with store.transaction():
                evaluation_id = evaluations.add_evaluation(
                    store,
                    session.run.id,
                    task_key=task.key,
                    environment=environment,
                    candidate_key=candidate.key,
                    result=evaluation.model_dump(mode="json"),
                )
                node = _finish(session, node, evaluation_id, evaluation, diagnosis)
    session.on_event(NodeDone(node, from_store=found is not None))
    return node, evaluation


def _diagnosis(session: Session, evaluation: Evaluation) -> str:
    return json.dumps(asdict(session.diagnose(evaluation)))


def _finish(session: Session, node: Node, evaluation_id: int, evaluation: Evaluation, diagnosis: str) -> Node:
    return nodes.finish(
        session.store, node.id, evaluation_id, evaluation.status, evaluation.as_score, diagnosis
    )


async def evaluate(session: Session, candidate: Candidate) -> Evaluation:
    """The evaluation; what the machine fails is tried again, then raised as InfrastructureError."""
    for wait in (*RETRY_AFTER_S, None):
        try:
            evaluation = await session.evaluator.evaluate(session.task.path, candidate)
            if evaluation.status != "infrastructure":
                return evaluation
            reason = evaluation.error or "the machine failed an evaluation"
        except InfrastructureError as error:
            reason = str(error)
        if wait is None:
            raise InfrastructureError(reason)
        session.on_event(Trouble(f"{reason}; trying again in {wait:g} s"))
        await asyncio.sleep(wait)
    raise AssertionError


def environment_key(config: EvaluatorConfig) -> str:
    """What a stored result depends on beside the evaluator: machine, device, libraries, protocol."""
    protocol = hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:12]
    versions = " ".join(f"{name} {_version(name)}" for name in ("torch", "triton"))
    return f"{platform.node()} {config.device} {config.dispatch} {versions} protocol {protocol}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
