"""From an episode's files to a node: stored, evaluated once, diagnosed, and described to the model."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from passagent.agent.observe import observation, verdict
from passagent.agent.prompt import note_of
from passagent.agent.tool_specs import ToolAnswer
from passagent.agent.workspace import ToolError
from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError, PassagentError
from passagent.evaluator.fleet.opening import LOCAL
from passagent.evaluator.result import Candidate, Evaluation
from passagent.evaluator.service.known import Case, Known, keep, recall
from passagent.evaluator.service.pool import SubjectLost
from passagent.sandbox.environment import evaluator_version
from passagent.search.finalists import confirmed_evaluation, evaluation_of
from passagent.search.islands import IslandView
from passagent.search.session import Session
from passagent.search.stop import Want
from passagent.store import Episode, Node, Store, nodes
from passagent.store.events import EvaluationBegun
from passagent.tasks import Task

if TYPE_CHECKING:
    from passagent.experience.profiling.profile_record import Profile


TWINS = 3
"""Candidates with other files that are the same program, whose evaluations are looked for."""
RETRY_AFTER_S = (1.0, 10.0)
"""Waits before an evaluation that the machine failed is tried again, s."""


def submitter(session: Session, episode: Episode) -> Callable[[dict[str, str], str], Awaitable[ToolAnswer]]:
    """`submit(files, call_id)` of an episode; a call that is repeated after a crash finds its node again."""

    async def submit(files: dict[str, str], call_id: str) -> ToolAnswer:
        node, evaluation = propose(session.store, episode, files, call_id), None
        if node.state != "done":
            node, evaluation = await judge(session, node, Candidate(files))
        evaluation = evaluation or evaluation_of(session.store, node)
        repeat, answer = _repeat_line(session.store, node), tell(session.store, node, files, evaluation)
        return ToolAnswer(f"{repeat}\n{answer}" if repeat else answer, {"evaluation": verdict(evaluation)})

    return submit


def propose(store: Store, episode: Episode, files: dict[str, str], call_id: str) -> Node:
    """Return the node of a call, with what its files say of themselves."""
    program = canonical_key(files, Candidate(files).key)
    return nodes.propose(store, episode, call_id, files, note_of(files), program)


def tell(store: Store, node: Node, files: dict[str, str], evaluation: Evaluation | None = None) -> str:
    """Describe to a model a node that is done and its `files`, and its diagnosis where that changed."""
    evaluation = evaluation or evaluation_of(store, node)
    parent = None if node.parent_id is None else nodes.get_node(store, node.parent_id)
    diagnosed, before = node.diagnosed or {}, (parent and parent.diagnosed) or {}
    diagnosis = diagnosed.get("text", "") if diagnosed.get("label") != before.get("label") else ""
    parent_as = parent.correct_as if parent else None
    return observation(evaluation, parent_as, best_before(store, node), files, diagnosis)


def _repeat_line(store: Store, node: Node) -> str:
    """A line that names the earlier node with the same program; empty for a new program."""
    if node.repeat_of is None:
        return ""
    same = nodes.get_node(store, node.repeat_of)
    result = f"{same.status}" if same.as_score is None else f"{same.status}, AS {same.as_score:.4f}"
    again = "not evaluated again" if node.evaluation_id == same.evaluation_id else "measured once more"
    return (
        f"this is the same program as node {same.id} ({result}; comments, docstrings and formatting make no "
        f"difference): it was {again}"
    )


def best_before(store: Store, node: Node) -> float | None:
    """The best AS that the node's island knew of when the node was made: also of its episode's earlier nodes.

    None where nothing correct was timed.
    """
    scores = [IslandView(store, node.run_id, node.island).best_before(node.number)]
    for other in nodes.correct_of_episode(store, node.episode_id):
        scores += [other.as_score] if other.id < node.id and other.repeat_of is None else []
    return max((score for score in scores if score is not None and score != nodes.UNTIMED), default=None)


def score_to_beat(store: Store, node: Node) -> float:
    """The best AS that the node's island knew of, over all rounds; its lower end where timing is unstable."""
    best = best_before(store, node)
    for first in IslandView(store, node.run_id, node.island).elites(1):
        if first.as_score == best:
            evaluation = confirmed_evaluation(store, first)
            is_unstable = any(graph.unstable for graph in evaluation.graphs)
            return (evaluation.as_low if is_unstable else evaluation.as_score) or best or 0.0
    return best or 0.0  # what is best is measured again


async def judge(session: Session, node: Node, candidate: Candidate) -> tuple[Node, Evaluation]:
    """Evaluate the node, or answer from the store; store and diagnose. Raises what the evaluator raises.

    While an equal candidate of the run is being evaluated it is waited for.
    """
    while not nodes.start(session.store, node.id):
        session.check()
        await session.changed.wait()
    session.events.tell(EvaluationBegun, node=node.id, island=node.island, episode=node.number)
    try:
        node, evaluation = await _judge(session, node, candidate)
    except BaseException:
        nodes.give_up(session.store, node.id)
        raise
    finally:
        session.notify()
    session.events.look()
    return node, evaluation


