"""Operators: what `passagent why`, `diff`, `tail`, ... say of runs, and what they do to them."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import pytest
import tiny_search

from passagent import cli
from passagent.commands import searching
from passagent.store import Store, nodes, runs


@pytest.fixture
def call(monkeypatch, capsys, place):
    """`call("why", ...)` gives exit code, stdout, stderr of `passagent why ...` where `place` is."""
    monkeypatch.chdir(place)
    for name in [name for name in os.environ if name.startswith("PASSAGENT_") or name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["passagent", *map(str, words)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a finished run of 12 episodes on 2 islands in `runs`; tests leave it as it is."""
    path = tmp_path_factory.mktemp("place")
    task = tiny_search.write_task(path / "task")
    settings = tiny_search.settings(12, 2, 1) | {"search.finalists": 2}
    searching.run(str(task), None, settings, str(path / "runs"), True, False, tiny_search.parts())
    return path


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
        migrated = store.rows("SELECT * FROM elite_migrations")
        shown = store.rows("SELECT episode_id, hint_id FROM hint_uses ORDER BY id")
    assert depths[deepest] > 3 and migrated, "the run is too plain to test with"

    code, out, _ = call("why", deepest, "--json")
    data = json.loads(out)
    assert (code, data["run"], data["node"]) == (0, run.id, deepest)
    chain = data["chain"]
    assert len(chain) == depths[deepest]
    assert [step["parent"] for step in chain] == [None, *(step["node"] for step in chain[:-1])]
    for step in chain:
        node = found[step["node"]]
        assert (step["status"], step["first_as"], step["note"]) == (node.status, node.as_score, node.note)
        hints = [hint["id"] for hint in step["episode"]["hints"]]
        assert hints == [row["hint_id"] for row in shown if row["episode_id"] == node.episode_id]
        assert [message["role"] for message in step["episode"]["prompt"]] == ["system", "user"]
    assert chain[0]["changed"] == [
        {"file": "Fused.py", "added": 3, "removed": 0},
        {"file": "sorted_output_pass_rule_names.json", "added": 1, "removed": 0},
    ]
    assert {(c["file"], c["added"], c["removed"]) for c in chain[1]["changed"]} == {("Fused.py", 2, 2)}

    code, text, _ = call("why", deepest)
    assert code == 0
    for step in chain:
        assert f"node {step['node']} {step['status']}, AS {step['as_score']:.3f}" in text
        assert step["episode"]["chosen"] in text
        assert step["diagnosis"]["text"] in text
    gain = next(step for step in chain if step["episode"]["gain"])["episode"]
    assert f"{math.exp(gain['gain']) - 1:+.1%} against where it began" in text
    assert len(text.splitlines()) < 12 + 6 * len(chain)

    migrant = next(node for node in found.values() if node.episode_id == migrated[0]["episode_id"])
    assert f"migration: {migrated[0]['reason']}" in call("why", migrant.id)[1]
    code, _, err = call("why", 10**6)
    assert code == 2 and "1000000: no such node" in one_line(err)


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
    files = [json.loads((place / "runs" / node.files_path).read_text())["Fused.py"] for node in (one, other)]
    assert {f"-{line}" for line in files[0].splitlines()} - {"-"} <= set(text.splitlines())
    assert {f"+{line}" for line in files[1].splitlines()} - {"+"} <= set(text.splitlines())
    assert f"{graph['ratio']:.3f}" in text
    assert "\x1b" not in text  # no colours where stdout is no terminal
    assert "the files are the same" in call("diff", one.id, one.id)[1]


def test_diff_says_whether_intervals_separate(call, place, tmp_path):
    """Intervals written into a copy of the database: these two separate, and these two do not."""
    with Store.open(place / "runs") as store:
        right = [n for n in nodes.of_run(store, runs.find_run(store, "last").id) if n.status == "ok"]
        one, other = right[0], next(n for n in right if n.candidate_key != right[0].candidate_key)
        copy = Path(tmp_path / "runs")
        copy.mkdir()
        store.execute("VACUUM INTO :path", {"path": str(copy / "passagent.db")})
    (copy / "objects").symlink_to(place / "runs" / "objects")

    def separate(first: list[float], second: list[float]) -> object:
        with Store.open(copy) as store:
            for node, (low, value, high) in ((one, first), (other, second)):
                speedup = json.dumps({"e2e": value, "low": low, "high": high, "device": None})
                store.execute(
                    "UPDATE evaluations SET result = json_set(result, '$.graphs[0].speedup', json(:s)) "
                    "WHERE candidate_key = :key",
                    {"s": speedup, "key": node.candidate_key},
                )
            store.db.commit()
        return json.loads(call("diff", one.id, other.id, "--json", "--runs-dir", copy)[1])["graphs"][0]

    assert separate([1.0, 1.1, 1.2], [1.3, 1.4, 1.5])["separate"] is True
    assert separate([1.3, 1.4, 1.5], [1.0, 1.1, 1.2])["separate"] is True
    assert separate([1.0, 1.1, 1.35], [1.3, 1.4, 1.5])["separate"] is False
    text = call("diff", one.id, other.id, "--runs-dir", copy)[1]
    assert "1.100 [1.000, 1.350]" in text and "overlap" in text

    with Store.open(copy) as store:
        sql = "UPDATE evaluations SET environment = 'elsewhere' WHERE candidate_key = :key"
        store.execute(sql, {"key": one.candidate_key})
        store.db.commit()
    told = json.loads(call("diff", one.id, other.id, "--json", "--runs-dir", copy)[1])["not_comparable"]
    assert told.startswith("they were measured under other conditions: elsewhere | ")
