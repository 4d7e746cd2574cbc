"""Data sets out of a database: chosen by columns, checked at the door, whole or not there at all."""

from __future__ import annotations

import hashlib
import io
import json
import math
import shutil
import sqlite3
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import episodes
import pytest
import tiny_search
from hypothesis import given
from hypothesis import strategies as st

from passagent.data.export.formats import FORMATS
from passagent.data.export.making import build
from passagent.data.export.selection import (
    COLUMNS,
    JudgedEpisode,
    Revision,
    read_episodes,
    select,
    with_advantages,
)
from passagent.evaluator.result import Candidate
from passagent.store import Store
from passagent.store.episodes import add_messages, get_episode
from passagent.store.trajectories import Trajectory

KEY = "hf_" + "a1" * 17
"""What looks like a token."""
EPISODES = 2 * len(episodes.KINDS)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    with redirect_stdout(io.StringIO()):
        return episodes.build(tmp_path_factory.mktemp("episodes"), ["chat", "signed"])


@pytest.fixture
def runs(home, tmp_path) -> Path:
    """A copy of the database, to be spoilt."""
    copy = tmp_path / "copy"
    copy.mkdir()
    with sqlite3.connect(home / "passagent.db") as source, sqlite3.connect(copy / "passagent.db") as target:
        source.backup(target)
    return copy


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().strip("\n").split("\n")]


def nothing_is_left(where: Path) -> bool:
    return not (where / "out").exists() and not list(where.glob(".out*"))


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_written_says_where_it_comes_from_and_is_what_was_stored(call, home, tmp_path, form):
    code, out, err = call("export", "--format", form, "--out", "out", "--runs-dir", home)
    assert (code, err) == (0, "")
    assert f"{EPISODES} examples" in out
    known = rows_of(tmp_path / "out/provenance.jsonl")
    assert len({row["id"] for row in known}) == EPISODES
    for row in known:
        assert row["run"] and row["episode"] and row["model"] and row["evaluator_version"] and row["device"]
    card = (tmp_path / "out/README.md").read_text()
    assert f"passagent export --format {form}" in card and "openai/m-1" in card and "(50%)" in card
    code, out, _ = call("check", "out", "--runs-dir", home)
    assert (code, "hashes, secrets, database" in out) == (0, True)
    assert "anthropic/m-4" in call("show", "out")[1] and "file_editor" in call("show", "out", 1)[1]
    code, _, err = call("show", "out", 1000)
    assert code == 2 and "has no row 1000; it has 1 to" in err
    # a key in an exported file is found, even where its hash was changed, too
    data = tmp_path / "out" / known[0]["file"]
    first, newline, rest = data.read_text().partition("\n")
    changed = json.dumps(json.loads(first) | {"note": KEY})
    data.write_text(changed + newline + rest)
    code, _, err = call("check", "out")
    assert code == 1 and "not the row that was written" in err
    known[0]["sha256"] = hashlib.sha256(changed.encode()).hexdigest()
    (tmp_path / "out/provenance.jsonl").write_text("".join(json.dumps(row) + "\n" for row in known))
    code, _, err = call("check", "out")
    assert code == 1 and "a Hugging Face token" in err and KEY not in err


def test_the_lossless_form_is_read_back_with_the_candidates_files(call, home, tmp_path):
    assert call("export", "--format", "passagent", "--out", "out", "--runs-dir", home)[0] == 0
    for line in (tmp_path / "out/episodes.jsonl").read_text().strip("\n").split("\n"):
        found = Trajectory.model_validate_json(line)
        for node in found.nodes:
            assert Candidate(found.files[node.files]).key == node.files
        assert [one["node"] for one in found.columns["credit"]] == [node.node for node in found.nodes]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("as_score > 1.5", lambda row: row["as_score"] > 1.5),
        ("gain > 0.05 and steps <= 8", lambda row: row["gain"] > 0.05 and row["steps"] <= 8),
        ("model like 'anthropic/%'", lambda row: row["model"].startswith("anthropic/")),
        ("recovered", lambda row: row["recovered"]),
    ],
)
def test_a_condition_chooses_by_columns(home, condition, holds):
    with Store.open(home, create=False) as store:
        told = read_episodes([store])
    chosen = {one.columns["id"] for one in select(told, condition)}
    assert chosen == {one.columns["id"] for one in told if holds(one.columns)}
    assert 0 < len(chosen) < len(told)


def test_at_most_so_many_are_the_best(home):
    with Store.open(home, create=False) as store:
        told = read_episodes([store])
    best = sorted((one.columns["as_score"] for one in told), reverse=True)[:3]
    for selection in ({"best_of": 3}, {"per_sequence": 3}, {"keep": "steps > 0", "best_of": 3}):
        found = [one.columns["as_score"] for one in select(told, **selection)]
        assert sorted(found, reverse=True) == best


