"""A run goes on under another evaluator or on another machine: its elites are measured again first.

Scores of different environments are never compared. The elites of every island, and what the episodes under
way rely on, get scores of the new environment, all in one transaction; every other old node keeps its
evaluation but no longer has a score, so it comes after all that have one.
"""

from __future__ import annotations

import json
from typing import Any

from passagent import __version__
from passagent.agent.prompt import prompts_hash
from passagent.evaluator.result import Candidate, Evaluation
from passagent.evaluator.service.known import Case, keep, recall
from passagent.sandbox.environment import evaluator_version
from passagent.search.candidates import evaluate
from passagent.search.session import Session
from passagent.store import Store, bests, evaluations, nodes, runs
from passagent.store.nodes import Node
from passagent.store.sessions import StoredSession, Terms

_ELSEWHERE = (
    "(SELECT evaluations.id FROM evaluations JOIN conditions ON conditions.id = conditions_id "
    "WHERE evaluator_version || '; ' || environment != :environment)"
)


async def measure_again(session: Session) -> None:
    """Return when the run's scores are of this environment.

    Raises what the evaluator raises; then, and where a person stops it, nothing has changed, but what was
    measured is stored and is not measured again. Budgets do not bound it.
    """
    store, run_id, environment = session.store, session.run.id, environment_of(session)
    before = runs.get_run(store, run_id).environment
    if before is None:
        runs.set_environment(store, run_id, environment)
    elif before != environment:
        await _measure(session, environment)


async def _measure(session: Session, environment: str) -> None:
    store, run_id = session.store, session.run.id
    chosen = _to_measure(store, run_id, session.config.search.elites, environment)
    if chosen:
        session.events.note(
            f"scores of another evaluator or machine are not compared: measuring {len(chosen)} again"
        )
    measured = []
    for node in chosen:
        if session.is_interrupted or runs.get_run(store, run_id).wanted == "stop":
            session.stop("stopped by a person", interrupted=True)
            return
        measured.append((node, *await _evaluate(session, node)))
    with store.transaction():
        _forget_scores(store, run_id, environment)
        for node, evaluation_id, evaluation in measured:
            diagnosis = session.diagnose(evaluation).as_json()
            nodes.finish(store, node.id, evaluation_id, evaluation.status, evaluation.as_score, diagnosis)
        runs.set_environment(store, run_id, environment)


async def _evaluate(session: Session, node: Node) -> tuple[int, Evaluation]:
    """The node's evaluation here: its id and itself. A validator's opinion of it holds here, too."""
    store, candidate = session.store, Candidate(nodes.get_files(session.store, node))
    case = Case(session.task, candidate, session.environment)
    stored = recall(store, case, lambda opinion: True, unstable=True)
    if stored is not None:
        return stored.id, stored.evaluation
    evaluation = await evaluate(session, candidate)
    assert node.evaluation_id is not None
    before = evaluations.get_evaluation(store, node.evaluation_id)
    evaluation = evaluation.model_copy(update={"validator": before.get("validator")})
    evaluation_id = keep(store, case, evaluation, session.run.id)
    return evaluation_id, evaluation


def _to_measure(store: Store, run_id: str, elites: int, environment: str) -> list[Node]:
    """The islands' elites, and the correct nodes that the episodes under way start from or made.

    Only those whose score is not of `environment`, in the order of their making.
    """
    best = [
        node
        for island in [runs.SEEDS, *(island.island for island in runs.islands(store, run_id))]
        for node in bests.best_of_island(store, run_id, island, elites)
    ]
    rows = store.rows(
        "SELECT nodes.* FROM nodes JOIN episodes ON nodes.id = episodes.parent_id "
        "OR nodes.episode_id = episodes.id "
        "WHERE episodes.run_id = :run AND episodes.state = 'running' AND nodes.status = 'ok'",
        {"run": run_id},
    )
    chosen = {node.id: node for node in [*best, *(Node(**row) for row in rows)]}
    elsewhere = store.rows(
        f"SELECT id FROM nodes WHERE run_id = :run AND status = 'ok' AND evaluation_id IN {_ELSEWHERE}",
        {"run": run_id, "environment": environment},
    )
    return [chosen[row["id"]] for row in elsewhere if row["id"] in chosen]


def _forget_scores(store: Store, run_id: str, environment: str) -> None:
    """Correct nodes of another environment have no score any more; their evaluations stay what they are.

    To be called in the transaction that gives some of them new ones. Second measurements and what was built
    on the scores are forgotten, too.
    """
    names = {"run": run_id, "environment": environment}
    store.execute(
        "UPDATE nodes SET as_score = NULL WHERE run_id = :run AND status = 'ok' "
        f"AND evaluation_id IN {_ELSEWHERE}",
        names,
    )
    # what is left of them is built again as it is needed
    store.execute("DELETE FROM confirmations WHERE run_id = :run", {"run": run_id})
    store.execute(
        "UPDATE islands SET (best_node, best_as) = (SELECT id, as_score FROM nodes WHERE run_id = :run "
        "AND nodes.island = islands.island AND status = 'ok' AND repeat_of IS NULL "
        "ORDER BY as_score DESC, id LIMIT 1) WHERE run_id = :run",
        {"run": run_id},
    )


def terms_of(session: Session) -> Terms:
    """The terms of this process."""
    return Terms(
        version=__version__,
        config=session.config.model_dump_json(),
        prompts=prompts_hash(),
        environment=environment_of(session),
    )


def environment_of(session: Session) -> str:
    """Evaluator version and environment: scores of another one are not compared with those of this one."""
    return f"{evaluator_version()}; {session.environment}"


def changes_between(before: StoredSession | None, terms: Terms) -> list[str]:
    """List what differs from the session before, and what is done about it, a line each."""
    if before is None or not before.version:
        return []
    changes = [
        f"the settings have changed: {change}" for change in changed_settings(before.config, terms.config)
    ]
    if before.version != terms.version:
        changes.append(f"passagent has changed: {before.version}, now {terms.version}")
    if before.prompts != terms.prompts:
        changes.append(
            "the prompts have changed: episodes that begin now see the new ones, begun ones keep theirs"
        )
    if before.environment != terms.environment:
        changes += [
            f"the evaluator or its machine has changed: {part}"
            for part in _parts(before.environment, terms.environment)
        ]
    return changes


def changed_settings(before: str, after: str) -> list[str]:
    """`section.key OLD, now NEW` for each setting of two configurations (JSON) that differs."""
    old, new = _flat(json.loads(before)), _flat(json.loads(after))
    return [
        f"{key} {json.dumps(old.get(key))}, now {json.dumps(new.get(key))}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, values in config.items() for key, value in values.items()}


def _parts(before: str, after: str) -> list[str]:
    """`OLD, now NEW` for each part of two environments that differs."""
    old, new = before.split("; "), after.split("; ")
    if len(old) != len(new):
        return [f"{before}, now {after}"]
    return [f"{a}, now {b}" for a, b in zip(old, new, strict=True) if a != b]
