"""One process drives a run: it holds the run's lock, and stores what is not as in the session before."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from passagent import __version__
from passagent.agent.prompt import prompts_hash
from passagent.sandbox.environment import evaluator_version
from passagent.search.session import Session
from passagent.search.wishes import driven
from passagent.store import runs, sessions
from passagent.store.sessions import StoredSession, Terms


@contextmanager
def driving(session: Session) -> Iterator[None]:
    """Hold the run's lock, and begin a session on it. Raises UsageError while another process drives it."""
    store, run_id = session.store, session.run.id
    lock = sessions.lock_run(store, run_id)
    if lock is None:
        raise driven(store, run_id)
    try:
        _begin(session)
        yield
    finally:
        os.close(lock)


def _begin(session: Session) -> None:
    store, run_id, terms = session.store, session.run.id, terms_of(session)
    with store.transaction():
        changes = changes_between(sessions.last(store, run_id), terms)
        lost = sessions.begin(store, run_id, terms, json.dumps(changes))
        runs.set_config(
            store,
            run_id,
            config=terms.config,
            iters=session.config.search.iters,
            model=session.config.model.label,
            device=session.config.evaluator.device,
        )
    session.run = runs.get_run(store, run_id)
    session.started = time.monotonic()
    for change in changes:
        session.events.note(change)
    if lost:
        session.events.note(f"at most {lost} model calls were lost, under way when the process died")


def terms_of(session: Session) -> Terms:
    """What this process works with."""
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
    """What is different from the session before, and what is done about it, a line each."""
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
