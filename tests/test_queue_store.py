"""The queue in the database, one process looked at closely: who holds what, what is free, what is first."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import tiny_search
from test_search import open_tiny
from test_store import add_node

from passagent.errors import PassagentError
from passagent.search import controller
from passagent.search.controller import search
from passagent.search.islandview import IslandView
from passagent.search.migration import choose_migrant
from passagent.search.session import Session, Stopping
from passagent.search.stop import Want
from passagent.store import (
    Store,
    confirmations,
    episodes,
    migrations,
    nodes,
    participants,
    reservations,
    runs,
)
from passagent.tasks import load_task


def test_who_was_taken_for_dead_writes_nothing_more(tmp_path: Path) -> None:
    class Late(tiny_search.PacedModel):
        async def complete(self, messages, tools):  # type: ignore[no-untyped-def]
            reply = await super().complete(messages, tools)
            if len(self.calls) == 3:
                [worker] = participants.present(store, session.run.id)
                participants.bury(store, worker, "another host found it dead")
            return reply

    with Store.open(tmp_path / "runs") as store:
        task = load_task(tiny_search.write_task(tmp_path / "task"))
        session = open_tiny(store, task, model=Late(), islands=1, iters=2)
        with pytest.raises(PassagentError, match="another process took over what this one held"):
            asyncio.run(search(session))
        assert store.row("SELECT count(*) AS n FROM steps WHERE output_tokens IS NOT NULL")["n"] == 2
        assert store.rows("SELECT state FROM calls") == [
            {"state": "done"}, {"state": "done"}, {"state": "lost"}
        ]  # fmt: skip
        again = open_tiny(store, task, run=session.run, islands=1, iters=2)
        asyncio.run(search(again))
        assert [row["steps"] for row in store.rows("SELECT steps FROM episodes")] == [5, 5]


def test_a_dead_process_is_told_from_a_living_one_by_no_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_resume import make_run

    monotonic, wall = [1000.0], [2e9]
    monkeypatch.setattr(time, "time", lambda: wall[0])
    with Store.open(tmp_path) as store:
        run = make_run(store)
        mine = participants.join(store, run.id)
        watch = participants.Watch(clock=lambda: monotonic[0])

        def rename(owner: str) -> participants.Worker:
            store.execute("UPDATE workers SET owner = :owner", {"owner": owner})
            [worker] = participants.present(store, run.id)
            return worker

        host, pid, start = mine.rsplit(":", 2)
        assert watch.judge(rename(mine)) == "alive"
        for dead in (f"{host}:{pid}:1", f"{host}:999999999:5"):
            assert watch.judge(rename(dead)) == "dead"
        far = f"elsewhere:{pid}:{start}"
        assert watch.judge(rename(far)) == "unknown"
        for _ in range(5):  # it beats, while the clock on the wall is set back and forward
            for step in (-3600, 7200):
                wall[0] += step
                monotonic[0] += 30
                participants.beat(store, run.id, far, 0.0)
                assert watch.judge(rename(far)) == "alive"
        monotonic[0] += participants.STALE_S - 1
        wall[0] += 86400
        assert watch.judge(rename(far)) == "alive"
        assert participants.bury_dead(store, run.id, mine, watch)[1] == []
        episode = store.execute(
            "INSERT INTO episodes (run_id, number, island, seed, state, owner, created_at) "
            "VALUES (:run, 1, 0, 1, 'running', :owner, '')",
            {"run": run.id, "owner": far},
        ).lastrowid
        monotonic[0] += 1
        wall[0] -= 86400
        assert [worker.owner for worker in participants.bury_dead(store, run.id, mine, watch)[1]] == [far]
        assert episodes.get_episode(store, episode).owner is None
        assert episodes.claim(store, run, 0, participants.join(store, run.id)).id == episode


def test_the_time_searched_is_that_of_who_knows_most_of_it(tmp_path: Path) -> None:
    """Who joined late may end the run before the others have told how long it was."""
    from test_resume import make_run

    with Store.open(tmp_path) as store:
        run = make_run(store)
        late = participants.join(store, run.id)
        first = late + "0"
        columns = "run_id, role, beats, version, config, prompts, environment, changes, joined_at"
        store.execute(
            f"INSERT INTO workers (owner, {columns}) SELECT :first, {columns} FROM workers", {"first": first}
        )
        watch = participants.Watch()
        watch.judge = lambda worker: "alive"  # type: ignore[method-assign]
        assert participants.leave(store, run.id, late, watch, "finished", "all done", 1.5)
        assert not participants.leave(store, run.id, first, watch, "finished", "all done", 4.0)
        run = runs.get_run(store, run.id)
        assert (run.state, run.stop_reason, run.elapsed_s) == ("finished", "all done", 4.0)


def test_ties_are_not_broken_by_who_was_faster(tmp_path: Path) -> None:
    task, chosen = load_task(tiny_search.write_task(tmp_path / "task")), []
    for order in ([1, 2, 3], [3, 2, 1], [2, 3, 1]):
        with Store.open(tmp_path / f"runs {order}") as store:
            session = open_tiny(store, task, islands=4, iters=40)
            run, owner = session.run, participants.join(store, session.run.id)
            made = {island: add_node(store, run, owner, island, score=2.0) for island in order}
            best = choose_migrant(store, run, 0, 9, 0.01).node
            for node in made.values():
                episode = episodes.claim(store, run, 0, owner)
                migrations.add_migration(store, episode, node, "a tie")
                episodes.finish(store, episode, "done", None, False)
            view = IslandView(store, run.id, 0)
            finalists = confirmations.finalists(store, run.id, 3)
            found = [best, view.best(), *view.elites(3), *finalists, confirmations.winner(store, run.id)]
            chosen.append([node.number for node in found])
    assert chosen[0] == chosen[1] == chosen[2]
    assert chosen[0][:2] == [2, 2]


def test_room_that_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    async def go(session: Session) -> None:
        key = reservations.reserve(session.store, session.run.id, "elsewhere:1:1", 60, 0.0, 1)
        for want in (Want(evaluations=1), Want(tokens=41)):
            waiting = asyncio.create_task(session.admit(want))
            await asyncio.sleep(0.01)
            session.notify()
            await asyncio.sleep(0.01)
            assert not waiting.done()
            waiting.cancel()
        (await session.admit(Want(tokens=40)))()
        waiting = asyncio.create_task(session.admit(Want(tokens=41, evaluations=1)))
        await asyncio.sleep(0.01)
        reservations.release(session.store, key)
        session.notify()
        (await waiting)()
        with pytest.raises(Stopping, match="may take 101 tokens, 100 of 100 are left"):
            await session.admit(Want(tokens=101))
        assert runs.get_run(session.store, session.run.id).stop_reason is not None  # for the others, too

    with Store.open(tmp_path / "runs") as store:
        task = load_task(tiny_search.write_task(tmp_path / "task"))
        session = open_tiny(store, task, max_evaluations=1, max_tokens=100)
        session.owner = participants.join(store, session.run.id)
        asyncio.run(go(session))


def test_what_an_unknown_owner_holds_is_taken_over_at_once(tmp_path: Path) -> None:
    """An owner without a row in `workers` was never asked for: resume waited for it for ever, in silence."""
    with Store.open(tmp_path / "runs") as store:
        session = open_tiny(store, load_task(tiny_search.write_task(tmp_path / "task")), islands=2, iters=4)
        run, gone = session.run, participants.join(store, session.run.id)
        episode = episodes.claim(store, run, 0, gone)
        assert episode is not None
        node = nodes.propose(store, episode, "call", {"a.py": ""}, "", None)
        nodes.start(store, node.id, gone)
        assert participants.take_run(store, run.id, gone, "search")
        reservations.reserve(store, run.id, gone, 1, 1.0, 1)
        for table in ("episodes", "nodes", "reservations", "runs"):
            store.execute(f"UPDATE {table} SET owner = 'another:1:1' WHERE owner IS NOT NULL", {})
        store.execute("DELETE FROM workers", {})
        assert asyncio.run(search(session)).state == "finished"
        assert episodes.get_episode(store, episode.id).state == "done"
        assert nodes.start(store, node.id, "me")
        assert store.rows("SELECT * FROM reservations") == []


def test_who_waits_for_another_process_says_for_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said nothing, for however long."""
    monkeypatch.setattr("passagent.search.session.TOLD_AFTER_S", 0.0)
    with Store.open(tmp_path / "runs") as store:
        told: list[str] = []
        task = load_task(tiny_search.write_task(tmp_path / "task"))
        session = open_tiny(
            store, task, islands=2, iters=4, on_event=lambda event: told.append(getattr(event, "message", ""))
        )
        with monkeypatch.context() as patch:
            patch.setattr(participants, "this_process", lambda: "far:7:1")
            other = participants.join(store, session.run.id)
        assert episodes.claim(store, session.run, 0, other)
        session.owner = participants.join(store, session.run.id)

        async def wait() -> None:
            claiming = asyncio.create_task(controller._claim(session, 0))
            while not any(told):
                await asyncio.sleep(0.01)
            claiming.cancel()

        asyncio.run(wait())
        assert "waiting: pid 7 on far works on island 0" in told


def test_what_another_process_writes_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "POLL_S", 600.0)
    with Store.open(tmp_path / "runs") as store, Store.open(tmp_path / "runs") as another:
        task = load_task(tiny_search.write_task(tmp_path / "task"))
        session = open_tiny(store, task, model=tiny_search.PacedModel(), islands=1, iters=2)
        session.others = 1

        async def told() -> None:
            listening = asyncio.create_task(controller._listen(session))
            await asyncio.sleep(0)  # it has looked once
            changed = session.changed
            runs.want(another, session.run.id, "stop")
            await asyncio.wait_for(changed.wait(), 60)
            listening.cancel()

        asyncio.run(told())
