"""What goes wrong around a search: locked and full disks, clocks, death at a bad moment, other machines."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_search
from many import Runs, finish, forks, is_in, kill, lively, stall_in_a_transaction, steps_of  # noqa: F401
from test_search import open_tiny

from passagent.evaluator.result import Candidate, Evaluation
from passagent.search import controller, finalists, session
from passagent.store import Store, evaluations, nodes, runs, sessions
from passagent.store.events import Noted
from passagent.tasks import load_task

pytestmark = pytest.mark.usefixtures("forks")


def one_line(there: Runs, text: str) -> None:
    """What was said ends with one line of error, without a traceback."""
    said = there.said()
    assert "Traceback" not in said
    assert [line for line in said.splitlines() if line.startswith("passagent: ")][-1].count(text), said


@pytest.mark.long
def test_a_database_that_is_locked_for_a_while_is_waited_for(tmp_path: Path) -> None:
    there = Runs(tmp_path, iters=9)
    there.gate.hold(replies=4)
    process = there.start(seconds=0.02)
    there.wait(lambda store: steps_of(store) > 8)
    with sqlite3.connect(there.dir / "passagent.db", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        there.gate.go()
        time.sleep(1.5)
        other.execute("ROLLBACK")
    other.close()
    finish(process, there)
    there.check()
    assert there.tree() == there.whole(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(path: Path) -> None:
    """Write until there is no room."""
    with path.open("wb", buffering=0) as file:
        while True:
            if file.write(bytes(4096)) < 4096:
                file.write(bytes(4096))


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path, small_disk: Path) -> None:
    there = Runs(tmp_path, iters=12)
    there.dir = small_disk / "runs"
    there.gate.hold(replies=4)
    process = there.start(seconds=0.05)
    there.wait(lambda store: steps_of(store) > 8)
    stuffing = small_disk / "stuffing"
    with pytest.raises(OSError, match="No space left"):
        fill(stuffing)
    there.gate.go()
    finish(process, there, code=1)
    one_line(there, "the disk is full")
    one_line(there, "passagent resume")
    stuffing.unlink()
    there.log = tmp_path / "log 2"
    # room enough for the rest, on another file system
    subprocess.run(["cp", "-r", there.dir, tmp_path / "runs"], check=True)
    there.dir = tmp_path / "runs"
    finish(there.start("resume"), there)
    there.check()
    assert there.tree() == there.whole(tmp_path)


def test_a_database_that_is_removed_is_noticed(tmp_path: Path) -> None:
    there = Runs(tmp_path, iters=1000)
    process = there.start(seconds=0.05, prepare=lively)
    there.wait(lambda store: steps_of(store) > 8)
    aside = tmp_path / "aside"
    aside.mkdir()
    for file in there.dir.glob("passagent.db*"):
        file.rename(aside / file.name)
    finish(process, there, code=2)
    one_line(there, "was removed or replaced while it was in use")
    for file in aside.iterdir():
        file.rename(there.dir / file.name)
    there.wait(lambda store: runs.find_run(store, "last").state == "failed")


def test_killed_while_it_holds_the_database(tmp_path: Path) -> None:
    there = Runs(tmp_path, iters=12)
    process = there.start(seconds=0.02, prepare=stall_in_a_transaction)
    there.wait_for_words("stalled")
    kill(process)
    finish(there.start("resume", seconds=0.02), there)
    with Store.open(there.dir) as store:
        ends = [one.left_because for one in sessions.of_run(store, there.run(store).id)]
    assert ends == ["it died", "all 12 episodes are done"]
    there.check()
    assert there.tree() == there.whole(tmp_path)


class Elsewhere(tiny_search.FastEvaluator):
    """Another machine: what was best is worst."""

    async def evaluate(self, task_path: Path, candidate: Candidate, bar: float | None = None) -> Evaluation:
        found = await super().evaluate(task_path, candidate)
        if found.status != "ok":
            return found
        return found.model_copy(update={"as_score": 3.0 - (found.as_score or 0.0)})


def move(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """This machine is another one from now on."""
    monkeypatch.setattr(session, "environment_key", lambda config: f"host {name}; gpu A")


def test_on_another_machine_the_elites_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "runs") as store:
        task = load_task(tiny_search.write_task(tmp_path / "task"))
        move(monkeypatch, "one")
        first = open_tiny(store, task, islands=2, iters=8, elites=2)
        asyncio.run(controller.search(first))
        run = runs.get_run(store, first.run.id)
        before = {node.id: node for node in nodes.of_run(store, run.id)}
        elites = {n.id for island in (0, 1) for n in nodes.best_of_island(store, run.id, island, 2)}

        move(monkeypatch, "two")
        there, events = Elsewhere(), []
        second = open_tiny(
            store, task, run=run, islands=2, iters=9, elites=2, evaluator=there, on_event=events.append
        )
        asyncio.run(controller.search(second))
        told = [event.message for event in events if isinstance(event, Noted)]
        assert told[:3] == [
            "the settings have changed: search.iters 8, now 9",
            "the evaluator or its machine has changed: host one, now host two",
            f"scores of another evaluator or machine are not compared: measuring {len(elites)} again",
        ]
        changes = [json.loads(one.changes) for one in sessions.of_run(store, run.id)]
        assert changes == [[], told[:2]]
        assert runs.get_run(store, run.id).environment.endswith("host two; gpu A")

        for node in nodes.of_run(store, run.id):
            old = before.get(node.id)
            if old is None or old.status != "ok":
                continue
            if node.id in elites:
                assert node.as_score == pytest.approx(3.0 - old.as_score)
                assert node.evaluation_id != old.evaluation_id
            else:  # it keeps its evaluation, and has no score here
                assert (node.as_score, node.evaluation_id) == (None, old.evaluation_id)
                assert evaluations.get_evaluation(store, old.evaluation_id)["as_score"] == old.as_score
        assert elites <= set(before) and len(there.asked) == len(elites) + 2
        for island in runs.islands(store, run.id):
            [best] = nodes.best_of_island(store, run.id, island.island, 1)
            assert (island.best_node, island.best_as) == (best.id, best.as_score)
        winner = finalists.winner(store, run.id)
        environment = (
            "SELECT environment FROM evaluations JOIN conditions ON conditions.id = conditions_id "
            "WHERE evaluations.id = :id"
        )
        assert store.row(environment, {"id": winner.evaluation_id}) == {"environment": "host two; gpu A"}

        # and at home again: what was measured there is known, nothing is measured twice
        move(monkeypatch, "one")
        home = tiny_search.FastEvaluator()
        third = open_tiny(store, task, run=run, islands=2, iters=9, elites=2, evaluator=home)
        asyncio.run(controller.search(third))
        known = {before[i].candidate_key for i in elites}
        assert not known & set(home.asked)
