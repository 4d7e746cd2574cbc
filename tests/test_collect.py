"""`passagent collect`: each trial once, on one budget, whatever stops it; shards, and an export of them all.

Real processes, the real SDK client against a server on 127.0.0.1, real SQLite; candidates are judged at once.
"""

from __future__ import annotations

import collections
import contextlib
import json
import multiprocessing
import multiprocessing.process
import os
import re
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paid_collection
import paid_run
import pytest
from paid_collection import (
    MODEL,
    QUICK,
    STEPS,
    brain,
    check_ledger,
    pairs_in,
    start,
    write_tasks,
)
from wire_server import Said, WireServer

from passagent.data.collect import campaign, trials
from passagent.data.collect.campaign import FAULTS
from passagent.data.collect.trials import Outcome, summarise
from passagent.errors import InfrastructureError, TaskError
from passagent.store import Store, runs


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> Iterator[None]:
    """Processes are forked from one that has imported everything: a start takes no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        paid_collection.preload()
        yield


@pytest.fixture
def call(call, monkeypatch):
    """The command, with stand-ins for the evaluator."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    real = campaign.open_collection
    run.parts = paid_run.parts()
    monkeypatch.setattr(campaign, "open_collection", lambda *words: real(*words, run.parts))
    return call


class run:
    """What stands in for the evaluator; a test may exchange it."""

    parts: Any = None


@pytest.fixture
def server(monkeypatch) -> Iterator[WireServer]:
    with WireServer(brain) as one:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{one.url}/v1")
        yield one


# What is collected


def test_a_collection_and_the_same_command_again(call, server, tmp_path):
    """The table, as text and as JSON; a second time nothing is asked; equal tasks are one."""
    write_tasks(tmp_path / "tasks", 3)
    double = tmp_path / "tasks/task99"
    shutil.copytree(tmp_path / "tasks/task00", double)
    words = ["collect", "tasks", "--trials", "2", *QUICK]
    code, out, err = call(*words, "--json")
    assert code == 0, err
    data = json.loads(out)
    [row] = data["table"]
    assert (row["model"], row["runs"], data["trials"]) == (MODEL, 6, 6)
    assert (row["median_steps"], row["median_evaluations"]) == (STEPS, 2)
    assert row["tokens"] == sum(server.billed) and len(server.ledger) == 6 * STEPS
    assert data["broken"] == data["failed"] == {} and data["unfinished"] == []

    code, out, err = call(*words)
    assert code == 0 and len(server.ledger) == 6 * STEPS
    assert "6 trials, 6 of them made before" in out
    assert re.search(r"^runs +6$", out, re.M) and re.search(r"^median steps +3$", out, re.M)

    code, out, err = call("collect", "tasks", "--trials", "3", *QUICK)
    assert code == 0 and len(server.ledger) == 9 * STEPS
    with Store.open("runs") as store:
        seeds = [run.seed for run in runs.list_runs(store)]
        first = {run.trial: run for run in runs.list_runs(store)}[1]
        config = json.loads(first.config)
    assert collections.Counter(seeds) == {0: 3, 1: 3, 2: 3}
    assert (first.islands, first.iters) == (1, 1)
    assert (config["agent"]["max_steps"], config["agent"]["hints"]) == (50, 0)
    assert config["model"]["temperature"] is None


def test_trials_do_not_know_of_each_other(call, server, tmp_path):
    """What is asked for a trial is the same whatever was collected before, in whatever order, by how many.

    By a preset that shows hints and past tasks, too.
    """
    write_tasks(tmp_path / "tasks", 2)

    def asked(*words: object) -> dict[object, str]:
        before = len(server.requests)
        assert call("collect", "tasks", *QUICK, "--config", "default", *words)[0] == 0
        bodies = [body for _, _, body in server.requests[before:] if "# Task" in str(body)]
        return {brain(body).key: json.dumps(body["messages"]) for body in bodies}

    once = asked("--parallel", 1, "--runs-dir", "one")
    again = asked("--parallel", 6, "--runs-dir", "two")
    assert len(once) == 4 * STEPS
    assert once == again
    with Store.open("two") as store:
        assert store.rows("SELECT * FROM hint_uses") == []


