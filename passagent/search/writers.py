"""Which model writes an episode, and what its calls may take of the run's budgets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from passagent.config import ModelChoice
from passagent.models import open_model
from passagent.models.ensemble import Ensemble, Outcome, choose, member
from passagent.models.meter import Meter
from passagent.models.prices import Price
from passagent.models.types import Model, Usage
from passagent.search.session import Session
from passagent.search.stop import Want
from passagent.store import ledger
from passagent.store.episodes import Episode
from passagent.store.runs import SEEDS
from passagent.system.redaction import redact

log = logging.getLogger("passagent.search")

EXPERT = "expert"
"""The model that writes the seeds."""


def writer_of(session: Session, episode: Episode) -> Model:
    """The model that writes the episode, once it is chosen."""
    if episode.island == SEEDS:
        return open_model(session.config.model.of(ModelChoice(name=EXPERT)))
    return member(session.model, episode.model)


def choose_model(session: Session, episode: Episode) -> str:
    """The name of the model that writes the episode: of an ensemble, by what its models gained there."""
    if episode.island == SEEDS:
        return EXPERT
    if not isinstance(session.model, Ensemble):
        return session.model.name
    rows = ledger.replies_before(session.store, episode)
    return choose(session.model.weights, outcomes(rows, session.prices), episode.seed)


def outcomes(rows: list[dict[str, Any]], prices: Mapping[str, Price | None]) -> list[Outcome]:
    """Finished episodes, from their replies (calls.replies_before).

    They cost what their replies did, in USD if every price is known, else in tokens. Failed tries are not
    counted: the choice must not depend on the weather.
    """
    usages = [Usage(**{kind: row[kind] for kind in ledger.KINDS}) for row in rows]
    prices_of = [prices.get(row["model"]) for row in rows]
    costs = [price.cost(usage) if price else None for price, usage in zip(prices_of, usages, strict=True)]
    is_money = None not in costs
    found: dict[int, Outcome] = {}
    for row, usage, cost in zip(rows, usages, costs, strict=True):
        spent = cost if is_money and cost is not None else usage.input_tokens + usage.output_tokens
        before = found[row["number"]].cost if row["number"] in found else 0.0
        found[row["number"]] = Outcome(row["model"], row["gain"] or 0.0, before + spent)
    return list(found.values())


def meter_of(session: Session, episode: Episode, role: str = "agent", is_last: bool = False) -> Meter:
    """What counts the episode's model calls, in the ledger and the budgets; `is_last`: see Session.admit."""
    name = episode.model or session.model.name
    who = "seeds" if episode.island == SEEDS else f"island {episode.island}"

    def tell(line: str) -> None:
        log.warning("%s: %s", who, line)
        session.events.note(redact(f"{who}: {line}"))

    return Meter(
        session.store,
        episode,
        session.prices.get(name),
        admit=partial(_admit, session, name, is_last),
        tell=tell,
        pause=lambda seconds: session.in_time(asyncio.sleep(seconds)),
        role=role,
    )


async def _admit(
    session: Session, name: str, is_last: bool, tokens: int, cost: float | None
) -> Callable[[], None]:
    seconds = 0.0
    if session.limits.max_time_s is not None:
        seconds = ledger.mean_latency_s(session.store, session.run.id, name)
    return await session.admit(Want(tokens=tokens, cost=cost, seconds=seconds), is_last)
