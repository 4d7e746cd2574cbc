"""What was paid is in the ledger, once, to the token: under faults of the server and death of the process."""

from __future__ import annotations

import collections
import multiprocessing.process
import os
import random
import re
import threading
import time
from pathlib import Path
from typing import Any

import paid_run
import pytest
import tiny_search
from many import FORKS, forks  # noqa: F401
from wire_server import FAULTS, Said, WireServer

from passagent.store import Store, episodes, nodes, runs, sessions

pytestmark = pytest.mark.usefixtures("forks")


def start(server: WireServer, tmp_path: Path, *words: object) -> multiprocessing.process.BaseProcess:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "ANTHROPIC"))}
    addresses = {"OPENAI_BASE_URL": f"{server.url}/v1", "ANTHROPIC_BASE_URL": server.url}
    environment = kept | addresses | paid_run.SECRETS
    process = FORKS.Process(
        target=paid_run.child, args=(environment, str(tmp_path / "out"), [str(word) for word in words])
    )
    process.start()
    return process


def finish(process: multiprocessing.process.BaseProcess, tmp_path: Path) -> str:
    process.join(120)
    said = (tmp_path / "out").read_text()
    assert process.exitcode == 0, said[-3000:]
    return said


def ledger(store: Store, run_id: str) -> dict[str, list[dict[str, object]]]:
    """The run's rows by state."""
    found = collections.defaultdict(list)
    for row in store.rows(
        "SELECT calls.*, seed FROM calls JOIN episodes ON episodes.id = episode_id WHERE calls.run_id = :run",
        {"run": run_id},
    ):
        found[row["state"]].append(row)
    return found


def check_ledger(runs_dir: Path, server: WireServer, iters: int) -> collections.Counter[str]:
    """The ledger is the server's: every token, every paid reply once, but for what was lost in flight."""
    with Store.open(runs_dir) as store:
        run = runs.find_run(store, "last")
        assert run.state == "finished"
        rows = ledger(store, run.id)
        assert "started" not in rows
        # what the server sent whole more often than once was under way when a process died
        sent = collections.Counter(entry.key for entry in server.ledger if entry.is_whole)
        usage = {e.key: (e.input_tokens, e.output_tokens) for e in server.ledger if e.is_whole}
        lost = collections.Counter(key_of(store, row) for row in rows["lost"])
        again = {key: count - 1 for key, count in sent.items() if count > 1}
        assert all(count <= lost[key] for key, count in again.items()), (again, lost)
        # a broken reply in flight at that moment was billed, too: its row is among the lost
        broken_again = billed_and_lost(server, rows["lost"], store)
        extra = [sum(usage[key][i] * n for key, n in again.items()) for i in (0, 1)]
        for i, kind in enumerate(("input_tokens", "output_tokens")):
            counted = sum(row[kind] for state in rows.values() for row in state)
            assert counted == getattr(run, kind)
            missing = server.billed[i] - extra[i] - counted
            assert 0 <= missing <= broken_again[i]
            if not rows["lost"]:
                assert missing == 0
        # each step of each episode was paid once
        done = [(row["episode_id"], row["step"]) for row in rows["done"]]
        assert len(done) == len(set(done)) == 5 * iters
        of_steps = store.rows("SELECT episode_id, seq FROM steps")
        assert {(s["episode_id"], s["seq"]) for s in of_steps} >= set(done)
        # and no node is lost
        assert nodes.unfinished(store, run.id) == []
        assert len(nodes.of_run(store, run.id)) == 2 * iters
        states = store.rows("SELECT state, steps FROM episodes")
        assert len(states) == iters and all(row == {"state": "done", "steps": 5} for row in states)
        return collections.Counter({state: len(found) for state, found in rows.items()})


def key_of(store: Store, row: dict[str, object]) -> tuple[object, int]:
    """The server's name for the request of a row: the episode's seed and the number of the reply."""
    said = episodes.conversation(store, row["episode_id"])[: row["step"] - 1]
    return row["seed"], sum(message["role"] == "assistant" for message in said)


def billed_and_lost(server: WireServer, lost: list[dict[str, object]], store: Store) -> tuple[int, int]:
    """What the server billed for broken replies to requests that were lost in flight, at most."""
    keys = {key_of(store, row) for row in lost}
    broken = [entry for entry in server.ledger if entry.key in keys and not entry.is_whole]
    return sum(e.input_tokens for e in broken), sum(e.output_tokens for e in broken)


