"""Measure again: finalists side by side before a run ends, elites where a run goes on elsewhere.

Scores of different environments are never compared. Under another evaluator or on another machine the elites
of every island, and what the episodes under way rely on, get scores of the new environment first, all in one
transaction. Every other old node keeps its evaluation but no longer has a score, so it comes after all that
have one.
"""

from __future__ import annotations

import random

from passagent.evaluator.result import Candidate, Evaluation
from passagent.evaluator.service.known import Case, keep, recall
from passagent.evaluator.service.pool import on_one_device
from passagent.sandbox.environment import evaluator_version
from passagent.search import finalists
from passagent.search.candidates import evaluate
from passagent.search.session import ROUNDS, Session
from passagent.store import Episode, Node, Store, nodes, runs

FEWEST_FINALISTS, ENOUGH_ROUNDS = 2, 3
"""For a short run: the fewest finalists to compare, and the rounds that give a useful interval."""
_BEFORE_ALL = -(1 << 31)
"""Series after episodes are numbered from here on: a run's last series counts the finished episodes."""


async def confirm(session: Session) -> None:
    """Measure the finalists of the run side by side, round by round, until it is known which one is best.

    A series that was cut off is gone on with. It takes at most half as many evaluations as the run made, or
    ENOUGH_ROUNDS of FEWEST_FINALISTS, and is not charged: the budget is for what is new. Raises what the
    evaluator raises.
    """
    store, run, search = session.store, session.run, session.config.search
    allowed, series = runs.get_run(store, run.id).evaluations // 2, session.progress().episodes
    limit = min(search.finalists, max(FEWEST_FINALISTS, allowed // ENOUGH_ROUNDS))
    begun = [row for row in finalists.measurements(store, run.id) if row.series == series]
    node_ids = {row.node_id for row in begun}
    if not any(row.round > 1 for row in begun):  # what is compared is settled with the first round
        node_ids |= {node.id for node in finalists.contenders(store, run.id, limit)}
    best = [nodes.get_node(store, node_id) for node_id in sorted(node_ids)]
    count = min(ROUNDS, max(ENOUGH_ROUNDS, allowed // max(1, len(best))))
    await _measure_rounds(session, series, best, count)


async def confirm_contender(session: Session, episode: Episode) -> None:
    """Compare the run's two best while timing is unstable, if the episode left one near enough to the other.

    Near enough is within its interval. All such comparisons take at most half as many evaluations as the run.
    Raises what the evaluator raises.
    """
    store, run = session.store, session.run
    if session.config.search.finalists < FEWEST_FINALISTS:
        return
    best, rows = finalists.contenders(store, run.id, FEWEST_FINALISTS), finalists.measurements(store, run.id)
    allowed = runs.get_run(store, run.id).evaluations // 2 - len(rows)
    if len(best) < FEWEST_FINALISTS or allowed < finalists.FEWEST_ROUNDS * len(best):
        return
    is_new = any(node.episode_id == episode.id for node in best)
    measured = [finalists.evaluation_of(store, node, samples=False) for node in best]
    if is_new and any(graph.unstable for evaluation in measured for graph in evaluation.graphs):
        count = min(ENOUGH_ROUNDS, allowed // len(best))
        await _measure_rounds(session, _BEFORE_ALL + episode.number, best, count)


async def _measure_rounds(session: Session, series: int, best: list[Node], count: int) -> None:
    """Measure what is open of a series, until its outcome is known or a person stops the search.

    A round is measured as candidates are, in half of the time: several rounds make the figure good.

    Then the rounds of each node are stored as one evaluation, the newest of its candidate: it is what later
    runs and evaluations find.
    """
    store, run = session.store, session.run
    rows = finalists.measurements(store, run.id)
    measured = {(row.round, row.node_id) for row in rows if row.series == series}
    is_new = False
    with on_one_device():
        for number in range(1, count + 1):
            rng = random.Random(f"finalists:{run.seed}:{series}:{number}")
            for node in rng.sample(best, len(best)):
                if (number, node.id) not in measured:
                    if session.is_interrupted:
                        return
                    candidate = Candidate(nodes.get_files(store, node))
                    evaluation = await evaluate(session, candidate, bar=0.0)  # in half of the time
                    case = Case(session.task, candidate, session.environment)
                    place = {"run_id": run.id, "series": series, "round": number, "node_id": node.id}
                    with store.transaction():
                        store.insert("confirmations", **place, evaluation_id=keep(store, case, evaluation))
                    session.events.look()
                    is_new = True
            rounds = finalists.rounds_of(store, finalists.last_series(store, run.id))
            if number >= finalists.FEWEST_ROUNDS and finalists.is_settled(finalists.standing(rounds)):
                break
    for node in best if is_new else []:
        case = Case(session.task, Candidate(nodes.get_files(store, node)), session.environment)
        keep(store, case, finalists.confirmed_evaluation(store, node))


async def measure_again(session: Session) -> None:
    """Return when the run's scores are of this environment.

    Raises what the evaluator raises; then, and where a person stops it, nothing has changed, but what was
    measured is stored and is not measured again. Budgets do not bound it.
    """
    store, run_id, environment = session.store, session.run.id, environment_of(session)
    before = runs.get_run(store, run_id).environment
    if before == environment:
        return
    chosen = _to_measure(store, run_id, session.config.search.elites) if before is not None else []
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
        # correct nodes of another environment have no score any more; their evaluations stay what they are
        names = {"run": run_id}
        store.execute("UPDATE nodes SET as_score = NULL WHERE run_id = :run AND status = 'ok'", names)
        store.execute("UPDATE islands SET best_node = NULL, best_as = NULL WHERE run_id = :run", names)
        store.execute("DELETE FROM confirmations WHERE run_id = :run", names)
        for node, evaluation_id, evaluation in measured:
            diagnosis = session.diagnose(evaluation).as_json()
            nodes.finish(store, node.id, evaluation_id, evaluation.status, evaluation.as_score, diagnosis)
        runs.update_run(store, run_id, environment=environment)


async def _evaluate(session: Session, node: Node) -> tuple[int, Evaluation]:
    """The node's evaluation here: its id and itself."""
    store, candidate = session.store, Candidate(nodes.get_files(session.store, node))
    case = Case(session.task, candidate, session.environment)
    stored = recall(store, case, unstable=True)
    if stored is not None:
        return stored.id, stored.evaluation
    evaluation = await evaluate(session, candidate)
    return keep(store, case, evaluation, session.run.id), evaluation


def _to_measure(store: Store, run_id: str, elites: int) -> list[Node]:
    """The islands' elites, and the correct nodes that the episodes under way start from or made.

    They are in the order of their making.
    """
    islands = [runs.SEEDS, *(island.island for island in runs.islands(store, run_id))]
    chosen = [node for island in islands for node in nodes.best_of_island(store, run_id, island, elites)]
    chosen += store.all(
        Node,
        "SELECT nodes.* FROM nodes JOIN episodes ON nodes.id = episodes.parent_id "
        "OR nodes.episode_id = episodes.id "
        "WHERE episodes.run_id = :run AND episodes.state = 'running' AND nodes.status = 'ok'",
        {"run": run_id},
    )
    by_id = {node.id: node for node in chosen}
    return [by_id[node_id] for node_id in sorted(by_id)]


def environment_of(session: Session) -> str:
    """Evaluator version and environment: scores of another one are not compared with those of this one."""
    return f"{evaluator_version()}; {session.environment}"
