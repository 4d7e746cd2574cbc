"""A run that was stopped or killed is gone on with: by resume, by the same command, with more episodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_search

from passagent.cli import guarded
from passagent.cli.commands import running
from passagent.cli.commands.running import ECHO_S
from passagent.errors import UsageError
from passagent.store import Store, nodes, runs, sessions
from passagent.view.doctor import examine

PROGRAM = [sys.executable, str(Path(tiny_search.__file__))]
ITERS, ISLANDS = 8, 2


def start(*words: object, gate: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *map(str, words)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | ({"HOLD": str(gate)} if gate else {}),
    )


def start_and_wait(runs_dir: Path, gate: tiny_search.Gate, *words: object) -> subprocess.Popen[str]:
    """A process that works on a run, and does not get to its end before the gate is open."""
    gate.hold(replies=7)
    process = start(*words, gate=gate.path)
    while not (runs_dir / "passagent.db-wal").exists() or not holds_run(runs_dir, process.pid):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """What it printed to stderr, to the first line with these words."""
    assert process.stderr is not None
    told = [process.stderr.readline()]
    while words not in told[-1]:
        assert told[-1], told
        told.append(process.stderr.readline())
    return "".join(told)


def finish(*words: object) -> str:
    process = start(*words)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def check_whole(runs_dir: Path) -> None:
    """Exactly the asked number of episodes, each finished, each node done and made by one call."""
    with Store.open(runs_dir) as store:
        run = runs.find_run(store, "last")
        assert run.state == "finished"
        assert nodes.unfinished(store, run.id) == []
        rows = store.rows(
            "SELECT number, state, steps FROM episodes WHERE run_id = :r ORDER BY number", {"r": run.id}
        )
        assert [row["number"] for row in rows] == list(range(1, ITERS + 1))
        assert {row["state"] for row in rows} == {"done"}
        assert {row["steps"] for row in rows} == {5}
        found = nodes.of_run(store, run.id)
        assert len(found) == 2 * ITERS == len({(node.episode_id, node.call_id) for node in found})
        replies = store.rows("SELECT sum(steps) AS n FROM episodes")
        assert replies[0]["n"] == 5 * ITERS == run.output_tokens
        keys = store.rows("SELECT candidate_key FROM evaluations")
        assert len(keys) == len({row["candidate_key"] for row in keys}) == run.evaluations
        for node in found:
            assert nodes.get_files(store, node)["Fused.py"]


def holds_run(runs_dir: Path, pid: int) -> bool:
    with Store.open(runs_dir) as store:
        drivers = [sessions.driver(store, run.id) for run in runs.list_runs(store)]
        return any(driver is not None and driver.pid == pid for driver in drivers)


def test_a_person_stops_and_goes_on(tmp_path: Path) -> None:
    task, runs_dir = tiny_search.write_task(tmp_path / "task"), tmp_path / "runs"
    gate = tiny_search.Gate(tmp_path / "hold")
    process = start_and_wait(runs_dir, gate, "run", task, runs_dir, ITERS, ISLANDS, 1, 0.1)
    time.sleep(0.3)
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        process.send_signal(number)  # two at once, as `timeout` does: to the process, and to its group
    told = read_until(process, "stopping: ")
    gate.go()  # what is in flight is finished
    _, rest = process.communicate(timeout=60)
    err = told + rest
    assert process.returncode == 130, err
    last = err.strip().splitlines()[-1]
    with Store.open(runs_dir) as store:
        run = runs.find_run(store, "last")
        assert run.state == "stopped"
        assert not sessions.is_driven(store, run.id)
        assert last.startswith("passagent: interrupted") and f"passagent resume {run.id}" in last
    assert "Traceback" not in err
    finish("resume", "last", runs_dir, 0)
    check_whole(runs_dir)


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    task, runs_dir = tiny_search.write_task(tmp_path / "task"), tmp_path / "runs"
    process = start("run", task, runs_dir, ITERS, ISLANDS, 1, 600)
    while not (runs_dir / "passagent.db-wal").exists() or not holds_run(runs_dir, process.pid):
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    read_until(process, "stopping: ")
    time.sleep(2 * ECHO_S)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1].startswith("passagent: killed; everything is stored")
    finish("resume", "last", runs_dir, 0)
    check_whole(runs_dir)


def test_the_same_command_goes_on_with_an_unfinished_run(tmp_path: Path) -> None:
    task, runs_dir = tiny_search.write_task(tmp_path / "task"), tmp_path / "runs"
    gate = tiny_search.Gate(tmp_path / "hold")
    process = start_and_wait(runs_dir, gate, "run", task, runs_dir, ITERS, ISLANDS, 1, 0.1)
    process.kill()
    process.communicate()
    finish("run", task, runs_dir, ITERS, ISLANDS, 1, 0)
    check_whole(runs_dir)
    with Store.open(runs_dir) as store:
        assert len(runs.list_runs(store)) == 1
    finish("run", task, runs_dir, ITERS, ISLANDS, 1, 0)
    with Store.open(runs_dir) as store:
        assert len(runs.list_runs(store)) == 2


def test_more_iterations(tmp_path: Path) -> None:
    from passagent.cli.commands import running

    task = tiny_search.write_task(tmp_path / "task")
    running.run(
        str(task),
        {"settings": tiny_search.settings(3, 2, 0), "runs_dir": tmp_path},
        True,
        parts=tiny_search.parts(),
    )
    running.resume("last", {"settings": {"search.iters": 5}, "runs_dir": tmp_path}, True, tiny_search.parts())
    running.resume("last", {"settings": {}, "runs_dir": tmp_path}, True, tiny_search.parts())
    with Store.open(tmp_path) as store:
        run = runs.find_run(store, "last")
        assert run.iters == 5
        assert [island.episodes for island in runs.islands(store, run.id)] == [3, 2]


class Broken(tiny_search.PacedModel):
    """A model of which the third reply is an error of the interpreter's own."""

    async def complete(self, messages, tools):  # type: ignore[no-untyped-def]
        if len(self.calls) == 2:
            raise SystemError("AST constructor recursion depth mismatch (before=93, after=87)")
        return await super().complete(messages, tools)