def test_summary_counts_finished_trials():
    def outcome(first, best, evaluations, correct, back, state="finished"):
        steps = evaluations + 1
        return Outcome("r", "t", "m", 0, state, 10, 0.5, steps, evaluations, first, best, correct, back)

    outcomes = [
        outcome(0.5, 2.0, 3, 1, 1),
        outcome(0.1, 0.1, 1, 0, 0),
        outcome(None, None, 0, 0, 0),
        outcome(1.0, 1.0, 2, 1, 0),
        outcome(3.0, 3.0, 1, 1, 0, state="stopped"),
    ]
    summary = summarise(outcomes, "m")
    assert (summary.runs, summary.unfinished, summary.kept, summary.correct) == (4, 1, 2, 2)
    assert (summary.tokens, summary.cost, summary.went_back) == (50, 2.5, 1)
    assert summary.as_score == pytest.approx((2.0 * 0.1 * 0.1 * 1.0) ** 0.25)
    assert summary.first_share == pytest.approx((0.5 / 2.0) ** 0.25)
    assert (summary.median_steps, summary.median_evaluations) == (2.5, 1.5)
    assert summarise([], "m").as_score is None


def test_outcome_counts_pass_fail_pass(call, server, tmp_path):
    write_tasks(tmp_path / "tasks", 1)
    assert call("collect", "tasks", *QUICK, "--trials", 1)[0] == 0
    with Store.open("runs") as store:
        node = store.rows("SELECT * FROM nodes ORDER BY id")[0] | {"parent_id": None, "repeat_of": None}
        store.execute("PRAGMA foreign_keys = OFF", {})
        for word, went_back in {"101": 1, "11": 0, "010": 0, "10010": 1, "0": 0, "": 0}.items():
            store.execute("DELETE FROM nodes", {})
            for place, is_right in enumerate(word, start=1):
                row = node | {"id": place, "call_id": str(place), "place": place, "as_score": 0.5 + place}
                row["status"] = "ok" if is_right == "1" else "wrong_result"
                store.execute(f"INSERT INTO nodes VALUES ({', '.join(f':{name}' for name in row)})", row)
            [outcome] = trials.outcomes(store)
            counts = outcome.is_correct, outcome.went_back, outcome.evaluations
            assert counts == ("1" in word, went_back, len(word)), word
            assert outcome.first_as == (1.5 if word else None)
            assert outcome.best_as == (0.5 + len(word) if word else None)


# Mistakes


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["missing"], "missing: no such directory or sample list"),
        (["tasks", "--shard", "2/2"], "--shard 2/2: write I/N with I from 0 to N-1"),
        (["tasks", "--shard", "7/9"], "no trial is in this shard"),
        (["tasks", "--trials", "0"], "trials = '0': input should be greater"),
        (["tasks", "--config", "techer"], "did you mean 'teacher'?"),
        (["tasks", "--set", "search.islands=3"], "search.islands: is 1 in a collection"),
        (["tasks", "--set", "agent.hints=4"], "agent.hints: is 0 in a collection"),
        (["tasks", "--model", "openai/x", "--max-cost", "1"], "price"),
    ],
)
def test_usage_mistakes(call, tmp_path, words, told):
    write_tasks(tmp_path / "tasks", 2)
    (tmp_path / "foreign").mkdir()
    with contextlib.closing(sqlite3.connect("foreign/passagent.db")) as database:
        database.execute("CREATE TABLE mine (id)")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = call("collect", *words)
    assert (code, out) == (2, "")
    line = err.splitlines()[-1]
    assert line.startswith("passagent: error: ") and told in line
    assert sorted(path for path in tmp_path.rglob("*") if "-shm" not in path.name) == before


def test_other_settings_are_refused_and_named(call, server, tmp_path):
    write_tasks(tmp_path / "tasks", 2)
    assert call("collect", "tasks", "--trials", 1, *QUICK)[0] == 0
    asked = len(server.ledger)
    code, _, err = call("collect", "tasks", *QUICK, "--max-steps", 7)
    assert code == 2 and len(server.ledger) == asked
    assert re.search(r"holds task0\d trial 0 of openai/m-1 made with .*agent.max_steps 50, now 7", err)
    with contextlib.closing(sqlite3.connect("runs/passagent.db")) as database:
        database.execute("UPDATE runs SET version = '0.0.7' WHERE task = 'task01'")
        database.commit()
    code, _, err = call("collect", "tasks", *QUICK)
    assert code == 2 and re.search(r"task01 trial 0 .* passagent 0\.0\.7, now \d", err)
    # what changes nothing in a conversation, and another budget, may be others
    code, _, err = call(
        "collect", "tasks/task00", *QUICK, "--set", "model.timeout_s=7", "--max-tokens", 10**7
    )
    assert code == 0, err


