"""The store: what goes in comes out, once, from any number of processes; its faults are one clear line."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_search import make_run

from passagent.errors import InfrastructureError, PassagentError, UsageError
from passagent.search import finalists
from passagent.search.candidates import best_before
from passagent.store import (
    Store,
    database,
    episodes,
    evaluations,
    hint_uses,
    ledger,
    nodes,
    runs,
)
from passagent.store.database import SCHEMA

DOCS = Path(__file__).parents[1] / "docs" / "database.md"


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "runs") as opened:
        yield opened


def add_node(
    store,
    run,
    island=0,
    files=None,
    status="ok",
    score=1.0,
    parent=None,
    call="c",
    episode=None,
    plans=None,
):
    """A node that is done, in an episode of its own unless one is given."""
    if episode is None:
        episode = episodes.next_episode(store, run, island)
    files = files or {"a.py": f"{score} {status} {episode.id} {call}"}
    node = nodes.propose(store, episode, call, files, "a note", str(sorted(files.items())))
    store.update("nodes", node.id, parent_id=parent)
    result = {"evaluator_version": "v", "status": status, "as_score": score, "seconds": 0.5}
    result |= {"graphs": [], "plans": plans}
    evaluation = evaluations.add_evaluation(
        store,
        run.id,
        task_key="k",
        environment="here",
        candidate_key=node.candidate_key,
        whole=result,
    )
    node = nodes.finish(store, node.id, evaluation, status, score, None)
    if episode.state == "running" and call == "c":
        episodes.finish(store, episode, "done", 0.1, True)
    return node


def test_documentation_names_every_table_and_column(store):
    text = DOCS.read_text()
    tables = [row["name"] for row in store.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
    assert len(tables) <= 15
    for table in tables:
        section = text.partition(f"## `{table}`")[2].partition("\n## ")[0]
        assert section, f"docs/database.md has no section on {table}"
        for row in store.rows(f"PRAGMA table_xinfo({table})"):
            assert f"`{row['name']}`" in section, f"docs/database.md does not name {table}.{row['name']}"
    assert store.row("PRAGMA journal_mode") == {"journal_mode": "wal"}


def test_conversation_round_trip_and_the_system_message_stored_once(store):
    run, other = make_run(store), make_run(store)
    system = {"role": "system", "content": "Be brief. 好 \ud800"}
    arguments = ["{", '{"a": 1, "a": 2.50}', str({"text": 'a "b"\n', "é": [1.5, None]})]
    calls = [{"id": str(number), "name": "x", "arguments": text} for number, text in enumerate(arguments)]
    reply = {"role": "assistant", "content": "", "tool_calls": calls}
    tokens = {"input_tokens": 10, "output_tokens": 4, "cached_tokens": 3, "reasoning_tokens": 2}
    for of, island in ((other, 0), (run, 0), (run, 1)):
        episode = episodes.next_episode(store, of, island)
        call = ledger.start(store, episode, role="agent", model="m", endpoint=None, attempt=1)
        episodes.add_messages(store, episode, [system, reply, system])
        ledger.end(store, call, "done", tokens)
        assert episodes.conversation(store, episode.id) == [system, reply, system]
    assert store.row("SELECT count(*) AS n FROM messages")["n"] == 1 + 3 * 2
    done = episodes.get_episode(store, episode.id)
    assert (done.steps, done.input_tokens, done.output_tokens) == (1, 10, 4)
    assert runs.get_run(store, run.id).tokens == 28
    runs.for_removal(store)
    with store.transaction():
        runs.remove_run(store, other.id)
    assert episodes.conversation(store, episode.id) == [system, reply, system]


def test_evaluations_come_out_as_they_went_in(store):
    def result(samples):
        graph = {"eager_samples_ms": samples, "compiled_samples_ms": samples[::-1], "unstable": False}
        figures = {
            "evaluator_version": "v",
            "status": "ok",
            "as_score": 1.5,
            "seconds": 0.5,
            "plans": "a key",
        }
        return figures | {"graphs": [graph, graph | {"eager_samples_ms": []}]}

    samples = [(60_000 + (number * 7919) % 3000) / 1e6 for number in range(1000)]
    for expected in (result([]), result(samples), result([1 / 3])):
        keys = {"task_key": "t", "environment": "here", "candidate_key": "c"}
        evaluation_id = evaluations.add_evaluation(store, None, **keys, whole=expected)
        assert evaluations.get_evaluation(store, evaluation_id) == expected
        assert (
            evaluations.get_evaluation(store, evaluation_id, samples=False)["graphs"][0]["eager_samples_ms"]
            == []
        )


def test_node_round_trip(store):
    run = make_run(store)
    episode = episodes.next_episode(store, run, 0)
    texts = {"b.py": "x = 'ä'\n", "a.json": "[]"}
    node = nodes.propose(store, episode, "call", texts, "note", "one")
    assert (node.state, node.status, nodes.get_files(store, node)) == ("proposed", None, texts)
    nodes.start(store, node.id)
    assert [n.state for n in nodes.unfinished(store, run.id)] == ["evaluating"]
    assert nodes.propose(store, episode, "call", texts, "note", "one").id == node.id
    other = nodes.propose(store, episode, "call", {"a.py": "other"}, "note", "other")
    assert other.id != node.id
    assert other.call_id == "call#2"
    again = nodes.propose(store, episode, "call 3", texts, "note", "one")
    assert again.repeat_of == node.id
    assert (node.parent_id, other.parent_id, again.parent_id) == (None, None, other.id)
    with pytest.raises(sqlite3.IntegrityError):  # one node for a call, whatever the code above it does
        store.execute(
            "INSERT INTO nodes (run_id, island, episode_id, call_id, state, note, candidate_key, number, "
            "created_at) VALUES (:run, 0, :episode, 'call', 'proposed', '', '', 1, '')",
            {"run": run.id, "episode": episode.id},
        )


def test_queries_of_the_tree(store):
    run = make_run(store, iters=100)
    a = add_node(store, run, score=1.5)
    b = add_node(store, run, score=1.2, parent=a.id)
    c = add_node(store, run, score=None, parent=b.id)
    wrong = add_node(store, run, status="wrong_result", score=9.0, parent=b.id)
    other = add_node(store, run, island=1, score=1.9, parent=a.id)
    assert [n.id for n in nodes.ancestors(store, c, 10)] == [b.id, a.id]
    assert [n.id for n in nodes.ancestors(store, c, 1)] == [b.id]
    assert [n.id for n in nodes.best_of_island(store, run.id, 0, 5)] == [a.id, b.id, c.id]
    assert finalists.winner(store, run.id).id == other.id
    assert [i.best_node for i in runs.islands(store, run.id)] == [a.id, other.id]
    again = add_node(store, run, score=1.6, files=nodes.get_files(store, a))
    assert again.repeat_of == a.id
    assert runs.get_island(store, run.id, 0).best_as == 1.5  # once more is no better
    assert [n.id for n in nodes.latest_failures(store, run.id, 0, 5)] == [wrong.id]
    assert best_before(store, c) == 1.5
    assert best_before(store, a) is None
    assert nodes.counts(store, run.id) == {0: {"ok": 4, "wrong_result": 1}, 1: {"ok": 1}}
    episode = episodes.get_episode(store, b.episode_id)
    episodes.set_start(store, replace(episode, parent_id=other.id, migration="because"))
    assert best_before(store, b) == 1.9
    assert [n.id for n in nodes.migrants(store, run.id, 0)] == [other.id]


def test_siblings_are_what_episodes_from_the_same_parent_made(store):
    run = make_run(store, iters=100)
    first = add_node(store, run)
    made = []
    for _ in range(2):
        episode = episodes.next_episode(store, run, 0)
        store.execute("UPDATE episodes SET parent_id = :p WHERE id = :id", {"p": first.id, "id": episode.id})
        made.append(add_node(store, run, episode=episode, call="x", parent=first.id).id)
        made.append(add_node(store, run, episode=episode, call="c", parent=made[-1]).id)
    later = replace(episode, number=99, parent_id=first.id)
    assert [n.id for n in nodes.newest_before(store, later, 8, same_start=True)] == [*made[2:], *made[:2]]
    assert [n.id for n in nodes.newest_before(store, later, 1, same_start=True)] == made[2:]
    assert [n.id for n in nodes.newest_before(store, replace(later, parent_id=None), 8, same_start=True)] == [
        first.id
    ]
    assert nodes.newest_before(store, replace(later, island=1), 8) == []


def test_an_equal_candidate_is_found_under_equal_conditions_only(store):
    run = make_run(store)
    node = add_node(store, run, files={"a.py": "1"}, score=1.25)
    known = {
        "candidate_key": node.candidate_key,
        "task_key": "k",
        "evaluator_version": "v",
        "environment": "here",
    }
    [found] = evaluations.find_evaluations(store, **known)
    assert found[1]["as_score"] == 1.25 == evaluations.get_evaluation(store, found[0])["as_score"]
    for key in known:
        assert list(evaluations.find_evaluations(store, **(known | {key: "other"}))) == []
    assert runs.get_run(store, run.id).evaluations == 1


def test_hints_of_an_episode_are_counted(store):
    episode = episodes.next_episode(store, make_run(store), 0)
    episodes.set_start(store, replace(episode, hints='["fuse", "tile"]', held_out='["held"]'))
    assert episodes.get_episode(store, episode.id).shown_hints == ["fuse", "tile"]
    assert hint_uses.times_shown(store) == {"fuse": 1, "tile": 1}


def test_runs_are_found_by_prefix(store):
    run = make_run(store)
    assert runs.find_run(store, run.id[:5]).id == run.id == runs.find_run(store, "last").id
    other = make_run(store)
    store.execute("UPDATE runs SET created_at = '1999' WHERE id = :id", {"id": other.id})  # set back
    assert runs.find_run(store, "last").id == other.id
    for wrong in ("", "zz", "%"):
        with pytest.raises(UsageError, match="no such run"):
            runs.find_run(store, wrong)
    assert [found.id for found in runs.list_runs(store)] == [other.id, run.id]
    for _ in range(15):  # two of seventeen ids share their first digit
        make_run(store)
    digits = [run.id[0] for run in runs.list_runs(store)]
    with pytest.raises(UsageError, match="means several runs"):
        runs.find_run(store, max(digits, key=digits.count))


def test_files_are_stored_once_and_whole_or_told(store):
    key = store.keep_files({"b.py": "x = 'ä'", "a.json": "[]"})
    assert store.keep_files({"a.json": "[]", "b.py": "x = 'ä'"}) == key
    assert store.row("SELECT count(*) AS n FROM files") == {"n": 1}
    assert store.get_files(key) == {"a.json": "[]", "b.py": "x = 'ä'"}
    for damage in ("zeroblob(20)", "substr(content, 1, 9)"):
        store.execute(f"UPDATE files SET content = {damage}", {})
        with pytest.raises(InfrastructureError, match="damaged"):
            store.get_files(key)
    store.execute("DELETE FROM files", {})
    with pytest.raises(PassagentError, match="are gone"):
        store.get_files(key)


def test_files_outlive_the_runs_that_another_run_shares_them_with(store):
    first, second = make_run(store), make_run(store)
    one = add_node(store, first, files={"a.py": "shared"})
    episode = episodes.next_episode(store, first, 0)
    add_node(store, first, files={"a.py": "its own"}, episode=episode)
    measured = add_node(store, first, files={"a.py": "measured"}, episode=episode, call="d")
    plans = store.keep_files({"plan.json": "{}"})
    kept = add_node(store, second, files={"a.py": "shared"}, plans=plans)
    twin = add_node(store, second, files={"a.py": "its twin"})
    known = {"known": measured.evaluation_id, "twin": twin.id}
    store.execute("UPDATE nodes SET evaluation_id = :known WHERE id = :twin", known)
    runs.for_removal(store)
    with store.transaction():
        runs.remove_run(store, first.id)
    assert store.row("SELECT count(*) AS n FROM files") == {"n": 4}
    assert store.get_files(measured.candidate_key) == {"a.py": "measured"}
    assert store.get_files(one.candidate_key) == {"a.py": "shared"}
    assert nodes.get_plans(store, kept) == {"plan.json": "{}"}


def test_a_transaction_is_all_or_nothing(store):
    def half() -> None:
        with store.transaction():
            make_run(store)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert runs.list_runs(store) == []
    with store.transaction():
        make_run(store)
    assert len(runs.list_runs(store)) == 1


_OPEN_AT_ONCE = """
import os, pathlib, sys, time
from passagent.store import Store, runs

