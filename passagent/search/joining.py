"""A process joins a run: alone on its own terms, beside others on theirs. What changed is said and stored."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from passagent import __version__
from passagent.agent.prompt import prompts_hash
from passagent.confine.environment import evaluator_version
from passagent.errors import UsageError
from passagent.search.session import Session
from passagent.store import ledger, participants, runs
from passagent.store.owner import named, this_process
from passagent.store.participants import Terms, Worker

_OWN = "evaluator.device"
"""What may differ between processes that work side by side: which of several equal devices each has."""


class _Unfit(Exception):
    """Others work on the run on other terms; the text says which."""


async def join(session: Session) -> None:
    """Work on the run from now on. What dead processes left is free, the calls they had under way are lost.

    Raises UsageError where others work on it with other settings or on another machine, Stopping where a
    person stops it before it has joined.
    """
    waited = False
    while True:
        try:
            return _join(session)
        except _Unfit as unfit:
            others = participants.present(session.store, session.run.id)
            if not any(session.watch.judge(worker) == "unknown" for worker in others):
                raise UsageError(f"{session.run.id}: {unfit}; stop it, or join on its terms") from None
            if not waited:
                waiting = (
                    f"waiting up to {participants.STALE_S:.0f} s for a sign of life from {_names(others)}"
                )
                session.events.note(waiting)
            waited = True
            await session.in_time(asyncio.sleep(1.0))


def _join(session: Session) -> None:
    store, run_id, terms = session.store, session.run.id, terms_of(session)
    with store.transaction():
        run = runs.get_run(store, run_id)
        before = participants.last(store, run_id)
        session.owner = this_process()
        others, _, lost = participants.bury_dead(store, run_id, session.owner, session.watch)
        if run.state != "running":
            others = []  # they are about to leave
        for other in others:
            _check_fits(terms, other)
        changes = changes_between(before, terms)
        participants.join(store, run_id, terms, json.dumps(changes))
        if not others:
            lost += ledger.lose_all(store, run_id)
            runs.set_config(
                store,
                run_id,
                config=terms.config,
                iters=session.config.search.iters,
                model=session.config.model.label,
                device=session.config.evaluator.device,
            )
        session.run = runs.get_run(store, run_id)
        session.restart_clock()
    session.others = sum(other.role == "search" for other in others)
    if others:
        session.events.note(f"working on it together with {_names(others)}")
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


def _check_fits(terms: Terms, other: Worker) -> None:
    """Raise _Unfit unless both may work side by side."""
    differ = [key for key in changed_settings(other.config, terms.config) if not key.startswith(_OWN)]
    if differ:
        raise _Unfit(f"{named(other.owner)} works on this run with other settings ({', '.join(differ)})")
    if other.environment != terms.environment:
        differ = _parts(other.environment, terms.environment)
        raise _Unfit(
            f"{named(other.owner)} works on this run where scores cannot be compared ({', '.join(differ)})"
        )


def changes_between(before: Worker | None, terms: Terms) -> list[str]:
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


def _names(others: list[Worker]) -> str:
    return ", ".join(named(other.owner) for other in others)