def test_broken_tasks_are_listed_and_too_many_fail(call, server, tmp_path):
    write_tasks(tmp_path / "tasks", 4)
    (tmp_path / "tasks/worse").mkdir()
    (tmp_path / "tasks/worse/graph_list.txt").write_text("graphs/none\n")
    code, out, _ = call("collect", "tasks", *QUICK, "--trials", 1)
    assert code == 0 and "broken: tasks/worse: " in out  # one in five
    (tmp_path / "tasks/worst").mkdir()
    (tmp_path / "tasks/worst/graph_list.txt").write_text("graphs/none\n")
    code, out, err = call("collect", "tasks", *QUICK, "--trials", 1)
    assert code == 1 and "2 of 6 tasks are broken, such as tasks/wors" in err
    assert re.search(r"^runs +4$", out, re.M)


# Budgets and stops


def test_the_budget_is_kept_and_gone_on_with(call, server, tmp_path):
    write_tasks(tmp_path / "tasks", 4)
    words = ["collect", "tasks", *QUICK, "--parallel", 3]
    limit = 30_000
    code, out, _ = call(*words, "--max-tokens", limit)
    spent = sum(server.billed)
    assert code == 0 and 0 < spent <= limit
    assert "stopped: the next call may take" in out and "the same command goes on" in out
    with Store.open("runs") as store:
        assert {run.state for run in runs.list_runs(store)} <= {"finished", "stopped"}
        assert sum(run.tokens for run in runs.list_runs(store)) == spent
    asked = len(server.ledger)
    assert call(*words, "--max-tokens", spent + 1)[0] == 0  # counted from the database
    assert len(server.ledger) == asked
    assert call(*words)[0] == 0
    assert check_ledger(tmp_path / "runs", server) == 0
    assert len(pairs_in(tmp_path / "runs")) == 8


def test_collect_cuts_the_model_call_under_way_when_its_time_is_over(call, server, tmp_path):
    write_tasks(tmp_path / "tasks", 1)
    is_free, say = threading.Event(), server.brain

    def wait(body: dict[str, Any]) -> Said:
        is_free.wait(600)
        return say(body)

    server.brain = wait
    for seconds in (2, 20, 200):  # a slow machine asks the model later
        code, out, _ = call("collect", "tasks", *QUICK, "--trials", 1, "--max-time", seconds)
        assert code == 0 and f"stopped: {seconds} s have passed" in out
        if server.in_flight:
            break
    assert server.in_flight == 1
    is_free.set()
    code, out, err = call("collect", "tasks", *QUICK, "--trials", 1)
    assert code == 0 and re.search(r"^runs +1$", out, re.M), err


class Failing(paid_run.AnyEvaluator):
    """Fails the candidates of some tasks."""

    def __init__(self, fails: Callable[[Path], Exception | None]) -> None:
        super().__init__()
        self.fails = fails

    async def evaluate(self, task_path, candidate, bar=None):
        if error := self.fails(task_path):
            raise error
        return await super().evaluate(task_path, candidate, bar)


def with_evaluator(fails: Callable[[Path], Exception | None]) -> Any:
    parts = paid_run.parts()
    return type(parts)(None, Failing(fails), parts.diagnose)


def test_a_trial_that_the_machine_failed_is_tried_again(call, server, tmp_path, monkeypatch):
    monkeypatch.setattr("passagent.search.candidates.RETRY_AFTER_S", ())
    write_tasks(tmp_path / "tasks", 3)
    run.parts = with_evaluator(lambda path: InfrastructureError("lost") if path.name == "task01" else None)
    code, out, err = call("collect", "tasks", *QUICK, "--trials", 1)
    assert code == 1 and "1 trial failed, such as run" in err and "the same command tries again" in err
    assert re.search(r"^runs +2$", out, re.M) and "failed: run" in out
    run.parts = paid_run.parts()
    code, out, err = call("collect", "tasks", *QUICK, "--trials", 1)
    assert code == 0, err
    assert check_ledger(tmp_path / "runs", server) == 0
    assert len(pairs_in(tmp_path / "runs")) == 3


def test_a_machine_that_fails_every_trial_ends_it(call, server, tmp_path, monkeypatch):
    monkeypatch.setattr("passagent.search.candidates.RETRY_AFTER_S", ())
    write_tasks(tmp_path / "tasks", 9)
    run.parts = with_evaluator(lambda path: InfrastructureError("lost"))
    code, _, err = call("collect", "tasks", *QUICK, "--trials", 1, "--parallel", 1)
    assert code == 1 and f"{FAULTS} trials in a row failed, the last one with: lost" in err
    assert len(server.ledger) == FAULTS


def test_a_task_that_cannot_be_judged_is_broken(call, server, tmp_path):
    write_tasks(tmp_path / "tasks", 5)
    run.parts = with_evaluator(lambda path: TaskError("eager fails") if path.name == "task01" else None)
    code, out, _ = call("collect", "tasks", *QUICK, "--parallel", 1)
    assert code == 0 and "broken: tasks/task01: eager fails" in out
    with Store.open("runs") as store:  # its other trial is not begun
        assert collections.Counter(run.task for run in runs.list_runs(store))["task01"] == 1
    assert sum(entry.key[0] == "task01" for entry in server.ledger) == 1


