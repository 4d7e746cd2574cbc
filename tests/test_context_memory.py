"""Context memory: when an island stagnates a page is written once, counted and shown, also after a crash."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import tiny_search
from test_search import finish, store, task  # noqa: F401

from passagent import api as pa
from passagent.agent.context import Attempt
from passagent.agent.summariser import Artefacts, ask, may_summarise, open_summariser, prompt
from passagent.agent.tokens import tokens
from passagent.commands import showing
from passagent.config import load_config
from passagent.errors import PassagentError, UsageError
from passagent.models.scripted import ScriptedModel
from passagent.models.types import END, Reply, Usage, assistant
from passagent.search.session import Session
from passagent.search.setup import new_run, open_session
from passagent.store import Store, context_memory, episodes, ledger, runs
from passagent.store.runs import Run
from passagent.tasks import Task

ITERS = 10
PAGE = "The best one fuses all.\nEpisode seed: 7\nTiling the rows lost: 0.9."


class Summariser(ScriptedModel):
    """Writes PAGE; ten tokens in and two out for each reply. Fails where `gone` says so."""

    def __init__(self, gone: bool = False) -> None:
        super().__init__(self.write, "openai/summariser")
        self.gone, self.is_closed = gone, False

    def write(self, messages: Any, tools: Any) -> Reply:
        assert not tools and "has not got any better" in messages[0]["content"]
        if self.gone:
            raise PassagentError("gone")
        return Reply(assistant(PAGE), Usage(10, 2), END)

    async def close(self) -> None:
        self.is_closed = True


def session_of(
    store: Store,  # noqa: F811
    task: Task,  # noqa: F811
    model: Any,
    run: Run | None = None,
    memory: int = 600,
) -> Session:
    """A tiny search on one island with a summariser (None: without)."""
    chosen = {"islands": 1, "iters": ITERS, "seed": 3, "finalists": 0, "expert_seeds": 0, "stagnation": 2}
    budget = {"agent.context_budget": {"memory": memory}}
    config = load_config(None, {f"search.{name}": value for name, value in chosen.items()} | budget)
    session = open_session(
        store,
        run or new_run(store, task, config),
        task,
        config,
        lambda event: None,
        tiny_search.PacedModel(),
        tiny_search.FastEvaluator(),
        tiny_search.diagnose,
    )
    assert session.summariser is None, "unset: nobody"
    session.summariser = model
    return session


def shown(store: Store, run: Run) -> dict[int, str]:  # noqa: F811
    """What each episode's prompt says, by its number."""
    rows = store.rows("SELECT id, number FROM episodes WHERE run_id = :r", {"r": run.id})
    return {row["number"]: episodes.conversation(store, row["id"])[1]["content"] for row in rows}


def stagnated(store: Store, run: Run) -> list[int]:  # noqa: F811
    """Numbers of the episodes with which the island had gone two without a gain, and that others follow."""
    found, best, row = [], 0.0, 0
    for one in store.rows(
        "SELECT number, best_as FROM episodes WHERE run_id = :r ORDER BY number", {"r": run.id}
    ):
        row = 0 if (one["best_as"] or 0.0) > best * 1.01 else row + 1
        best = max(best, one["best_as"] or 0.0)
        found += [one["number"]] if row == 2 else []
    return [number for number in found if number < ITERS]


def test_a_page_is_written_once_for_each_stagnation(
    store: Store,  # noqa: F811
    task: Task,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Summariser()
    session = session_of(store, task, model)
    finish(session)
    run = runs.get_run(store, session.run.id)
    expected = stagnated(store, run)
    assert expected and len(model.calls) == len(expected) and model.is_closed
    pages = context_memory.pages(store, run.id)
    assert [(one.island, one.episode, one.page) for one in pages] == [(0, n, PAGE) for n in expected]
    for number, text in shown(store, run).items():
        has_page = "> Tiling the rows lost: 0.9." in text
        assert has_page == (number > expected[0])
        assert text.count("\nEpisode seed: ") == 1, "a page cannot speak for the prompt"

    count = len(expected)
    theirs = {group.group: group for group in ledger.spent(store, run.id, "role")}["summariser"]
    assert (theirs.replies, theirs.input_tokens, theirs.output_tokens) == (count, 10 * count, 2 * count)

    showing.show_memory(run.id, str(store.runs_dir), False)
    assert f"island 0, after episode {expected[0]}:\n  The best one fuses all." in capsys.readouterr().out
    rows = pa.Run.find(run.id, store.runs_dir).memory()
    assert [row["episode"] for row in rows] == expected


def test_what_a_dead_process_left_is_asked_once_by_the_next(store: Store, task: Task) -> None:  # noqa: F811
    broken = session_of(store, task, Summariser(gone=True))
    with pytest.raises(PassagentError, match="gone"):
        finish(broken)
    run = runs.get_run(store, broken.run.id)
    assert context_memory.wanted(store, run.id, 0) and context_memory.pages(store, run.id) == []
    model = Summariser()
    finish(session_of(store, task, model, run))
    assert len(model.calls) == len(context_memory.pages(store, run.id)) == len(stagnated(store, run))
    assert context_memory.wanted(store, run.id, 0) == []


@pytest.mark.parametrize("memory", [600, 0])
def test_programs_and_recordings_are_not_asked(store: Store, task: Task, memory: int) -> None:  # noqa: F811
    session = session_of(store, task, None if memory else Summariser(), memory=memory)
    finish(session)
    assert stagnated(store, session.run)
    assert [group.group for group in ledger.spent(store, session.run.id, "role")] == ["agent"]
    asked = [may_summarise(name) for name in ("expert", "replay:x.jsonl", "m:C", "openai/x", "anthropic/x")]
    assert asked == [False, False, False, True, True]


def test_the_prompt_and_the_page_keep_to_their_size() -> None:
    attempts = [
        (Attempt(number, "wrong_result", 0.1, f"try {number}", failure="x" * 200), "slow " * 200)
        for number in range(400)
    ]
    told = Artefacts(["relu"], "cpu", 2, 1.5, attempts, ["- a (untried)"] * 900, "+a\n" * 9000, PAGE)
    text = prompt(told, 600)
    assert tokens(text) < 8_500
    assert "node 399 " in text and "node 3 " not in text, "the newest are kept"
    assert "at most 400 words" in text and PAGE in text
    long = ScriptedModel([assistant("word word word\n" * 2000)])
    _, page = asyncio.run(ask(long, told, 600))
    assert tokens(page) < 620


def test_a_model_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert open_summariser(load_config()) is None
    with pytest.raises(UsageError, match=r"roles\.summariser: the expert writes passes only"):
        open_summariser(load_config(None, {"roles.summariser": {"name": "expert"}}))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    found = open_summariser(load_config(None, {"roles.summariser": {"name": "openai/small"}}))
    assert found is not None and found.name == "openai/small"
    asyncio.run(found.close())
    assert load_config("passnet").agent.context_budget.memory == 0