async def _judge(session: Session, node: Node, candidate: Candidate) -> tuple[Node, Evaluation]:
    """The node done, and its evaluation."""
    store, case = session.store, Case(session.task, candidate, session.environment)
    bar = score_to_beat(store, node)
    stored = _recall(session, node, case, bar) if session.config.search.reuse else None
    release = (lambda: None) if stored else await session.admit(Want(evaluations=1))
    try:
        evaluation = stored.evaluation if stored else await evaluate(session, candidate, bar)
        session.longest_s = max(session.longest_s, evaluation.seconds)
        with store.transaction():
            charged = None if evaluation.unrecorded else session.run.id
            evaluation_id = stored.id if stored else keep(store, case, evaluation, charged)
            return _finish(session, node, evaluation_id, evaluation), evaluation
    finally:
        release()


def _recall(session: Session, node: Node, case: Case, bar: float) -> Known | None:
    """Find the evaluation of these files, else of the same program in other ones."""
    stored = recall(session.store, case, unstable=True, bar=bar)
    for twin in nodes.twins(session.store, node, TWINS) if stored is None else ():
        other = replace(case, subject=Candidate(nodes.get_files(session.store, twin)))
        stored = stored or recall(session.store, other, unstable=True, bar=bar)
    return stored


def _finish(session: Session, node: Node, evaluation_id: int, evaluation: Evaluation) -> Node:
    store, diagnosis = session.store, session.diagnose(evaluation).as_json()
    with store.transaction():
        return nodes.finish(store, node.id, evaluation_id, evaluation.status, evaluation.as_score, diagnosis)


async def evaluate(session: Session, candidate: Candidate, bar: float | None = None) -> Evaluation:
    """The evaluation; what the machine fails is tried again, then raised as InfrastructureError.

    Under `bar`, an AS, it is cut short. A candidate that ends every evaluator has the status
    `infrastructure` and no score: the search goes on. Raises Stopping soon after a person asks to stop.
    """
    return await session.in_time(_evaluate(session, candidate, bar))


async def _evaluate(session: Session, candidate: Candidate, bar: float | None) -> Evaluation:
    try:
        judged = partial(session.evaluator.evaluate, session.task.path, candidate, bar)
        return await evaluate_again(judged, session.events.note)
    except SubjectLost as error:
        session.events.note(str(error))
        return Evaluation(
            task=session.task.name,
            candidate=candidate.key,
            device=session.config.evaluator.device,
            dispatch=session.config.evaluator.dispatch,
            timing="none",
            status="infrastructure",
            as_score=None,
            es=None,
            graphs=[],
            error=str(error),
            evaluator_version=evaluator_version(),
        )


async def evaluate_again(
    evaluate_once: Callable[[], Awaitable[Evaluation]], notify: Callable[[str], object]
) -> Evaluation:
    """The evaluation; what the machine fails is tried again after RETRY_AFTER_S, then raised.

    `notify` takes a line before each wait. Raises what an evaluation raises.
    """
    for wait in RETRY_AFTER_S:
        try:
            return await evaluate_once()
        except SubjectLost:
            raise
        except InfrastructureError as error:
            notify(f"{error}; trying again in {wait:g} s")
        await asyncio.sleep(wait)
    return await evaluate_once()


def canonical_key(files: Mapping[str, str], candidate_key: str) -> str:
    """A hash of the candidate's program; `candidate_key` for a candidate that cannot be parsed.

    C++ and CUDA sources are strings of the program, so their comments and spaces count.
    """
    try:
        program = {name: _program(text) if name.endswith(".py") else text for name, text in files.items()}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return candidate_key
    return hashlib.sha256(json.dumps(program, sort_keys=True).encode()).hexdigest()


def _program(text: str) -> str:
    """The source without comments and docstrings, formatted by ast.unparse. Raises what ast.parse raises."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if ast.get_docstring(node, clean=False) is not None:
                    node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


async def limits_of(session: Session, files: dict[str, str], deep: bool) -> str:
    """At most 12 lines on a candidate of the search, whose profile is kept.

    Raises ToolError for one that was not evaluated.
    """
    candidate = Candidate(files)
    case = Case(session.task, candidate, session.environment)
    stored = recall(session.store, case, unstable=True, bar=0.0)
    evaluation = stored.evaluation if stored else None
    work = profiled(session.task, candidate, evaluation, session.config.evaluator, deep)
    limits = await session.in_time(work)
    nodes.keep_profile(session.store, session.run.id, candidate.key, deep, limits.report(), limits.as_json())
    return limits.text()


async def profiled(
    task: Task, candidate: Candidate, evaluation: Evaluation | None, config: EvaluatorConfig, deep: bool
) -> Profile:
    """The profile of an evaluated candidate. Raises ToolError where there is nothing to profile.

    The device is leased meanwhile: what is timed, by this program or another, waits.
    """
    if config.pool != LOCAL:
        raise ToolError("profile: the device is on another machine; go by what pass_evaluator tells")
    if evaluation is None:
        raise ToolError("profile: these files were not evaluated yet; call pass_evaluator first")
    from passagent.evaluator.hardware.devices import first_device
    from passagent.experience.profiling.profiler import profile_evaluated

    try:
        device = first_device(config.device)
        return await asyncio.to_thread(profile_evaluated, task, candidate, evaluation, device, deep)
    except PassagentError as error:
        raise ToolError(f"profile: {error}") from error
