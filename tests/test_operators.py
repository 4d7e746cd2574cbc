"""Operators: what `passagent show --why`, `diff`, `status -f`, ... say of runs, and what they do to them."""

from __future__ import annotations

import json
import math
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import tiny_search

from passagent.cli import running
from passagent.search import finalists
from passagent.store import Store, evaluations, nodes, runs, sessions
from passagent.store.events import KINDS
from passagent.view.progress import event_line
from passagent.view.tree import tree_text


@pytest.fixture
def call(call, monkeypatch, place):
    """The commands run where `place` is."""
    monkeypatch.chdir(place)
    return call


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a finished run of 12 episodes on 2 islands in `runs`; tests leave it as it is."""
    path = tmp_path_factory.mktemp("place")
    task = tiny_search.write_task(path / "task")
    settings = tiny_search.settings(12, 2, 1) | {"search.finalists": 2}
    running.run(str(task), {"settings": settings, "runs_dir": path / "runs"}, True, tiny_search.parts())
    return path


@pytest.fixture
def copy(place, tmp_path):
    """A copy of that run, to be changed."""
    path = tmp_path / "copy"
    shutil.copytree(place / "runs", path)
    return path


def change(runs_dir: Path, *statements: str) -> None:
    """Run SQL on a database."""
    with Store.open(runs_dir) as store:
        for statement in statements:
            store.execute(statement, {})


def one_line(err: str) -> str:
    """The single error line on stderr."""
    [line] = err.splitlines()
    assert line.startswith("passagent: error: ")
    return line


def test_why_tells_the_whole_chain(call, place):
    with Store.open(place / "runs") as store:
        run = runs.find_run(store, "last")
        found = {node.id: node for node in nodes.of_run(store, run.id)}
        depths = {None: 0}
        for node in found.values():
            depths[node.id] = depths[node.parent_id] + 1
        deepest = max(found, key=lambda id_: depths[id_])
        migrated = store.rows("SELECT id, migration FROM episodes WHERE migration IS NOT NULL")
        shown = store.rows("SELECT episode_id, hint_id FROM hint_uses ORDER BY episode_id, place")
    assert depths[deepest] > 3 and migrated, "the run is too plain to test with"

    code, out, _ = call("show", deepest, "--why", "--json")
    data = json.loads(out)
    assert (code, data["run"], data["node"]) == (0, run.id, deepest)
    chain = data["chain"]
    assert len(chain) == depths[deepest]
    assert [step["parent"] for step in chain] == [None, *(step["node"] for step in chain[:-1])]
    for step in chain:
        node = found[step["node"]]
        assert (step["status"], step["first_as"], step["note"]) == (node.status, node.as_score, node.note)
        hints = [row["hint_id"] for row in shown if row["episode_id"] == node.episode_id]
        assert step["episode"]["hints"] == hints
        assert [message["role"] for message in step["episode"]["prompt"]] == ["system", "user"]
    assert chain[0]["changed"] == [
        {"file": "Fused.py", "added": 3, "removed": 0},
        {"file": "sorted_output_pass_rule_names.json", "added": 1, "removed": 0},
    ]
    assert {(c["file"], c["added"], c["removed"]) for c in chain[1]["changed"]} == {("Fused.py", 2, 2)}

    code, text, _ = call("show", deepest, "--why")
    assert code == 0
    for step in chain:
        assert f"node {step['node']} {step['status']}, AS {step['as_score']:.3f}" in text
        assert step["episode"]["chosen"] in text
        assert step["diagnosis"]["text"] in text
    gain = next(e for e in (s["episode"] for s in chain) if e["gain"] and e["parent_status"] == "ok")
    assert f"{math.exp(gain['gain']) - 1:+.1%} against node {gain['parent']}" in text
    assert len(text.splitlines()) < 12 + 8 * len(chain)  # at a glance

    migrant = next(node for node in found.values() if node.episode_id == migrated[0]["id"])
    assert f"migration: {migrated[0]['migration']}" in call("show", migrant.id, "--why")[1]
    code, _, err = call("show", 10**6, "--why")
    assert code == 2 and "1000000: no such node" in one_line(err)


def test_a_change_is_told_only_between_two_correct_candidates(call, place):
    """Of a compile error it said `+10.7%`, and of what was mended how far it is from the failure."""
    change_of = re.compile(r"[+-]\d+\.\d%")
    with Store.open(place / "runs") as store:
        run = runs.find_run(store, "last")
        found = {node.id: node for node in nodes.of_run(store, run.id)}

    def both_right(one: int | None, other: int | None) -> bool:
        return all(id_ is not None and found[id_].status == "ok" for id_ in (one, other))

    pairs = [(node, found.get(node.parent_id)) for node in found.values()]
    kinds = {(node.status == "ok", parent.status == "ok") for node, parent in pairs if parent}
    assert {(True, False), (False, True), (True, True)} <= kinds, "the run is too plain to test with"

    told = set()
    for event in call("status", "last", "-f", "-n", 1000, "--json")[1].splitlines():
        data = json.loads(event)
        fields = {key: value for key, value in data.items() if key != "event"}
        line = event_line(KINDS[data["event"]](**fields), {0: "a", 1: "b"})
        if data["event"] == "judged":
            is_due = both_right(data["node"], data["parent"])
        else:
            is_due = data["event"] == "episode_ended" and both_right(data["best_node"], data["parent"])
        assert bool(change_of.search(line)) == is_due, line
        told.add((data["event"], is_due))
    assert {("judged", True), ("judged", False), ("episode_ended", True), ("episode_ended", False)} < told

    for node in found.values():
        for line in call("show", node.id, "--why")[1].splitlines():
            if change_of.search(line) and "against node" in line:
                here, *_, other = re.findall(r"node (\d+)", line)
                assert both_right(int(here), int(other)), line
            else:
                assert not change_of.search(line), line
        if node.parent_id is not None:
            rows = json.loads(call("diff", node.parent_id, node.id, "--json")[1])["graphs"]
            assert all((row["ratio"] is not None) == (row["status"] == ["ok", "ok"]) for row in rows)
    assert not change_of.search(tree_text(list(found.values()), None, {}))


def test_diff_shows_files_and_scores(call, place):
    with Store.open(place / "runs") as store:
        found = nodes.of_run(store, runs.find_run(store, "last").id)
    right = [node for node in found if node.status == "ok" and node.repeat_of is None]
    one, other = right[0], next(n for n in right if n.candidate_key != right[0].candidate_key)
    code, out, _ = call("diff", one.id, other.id, "--json")
    data = json.loads(out)
    assert code == 0
    assert data["not_comparable"] is None
    [graph] = data["graphs"]
    assert graph["ratio"] == pytest.approx(other.as_score / one.as_score)
    assert graph["separate"] is None  # this evaluator knows no intervals
    text = call("diff", one.id, other.id)[1]
    for sign, node in (("-", one), ("+", other)):
        shown = json.loads(call("show", node.id, "--why", "--json")[1])["chain"][-1]["files"]["Fused.py"]
        assert {f"{sign}{line}" for line in shown.splitlines()} - {sign} <= set(text.splitlines())
    assert f"{graph['ratio']:.3f}" in text
    assert "\x1b" not in text  # no colours where stdout is no terminal
    assert "the files are the same" in call("diff", one.id, one.id)[1]


def test_diff_says_whether_intervals_separate(call, copy):
    """Intervals written into a copy of the database: these two separate, and these two do not."""
    with Store.open(copy) as store:
        run = runs.find_run(store, "last").id
        pooled = {row.node_id for row in finalists.last_series(store, run)}
        right = [n for n in nodes.of_run(store, run) if n.status == "ok" and n.id not in pooled]
        one, other = right[0], next(n for n in right if n.candidate_key != right[0].candidate_key)

    def separate(first: list[float], second: list[float], status: str = "ok") -> dict[str, object]:
        with Store.open(copy) as store:
            for node, (low, value, high) in ((one, first), (other, second)):
                result = evaluations.get_evaluation(store, node.evaluation_id)
                speedup = {"e2e": value, "low": low, "high": high, "device": None}
                result["graphs"][0] |= {"speedup": speedup, "status": status}
                tiny_search.give_evaluation(store, node, result)
            return json.loads(call("diff", one.id, other.id, "--json", "--runs-dir", copy)[1])["graphs"][0]

    assert separate([1.0, 1.1, 1.2], [1.3, 1.4, 1.5])["separate"] is True
    assert separate([1.3, 1.4, 1.5], [1.0, 1.1, 1.2])["separate"] is True
    assert separate([1.0, 1.1, 1.35], [1.3, 1.4, 1.5])["separate"] is False
    text = call("diff", one.id, other.id, "--runs-dir", copy)[1]
    assert "1.100 [1.000, 1.350]" in text and "overlap" in text
    # what is right at a loose tolerance only is timed, too
    assert separate([1.0, 1.1, 1.2], [1.3, 1.4, 1.5], status="wrong_result")["ratio"] is None

    change(
        copy,
        "INSERT INTO conditions (task_key, evaluator_version, environment) "
        "SELECT task_key, evaluator_version, 'elsewhere' FROM conditions LIMIT 1",
        "UPDATE evaluations SET conditions_id = (SELECT max(id) FROM conditions) "
        f"WHERE candidate_key = '{one.candidate_key}'",
    )
    told = json.loads(call("diff", one.id, other.id, "--json", "--runs-dir", copy)[1])["not_comparable"]
    assert told.startswith("they were measured under other conditions: elsewhere | ")


@pytest.fixture
def start(tmp_path):
    """`start(iters, seconds)`: a real process that searches in `tmp_path/runs`, ended with the test."""
    task = tiny_search.write_task(tmp_path / "task")
    begun = []

    def run(iters: int, seconds: float) -> subprocess.Popen[str]:
        words = ["run", task, tmp_path / "runs", iters, 2, 1, seconds]
        command = [sys.executable, tiny_search.__file__, *map(str, words)]
        process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        begun.append(process)
        wait_for(lambda: process.poll() is not None or made(tmp_path / "runs")["nodes"] >= 1)
        assert process.poll() is None, process.communicate()
        return process

    yield run
    for process in begun:
        process.kill()
        process.communicate()


def wait_for(condition, seconds: float = 600.0) -> None:
    """Return when `condition()` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def made(runs_dir: Path) -> dict[str, int]:
    """How much of everything the database holds, and how much of it is done."""
    if not (runs_dir / "passagent.db").exists():
        return {"nodes": 0}
    with Store.open(runs_dir) as store:
        [row] = store.rows(
            "SELECT (SELECT count(*) FROM calls) AS calls, (SELECT count(*) FROM nodes) AS nodes, "
            "(SELECT count(*) FROM episodes) AS episodes, (SELECT count(*) FROM steps) AS steps, "
            "(SELECT count(*) FROM calls WHERE state = 'started') AS asking, "
            "(SELECT count(*) FROM evaluations) AS evaluations"
        )
        return row


