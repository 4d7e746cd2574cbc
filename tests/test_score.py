"""The scores equal the papers' formulas."""

import itertools
import math

import pytest
from factored import Macro, es_from_macro, macro, s_score
from hypothesis import given
from hypothesis import strategies as st

from passagent.evaluator import score
from passagent.evaluator.score import GraphScore

FAILURES = ["runtime", "compilation", "integrity"]
right = st.builds(GraphScore, st.floats(0.05, 20), st.integers(-10, 1), st.none())
inaccurate = st.builds(GraphScore, st.floats(0.05, 20), st.integers(-9, 1), st.just("accuracy"))
never_right = st.just(GraphScore(None, None, "accuracy"))
broken = st.builds(GraphScore, st.none(), st.none(), st.sampled_from(FAILURES))
graphs = st.lists(st.one_of(right, inaccurate, never_right, broken), min_size=1, max_size=12)
settings = {"b": st.floats(0.01, 0.9), "p": st.floats(0, 1)}


@given(samples=graphs, t=st.sampled_from(list(score.T_RANGE)), **settings)
def test_factored_form_equals_geometric_mean(samples, t, b, p):
    # GraphNet Propositions B.1 and C.2
    factored = es_from_macro(macro(samples, t, b), p)
    assert math.isclose(factored, score.es(samples, t, b, p), rel_tol=1e-9)


@given(samples=graphs, **settings)
def test_es_grows_with_t_where_speedups_beat_the_penalty(samples, b, p):
    fast = [
        GraphScore(max(g.speedup, 1.0), g.passes_from_t, g.failure) if g.speedup is not None else g
        for g in samples
    ]
    values = [score.es(fast, t, b, p) for t in range(-10, 1)]
    assert all(x <= y * (1 + 1e-12) for x, y in itertools.pairwise(values))


@given(samples=st.lists(st.one_of(never_right, broken), min_size=1, max_size=8), **settings)
def test_gamma_is_monotone_in_t(samples, b, p):
    values = [macro(samples, t, b).gamma for t in score.T_RANGE]
    assert all(x <= y * (1 + 1e-12) for x, y in itertools.pairwise(values))


@given(samples=graphs, **settings)
def test_es_equals_s_where_nothing_is_forgiven(samples, b, p):
    for t in range(-10, 1):
        assert math.isclose(score.es(samples, t, b, p), s_score(samples, t, b, p), rel_tol=1e-9)


def test_what_is_forgiven_when():
    def factor(failure, t):
        return score.rectified(GraphScore(None, None, failure), t)

    assert [factor("accuracy", t) for t in (0, 1, 4)] == [0.1, 1, 1]
    assert [factor("runtime", t) for t in (0, 2, 3)] == [0.1, 0.1, 1]
    assert [factor("compilation", t) for t in (0, 2, 3)] == [0.1, 0.1, 1]
    assert [factor("integrity", t) for t in (0, 3, 4)] == [0.1, 0.1, 0.1]


def test_slowdowns_are_penalised_by_p():
    slow = GraphScore(0.5, -10)
    assert score.rectified(slow, 0, p=0.0) == 0.5
    assert score.rectified(slow, 0, p=1.0) == 0.25
    assert score.rectified(GraphScore(2.0, -10), 0, p=1.0) == 2.0


def test_correct_above_zero_is_judged_at_one():
    graph = GraphScore(2.0, 1)
    assert not graph.correct(0)
    assert all(graph.correct(t) for t in (1, 2, 3, 4))