def test_a_wrong_key_ends_a_collection_before_its_first_trial(call, server, tmp_path):
    write_tasks(tmp_path / "tasks", 3)
    server.fault = lambda: "401"  # type: ignore[method-assign]
    code, _, err = call("collect", "tasks", *QUICK, "--parallel", 2)
    assert code == 2 and f"at {server.url}/v1: the server refuses the key" in err.splitlines()[-1]
    assert len(server.requests) == 1
    with Store.open("runs") as store:
        assert runs.list_runs(store) == []


def wait_for(what: Callable[[], object], process: multiprocessing.process.BaseProcess, out: Path) -> None:
    until = time.monotonic() + 600
    while not what():
        assert process.exitcode is None and time.monotonic() < until, out.read_text()[-3000:]
        time.sleep(0.01)


@pytest.mark.long
def test_ctrl_c_a_second_collector_and_a_single_stop(tmp_path):
    """While one collects: another is refused; `stop` of one run stops that one; SIGTERM ends with 130."""
    tasks, out = write_tasks(tmp_path / "tasks", 3), tmp_path / "out"
    words = [*tasks, "--runs-dir", tmp_path / "runs", "--trials", 1, "--parallel", 2, *QUICK]
    gate = threading.Event()

    def gated(body: dict[str, Any]) -> Said:
        said = brain(body)
        if said.key[2] == 1:
            gate.wait(30)
        return said

    with WireServer(gated) as server:
        process = start(server, out, *words)
        wait_for(lambda: server.in_flight == 2 and len(server.ledger) == 2, process, out)
        second = start(server, tmp_path / "second", *words)
        second.join(60)
        assert second.exitcode == 2
        assert f"process {process.pid} on" in (tmp_path / "second").read_text().splitlines()[-1]
        with Store.open(tmp_path / "runs") as store:
            one = min(runs.list_runs(store), key=lambda run: run.task)
            runs.want(store, one.id, "stop")
        gate.set()
        process.join(60)
        assert process.exitcode == 0
        text = out.read_text()
        assert re.search(rf"1 trial not finished, such as run {one.id}: stopped by a person", text)
        with Store.open(tmp_path / "runs") as store:
            assert trials.outcomes(store, one.id)[0].state == "stopped"

        gate.clear()
        more = [*write_tasks(tmp_path / "more", 5), *words[3:]]
        process = start(server, out, *more)
        wait_for(lambda: server.in_flight == 2, process, out)
        os.kill(process.pid or 0, signal.SIGTERM)
        wait_for(lambda: "stopping: " in out.read_text(), process, out)
        gate.set()
        process.join(60)
        assert process.exitcode == 130
        assert "interrupted; everything is stored, the same command goes on" in out.read_text()
        for again in (words, more):
            process = start(server, out, *again)
            process.join(60)
            assert process.exitcode == 0
        assert check_ledger(tmp_path / "runs", server) == 0
    assert len(pairs_in(tmp_path / "runs")) == 5  # three of the five are the first three again


# What becomes of it


def test_failures_of_two_shards_go_out_as_one_data_set(call, server, tmp_path):
    write_tasks(tmp_path / "tasks", 5)
    kept, where = 0, []
    for index in (0, 1):
        words = ["--trials", 3, "--shard", f"{index}/2", "--runs-dir", f"part{index}"]
        code, out, err = call("collect", "tasks", *words, *QUICK, "--json")
        assert code == 0, err
        kept += json.loads(out)["table"][0]["kept"]
        where += ["--runs-dir", f"part{index}"]
    made = [pairs_in(tmp_path / f"part{index}") for index in (0, 1)]
    assert [len(part) for part in made] == [8, 7] and len(made[0] | made[1]) == 15
    words = ["--format", "trl", "--keep", "as_score > 0.1", "--failures"]
    code, out, err = call("export", *words, "--out", "out", *where)
    assert code == 0, err

    def lines(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / "out" / name).read_text().strip("\n").split("\n")]

    assert len(lines("messages.jsonl")) == kept < 15
    failed = lines("failures_messages.jsonl")
    assert len(failed) == 15 - kept and all(one["status"] == "wrong_result" for one in failed)
    assert call("check", "out", *where)[0] == 0
    code, _, err = call("export", "--format", "trl", "--out", "twice", "--runs-dir", "part0", *where)
    assert code == 2 and "part0: leave one of them out" in err
