"""Any number of processes on one run: they join, leave and die, and the tree is that of a single one."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import paid_run
import pytest
import tiny_search
from many import (  # noqa: F401
    FORKS,
    Runs,
    between_finalists,
    confirmed,
    export,
    finish,
    forks,
    holders,
    is_in,
    kill,
    lose_the_device,
    measure_for_real,
    steps_of,
    wait_with_the_finalists,
)
from wire_server import Said, WireServer

from passagent.evaluator.hardware.devices import find_device
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.store import Store, confirmations, nodes, participants, runs

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


@pytest.mark.long
def test_three_processes_one_killed_and_replaced(tmp_path: Path) -> None:
    there, rng, seen = Runs(tmp_path, iters=36, islands=3, seed=7), random.Random(5), set()
    there.gate.hold()
    working = [there.start(seconds=0.05)]
    there.together(*working)
    working += [there.start("resume", seconds=0.05) for _ in range(2)]
    for _ in range(4):
        there.together(*working)
        there.gate.go()
        pids = {str(process.pid) for process in working}
        there.wait(lambda store, pids=pids: {name.rsplit(":", 2)[1] for name in holders(store)} == pids)
        with Store.open(there.dir) as store:
            seen |= holders(store)
        there.gate.hold()
        victim = working.pop(rng.randrange(3))
        kill(victim)
        working.append(there.start("resume", seconds=0.05))
    there.together(*working)
    there.gate.go()
    for process in working:
        finish(process, there)
    assert len(seen) == 6
    with Store.open(there.dir) as store:
        ends = [worker.left_because for worker in participants.of_run(store, there.run(store).id)]
    assert ends.count("it died") == 4 and len(ends) == 7
    there.check()
    assert there.tree() == there.whole(tmp_path)


def test_two_that_begin_at_the_same_moment_share_one_run(tmp_path: Path) -> None:
    there = Runs(tmp_path, iters=9)
    there.gate.hold()
    both = [there.start(seconds=0.02), there.start(seconds=0.02)]
    there.together(*both)
    there.gate.go()
    for process in both:
        finish(process, there)
    with Store.open(there.dir) as store:
        assert len(runs.list_runs(store)) == 1
        assert len(participants.of_run(store, there.run(store).id)) == 2
    there.check()
    assert there.tree() == there.whole(tmp_path)


def test_processes_that_end_at_the_same_moment_export_one_best_pass(tmp_path: Path) -> None:
    there = Runs(tmp_path, iters=3)
    finish(there.start(), there)
    [directory] = there.dir.glob("*/best")
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    ending = [FORKS.Process(target=export, args=(str(there.log), str(there.dir))) for _ in range(3)]
    for process in ending:
        process.start()
    for process in ending:
        finish(process, there)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert not directory.with_name("best.new").exists()


def test_one_process_measures_the_finalists_and_another_does_if_it_dies(tmp_path: Path) -> None:
    there, how = Runs(tmp_path, iters=12, finalists=3), {"seconds": 0.05, "prepare": wait_with_the_finalists}
    there.gate.hold()
    between_finalists(there.task).touch()
    working = [there.start(**how)]
    there.together(*working)
    working += [there.start("resume", **how) for _ in range(2)]
    there.together(*working)
    there.gate.go()
    there.wait(lambda store: confirmed(store) and there.run(store).owner is not None)
    with Store.open(there.dir) as store:
        pid = there.run(store).owner.rsplit(":", 2)[1]
    [first] = [process for process in working if str(process.pid) == pid]
    kill(first)
    working.remove(first)
    between_finalists(there.task).unlink()
    for process in working:
        finish(process, there)
    with Store.open(there.dir) as store:
        run = there.run(store)
        assert len(set(confirmed(store))) == 3
        assert confirmations.winner(store, run.id) is not None
        assert "all 12 episodes are done" in run.stop_reason
        assert sum("died" in worker.left_because for worker in participants.of_run(store, run.id)) == 1
    there.check()


def test_ctrl_c_stops_its_own_process_only(tmp_path: Path) -> None:
    there = Runs(tmp_path, iters=18)
    gate = tiny_search.Gate(tmp_path / "hold the second")
    there.gate.hold()
    first = there.start(seconds=0.05)
    there.together(first)
    second = there.start("resume", seconds=0.05, gate=gate.path)
    there.together(first, second)
    there.gate.go()
    there.wait(lambda store: len(holders(store)) == 2)
    gate.hold()
    os.kill(first.pid, signal.SIGINT)
    finish(first, there, code=130)
    with Store.open(there.dir) as store:
        assert there.run(store).state == "running"
        assert participants.is_live(store, there.run(store).id)
    gate.go()
    finish(second, there)
    there.check()
    assert there.tree() == there.whole(tmp_path)


def test_what_ends_one_process_does_not_end_the_run(tmp_path: Path) -> None:
    there = Runs(tmp_path, iters=12)
    first = there.start(seconds=0.05, prepare=lose_the_device)
    there.wait(lambda store: is_in(store, first))
    second = there.start("resume", seconds=0.05)
    finish(first, there, code=1)
    assert "passagent: error: the GPU is lost; everything so far is stored" in there.said()
    finish(second, there)
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
            there.wait(
                lambda store, n=number: (
                    there.said().count("waiting for cpu, 1 before you") > n
                    and len(nodes.of_run(store, there.run(store).id)) == 2
                )
            )
            if isinstance(ask, str):
                with Store.open(there.dir) as store:
                    runs.want(store, there.run(store).id, "stop")
            else:
                os.kill(process.pid, ask)
            finish(process, there, code=130)
            with Store.open(there.dir) as store:
                assert (there.run(store).state, holders(store)) == ("stopped", set())
                assert {(node.state, node.owner) for node in nodes.of_run(store, there.run(store).id)} == {
                    ("proposed", None)
                }
    assert "Traceback" not in there.said()
    finish(there.start("resume"), there)
    there.check()
    assert there.tree() == there.whole(tmp_path)


@pytest.mark.long
def test_a_person_pauses_drains_and_stops_from_elsewhere(tmp_path: Path) -> None:
    there = Runs(tmp_path, iters=48)
    there.gate.hold()
    working = [there.start(seconds=0.05)]
    there.together(*working)
    working.append(there.start("resume", seconds=0.05))
    there.together(*working)
    there.gate.go()
    there.wait(lambda store: len(holders(store)) == 2)

    def ask(what: str) -> None:
        with Store.open(there.dir) as store:
            runs.want(store, there.run(store).id, what)

    ask("pause")
    seen: list[tuple[int, int]] = []  # what is in flight is finished, then nothing more happens

    def is_quiet(store: Store) -> bool:
        asking = store.row("SELECT count(*) AS n FROM calls WHERE state = 'started'")
        seen.append((steps_of(store), asking["n"]))
        return len(seen) > 30 and seen[-30:] == [(seen[-1][0], 0)] * 30

    there.wait(is_quiet)
    before = there.steps()
    time.sleep(0.6)
    assert there.steps() == before
    assert [process.exitcode for process in working] == [None, None]
    ask("run")
    there.wait(lambda store: steps_of(store) > before)
    ask("drain")
    for process in working:
        finish(process, there, code=130)
    with Store.open(there.dir) as store:
        run = there.run(store)
        assert (run.state, run.stop_reason) == ("stopped", "drained by a person")
        assert store.rows("SELECT * FROM episodes WHERE state != 'done' AND model IS NOT NULL") == []
        assert 0 < len(store.rows("SELECT * FROM episodes")) < there.iters
    process = there.start("resume", seconds=0.05)
    there.wait(lambda store: len(holders(store)) == 1)
    ask("stop")
    finish(process, there, code=130)
    with Store.open(there.dir) as store:
        assert (there.run(store).state, there.run(store).stop_reason) == ("stopped", "stopped by a person")
    finish(there.start("resume"), there)
    there.check()
    assert there.tree() == there.whole(tmp_path)


def paid(server: WireServer, root: Path, *words: object) -> object:
    environment = dict(os.environ) | {"OPENAI_BASE_URL": f"{server.url}/v1"} | paid_run.SECRETS
    process = FORKS.Process(
        target=paid_run.child, args=(environment, str(root / "log"), [str(word) for word in words])
    )
    process.start()
    return process


def test_budgets_hold_over_all_processes(tmp_path: Path) -> None:
    there, limit = Runs(tmp_path), 60_000
    settings = ["model.max_output_tokens=500", f"search.max_tokens={limit}", "search.max_evaluations=15"]
    together, killed, first = threading.Event(), threading.Event(), set()

    def brain(body: dict[str, Any]) -> Said:
        """Answers when all three are there, and more than the islands' first episodes when one was killed."""
        said = paid_run.brain(body)
        together.wait(60)
        if len(first) < 6:
            first.add(said.key[0])
        if said.key[0] not in first:
            killed.wait(60)
        return said

    with WireServer(brain, seconds=0.05) as server:
        working = [paid(server, tmp_path, "run", there.task, there.dir, 40, 6, "openai/m-1", *settings)]
        there.together(*working)
        working += [paid(server, tmp_path, "resume", "last", there.dir) for _ in range(2)]
        there.together(*working)
        together.set()
        there.wait(lambda store: len(holders(store)) == 3)
        kill(working.pop(0))  # what it held is free again
        killed.set()
        for process in working:
            finish(process, there)
    with Store.open(there.dir) as store:
        run = there.run(store)
        assert run.state == "finished"
        assert run.tokens <= sum(server.billed) <= limit
        assert run.evaluations <= 15
        assert run.tokens > limit / 3 or run.evaluations == 15
        assert store.rows("SELECT * FROM reservations") == []
        # both leave for the same reason: the rule that the first of them met
        assert {worker.left_because for worker in participants.of_run(store, run.id)} == {
            "it died",
            run.stop_reason,
        }


def test_time_searched_together_counts_once(tmp_path: Path) -> None:
    there, begun = Runs(tmp_path, iters=12), time.monotonic()
    there.gate.hold()
    working = [there.start(seconds=0.1)]
    there.together(*working)
    joined = time.monotonic()
    working += [there.start("resume", seconds=0.1) for _ in range(2)]
    there.together(*working)
    there.gate.go()
    there.wait(lambda store: len(holders(store)) > 1)
    seen = time.monotonic()
    for process in working:
        finish(process, there)
    with Store.open(there.dir) as store:
        assert seen - joined < there.run(store).elapsed_s < time.monotonic() - begun


def test_other_settings_beside_a_living_process_are_refused(tmp_path: Path) -> None:
    there = Runs(tmp_path, iters=12)
    there.gate.hold()
    first = there.start()
    there.together(first)
    finish(there.start("resume", {"search.iters": 30}), there, code=2)
    there.gate.go()
    told = [line for line in there.said().splitlines() if "works on this run" in line]
    assert len(told) == 1 and f"pid {first.pid} on" in told[0] and "search.iters 12, now 30" in told[0]
    finish(first, there)
    there.check()
