"""The process of a run: it dies or is asked to stop, another goes on, and two at a time are refused."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_search
from many import (  # noqa: F401
    Runs,
    between_finalists,
    confirmed,
    finish,
    forks,
    is_asking,
    is_in,
    kill,
    measure_for_real,
    steps_of,
    wait_with_the_finalists,
)

from passagent.cli import guarded, running
from passagent.cli.running import ECHO_S
from passagent.errors import UsageError
from passagent.evaluator.hardware.devices import find_device
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.store import Store, nodes, runs, sessions
from passagent.view.doctor import examine

pytestmark = pytest.mark.usefixtures("forks")


def test_random_kills_leave_the_same_tree(tmp_path: Path) -> None:
    """checks/test_kills.py has fifteen of them."""
    random_kills(tmp_path, kills=3, iters=8)


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


def test_person_interrupts_a_run_and_goes_on(tmp_path: Path) -> None:
    there = Runs(tmp_path, iters=8, islands=2)
    there.gate.hold(replies=7)
    process = there.start(seconds=0.05)
    there.wait(lambda store: is_in(store, process) and is_asking(store))
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        os.kill(process.pid, number)  # two at once, as `timeout` does: to the process, and to its group
    there.wait_for_words("stopping: ")
    there.gate.go()  # what is in flight is finished
    finish(process, there, code=130)
    with Store.open(there.dir) as store:
        run = there.run(store)
        assert run.state == "stopped" and not sessions.is_driven(store, run.id)
    [last] = [line for line in there.said().splitlines() if line.startswith("passagent: ")][-1:]
    assert last.startswith("passagent: interrupted") and f"passagent resume {run.id}" in last
    assert "Traceback" not in there.said()
    finish(there.start("resume"), there)
    there.check()


def test_second_ctrl_c_stops_at_once_and_the_same_command_goes_on(tmp_path: Path) -> None:
    there = Runs(tmp_path, iters=8, islands=2)
    process = there.start(seconds=600)
    there.wait(lambda store: is_in(store, process) and is_asking(store))
    os.kill(process.pid, signal.SIGINT)
    there.wait_for_words("stopping: ")
    time.sleep(2 * ECHO_S)
    os.kill(process.pid, signal.SIGINT)
    finish(process, there, code=130)
    assert "\npassagent: killed; everything is stored" in there.said()
    finish(there.start("run"), there)
    there.check()
    with Store.open(there.dir) as store:
        assert len(runs.list_runs(store)) == 1
        finish(there.start("run"), there)  # the first is finished: another run begins
        assert len(runs.list_runs(store)) == 2


class Broken(tiny_search.PacedModel):
    """A model of which the third reply is an error of the interpreter's own."""

    async def complete(self, messages, tools):  # type: ignore[no-untyped-def]
        if len(self.calls) == 2:
            raise SystemError("AST constructor recursion depth mismatch (before=93, after=87)")
        return await super().complete(messages, tools)


def test_unexpected_error_of_an_island_is_one_line_and_the_run_goes_on(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    there = Runs(tmp_path, iters=8, islands=2)
    options = {"settings": there.settings, "runs_dir": there.dir}
    broken = replace(tiny_search.parts(), model=Broken())
    with pytest.raises(SystemExit) as ended:
        guarded(lambda: running.run(str(there.task), options, True, broken))
    last = capsys.readouterr().err.strip().splitlines()[-1]
    what = "SystemError('AST constructor recursion depth mismatch (before=93, after=87)')"
    assert ended.value.code == 1
    with Store.open(there.dir) as store:
        run = there.run(store)
        assert last.startswith(
            f"passagent: error: {what}; see run.log; everything so far is stored, go on with: "
        )
        assert f"passagent resume {run.id}" in last
        [finding] = [finding for finding in examine(store, run) if finding.check == "processes"]
    assert finding.verdict == "fail" and "SystemError: AST constructor recursion depth" in finding.said
    finish(there.start("resume"), there)
    there.check()


def test_resume_makes_more_episodes_and_refuses_a_changed_task(tmp_path: Path) -> None:
    there = Runs(tmp_path, iters=3, islands=2)
    running.run(
        str(there.task), {"settings": there.settings, "runs_dir": there.dir}, True, tiny_search.parts()
    )

    def resume(settings: dict[str, int]) -> None:
        running.resume("last", {"settings": settings, "runs_dir": there.dir}, True, tiny_search.parts())

    resume({"search.iters": 5})
    resume({})
    with Store.open(there.dir) as store:
        run = there.run(store)
        assert run.iters == 5
        assert [island.episodes for island in runs.islands(store, run.id)] == [3, 2]
    model = there.task / "graphs" / "g" / "model.py"
    model.write_text(model.read_text().replace("relu", "gelu"))
    with pytest.raises(UsageError, match="has changed since run"):
        resume({"search.iters": 6})


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
        for number, ask in enumerate((signal.SIGTERM, "stop")):
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
