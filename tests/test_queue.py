"""The process of a run: it dies or is asked to stop, another goes on, and two at a time are refused."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from pathlib import Path

import pytest
from many import (  # noqa: F401
    Runs,
    between_finalists,
    confirmed,
    finish,
    forks,
    is_in,
    kill,
    measure_for_real,
    steps_of,
    wait_with_the_finalists,
)

from passagent.evaluator.hardware.devices import find_device
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.store import Store, nodes, runs, sessions

pytestmark = pytest.mark.usefixtures("forks")


def test_random_kills_leave_the_same_tree(tmp_path: Path) -> None:
    """checks/test_kills.py has fifty of them."""
    random_kills(tmp_path, kills=12, iters=21)


def random_kills(tmp_path: Path, kills: int, iters: int) -> None:
    """Kill so often at random moments, go on each time, and compare the tree with one of no kill."""
    there, rng, places = Runs(tmp_path, iters=iters, islands=3, seed=4), random.Random(11), set()
    there.gate.hold(replies=8)  # of each process: together fewer than there are to give
    process = there.start(seconds=0.02)
    for number in range(kills):
        if number % 4:  # three in four some steps further on, the others wherever a start has come to
            further = there.steps() + rng.randrange(5)
            there.wait(lambda store, n=further, p=process: is_in(store, p) and steps_of(store) >= n)
        time.sleep(rng.random() * 0.06)
        assert process.exitcode is None, there.said()[-3000:]
        kill(process)
        places.add(there.steps())
        process = there.start("resume" if max(places) else "run", seconds=0.02)
    kill(process)
    there.gate.go()
    finish(there.start("resume"), there)
    assert len(places) > kills // 2, places
    there.check()
    assert there.tree() == there.whole(tmp_path)


def test_ctrl_c_while_the_finalists_are_measured(tmp_path: Path) -> None:
    there = Runs(tmp_path, iters=3, finalists=3)
    between_finalists(there.task).touch()
    process = there.start(prepare=wait_with_the_finalists)
    there.wait(confirmed)
    os.kill(process.pid, signal.SIGINT)
    there.wait_for_words("stopping: ")
    between_finalists(there.task).unlink()
    finish(process, there, code=130)
    with Store.open(there.dir) as store:
        assert (there.run(store).state, there.run(store).stop_reason) == ("stopped", "interrupted")
        before = confirmed(store)
    finish(there.start("resume"), there)
    with Store.open(there.dir) as store:
        assert len(before) < len(confirmed(store)) and len(set(confirmed(store))) == 2
    there.check()


@pytest.mark.long
def test_who_waits_for_a_device_that_another_process_holds_ends_when_asked(tmp_path: Path) -> None:
    """The lease does not end before all have ended: a search that waits for it would never end."""
    there = Runs(tmp_path, iters=2, islands=2)
    with DeviceLease(find_device("cpu")).exclusive():
        for number, ask in enumerate((signal.SIGINT, signal.SIGTERM, "stop")):
            process = there.start("resume" if number else "run", prepare=measure_for_real)
            there.wait(lambda store, n=number: there.said().count("waiting for cpu, 1 before you") > n)
            if isinstance(ask, str):
                with Store.open(there.dir) as store:
                    runs.want(store, there.run(store).id, "stop")
            else:
                os.kill(process.pid, ask)
            finish(process, there, code=130)
            with Store.open(there.dir) as store:
                assert there.run(store).state == "stopped"
                assert nodes.of_run(store, there.run(store).id) == []
    assert "Traceback" not in there.said()
    finish(there.start("resume"), there)
    there.check()
    assert there.tree() == there.whole(tmp_path)


@pytest.mark.long
def test_person_stops_all_processes_of_a_run(tmp_path: Path) -> None:
    there = Runs(tmp_path, iters=48)
    there.gate.hold()
    process = there.start(seconds=0.05)
    there.wait(lambda store: is_in(store, process))
    there.gate.go()

    def ask(what: str) -> None:
        with Store.open(there.dir) as store:
            runs.want(store, there.run(store).id, what)

    ask("stop_after_episodes")
    finish(process, there, code=130)
    with Store.open(there.dir) as store:
        run = there.run(store)
        assert (run.state, run.stop_reason) == ("stopped", "stopped by a person, after its episodes")
        assert store.rows("SELECT * FROM episodes WHERE state != 'done' AND model IS NOT NULL") == []
        assert 0 < len(store.rows("SELECT * FROM episodes")) < there.iters
    process = there.start("resume", seconds=0.05)
    there.wait(lambda store: is_in(store, process))
    ask("stop")
    finish(process, there, code=130)
    with Store.open(there.dir) as store:
        assert (there.run(store).state, there.run(store).stop_reason) == ("stopped", "stopped by a person")
    finish(there.start("resume"), there)
    there.check()
    assert there.tree() == there.whole(tmp_path)


@pytest.mark.parametrize("verb", ["run", "resume"])
def test_second_process_is_refused_with_the_name_of_the_first(tmp_path: Path, verb: str) -> None:
    there = Runs(tmp_path, iters=6)
    there.gate.hold()
    first = there.start()
    there.wait(lambda store: is_in(store, first))
    finish(there.start(verb), there, code=2)
    with Store.open(there.dir) as store:
        [begun] = sessions.of_run(store, there.run(store).id)
        since = begun.joined_at[:16].replace("T", " ")
    host = socket.gethostname()
    told = f"is driven by process {first.pid} on {host} since {since} UTC; stop it with: passagent stop"
    assert [line for line in there.said().splitlines() if told in line]
    there.gate.go()
    finish(first, there)
    there.check()