def test_stop_after_episodes_finishes_those_under_way(call, start, tmp_path):
    runs_dir = tmp_path / "runs"
    at = ("--runs-dir", runs_dir)
    process = start(1000, 0.1)

    told = []  # an island may be between two episodes

    def both_are_told() -> bool:
        told.append(json.loads(call("status", "last", "--json", *at)[1]))
        return len(told[-1]["under_way"]) == 2

    wait_for(both_are_told)
    data = told[-1]
    assert data["state"] == "running"
    assert data["process"]["pid"] == process.pid
    assert {of["doing"] for of in data["under_way"]} <= {"thinking", "evaluating", "waiting"}
    seconds = data["budget"]["seconds"]["used"]
    assert seconds >= sessions.SAVE_S or (data["eta_s"], data["per_hour"]["episodes"]) == (None, None)

    asked = json.loads(call("stop", "last", "--after-episodes", "--json", *at)[1])
    assert (asked["wanted"], asked["was"]) == ("stop_after_episodes", "run")
    process.communicate(timeout=600)
    with Store.open(runs_dir) as store:
        run = runs.find_run(store, "last")
        assert (run.state, sessions.is_driven(store, run.id)) == ("stopped", False)
        assert store.rows("SELECT 1 FROM episodes WHERE state != 'done' AND model IS NOT NULL") == []
    code, _, err = call("stop", "last", *at)
    assert code == 2 and "no process works on it; nothing to stop" in one_line(err)
    doing = json.loads(call("status", "last", "--json", *at)[1])["under_way"]
    assert all(of["doing"] == "at rest" for of in doing)


