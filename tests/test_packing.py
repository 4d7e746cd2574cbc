"""What the database packs comes out as it went in."""

from __future__ import annotations

import json

import pytest
from test_resume import make_run

from passagent.evaluator.result import Evaluation, GraphResult
from passagent.store import Store, episodes, evaluations, runs
from passagent.system.redaction import redact

TASK_TEXT = "\n".join(
    f"line {number} of a task that every prompt repeats: {number**3}" for number in range(200)
)


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "runs") as opened:
        yield opened


def evaluation(samples: list[float]) -> dict:
    graph = GraphResult(name="g", dtype="float32", status="ok", eager_samples_ms=samples)
    other = graph.model_copy(update={"compiled_samples_ms": samples[::-1], "eager_samples_ms": []})
    found = Evaluation(
        task="t", candidate="c", device="cpu", dispatch="direct", timing="wall", status="ok", as_score=1.5,
        es=None, graphs=[graph, other, graph], evaluator_version="v",
    )  # fmt: skip
    return found.model_dump(mode="json")


def add_evaluation(store: Store, result: dict, environment: str = "here") -> int:
    return evaluations.add_evaluation(
        store,
        None,
        task_key="t",
        environment=environment,
        candidate_key="c",
        whole=result,
    )


def test_evaluations_come_out_as_they_went_in(store):
    samples = [(60_000 + (number * 7919) % 3000) / 1e6 for number in range(1000)]
    results = [evaluation([]), evaluation(samples), evaluation([1 / 3]) | {"plans": "a key"}]
    ids = [add_evaluation(store, result) for result in results]
    with Store.open(store.runs_dir) as another:
        assert [evaluations.get_evaluation(another, one) for one in ids] == results
        figures = evaluations.get_evaluation(another, ids[1], samples=False)
    assert figures == evaluation([])
    [row] = store.rows("SELECT length(samples) AS n FROM evaluations WHERE id = :id", {"id": ids[1]})
    assert row["n"] < 3 * 3000


def conversation_of(number: int) -> list[dict]:
    reply = {"role": "assistant", "content": f"{TASK_TEXT[:500]} {number}", "tool_calls": []}
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"{TASK_TEXT}\nEpisode {number}"},
        reply,
        {"role": "tool", "tool_call_id": "1", "name": "x", "content": TASK_TEXT[500:900]},
    ]


def write_conversation(store, run, number: int, messages: list[dict]) -> episodes.Episode:
    episode = episodes.next_episode(store, run, 0)
    episodes.add_messages(store, episode, messages[:2])
    episodes.add_messages(store, episode, messages[2:])
    episodes.finish(store, episode, "done", None, False)
    return episode


def test_a_message_that_another_run_has_too_outlives_its_run(store):
    first, second = make_run(store, iters=100), make_run(store, iters=100)
    for run in (first, second):
        write_conversation(store, run, 1, conversation_of(1))
        kept = write_conversation(store, run, 2, conversation_of(2))
    with Store.open(store.runs_dir) as another:
        runs.for_removal(another)
        with another.transaction():
            runs.remove_run(another, first.id)
        assert episodes.conversation(another, kept.id) == conversation_of(2)


@pytest.mark.parametrize("write", [json.dumps, lambda data: json.dumps(data, separators=(",", ":")), str])
def test_arguments_of_calls_come_out_as_the_model_wrote_them(store, write):
    run = make_run(store, iters=100)
    call = {"id": "1", "name": "x", "arguments": write({"text": 'a "b"\n', "é": [1, {"c": 1.5}], "n": None})}
    odd = {"id": "2", "name": "x", "arguments": '{"a": 1, "a": 2.50}'}
    said = {"role": "assistant", "content": "", "tool_calls": [call, odd]}
    episode = write_conversation(store, run, 1, [*conversation_of(1)[:2], said])
    with Store.open(store.runs_dir) as another:
        assert episodes.conversation(another, episode.id)[2] == said


def test_a_secret_that_comes_later_is_known(monkeypatch):
    assert redact("the word is swordfish-42") == "the word is swordfish-42"
    monkeypatch.setenv("LATE_TOKEN", "swordfish-42")
    assert redact("the word is swordfish-42") == "the word is <LATE_TOKEN>"
    monkeypatch.delenv("LATE_TOKEN")
    assert redact("the word is swordfish-42") == "the word is swordfish-42"