def test_a_step_is_complete_stayed_correct_and_gained(home):
    with Store.open(home, create=False) as store:
        told = read_episodes([store])
        chosen = select(told, by="step")
        assert len(chosen) > 10
        for example, one in zip(build(chosen), chosen, strict=True):
            assert one.revision and one.revision.status == "ok"
            assert one.revision.low > one.revision.before_high
            assert [turn.role for turn in example.turns[:2]] == ["system", "user"]
            answered = {turn.message["tool_call_id"] for turn in example.turns if turn.role == "tool"}
            calls = [call for turn in example.replies for call in turn.message.get("tool_calls", ())]
            assert {call["id"] for call in calls} == answered
            trained = [place for place, turn in enumerate(example.turns) if turn.is_trained]
            assert trained and example.turns[-1].role == "tool"
            # what made an earlier node is context
            made = {node.call_id: node.node for node in example.trajectory.nodes}
            earlier = [
                place
                for place, turn in enumerate(example.turns)
                if made.get(turn.message.get("tool_call_id"), one.revision.node) != one.revision.node
            ]
            assert not earlier or max(earlier) < min(trained)


def test_what_did_not_gain_beyond_its_interval_is_no_step():
    sure = Revision(1, "ok", 1.2, 1.1, 1.0, 1.0, "", "", 1)
    noise = replace(sure, low=0.99)
    wrong = replace(sure, status="wrong_result", as_score=0.1)
    assert sure.reward == pytest.approx(math.log(1.1))
    assert (noise.reward, wrong.reward) == (0.0, 0.0)
    columns = dict.fromkeys(COLUMNS) | {"id": "r/1", "operators": "add"}
    told = JudgedEpisode(1, columns, (), (), (sure, replace(noise, node=2), replace(wrong, node=3)), None)
    assert [one.columns["id"] for one in select([told], by="step")] == ["r/1/1"]


REWARDS = st.lists(st.lists(st.floats(0, 3), max_size=5), min_size=1, max_size=5)