for number in range(40):
    start, children = time.monotonic() + 0.002, []
    for _ in range(2):
        children.append(os.fork())
        if not children[-1]:
            while time.monotonic() < start:
                pass
            with Store.open(pathlib.Path(sys.argv[1], str(number))) as store:
                assert runs.list_runs(store) == []
            os._exit(0)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
"""


def test_two_processes_may_make_a_database_at_the_same_moment(tmp_path):
    subprocess.run([sys.executable, "-c", _OPEN_AT_ONCE, str(tmp_path)], check=True)


@pytest.mark.parametrize("schema", [SCHEMA - 1, SCHEMA + 1])
@pytest.mark.parametrize("create", [True, False])
def test_another_schema_is_refused_in_a_line_that_names_the_version_that_reads_it(tmp_path, schema, create):
    with Store.open(tmp_path) as store:
        make_run(store)
        store.execute("UPDATE runs SET version = '7.8.9'", {})
        store.execute(f"PRAGMA user_version = {schema}", {})
    before = (tmp_path / "passagent.db").read_bytes()
    with pytest.raises(
        UsageError, match=f"has schema {schema}, which the passagent 7.8.9 that wrote it reads; this is"
    ) as told:
        Store.open(tmp_path, create)
    assert "\n" not in str(told.value)
    assert (tmp_path / "passagent.db").read_bytes() == before


def test_places_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(UsageError, match="cannot be written"):
            Store.open(place)
    with pytest.raises(UsageError, match="holds no runs"):
        Store.open(tmp_path / "nothing", create=False)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / database.DATABASE).write_text("this is no database, however long the text may be" * 30)
    with pytest.raises(UsageError, match="not a healthy SQLite database"):
        Store.open(tmp_path)
    (tmp_path / "others").mkdir()
    with sqlite3.connect(tmp_path / "others" / database.DATABASE) as other:
        other.execute("CREATE TABLE runs (distance)")
    other.close()
    with pytest.raises(UsageError, match="a database of another program"):
        Store.open(tmp_path / "others")


def test_a_name_that_is_no_text_is_told(store):
    with pytest.raises(UsageError, match="not UTF-8"):
        make_run(store, task_path="/task\udcff")


def test_a_locked_database_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.1)
    told = pytest.raises(InfrastructureError, match="locked by another process")
    with Store.open(tmp_path) as holder, Store.open(tmp_path) as store, holder.transaction(), told:
        make_run(store)


def test_a_reading_sees_one_state(store):
    run = make_run(store)
    with Store.open(store.runs_dir) as another:
        with store.reading():
            assert runs.get_run(store, run.id).wanted == "run"
            runs.want(another, run.id, "stop")
            assert runs.get_run(store, run.id).wanted == "run"
        assert runs.get_run(store, run.id).wanted == "stop"
    with store.transaction(), store.reading():  # which sees what the transaction wrote
        runs.want(store, run.id, "stop_after_episodes")
        assert runs.get_run(store, run.id).wanted == "stop_after_episodes"
    assert runs.get_run(store, run.id).wanted == "stop_after_episodes"


def test_equal_programs_and_candidates_are_found_by_an_index(store, monkeypatch):
    plans = []
    ask = Store.columns

    def explained(self, sql, parameters=None):
        plans.extend(step[3] for step in self.execute(f"EXPLAIN QUERY PLAN {sql}", parameters).fetchall())
        return ask(self, sql, parameters)

    node = add_node(store, make_run(store))
    monkeypatch.setattr(Store, "columns", explained)
    nodes.twins(store, node, 3)
    evaluations.find_evaluations(
        store, candidate_key=node.candidate_key, task_key="", evaluator_version="", environment=""
    )
    used = [step for step in plans if "USING INDEX" in step]
    assert [step.partition("USING INDEX ")[2].split()[0] for step in used] == [
        "nodes_by_canonical",
        "evaluations_by_candidate",
    ]