def test_stop_leaves_what_can_be_gone_on_with(call, start, tmp_path, capsys):
    runs_dir = tmp_path / "runs"
    process = start(1000, 0.2)
    change(runs_dir, "CREATE TABLE large AS SELECT zeroblob(4000000)", "DROP TABLE large")
    code, _, err = call("runs", "rm", "last", "--yes", "--runs-dir", runs_dir)
    assert code == 2 and f"is driven by process {process.pid} on " in one_line(err)
    code, out, _ = call("gc", "--runs-dir", runs_dir)
    assert code == 0 and "the space in passagent.db is kept while a run is live" in out
    code, out, _ = call("stop", "last", "--runs-dir", runs_dir)
    assert code == 0 and "passagent resume" in out
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert json.loads(out)["state"] == "stopped"
    assert made(runs_dir)["asking"] == 0
    left = json.loads(call("status", "last", "--json", "--runs-dir", runs_dir)[1])
    assert {episode["doing"] for episode in left["under_way"]} == {"at rest"}
    more = {"search.iters": made(runs_dir)["episodes"] + 1}
    running.resume("last", {"settings": more, "runs_dir": runs_dir}, True, tiny_search.parts())
    assert json.loads(capsys.readouterr().out)["state"] == "finished"
    more |= {"search.iters": more["search.iters"] + 2, "search.policy": "greedy"}
    running.resume("last", {"settings": more, "runs_dir": runs_dir}, True, tiny_search.parts())
    assert 'search.policy "evolutionary", now "greedy"' in capsys.readouterr().err
    code, _, err = call("resume", "last", "--set", "search.islands=7", "--runs-dir", runs_dir)
    assert code == 2 and "search.islands: is fixed for a run's life" in one_line(err)