@given(REWARDS)
def test_returns_and_advantages_are_what_they_are_by_definition(trials):
    told = [
        JudgedEpisode(
            place,
            {},
            (),
            (),
            tuple(Revision(0, "ok", math.exp(r), math.exp(r), 1, 1.0, "", "", 1) for r in rewards),
            None,
        )
        for place, rewards in enumerate(trials)
    ]
    for place, rewards in enumerate(trials):
        returns = [math.fsum(rewards[at:]) for at in range(len(rewards))]
        assert [r.returns for r in with_advantages(told)[place].revisions] == pytest.approx(returns, abs=1e-9)
        others = [trial for at, trial in enumerate(trials) if at != place]
        for at, revision in enumerate(with_advantages(told)[place].revisions):
            if not others:
                assert revision.advantage is None
                continue
            baseline = math.fsum(math.fsum(trial[at:]) for trial in others) / len(others)
            assert revision.advantage == pytest.approx(returns[at] - baseline, abs=1e-9)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--keep", "as_scor > 1"], "no column 'as_scor'; did you mean 'as_score'?"),
        (["--keep", "as_score >"], "syntax error"),
        (
            ["--keep", "id in (select name from sqlite_master where 0) or load_extension('x')"],
            "only conditions",
        ),
        (
            ["--keep", "as_score > 100"],
            f"finished episodes: {EPISODES}, none of them is chosen; see what there is with passagent runs",
        ),
        (["--against", "nowhere.txt"], "nowhere.txt: no such directory or sample list"),
        (["--tokenizer", "nowhere.json"], "tokenizer"),
        (["--runs-dir", "nowhere"], "nowhere"),
        (["--runs-dir", "foreign"], "a database of another program"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line_and_nothing_is_written(call, home, tmp_path, words, said):
    (tmp_path / "foreign").mkdir()
    with sqlite3.connect(tmp_path / "foreign/passagent.db") as other:
        other.execute("CREATE TABLE t (x)")
    where = [] if "--runs-dir" in words else ["--runs-dir", home]
    code, out, err = call("export", "--format", "trl", "--out", "out", *where, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert nothing_is_left(tmp_path)


def test_a_key_in_the_database_does_not_go_out(call, runs, tmp_path, monkeypatch):
    with Store.open(runs) as store:
        message = {"role": "assistant", "content": f"use {KEY}", "tool_calls": []}
        episode = get_episode(store, 3)
        store.execute(
            "DELETE FROM steps WHERE episode_id = 3 "
            "AND seq = (SELECT max(seq) FROM steps WHERE episode_id = 3)"
        )
        with monkeypatch.context() as patch:
            patch.setattr("passagent.store.episodes.redacted", lambda value: value)
            add_messages(store, episode, [message])
    code, _, err = call("export", "--format", "trl", "--out", "out", "--runs-dir", runs)
    assert code == 1 and "holds what looks like a Hugging Face token" in err and KEY not in err
    assert nothing_is_left(tmp_path)
    name = err.split()[2].rstrip(":")
    code, out, _ = call(
        "export", "--format", "trl", "--out", "out", "--runs-dir", runs, "--keep", f"id != '{name}'"
    )
    assert code == 0 and f"{EPISODES - 1} examples" in out


SPOIL = {
    "a better score": "UPDATE nodes SET as_score = as_score * 2 WHERE id = :node",
    "a better evaluation": "UPDATE evaluations SET as_score = 9.0 WHERE id = "
    "(SELECT evaluation_id FROM nodes WHERE id = :node)",
    "both": "UPDATE evaluations SET as_score = 9.0",
    "another status": "UPDATE nodes SET status = 'ok' WHERE status = 'wrong_result'",
    "another's evaluation": "UPDATE nodes SET (evaluation_id, as_score) = "
    "(SELECT evaluation_id, as_score FROM nodes AS o WHERE o.status = 'ok' AND o.as_score > nodes.as_score "
    "LIMIT 1) WHERE id = :node",
    "none": "UPDATE nodes SET evaluation_id = NULL WHERE id = :node",
    "another's files": "UPDATE nodes SET candidate_key = (SELECT o.candidate_key FROM nodes AS o "
    "WHERE o.canonical_key != nodes.canonical_key LIMIT 1) WHERE id = :node",
}


DOUBLE = (
    "UPDATE nodes SET (evaluation_id, as_score, candidate_key, canonical_key) = "
    "(SELECT evaluation_id, as_score, candidate_key, canonical_key FROM nodes WHERE id = :node) "
    "WHERE id = (SELECT id FROM nodes WHERE status = 'ok' AND id != :node LIMIT 1)"
)
"""Another node of the same program."""


@pytest.mark.parametrize("how", [*SPOIL, "damaged files"])
def test_a_tampered_node_does_not_go_out(call, runs, tmp_path, how):
    assert call("export", "--format", "trl", "--out", "before", "--runs-dir", runs)[0] == 0
    with Store.open(runs) as store:
        [row] = store.rows("SELECT id FROM nodes WHERE status = 'ok' AND place = 1 LIMIT 1 OFFSET 3")
        if how == "another's files":
            store.execute(DOUBLE, {"node": row["id"]})
        spoil = SPOIL.get(how, "UPDATE files SET content = X'00' WHERE rowid = 2")
        store.execute(spoil, {"node": row["id"]} if ":node" in spoil else {})
        if how == "both":
            store.execute("UPDATE nodes SET as_score = 9.0 WHERE status = 'ok'", {})
    code, _, err = call("export", "--format", "trl", "--out", "out", "--runs-dir", runs)
    said = "are damaged" if how not in SPOIL else "is not as it was measured"
    assert code == 1 and said in err and err.count("\n") == 1
    assert nothing_is_left(tmp_path)
    code, _, err = call("check", "before", "--runs-dir", runs)
    assert code == 1 and err.count("\n") == 1


def test_a_row_too_many_and_one_too_few_are_found(call, home, tmp_path):
    assert call("export", "--format", "openai", "--out", "out", "--runs-dir", home)[0] == 0
    data = tmp_path / "out/train.jsonl"
    text = data.read_text()
    data.write_text(text + text.partition("\n")[0] + "\n")
    assert f"has {EPISODES + 1} rows, {EPISODES} were written" in call("check", "out")[2]
    data.write_text(text[: text.rindex("\n", 0, -1) + 1])
    assert "not the row that was written" in call("check", "out")[2]
    code, _, err = call("check", tmp_path)
    assert code == 2 and "not an export of passagent" in err


def _same(task: Path, other: Path) -> str:
    shutil.copytree(task, other)
    return "task is the task other"


def _operators(task: Path, other: Path) -> str:
    shutil.copytree(task, other)
    model = other / "graphs/g/model.py"
    model.write_text(model.read_text().replace("tmp_0", "tmp_7"))
    return "has the operator sequence of other"


def _subgraph(task: Path, other: Path) -> str:
    tiny_search.write_task(other)
    (other / "graph_list.txt").write_text("graphs/a\ngraphs/g\n")
    first = other / "graphs/a"
    shutil.copytree(other / "graphs/g", first)
    (first / "model.py").write_text(
        (first / "model.py").read_text().replace("functional.relu", "functional.gelu")
    )
    return "has the subgraph other/g"


@pytest.mark.parametrize("leak", [_same, _operators, _subgraph])
def test_a_set_that_shares_something_with_the_evaluation_is_refused(call, home, tmp_path, leak):
    said = leak(home.parent / "task", tmp_path / "evaluation/other")
    words = ["--format", "trl", "--runs-dir", home]
    code, _, err = call("export", *words, "--out", "out", "--against", "evaluation")
    assert code == 1 and said in err
    assert nothing_is_left(tmp_path)
    assert call("export", *words, "--out", "out")[0] == 0
    code, _, err = call("check", "out", "--against", "evaluation")
    assert code == 1 and said in err
    code, out, _ = call("check", "out", "--against", "example:add_rms_norm")
    assert code == 0 and "overlap" in out
