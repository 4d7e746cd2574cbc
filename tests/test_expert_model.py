"""The expert as a model: what it answers is a function of the messages, and it does not repeat itself."""

from __future__ import annotations

import ast
import asyncio
import json
import time

import pytest
from tiny import write_subgraph
from verdicts import verdict

from passagent.errors import PassagentError
from passagent.evaluator.result import MANIFEST
from passagent.expert.choices import Plan, default, neighbours, read_plans, start
from passagent.expert.expert_model import GAINS, ExpertModel, answer, candidate, read


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return write_subgraph(tmp_path_factory.mktemp("task") / "silu_mul", [4, 33])


def opening(task, role="fusion", seed=1, parent=None, attempts=()):
    data = {"task": str(task), "target": "cpu", "seed": seed, "role": role}
    data |= {"parent": parent, "attempts": list(attempts)}
    return [{"role": "system", "content": ""}, {"role": "user", "content": "", "data": data}]


def begun(plan, status="ok", as_score=None):
    """A parent as a task message's data has it."""
    return verdict(status, as_score)["evaluation"] | {"note": f"[plan: {plan.json()}]"}


def played(task, outcomes, **kwargs):
    """The messages of an episode whose evaluations came out as given."""
    messages = opening(task, **kwargs)
    for outcome in outcomes:
        reply = answer(messages)
        messages.append(reply)
        for call in reply["tool_calls"]:
            data = outcome if call["name"] == "pass_evaluator" else {"edit": "wrote"}
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call["id"],
                    "name": call["name"],
                    "content": "",
                    "data": data,
                }
            )
    return messages


def plan_of(message):
    texts = [json.loads(c["arguments"]).get("file_text", "") for c in message["tool_calls"]]
    return read_plans("".join(texts))[0]


def test_first_reply_writes_the_files_and_has_them_evaluated(task):
    reply = asyncio.run(ExpertModel().complete(opening(task), []))
    names = [json.loads(c["arguments"]).get("path") for c in reply.message["tool_calls"]]
    assert reply.stop_reason == "tools"
    assert MANIFEST in names
    assert reply.message["tool_calls"][-1]["name"] == "pass_evaluator"
    assert len({c["id"] for c in reply.message["tool_calls"]}) == len(names)


def test_same_messages_same_reply(task):
    assert answer(opening(task)) == answer(opening(task))
    messages = played(task, [verdict("ok", 1.2)])
    assert answer(messages) == answer(messages)


def test_an_episode_repairs_what_is_wrong_and_then_tells(task):
    messages = played(task, [verdict("wrong_result", 0.4), verdict("wrong_result", 0.5)])
    tried = [plan for plan, _, _ in read(messages).outcomes]
    assert len(set(tried)) == 2
    for last in (answer(messages), answer(played(task, [verdict("ok", 1.2)]))):
        assert last["tool_calls"] == []
    assert "wrong_result, AS 0.5000" in answer(messages)["content"]
    assert "ok, AS 1.2000" in last["content"]


@pytest.mark.parametrize("score", [0.9, 1.5])
def test_a_pass_that_gains_keeps_its_regions(task, score):
    after = plan_of(answer(opening(task, parent=begun(Plan(block=1024), as_score=score))))
    assert bool(after.without) == (score < GAINS)


def test_plans_of_parent_and_attempts_are_not_repeated(task):
    first = plan_of(answer(opening(task)))
    note = f"silu in one kernel; [plan: {Plan(block=1024).json()}]"
    attempts = [{"status": "ok", "as_score": 1.1, "note": note}]
    episode = read(opening(task, parent=begun(first), attempts=attempts))
    assert episode.parent == first
    assert Plan(block=1024) in episode.tried
    assert plan_of(answer(opening(task, parent=begun(first), attempts=attempts))) not in episode.tried


def test_after_a_failure_the_region_shrinks(task):
    messages = played(task, [verdict("wrong_result", 0.1)])
    assert plan_of(answer(messages)).without


def test_islands_start_at_different_points():
    assert len({start("cpu", role) for role in ("fusion", "memory", "launch", "numerics")}) == 4


def test_a_note_reads_back():
    plan = Plan(block=256, grain=4096, keep=0, without=("add", "mul"))
    assert read_plans(f"x [plan: {plan.json()}]") == [plan]


def test_neighbours_differ_and_are_many():
    near = list(neighbours(default("cpu"), "cpu", "memory", ["add", "mul"], seed=5))
    assert default("cpu") not in near[:10]
    assert len(set(near)) > 50


def test_exhausted_space_ends_the_episode(task, monkeypatch):
    monkeypatch.setattr("passagent.expert.expert_model.neighbours", lambda *a: iter(()))
    first = plan_of(answer(opening(task)))
    reply = answer(opening(task, parent=begun(first)))
    assert reply["tool_calls"] == []
    assert "has been tried" in reply["content"]


def test_messages_without_a_task_are_an_error():
    with pytest.raises(PassagentError, match="names no task"):
        answer([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    "outcome", [verdict("wrong_result", 0.9), verdict("ok", 0.9, gmean_speedup=1.9, is_loose=True)]
)
def test_what_is_not_exact_is_left_to_eager_next(task, outcome):
    messages = played(task, [outcome], role="launch")
    assert plan_of(answer(messages)).without == ("silu",)


def test_what_is_not_exact_and_costs_little_stays(task):
    outcome = verdict("ok", 1.9, gmean_speedup=2.0, is_loose=True)
    assert answer(played(task, [outcome]))["tool_calls"] == []


def test_expert_of_several_islands_parses_in_one_thread_at_a_time(task, monkeypatch):
    """Before Python 3.11.8 two threads that make syntax trees at a time end with a SystemError."""
    inside, overlaps = [], []

    def compiled(*args, **more):
        inside.append(args)
        time.sleep(0.001)  # another thread's turn
        overlaps.append(len(inside))
        tree = compile(*args, **more)
        inside.pop()
        return tree

    monkeypatch.setattr(ast, "compile", compiled, raising=False)  # what ast.parse calls
    candidate.cache_clear()

    async def answers():
        seeds = [ExpertModel().complete(opening(task, seed=seed), []) for seed in range(4)]
        return await asyncio.gather(*seeds)

    assert len(asyncio.run(answers())) == 4
    assert len(overlaps) > 4 and set(overlaps) == {1}
