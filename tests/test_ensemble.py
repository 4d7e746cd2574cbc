"""Several models in one run: choices depend on weights and seed alone."""

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
from passagent.models.ensemble import Ensemble, choose
from passagent.models.scripted import ScriptedModel, as_reply
from passagent.models.types import Message, Reply, ToolSpec, Usage
from passagent.options import parse_models
from passagent.search.controller import search
from passagent.search.session import Session
from passagent.search.setup import new_run, open_session
from passagent.store import Store, ledger, runs
from passagent.tasks import load_task

HALVES = {"openai/good": 0.5, "openai/bad": 0.5}


def test_models_are_chosen_by_their_weights_and_the_seed_alone() -> None:
    weights = {"a": 0.7, "b": 0.3}
    chosen = [choose(weights, seed) for seed in range(400)]
    assert 0.6 < chosen.count("a") / 400 < 0.8
    assert chosen == [choose(weights, seed) for seed in range(400)]


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


def test_each_model_writes_its_episodes(store: Store, tmp_path: Path) -> None:
    task = load_task(tiny_search.write_task(tmp_path / "task"))
    session = open_two(store, task, 20)
    asyncio.run(search(session))
    models = chosen(store, session.run.id)
    assert min(models.count(name) for name in HALVES) >= 4
    by_model = {group.group: group for group in ledger.spent(store, session.run.id)}
    assert by_model["openai/good"].replies == 5 * models.count("openai/good")
    steps = store.rows("SELECT steps FROM episodes WHERE model = 'openai/bad'")
    assert by_model["openai/bad"].replies == sum(row["steps"] for row in steps)
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
