"""Several models in one run: shares follow gain per cost, choices depend on the seed alone."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_search
from test_search import shape

from passagent.config import load_config
from passagent.errors import UsageError
from passagent.models import open_model, role_config
from passagent.models.ensemble import Ensemble, Outcome, choose, shares
from passagent.models.scripted import ScriptedModel, as_reply
from passagent.models.types import Message, Reply, ToolSpec, Usage
from passagent.options import parse_models
from passagent.search.controller import search
from passagent.search.run_models import outcomes
from passagent.search.session import Session
from passagent.search.setup import new_run, open_session
from passagent.store import Store, ledger, runs
from passagent.tasks import load_task

HALVES = {"openai/good": 0.5, "openai/bad": 0.5}


def test_without_evidence_the_weights_are_the_shares() -> None:
    weights = {"a": 0.7, "b": 0.3}
    assert shares(weights, [], random.Random(0)) == pytest.approx(weights)
    chosen = [choose(weights, [], seed) for seed in range(400)]
    assert 0.6 < chosen.count("a") / 400 < 0.8


def test_shares_follow_gain_per_cost() -> None:
    better = [Outcome("openai/good", 0.4, 1.0), Outcome("openai/bad", 0.0, 1.0)] * 8
    assert shares(HALVES, better, random.Random(0))["openai/good"] > 0.9
    cheaper = [Outcome("openai/good", 0.3, 0.1), Outcome("openai/bad", 0.3, 1.0)] * 8
    assert shares(HALVES, cheaper, random.Random(0))["openai/good"] > 0.9
    equal = [Outcome("openai/good", 0.3, 1.0), Outcome("openai/bad", 0.3, 1.0)] * 8
    assert 0.35 < shares(HALVES, equal, random.Random(0))["openai/good"] < 0.65
    losing = [Outcome("openai/good", 0.4, 1.0), Outcome("openai/bad", -0.5, 1.0)] * 50
    given = shares(HALVES, losing, random.Random(0))
    assert 0 < given["openai/bad"] < 0.01  # nobody is given up for good
    assert sum(given.values()) == pytest.approx(1)
    free = [Outcome("openai/good", 0.3, 0.0), Outcome("openai/bad", 0.3, 0.0)] * 4
    assert 0.3 < shares(HALVES, free, random.Random(0))["openai/good"] < 0.7


def test_an_episode_costs_money_where_all_prices_are_known_else_tokens() -> None:
    first = {"number": 1, "model": "a", "gain": 0.5, "cost": 3.0, "tokens": 300, "unpriced": 0}
    second = {"number": 2, "model": "b", "gain": None, "cost": None, "tokens": 100, "unpriced": 0}
    assert outcomes([first, second]) == [Outcome("a", 0.5, 3.0), Outcome("b", 0.0, 0.0)]
    assert [o.cost for o in outcomes([first, second | {"unpriced": 1}])] == [300.0, 100.0]


class Writer(ScriptedModel):
    """Writes as tiny_search.reply does; the bad one evaluates nothing correct."""

    def __init__(self, name: str, is_good: bool, seconds: float, rng: random.Random) -> None:
        super().__init__(tiny_search.reply, name)
        self.is_good, self.seconds, self.rng = is_good, seconds, rng

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        await asyncio.sleep(self.rng.random() * self.seconds)
        reply = await super().complete(messages, tools)
        if not self.is_good:
            reply = as_reply("I find nothing.")
        return Reply(reply.message, Usage(100, 10), reply.stop_reason)


def open_two(
    store: Store, task: Any, iters: int, seconds: float = 0.0, run: Any = None, rng: int = 0
) -> Session:
    models = {
        name: Writer(name, is_good, seconds, random.Random(rng))
        for name, is_good in (("openai/good", True), ("openai/bad", False))
    }
    words = parse_models([f"{name}=0.5" for name in models])
    config = load_config(None, tiny_search.settings(iters, 1, 1) | {"search.policy": "best_of_n"} | words)
    ensemble = Ensemble(dict(models), HALVES, config.model.label)
    run = run or new_run(store, task, config)
    stand_ins = replace(tiny_search.parts(), model=ensemble)
    return open_session(store, run, task, config, stand_ins, lambda event: None)


def chosen(store: Store, run_id: str) -> list[str]:
    rows = store.rows("SELECT model FROM episodes WHERE run_id = :run ORDER BY number", {"run": run_id})
    return [row["model"] for row in rows]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open(tmp_path / "runs") as opened:
        yield opened


def test_a_run_shifts_to_the_better_model(store: Store, tmp_path: Path) -> None:
    task = load_task(tiny_search.write_task(tmp_path / "task"))
    session = open_two(store, task, 60)
    asyncio.run(search(session))
    models = chosen(store, session.run.id)
    assert models[:20].count("openai/bad") >= 4
    assert models[-30:].count("openai/good") > 22
    by_model = {group.group: group for group in ledger.spent(store, session.run.id)}
    assert by_model["openai/good"].replies == 5 * models.count("openai/good")
    steps = store.rows("SELECT steps FROM episodes WHERE model = 'openai/bad'")
    assert (
        by_model["openai/bad"].replies == sum(row["steps"] for row in steps) < by_model["openai/good"].replies
    )
    assert runs.get_run(store, session.run.id).model == "openai/good=0.5 openai/bad=0.5"


def test_choices_depend_on_the_seed_alone_and_survive_an_end(store: Store, tmp_path: Path) -> None:
    task = load_task(tiny_search.write_task(tmp_path / "task"))
    whole = []
    for rng in range(2):
        session = open_two(store, task, 10, seconds=0.02, rng=rng)
        asyncio.run(search(session))
        whole.append((chosen(store, session.run.id), shape(store, session.run.id)))
    assert whole[0] == whole[1]

    session = open_two(store, task, 10, seconds=0.02)
    run = session.run

    async def ended() -> None:
        """Stopped in the middle, as by a person, again and again."""
        nonlocal session
        for _ in range(4):
            work = asyncio.create_task(search(session))
            await asyncio.sleep(0.12)
            session.stop("interrupted", interrupted=True)
            await work
            session = open_two(store, task, 10, seconds=0.02, run=runs.get_run(store, run.id))

    begun = time.monotonic()
    asyncio.run(ended())
    asyncio.run(search(session))
    assert time.monotonic() - begun < 60
    assert (chosen(store, run.id), shape(store, run.id)) == whole[0]


def test_model_named_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789abcdef")
    with pytest.raises(UsageError, match="given twice"):
        open_model(load_config(None, parse_models(["openai/a=1", "openai/a=2"])).model)


def test_roles_have_models_of_their_own() -> None:
    own = {"roles.hint_distiller": {"name": "anthropic/x"}}
    config = load_config(None, own | {"model.name": "openai/y", "model.base_url": "http://here/v1"})
    named = [role_config(config, role).name for role in ("agent", "hint_distiller")]
    assert named == ["openai/y", "anthropic/x"]
    assert role_config(config, "agent").base_url == "http://here/v1"
    assert role_config(config, "hint_distiller").base_url is None
    plain = load_config(None, {"model.name": "openai/y"})
    assert role_config(plain, "hint_distiller").name == "openai/y"
    with pytest.raises(UsageError, match="roles"):
        load_config(None, {"roles.hint_distillr": {"name": "x"}})
