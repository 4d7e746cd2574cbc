"""Before a run ends its best candidates are measured once more, and the fresh scores name the winner."""

from __future__ import annotations

from passagent.evaluator.known import environment_key, keep
from passagent.evaluator.result import Candidate
from passagent.search.candidates import evaluate
from passagent.search.events import NodeConfirmed
from passagent.search.session import Session
from passagent.store import confirmations, nodes


async def confirm(session: Session) -> None:
    """Measure the `search.finalists` best nodes again, unless they were. Raises what the evaluator raises."""
    store, run = session.store, session.run
    for node in confirmations.finalists(store, run.id, session.config.search.finalists):
        if confirmations.find_confirmation(store, node.id) is not None:
            continue
        if session.is_interrupted:
            return
        candidate = Candidate(nodes.get_files(store, node))
        evaluation = await evaluate(session, candidate)
        with store.transaction():
            environment = environment_key(session.config.evaluator)
            evaluation_id = keep(store, session.task, candidate, environment, evaluation, run.id)
            confirmations.add_confirmation(store, node, evaluation_id, evaluation.status, evaluation.as_score)
        session.on_event(NodeConfirmed(node, evaluation.status, evaluation.as_score))
