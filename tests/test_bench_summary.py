"""The figures of `passagent bench`'s table: equal to a naive recomputation, with fitting intervals."""

from __future__ import annotations

import math

import pytest
from factored import s_score
from hypothesis import given
from hypothesis import strategies as st

from passagent.data.bench.summary import METRICS, summarise
from passagent.evaluator import score
from passagent.evaluator.judging.verdict import graph_score
from passagent.evaluator.result import Evaluation, GraphResult, Speedup


def naive(results: list[dict], b: float = 0.1) -> dict[str, float | None]:
    """Table 1 recomputed from the rows of --json, term by term."""
    graphs = [graph for result in results for graph in result["graphs"]]
    right = [g["speedup"]["e2e"] for g in graphs if g["status"] == "ok"]
    scores = [graph_score(GraphResult.model_validate(graph)) for graph in graphs]
    return {
        "fast_1": sum(s >= 1 for s in right) / len(graphs),
        "sample_cr": sum(all(g["status"] == "ok" for g in r["graphs"]) for r in results) / len(results),
        "subgraph_cr": len(right) / len(graphs),
        "gmean_speedup": math.prod(right) ** (1 / len(right)) if right else None,
        "as_score": score.as_score(scores, b),
    }


def evaluation(graphs: list[GraphResult]) -> Evaluation:
    """An evaluation that holds `graphs`."""
    return Evaluation(
        task="t", candidate="c", device="cpu", dispatch="direct", timing="wall", status="ok", as_score=1.0,
        es={}, graphs=graphs, evaluator_version="v",
    )  # fmt: skip


@st.composite
def graph_results(draw):
    status = draw(st.sampled_from(["ok", "wrong_result", "runtime_error", "mismatch", "refused"]))
    timed = status == "ok" or (status == "wrong_result" and draw(st.booleans()))
    return GraphResult(
        name="g",
        dtype="float32",
        status=status,
        speedup=Speedup(e2e=draw(st.floats(0.01, 100))) if timed else None,
        passes_from_t=draw(st.integers(-10, -3)) if status == "ok" else -2 if timed else None,
    )


@given(st.lists(st.lists(graph_results(), min_size=1, max_size=5), min_size=1, max_size=6))
def test_the_table_equals_a_naive_recomputation(tasks):
    evaluations = [evaluation(graphs) for graphs in tasks]
    found = summarise("eager", evaluations, len(tasks))
    expected = naive([e.model_dump() for e in evaluations], score.B)
    scores = [graph_score(graph) for graphs in tasks for graph in graphs]
    expected["as_score"] = score.as_score(scores)
    for metric in METRICS:
        assert getattr(found, metric).value == pytest.approx(expected[metric]), metric
    for t, estimate in found.es.items():
        assert estimate.value == pytest.approx(score.es(scores, t))
    for t, estimate in found.s.items():
        assert estimate.value == pytest.approx(s_score(scores, t))
    assert list(found.es) == list(range(-10, 5)) and list(found.s) == list(range(-10, 1))
    each = [score.as_score([graph_score(graph) for graph in graphs]) for graphs in tasks]
    low, high = found.as_score.low, found.as_score.high
    if len(tasks) == 1:
        assert low is None and high is None
    else:
        assert low is not None and high is not None
        assert min(each) * (1 - 1e-9) <= low <= high <= max(each) * (1 + 1e-9)


def test_the_interval_narrows_with_the_number_of_tasks():
    def width(count: int) -> float:
        graphs = [
            GraphResult(
                name="g", dtype="float32", status="ok", speedup=Speedup(e2e=1 + n % 5 / 10), passes_from_t=-10
            )
            for n in range(count)
        ]
        found = summarise("eager", [evaluation([graph]) for graph in graphs], count).gmean_speedup
        assert found.low is not None and found.high is not None and found.value is not None
        assert found.low < found.value < found.high
        return found.high - found.low

    assert width(500) < width(50) / 2 < width(50)
