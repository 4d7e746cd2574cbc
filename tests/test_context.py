"""What of the store and the knowledge goes into a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import tiny_search

from passagent.agent.prompt import attempt_line
from passagent.cli import running
from passagent.config import load_config
from passagent.evaluator.result import Status
from passagent.experience.diagnosis import LABELS
from passagent.search import episode_context
from passagent.search.candidates import score_to_beat
from passagent.search.episode_context import attempt
from passagent.search.islands import IslandView
from passagent.search.setup import Parts, stored_config
from passagent.store import Store, episodes, evaluations, nodes, runs


def passages(label: str, device: str, device_name: str = "NVIDIA H200", limit: int = 3) -> list[str]:
    known: Any = SimpleNamespace(
        config=load_config(None, {"agent.knowledge": limit, "evaluator.device": device}),
        run=SimpleNamespace(device=device),
        device_name=device_name,
        task=SimpleNamespace(operators=["add", "layer_norm"]),
    )
    parent: Any = SimpleNamespace(diagnosed={"label": label, "text": ""})
    return [p.path for p in episode_context.passages(known, None if label == "start" else parent)]


@pytest.mark.parametrize("label", ["start", "memory_bound", "compile_error"])
def test_knowledge_is_for_the_target(label: str) -> None:
    assert {*get_args(Status)} - {"ok"} < {*LABELS}
    assert not any("triton" in path or "nvidia" in path for path in passages(label, "cpu", limit=50))
    assert not any("cpp_kernel" in path or "cpu" in path for path in passages(label, "cuda:0", limit=50))
    assert not any("h200" in path for path in passages(label, "cuda", "NVIDIA L40S", limit=50))
    assert passages(label, "cuda", limit=0) == []


def test_knowledge_is_for_the_diagnosis() -> None:
    assert passages("memory_bound", "cuda")[0] == "guidance/memory.md"
    assert passages("latency_bound", "cpu")[0] == "guidance/launch_cost.md"
    assert passages("mismatch", "cpu")[0] == "constraints/pass_format.md"
    assert passages("wrong_result", "cuda")[0] == "guidance/numerics.md"


@contextmanager
def searched(place: Path) -> Iterator[tuple[Store, runs.Run]]:
    """A store with a small search in it."""
    parts = Parts(tiny_search.PacedModel(), tiny_search.FastEvaluator(), tiny_search.diagnose)
    settings = tiny_search.settings(6, 2, 4)
    task = tiny_search.write_task(place / "task")
    running.run(str(task), {"settings": settings, "runs_dir": place / "runs"}, True, parts)
    with Store.open(place / "runs") as store:
        yield store, runs.find_run(store, "last")


def known_of(store: Store, run: runs.Run, limit: int) -> Any:
    config = stored_config(run)
    agent = config.agent.model_copy(update={"siblings": limit})
    return SimpleNamespace(
        store=store, run=run, config=config.model_copy(update={"agent": agent}), change_texts={}
    )  # fmt: skip


def test_an_episode_remembers_its_relatives_and_fills_the_places(tmp_path: Path) -> None:
    """The parent's own-episode children were left out, and places stayed empty."""
    with searched(tmp_path) as (store, run):
        every = nodes.of_run(store, run.id)
        made = [node for node in every if node.island == 0]
        last = max(made, key=lambda node: node.number).number
        for parent in made:
            # as if the island's next episode started from this node
            episode = replace(episodes.get_episode(store, parent.episode_id), parent_id=parent.id)
            episode = replace(episode, id=0, number=last + run.islands)
            children = [node.id for node in made if node.parent_id == parent.id]
            above = [node.id for node in nodes.ancestors(store, parent, 50)]
            for limit in (0, 1, 3, 5, 50):
                shown, more = episode_context.attempts(
                    known_of(store, run, limit), episode, parent, len(made)
                )
                ids = [attempt.node.id for attempt in shown]
                others = {node.id for node in made} | {*above}
                assert len(ids) == len({*ids}) == min(limit, len(others) - 1)
                assert {*ids} <= others - {parent.id}
                order = [(node.number, node.place) for id_ in ids for node in every if node.id == id_]
                assert order == sorted(order)
                own = [node for node in made if node.id in ids]
                assert more == (len(made) - len(own) - 1 if limit else 0)
                if limit >= 3:
                    same = [id_ for id_ in children if nodes.get_node(store, id_).number == parent.number]
                    assert {*same[:1], *above[:1]} <= {*ids}, "own-episode children and ancestors come first"


def test_the_score_to_beat_is_the_lower_end_of_a_best_one_with_unstable_timing(tmp_path: Path) -> None:
    with searched(tmp_path) as (store, run):
        every = nodes.of_run(store, run.id)
        best = max(IslandView(store, run.id, 0).elites(1), key=lambda node: node.as_score)
        later = max((one for one in every if one.island == 0), key=lambda node: node.id)
        later = replace(later, id=10_000)
        for unstable, score in ((False, best.as_score), (True, 0.25)):
            evaluation = evaluations.get_evaluation(store, best.evaluation_id or 0) | {"as_low": 0.25}
            evaluation["graphs"][0]["unstable"] = unstable
            tiny_search.give_evaluation(store, best, evaluation)
            assert score_to_beat(store, later) == pytest.approx(score)


def test_the_score_to_beat_of_a_finalist_is_the_mean_of_their_rounds(tmp_path: Path) -> None:
    with searched(tmp_path) as (store, run):
        every = [node for node in nodes.of_run(store, run.id) if node.island == 0]
        best = max(IslandView(store, run.id, 0).elites(1), key=lambda node: node.as_score)
        other = next(node for node in every if node.status == "ok" and node.as_score < best.as_score)
        for number, node in enumerate((best, other), 1):
            store.execute(
                "INSERT INTO confirmations (run_id, series, round, node_id, evaluation_id) "
                "VALUES (:run, 1, :round, :node, :evaluation)",
                {"run": run.id, "round": number, "node": best.id, "evaluation": node.evaluation_id},
            )
        later = replace(max(every, key=lambda node: node.id), id=10_000)
        assert score_to_beat(store, later) == pytest.approx((best.as_score * other.as_score) ** 0.5)


def test_an_attempt_tells_what_was_changed_and_why_it_failed(tmp_path: Path) -> None:
    with searched(tmp_path) as (store, run):
        wrong = [node for node in nodes.of_run(store, run.id) if node.status == "wrong_result"]
        child = next(node for node in wrong if node.parent_id is not None)
        evaluation = evaluations.get_evaluation(store, child.evaluation_id or 0)
        build = "scale does not compile:\nscale.cpp:1:5: error: 'b' was not declared (Fused.py:3)"
        evaluation["graphs"][0] |= {"status": "compile_error", "error": build}
        tiny_search.give_evaluation(store, child, evaluation | {"status": "compile_error"})
        store.execute("UPDATE nodes SET status = 'compile_error' WHERE id = :id", {"id": child.id})
        child = nodes.get_node(store, child.id)
        line = attempt_line(attempt(store, child))
        assert line == (
            f"node {child.id} (from node {child.parent_id}: Fused.py +2 -2): compile_error, "
            f"AS {child.as_score:.4f}: {child.note}; "
            "failed: Fused.py:3: scale.cpp:1:5: error: 'b' was not declared"
        )
        right = next(node for node in nodes.of_run(store, run.id) if node.status == "ok")
        assert "failed" not in attempt_line(attempt(store, right))
