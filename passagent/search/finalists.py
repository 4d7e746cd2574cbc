"""Before a run ends its best candidates are measured once more, and the fresh scores name the winner."""

from __future__ import annotations

from passagent.evaluator.result import Candidate
from passagent.search.candidates import environment_key, evaluate
from passagent.search.events import NodeConfirmed
from passagent.search.session import Session
from passagent.store import confirmations, evaluations, nodes


async def confirm(session: Session) -> None:
    """Measure the `search.finalists` best nodes again, unless they were. Raises what the evaluator raises."""
    store, run = session.store, session.run
    for node in confirmations.finalists(store, run.id, session.config.search.finalists):
        if confirmations.find_confirmation(store, node.id) is not None:
            continue
        if session.is_interrupted:
            return
        evaluation = await evaluate(session, Candidate(nodes.get_files(store, node)))
        with store.transaction():
            evaluation_id = evaluations.add_evaluation(
                store,
                run.id,
                task_key=session.task.key,
                environment=environment_key(session.config.evaluator),
                candidate_key=node.candidate_key,
                result=evaluation.model_dump(mode="json"),
            )
            confirmations.add_confirmation(store, node, evaluation_id, evaluation.status, evaluation.as_score)
        session.on_event(NodeConfirmed(node, evaluation.status, evaluation.as_score))