def test_tail_follows_another_process(call, start, tmp_path):
    runs_dir = tmp_path / "runs"
    process = start(6, 0.1)
    words = ["status", "last", "-f", "-n", "1000", "--json", "--runs-dir", str(runs_dir)]
    follower = subprocess.Popen(
        [sys.executable, "-m", "passagent", *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.communicate(timeout=600)
    out, err = follower.communicate(timeout=600)  # it ends by itself, soon after the run
    assert (process.returncode, follower.returncode, err) == (0, 0, "")
    events = [json.loads(line) for line in out.splitlines()]
    told = [json.dumps(event) for event in events]
    assert len(told) == len(set(told))

    def ids(kind: str, key: str) -> list[int]:
        return sorted(event[key] for event in events if event["event"] == kind)

    with Store.open(runs_dir) as store:
        found = nodes.of_run(store, runs.find_run(store, "last").id)
        replies = store.rows("SELECT 1 FROM calls WHERE state = 'done'")
        query = "SELECT parent_id FROM episodes WHERE migration IS NOT NULL ORDER BY 1"
        moved = [row["parent_id"] for row in store.rows(query)]
    assert ids("proposed", "node") == ids("judged", "node") == [node.id for node in found]
    assert ids("episode_begun", "episode") == ids("episode_ended", "episode") == [1, 2, 3, 4, 5, 6]
    assert ids("migration", "node") == moved
    assert len([event for event in events if event["event"] == "reply"]) == len(replies)
    by_node = {node.id: node for node in found}
    for event in events:
        if event["event"] == "judged":
            assert (event["status"], event["as_score"]) == (
                by_node[event["node"]].status,
                by_node[event["node"]].as_score,
            )

    at_rest = call("status", "last", "-f", "-n", 1000, "--json", "--runs-dir", runs_dir)[1].splitlines()
    assert sorted(at_rest) == sorted(out.splitlines())
    assert (
        call("status", "last", "-f", "-n", 3, "--json", "--runs-dir", runs_dir)[1].splitlines()
        == at_rest[-3:]
    )
    assert call("status", "last", "-f", "-n", 0, "--json", "--runs-dir", runs_dir)[1] == ""
    text = call("status", "last", "-f", "--runs-dir", runs_dir)[1].splitlines()
    assert len(text) == 21 and text[-1].endswith("is finished: all 6 episodes are done")


@pytest.fixture
def findings(call):
    """`findings(runs_dir)`: what `passagent doctor last --json` found, by check, and its exit code."""

    def examine(runs_dir: Path) -> tuple[dict[str, dict[str, object]], int]:
        code, out, err = call("doctor", "last", "--json", "--runs-dir", runs_dir)
        found = {one["check"]: one for one in json.loads(out)["findings"]}
        failed = [name for name, one in found.items() if one["verdict"] == "fail"]
        assert code == bool(failed)
        if failed:
            said = f"{len(failed)} of {len(found)} checks failed: {', '.join(failed)}"
            assert one_line(err).endswith(said)
        return found, code

    return examine


def test_doctor_finds_a_healthy_run_healthy(call, findings, place):
    found, _ = findings(place / "runs")
    verdicts = {name: one["verdict"] for name, one in found.items()}
    verdicts.pop("left behind")  # other programs of this machine may be in it
    assert set(verdicts.values()) == {"ok"}, found
    assert found["models"]["figures"]["replies"] == 60
    assert found["finalists"]["figures"] == {
        "measured_again": 2, "no_longer_right": [], "mean_change": pytest.approx(0)
    }  # fmt: skip
    text = " ".join(call("doctor", "last")[1].split())
    assert all(one["said"] in text for one in found.values())


DAMAGE = {
    "candidates": ["UPDATE nodes SET status = 'refused'"],
    "finalists": ["DELETE FROM confirmations"],
    "models": ["UPDATE calls SET state = 'failed', error = 'HTTP 500'"],
}


@pytest.mark.parametrize("check", DAMAGE)
def test_doctor_sees_what_does_not_work(findings, copy, check):
    change(copy, *DAMAGE[check])
    found, code = findings(copy)
    assert [name for name, one in found.items() if one["verdict"] == "fail"] == [check]
    assert found[check]["advice"]
    assert code == 1


def test_doctor_warns(call, findings, copy, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    change(
        copy,
        "UPDATE evaluations SET as_score = as_score * 0.9 "
        "WHERE id IN (SELECT evaluation_id FROM confirmations)",
        "UPDATE calls SET state = 'failed', error = 'HTTP 529' WHERE id % 5 = 0",
    )
    found, code = findings(copy)
    for check in ("finalists", "models"):
        assert found[check]["verdict"] == "warn", found[check]
    assert found["finalists"]["figures"]["mean_change"] == pytest.approx(math.log(0.9))
    assert code == 0 and "12 times: HTTP 529" in found["models"]["advice"]
    assert f"-> {found['models']['advice']}" in call("doctor", "last", "--runs-dir", copy)[1]


def rows_of(runs_dir: Path, run_id: str) -> dict[str, list[dict[str, object]]]:
    """All rows of a run, and what it shares with others, by table."""
    tables = "SELECT DISTINCT m.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c "
    with Store.open(runs_dir) as store:
        names = [row["name"] for row in store.rows(tables + "WHERE m.type = 'table' AND c.name = 'run_id'")]
        assert {"nodes", "episodes", "islands", "calls", "sessions"} <= set(names)
        found = {t: store.rows(f"SELECT * FROM {t} WHERE run_id = :r", {"r": run_id}) for t in names}
        found["runs"] = store.rows("SELECT * FROM runs WHERE id = :r", {"r": run_id})
        of_run = "episode_id IN (SELECT id FROM episodes WHERE run_id = :r)"
        found["steps"] = store.rows(
            f"SELECT * FROM steps JOIN messages ON messages.id = message_id WHERE {of_run}", {"r": run_id}
        )
        found["evaluations"] = store.rows(
            "SELECT evaluations.* FROM nodes JOIN evaluations ON evaluations.id = evaluation_id "
            "WHERE run_id = :r",
            {"r": run_id},
        )
        return found


def test_runs_rm_takes_one_run_and_leaves_the_others_whole(call, copy, place, capsys):
    with Store.open(copy) as store:
        first = runs.find_run(store, "last").id
    settings = tiny_search.settings(6, 2, 3)
    running.run(str(place / "task"), {"settings": settings, "runs_dir": copy}, True, tiny_search.parts())
    second = json.loads(capsys.readouterr().out)["run"]
    before = rows_of(copy, second)
    shared = {row["id"] for row in rows_of(copy, first)["evaluations"]}
    shared &= {row["id"] for row in before["evaluations"]}
    assert shared, "the two runs share nothing: too plain to test with"

    code, _, err = call("runs", "rm", first, "--runs-dir", copy)
    assert code == 2 and "say --yes" in one_line(err)
    code, _, err = call("runs", "--runs-dir", copy, "rm", first, "--yes")
    assert code == 2 and "write options after the command" in one_line(err)
    assert rows_of(copy, first)["runs"]

    code, out, _ = call("runs", "rm", first[:6], first, "--yes", "--json", "--runs-dir", copy)
    assert code == 0
    removed = json.loads(out)["removed"][first]
    assert removed["nodes"] == 24
    assert {table: found for table, found in rows_of(copy, first).items() if found} == {}
    assert rows_of(copy, second) == before
    with Store.open(copy) as store:
        assert store.rows("PRAGMA foreign_key_check") == []
        unused = "SELECT 1 FROM messages WHERE id NOT IN (SELECT message_id FROM steps)"
        assert store.rows(unused) == []
        [left] = store.rows("SELECT count(*) AS n FROM evaluations")
        assert left["n"] == len({row["id"] for row in before["evaluations"]})
    assert not (copy / first).exists() and (copy / second).is_dir()
    assert call("show", second, "--runs-dir", copy)[0] == 0
    running.resume(second, {"settings": {"search.iters": 7}, "runs_dir": copy}, True, tiny_search.parts())
    assert json.loads(capsys.readouterr().out)["episodes"] == 7


@pytest.mark.parametrize(("answer", "left"), [("n", 1), ("y", 0)])
def test_runs_rm_asks_on_a_terminal(call, copy, monkeypatch, answer, left):
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        code, _, err = call("runs", "rm", "last", "--runs-dir", copy)
    os.close(ours)
    assert code == 0 and "for good? [y/N]" in err
    with Store.open(copy) as store:
        assert len(runs.list_runs(store)) == left


def test_gc_removes_what_nothing_needs_and_nothing_else(call, copy, tmp_path, monkeypatch):
    cache, temporary = tmp_path / "cache", tmp_path / "tmp"
    monkeypatch.setenv("PASSAGENT_CACHE", str(cache))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with Store.open(copy) as store:
        run = runs.find_run(store, "last").id
    long_ago = time.time() - 40 * 24 * 3600

    def file(path: Path, size: int, is_old: bool = True) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
        if is_old:
            os.utime(path, (long_ago, long_ago))
            os.utime(path.parent, (long_ago, long_ago))
        return path

    litter = [
        file(copy / "0badcafe" / "run.log", 10_000),
        file(temporary / "passagent-dead" / "fork-server.log", 100_000),
        file(cache / "cpp" / "old.so", 1_000_000),
        file(cache / "launch" / "old.so", 1_000_000),
        file(cache / "inductor" / "fxgraph" / "a" / "old", 1_000_000),
    ]
    kept = [
        copy / run / "run.log",
        file(copy / "0badcafe2" / "run.log", 1),
        file(copy / "deadbeef" / "mine.txt", 1),
        file(temporary / "passagent-young" / "fork-server.log", 1, is_old=False),
        file(temporary / "passagent-other" / "data", 1),
        file(cache / "cpp" / "new.so", 1, is_old=False),
        file(cache / "inductor" / "fxgraph" / "b" / "new", 1, is_old=False),
    ]
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env={"HOME": str(file(temporary / "passagent-live" / "fork-server.log", 1).parent)},
    )
    try:
        code, out, _ = call("gc", "--dry-run", "--json", "--runs-dir", copy)
        assert code == 0
        told = json.loads(out)
        assert told["dry_run"] is True
        assert sum(one["bytes"] for one in told["found"] if "passagent.db" not in one["kind"]) == 3_110_000
        assert all(path.exists() for path in [*litter, *kept])
        code, out, _ = call("gc", "--runs-dir", copy)
        assert code == 0 and "freed 3.1 MB" in out
        assert not any(path.exists() for path in litter)
        assert all(path.exists() for path in kept)
        assert (temporary / "passagent-live" / "fork-server.log").exists()
    finally:
        sleeper.kill()
        sleeper.wait()
    assert "freed 0 kB" in call("gc", "--runs-dir", copy)[1]


def test_fork_starts_a_run_from_a_node(call, copy, place, capsys):
    from passagent.cli import running

    with Store.open(copy) as store:
        old = runs.find_run(store, "last")
        node = next(n for n in nodes.of_run(store, old.id) if n.status == "ok" and n.parent_id is not None)
        files = nodes.get_files(store, node)
    before = rows_of(copy, old.id)
    settings = {"search.iters": 6, "search.islands": 3, "search.explore": 0.0}
    options = {"settings": settings, "instruct": "Read each input once."}
    running.fork(old.id, node.id, options, str(copy), True, tiny_search.parts())
    out, err = capsys.readouterr()
    new = json.loads(out)["run"]
    assert f"run {new} starts from node {node.id} of run {old.id}" in err
    assert rows_of(copy, old.id) == before

    with Store.open(copy) as store:
        run = runs.get_run(store, new)
        found = nodes.of_run(store, new)
        first = store.rows(
            "SELECT parent_id, number FROM episodes WHERE run_id = :r AND number BETWEEN 1 AND 3", {"r": new}
        )
        seed, *made = found
        assert nodes.get_files(store, seed) == files
    assert (run.state, run.forked_run, run.forked_node, run.islands) == ("finished", old.id, node.id, 3)
    assert (seed.status, seed.as_score, seed.note, seed.number) == ("ok", node.as_score, node.note, 0)
    assert len(made) == 12
    assert {row["parent_id"] for row in first} == {seed.id}  # every island begins from it

    child = next(one for one in made if one.parent_id == seed.id)
    assert (
        "directs this search\nRead each input once.\n"
        in call("show", child.id, "--prompt", "--runs-dir", copy)[1]
    )
    chain = json.loads(call("show", child.id, "--why", "--json", "--runs-dir", copy)[1])["chain"]
    origin = json.loads(call("show", node.id, "--why", "--json", "--runs-dir", copy)[1])["chain"]
    assert [step["node"] for step in chain] == [*(step["node"] for step in origin), seed.id, child.id]
    assert chain[-2]["changed"] == []
    text = call("show", child.id, "--why", "--runs-dir", copy)[1]
    assert f", from node {node.id} of run {old.id}" in text
    assert f"episode {origin[0]['episode']['episode']} of run {old.id}" in text
    code, _, err = call("show", seed.id, "--prompt", "--runs-dir", copy)
    assert code == 2 and f"it is node {node.id} of run {old.id}" in one_line(err)

    assert call("runs", "rm", old.id, "-y", "--runs-dir", copy)[0] == 0
    text = call("show", child.id, "--why", "--runs-dir", copy)[1]
    assert f", from node {node.id} of run {old.id}" in text
    assert call("show", new, "0", "--runs-dir", copy)[0] == 0
    code, _, err = call("fork", new, "--from", node.id, "--runs-dir", copy)
    assert code == 2 and "no such node" in one_line(err)


def test_killed_process_is_told_and_resume_goes_on(findings, start, tmp_path, capsys):
    runs_dir = tmp_path / "runs"
    process = start(1000, 0.1)
    process.kill()
    process.communicate()
    found, _ = findings(runs_dir)
    assert found["processes"]["verdict"] == "warn"
    more = {"search.iters": made(runs_dir)["episodes"] + 1}
    running.resume("last", {"settings": more, "runs_dir": runs_dir}, True, tiny_search.parts())
    capsys.readouterr()
    found, _ = findings(runs_dir)
    figures = found["processes"]["figures"]
    assert (figures["sessions"], figures["died"]) == (2, 1)
    assert found["processes"]["verdict"] == "ok"