def test_weights_and_as():
    assert [score.weight(t) for t in (-10, -6, -5, -3, -2, 3, 4)] == pytest.approx(
        [0.001, 0.001, 1, 1, 0.8, 0.8**6, 0.001]
    )
    assert score.as_score([GraphScore(1.5, -10)] * 3) == pytest.approx(1.5)
    assert score.as_score([GraphScore(None, None, "integrity")]) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("dtype", "at_minus_5"),
    [
        ("float32", (1e-5, 1.3e-6)),
        ("float16", (1e-5, 1e-3)),
        ("bfloat16", (1e-5, 1.6e-2)),
        ("float64", (1e-7, 1e-7)),
        ("complex64", (1e-5, 1.3e-6)),
        ("complex32", (1e-5, 1e-3)),
        ("int64", (0, 0)),
        ("bool", (0, 0)),
    ],
)
def test_tolerances_meet_the_tables_reference_points(dtype, at_minus_5):
    atol, rtol = score.tolerance(dtype, -5)
    assert atol == pytest.approx(at_minus_5[0], rel=0.02)
    assert rtol == pytest.approx(at_minus_5[1], rel=0.02)
    assert score.tolerance(dtype, 0) == ((1, 1) if any(at_minus_5) else (0, 0))
    assert score.tolerance(dtype, 4) == score.tolerance(dtype, 1)


# GraphNet Tables 3-6: alpha beta lambda eta gamma ES(t)
TABLES = """
1.000 1.000 0.000 0.000 0.100 0.100|1.441 1.000 0.009 0.000 0.100 0.103|1.321 0.858 0.575 0.049 0.100 0.442
1.284 0.878 0.953 0.050 0.100 1.139|1.282 0.878 0.962 0.049 0.100 1.165|1.278 0.878 0.991 0.048 0.100 1.248
1.278 0.878 0.991 0.048 1.000 1.276|0.981 0.927 0.010 0.800 0.100 0.102|1.038 0.927 0.013 0.615 0.100 0.103
1.170 0.840 0.029 0.321 0.100 0.107|1.175 0.840 0.030 0.310 0.100 0.108|1.344 0.822 0.423 0.064 0.100 0.300
1.342 0.817 0.930 0.046 0.100 1.118|1.345 0.817 0.933 0.046 0.100 1.129|1.348 0.817 0.941 0.045 0.100 1.156
1.354 0.818 0.963 0.045 0.100 1.229|1.360 0.818 0.975 0.045 0.100 1.275|1.363 0.818 0.977 0.044 0.100 1.284
1.363 0.818 0.977 0.044 1.000 1.353|1.056 0.917 0.054 0.739 0.100 0.114|1.056 0.920 0.080 0.529 0.100 0.121
1.117 0.906 0.228 0.216 0.100 0.173|1.137 0.906 0.526 0.129 0.100 0.359|1.131 0.915 0.732 0.109 0.100 0.591
1.125 0.912 0.892 0.105 0.100 0.866|1.123 0.911 0.939 0.105 0.100 0.969|1.122 0.911 0.965 0.105 0.100 1.031
1.121 0.910 0.981 0.105 0.100 1.072|1.122 0.910 0.993 0.104 1.000 1.121|0.949 0.825 0.345 0.618 0.100 0.217
0.954 0.829 0.404 0.623 0.100 0.249|0.957 0.821 0.447 0.609 0.100 0.274|0.984 0.819 0.605 0.552 0.100 0.399
1.006 0.814 0.766 0.505 0.100 0.586|1.030 0.815 0.882 0.472 0.100 0.783|1.028 0.815 0.886 0.474 0.100 0.788
1.028 0.815 0.887 0.473 0.100 0.790|1.028 0.815 0.887 0.473 1.000 1.025
"""
ROWS = [[float(x) for x in row.split()] for row in TABLES.replace("\n", "|").split("|") if row.strip()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row)))
def test_graphnet_tables_are_reproduced_to_print_precision(row):
    # Each printed term stands for an interval of half a unit in its last place; ES must meet the printed ES.
    half = 0.0005
    *terms, printed = row
    corners = itertools.product(*[(max(x - half, 0.0), x + half) for x in terms])
    values = [es_from_macro(Macro(*corner), p=0.0) for corner in corners]
    assert min(values) - half <= printed <= max(values) + half