def test_unexpected_error_of_an_island_is_one_line_and_the_run_goes_on(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    task, runs_dir = tiny_search.write_task(tmp_path / "task"), tmp_path / "runs"
    settings = tiny_search.settings(ITERS, ISLANDS, 1)
    broken = replace(tiny_search.parts(), model=Broken())
    with pytest.raises(SystemExit) as ended:
        guarded(lambda: running.run(str(task), {"settings": settings, "runs_dir": runs_dir}, True, broken))
    last = capsys.readouterr().err.strip().splitlines()[-1]
    what = "SystemError('AST constructor recursion depth mismatch (before=93, after=87)')"
    assert ended.value.code == 1
    with Store.open(runs_dir) as store:
        run = runs.find_run(store, "last")
        assert last.startswith(
            f"passagent: error: {what}; see run.log; everything so far is stored, go on with: "
        )
        assert f"passagent resume {run.id}" in last
        [found] = [one for one in examine(store, run) if one.check == "processes"]
    assert found.verdict == "fail" and "SystemError: AST constructor recursion depth" in found.said
    finish("resume", "last", runs_dir, 0)
    check_whole(runs_dir)


def test_a_changed_task_is_not_gone_on_with(tmp_path: Path) -> None:
    from passagent.cli.commands import running

    task = tiny_search.write_task(tmp_path / "task")
    running.run(
        str(task),
        {"settings": tiny_search.settings(1, 1, 0), "runs_dir": tmp_path},
        True,
        parts=tiny_search.parts(),
    )
    model = task / "graphs" / "g" / "model.py"
    model.write_text(model.read_text().replace("relu", "gelu"))
    with pytest.raises(UsageError, match="has changed since run"):
        running.resume(
            "last",
            {"settings": {"search.iters": 2}, "runs_dir": tmp_path},
            True,
            parts=tiny_search.parts(),
        )


def make_run(store: Store, **values: object) -> runs.Run:
    columns = {
        "task": "t", "task_path": "/t", "task_key": "k", "model": "m", "device": "cpu", "seed": 1, "iters": 4,
        "config": "{}", "version": "0",
    }  # fmt: skip
    return runs.create_run(store, roles=["fusion", "memory"], operators=["add"], **(columns | values))