@pytest.mark.parametrize(
    ("model", "iters", "settings"),
    [
        ("openai/m-1", 12, []),
        ("openai/m-1", 12, ["model.api=responses"]),
        ("anthropic/m-1", 12, []),
    ],
)
def test_three_in_ten_requests_fail(tmp_path: Path, model: str, iters: int, settings: list[str]) -> None:
    task, runs_dir = tiny_search.write_task(tmp_path / "task"), tmp_path / "runs"
    with WireServer(paid_run.brain, share=0.3, seed=5) as server:
        process = start(server, tmp_path, "run", task, runs_dir, iters, 4, model, *settings)
        said = finish(process, tmp_path)
        counts = check_ledger(runs_dir, server, iters)
    assert counts["done"] == 5 * iters
    assert sum(counts.values()) == len(server.ledger)
    assert counts["lost"] == 0
    assert counts["failed"] > iters / 2
    assert counts["broken"] == sum(not entry.is_whole and entry.input_tokens > 0 for entry in server.ledger)
    assert {entry.fault for entry in server.ledger} - {None} == set(FAULTS)
    assert "Traceback" not in said
    # a retry is told before it is waited for: who, why, which try, when
    assert re.search(rf"note: island \d: {model}: HTTP 429: not now, .*; try 2 of 11 in \d\.\d s", said)
    assert_no_secret(tmp_path / "out", runs_dir)
    with Store.open(runs_dir) as store:
        errors = store.rows("SELECT error FROM calls WHERE error LIKE '%not now%'")
        assert errors and all("redacted" in row["error"] or "<" in row["error"] for row in errors)


@pytest.mark.parametrize("model", ["openai/m-1", "anthropic/m-1"])
def test_a_refused_key_is_told_in_the_servers_words(tmp_path: Path, model: str) -> None:
    """On the screen and in the database: redaction took "Incorrect" behind OPENAI_API_KEY for a key."""
    task, runs_dir = tiny_search.write_task(tmp_path / "task"), tmp_path / "runs"
    with WireServer(paid_run.brain) as server:
        server.fault = lambda: "401"  # type: ignore[method-assign]
        process = start(server, tmp_path, "run", task, runs_dir, 2, 1, model)
        process.join(120)
    said = (tmp_path / "out").read_text()
    assert process.exitcode == 2
    with Store.open(runs_dir) as store:
        run = runs.find_run(store, "last")
        [failed] = ledger(store, run.id)["failed"]
    for text in (said.splitlines()[-1], run.stop_reason, failed["error"]):
        assert "_API_KEY: Incorrect API key provided" in str(text)
    assert_no_secret(tmp_path / "out", runs_dir)


def assert_no_secret(out: Path, runs_dir: Path) -> None:
    """No planted secret is in what was printed or in any file of the runs: database, logs, objects."""
    files = [path for path in (out, *runs_dir.rglob("*")) if path.is_file()]
    assert any(path.name == "passagent.db" for path in files) and any(path.suffix == ".log" for path in files)
    for path in files:
        for name, secret in paid_run.SECRETS.items():
            assert secret.encode() not in path.read_bytes(), (path, name)


def test_killed_and_resumed(tmp_path: Path) -> None:
    """checks/test_kills.py does it six times."""
    random_kills(tmp_path, kills=3, iters=8)


def random_kills(tmp_path: Path, kills: int, iters: int) -> None:
    """Kill so often at random moments, go on each time; compare the ledger with what the server counted."""
    task, runs_dir, rng = tiny_search.write_task(tmp_path / "task"), tmp_path / "runs", random.Random(3)
    change = threading.Condition()
    answers = allowed = 0

    def brain(body: dict[str, Any]) -> Said:
        """Answers ten requests between two kills, which leaves some for after the last one."""
        nonlocal answers
        with change:
            change.wait_for(lambda: answers < allowed)
            answers += 1
        return paid_run.brain(body)

    def allow(count: int) -> None:
        nonlocal allowed
        with change:
            allowed += count
            change.notify_all()

    with WireServer(brain, share=0.3, seed=7, seconds=0.05) as server:
        process = start(server, tmp_path, "run", task, runs_dir, iters, 4, "openai/m-1")
        for _ in range(kills):
            allow(10)
            while process.exitcode is None and not begun(runs_dir, process.pid):
                time.sleep(0.02)
            time.sleep(rng.random() * 0.2)
            assert process.exitcode is None, (tmp_path / "out").read_text()[-3000:]
            process.kill()
            process.join()
            process = start(server, tmp_path, "resume", "last", runs_dir)
        allow(10_000)
        said = finish(process, tmp_path)
        counts = check_ledger(runs_dir, server, iters)
    assert kills // 4 <= counts["lost"] <= kills * 4
    assert "model calls were lost, under way when the process died" in said


def begun(runs_dir: Path, pid: int | None) -> bool:
    """Whether the process has the run, and asks for replies."""
    if not (runs_dir / "passagent.db").exists():
        return False
    with Store.open(runs_dir) as store:
        drivers = [sessions.driver(store, run.id) for run in runs.list_runs(store)]
        is_driver = any(driver is not None and driver.pid == pid for driver in drivers)
        return is_driver and bool(store.row("SELECT 1 FROM calls WHERE state = 'started'"))
