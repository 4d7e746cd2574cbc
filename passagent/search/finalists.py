"""A run's best candidates are measured again, side by side, so that a chance result does not win.

That is before a run ends, and after an episode that leaves a contender while timing is unstable. It takes
half as many evaluations as the run itself made; at the end at least what ENOUGH_ROUNDS of FEWEST_FINALISTS
take. It names the winner and the score to beat; the policies do not look at it, so the tree does not depend
on it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from passagent.evaluator.result import Candidate, Evaluation
from passagent.evaluator.service.known import Case, keep
from passagent.evaluator.service.pool import on_one_device
from passagent.search.candidates import evaluate
from passagent.search.comparison import Round, confirmed_evaluation, is_settled, round_of, standing
from passagent.search.session import ROUNDS, Session
from passagent.store import Store, confirmations, evaluations, nodes, runs
from passagent.store.confirmations import Confirmation
from passagent.store.episodes import Episode
from passagent.store.nodes import Node

FEWEST_ROUNDS = 2
"""The fewest rounds that give an interval."""
FEWEST_FINALISTS, ENOUGH_ROUNDS = 2, 3
"""For a short run: the fewest finalists to compare, and the rounds that give a useful interval."""


async def confirm(session: Session) -> None:
    """Measure the finalists of the run as it is now, unless they were. Raises what the evaluator raises."""
    search, run_id = session.config.search, session.run.id
    allowed = runs.get_run(session.store, run_id).evaluations // 2
    limit = min(search.finalists, max(FEWEST_FINALISTS, allowed // ENOUGH_ROUNDS))
    candidates = confirmations.finalists(session.store, run_id, limit + 1)
    best = _contenders(session.store, candidates[:limit])
    count = min(ROUNDS, max(ENOUGH_ROUNDS, allowed // max(1, len(best))))
    series = _finished(session)
    _plan(session, series, best, count, held_all=len(best) == len(candidates))
    await _measure(session, series)


async def confirm_contender(session: Session, episode: Episode) -> None:
    """Compare the run's two best while timing is unstable, if the episode left one near enough to the other.

    Near enough is within its interval. Raises what the evaluator raises.
    """
    store, run_id = session.store, session.run.id
    if session.config.search.finalists < FEWEST_FINALISTS:
        return
    candidates = confirmations.finalists(store, run_id, FEWEST_FINALISTS + 1)
    best = _contenders(store, candidates[:FEWEST_FINALISTS])
    allowed = runs.get_run(store, run_id).evaluations // 2 - confirmations.count_measured(store, run_id)
    if len(best) < FEWEST_FINALISTS or allowed < FEWEST_ROUNDS * len(best):
        return
    is_new = any(node.episode_id == episode.id for node in best)
    if is_new and any(evaluations.is_unstable(_evaluation(store, node)) for node in best):
        series, count = _finished(session) - 1, min(ENOUGH_ROUNDS, allowed // len(best))
        if _plan(session, series, best, count, held_all=len(best) == len(candidates)):
            await _measure(session, series)


def _finished(session: Session) -> int:
    return sum(island.episodes for island in runs.islands(session.store, session.run.id))


def _plan(session: Session, series: int, best: list[Node], count: int, held_all: bool) -> bool:
    """Plan the series, and tell whether this call did it: each round has an order of its own."""
    rng = random.Random(f"finalists:{session.run.seed}:{series}")
    rounds = [rng.sample(best, len(best)) for _ in range(count)]
    return confirmations.plan(session.store, session.run.id, series, rounds, held_all)


def _contenders(store: Store, nodes: list[Node]) -> list[Node]:
    """The nodes whose interval reaches the first one's: the others are behind for sure."""
    if not nodes:
        return []
    low, _ = _ends(store, nodes[0])
    return [node for node in nodes if _ends(store, node)[1] >= low]


def _ends(store: Store, node: Node) -> tuple[float, float]:
    """The interval of a node's AS; all there is where it is not known."""
    result = _evaluation(store, node)
    low, high = result.get("as_low"), result.get("as_high")
    return 0.0 if low is None else low, math.inf if high is None else high


def _evaluation(store: Store, node: Node) -> dict[str, Any]:
    assert node.evaluation_id is not None
    return evaluations.get_evaluation(store, node.evaluation_id)


async def _measure(session: Session, series: int) -> None:
    """Measure what is still open of the series, until its outcome is known or a person stops the search."""
    with on_one_device():
        await _measure_rounds(session, series)


async def _measure_rounds(session: Session, series: int) -> None:
    store, run = session.store, session.run
    environment = session.environment
    for row in confirmations.series_rows(store, run.id, series):
        if row.evaluation_id is not None:
            continue
        if session.is_interrupted:
            return
        node = nodes.get_node(store, row.node_id)
        candidate = Candidate(nodes.get_files(store, node))
        # as candidates are measured, in half of the time: it is the rounds that make the figure good
        evaluation = await evaluate(session, candidate, bar=0.0)
        with store.transaction():
            # not charged to the run: the budget of evaluations is for what is new
            evaluation_id = keep(store, Case(session.task, candidate, environment), evaluation)
            confirmations.measured(store, row, evaluation_id, evaluation.status, evaluation.as_score)
            if is_over := _is_over(store, row):
                confirmations.shorten(store, run.id, series, row.round)
                _keep_pooled(session, series)
        session.events.look()
        if is_over:
            return


def _is_over(store: Store, row: Confirmation) -> bool:
    """Tell whether `row`, measured just now, ends its series: the last, or the rounds so far settle it."""
    rows = confirmations.series_rows(store, row.run_id, row.series)
    so_far = [earlier for earlier in rows if earlier.round <= row.round]
    if any(earlier.evaluation_id is None for earlier in so_far):
        return False
    is_known = row.round >= FEWEST_ROUNDS and is_settled(standing(rounds_of(store, so_far)))
    return is_known or len(so_far) == len(rows)


def _keep_pooled(session: Session, series: int) -> None:
    """Store each finalist's rounds as one evaluation, the newest of its candidate: it is what is found."""
    store = session.store
    for node_id in {row.node_id for row in confirmations.series_rows(store, session.run.id, series)}:
        node = nodes.get_node(store, node_id)
        candidate = Candidate(nodes.get_files(store, node))
        case = Case(session.task, candidate, session.environment)
        keep(store, case, confirmed_evaluation(store, node))


def rounds_of(store: Store, rows: Sequence[Confirmation]) -> dict[int, list[Round]]:
    """The rounds of each finalist that was correct throughout, for `standing`."""
    confirmed = confirmations.scores(rows)
    measured: dict[int, list[Round]] = {}
    for row in rows:
        if confirmed.get(row.node_id) is not None and row.evaluation_id is not None:
            result = evaluations.get_evaluation(store, row.evaluation_id)
            measured.setdefault(row.node_id, []).append(round_of(Evaluation.model_validate(result)))
    return measured
