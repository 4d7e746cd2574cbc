"""Events: one list of kinds, whoever is told and on whatever screen, and the docs tell of all of them."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
import tiny_search

from passagent import cli
from passagent.cli import running
from passagent.config import load_config
from passagent.errors import PassagentError
from passagent.search import setup
from passagent.search.setup import Parts, new_run
from passagent.store import Store, runs, sessions, timeline
from passagent.store.events import KINDS, UNSTORED, Noted
from passagent.store.timeline import Follower
from passagent.tasks import load_task

ROOT = Path(__file__).parents[1]


def names(kind):
    return {field.name for field in fields(KINDS[kind])} - {"at"}


def test_each_kind_but_the_unstored_is_read_from_the_store():
    stored = {kind for source in timeline._SOURCES.values() for kind, _ in source.stages}
    assert stored == {*KINDS.values()} - {*UNSTORED}


def test_the_docs_list_them_all():
    rows = re.findall(
        r"^\| `(\w+)` \| `(\w+)` \| [^|]+ \| (.+) \|$", (ROOT / "docs/operators.md").read_text(), re.M
    )
    found = {kind: (name, set(re.findall(r"`(\w+)`", told))) for kind, name, told in rows}
    assert found == {kind: (one.__name__, names(kind)) for kind, one in KINDS.items()}


def told_by(task, options):
    """The events of a search, as JSON."""
    told = []
    with running.started(task, options, tiny_search.parts()) as session:
        asyncio.run(setup.work(session, told.append))
    return [event.as_json() for event in told]


def test_a_search_tells_what_status_follow_prints(tmp_path, monkeypatch, capsys):
    task = tiny_search.write_task(tmp_path / "task")
    runs_dir = str(tmp_path / "runs")
    told = told_by(task, {"settings": tiny_search.settings(6, 2, 1), "runs_dir": runs_dir})
    monkeypatch.setattr(
        sys, "argv", ["passagent", "status", "last", "-f", "-n", "9999", "--json", "--runs-dir", runs_dir]
    )
    with pytest.raises(SystemExit):
        cli.main()
    later = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = {one["event"] for one in told}
    assert kinds >= {"joined", "episode_begun", "reply", "proposed", "judged", "episode_ended", "left"}

    def key(one):
        return json.dumps(one, sort_keys=True)

    unstored = {one.kind for one in UNSTORED}
    assert sorted(key(one) for one in told if one["event"] not in unstored) == sorted(map(key, later))
    assert told[0]["event"] == "joined" and told[-1]["event"] == "left"


def test_what_is_not_stored_is_a_note(tmp_path, monkeypatch):
    async def waits(session):
        session.events.note("waiting: cpu is in use")
        return await real(session)

    real = setup.search
    monkeypatch.setattr(setup, "search", waits)
    task = tiny_search.write_task(tmp_path / "task")
    first = told_by(task, {"settings": tiny_search.settings(1, 1, 1), "runs_dir": tmp_path / "runs"})[0]
    assert (first["event"], first["message"]) == (Noted.kind, "waiting: cpu is in use")


def test_the_lines_of_a_run_are_made_of_them(tmp_path, capsys):
    """What another session began, and what the store knows, is said as it was before there was one list."""

    class Dying(tiny_search.FastEvaluator):
        async def evaluate(self, *given):
            if len(self.asked) == 3:
                raise RuntimeError("it dies")
            return await super().evaluate(*given)

    def lines(new, evaluator):
        parts = Parts(tiny_search.PacedModel(), evaluator, tiny_search.diagnose)
        running.run(
            str(task),
            {"settings": tiny_search.settings(6, 1, 5), "runs_dir": str(tmp_path / "runs"), "new": new},
            False,
            parts=parts,
        )
        return [line[8:] for line in capsys.readouterr().out.splitlines() if line.startswith("[")]

    task = tiny_search.write_task(tmp_path / "task")
    with pytest.raises(PassagentError, match="it dies"):
        lines(False, Dying())
    before = [line[8:] for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    after = lines(False, tiny_search.FastEvaluator())
    known = lines(True, tiny_search.FastEvaluator())
    [begun] = [line for line in before if " episode 2 " in line]
    start, _, done = begun.partition(" (1/6")
    assert start.startswith("island 0 (fusion) episode 2 from node 1 (AS ")
    assert after[0] == f"{start}, continued (1/6{done}"
    judged = [line for line in before + after if ": ok, AS" in line or ": wrong_result, AS" in line]
    assert len(judged) == 12
    assert sum(", known from the store (best " in line for line in known) == 12


def test_a_look_at_a_long_run_takes_no_more_steps_than_at_a_short_one(tmp_path):
    task = tiny_search.write_task(tmp_path / "task")
    told_by(task, {"settings": tiny_search.settings(8, 2, 1), "runs_dir": tmp_path / "runs"})

    told = []
    with Store.open(tmp_path / "runs") as store:
        [run_id] = [run.id for run in runs.list_runs(store)]
        call = store.row("SELECT * FROM calls ORDER BY id LIMIT 1")

        def steps():
            made = []
            follower = Follower(store, run_id, told.append)
            store.connection.set_progress_handler(lambda: made.append(1), 10)
            follower.look()
            store.connection.set_progress_handler(None, 0)
            return len(made)

        few = steps()
        with store.transaction():
            for _ in range(1000):
                store.insert("calls", **call | {"id": None, "state": "failed"})
        assert 0 < steps() < 2 * few and told == []


def test_nothing_is_told_that_may_be_rolled_back(tmp_path):
    told = []
    with Store.open(tmp_path / "runs") as store:
        task = load_task(tiny_search.write_task(tmp_path / "task"))
        run = new_run(store, task, load_config(None, tiny_search.settings(1, 1, 1)))
        follower = Follower(store, run.id, told.append)
        with suppress(ZeroDivisionError), store.transaction():
            sessions.begin(store, run.id)
            follower.look()
            raise ZeroDivisionError
        follower.look()
        assert told == []
        sessions.begin(store, run.id)
        follower.look()
    assert [event.kind for event in told] == ["joined"]
