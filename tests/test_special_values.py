"""Passes that compute only what random inputs show are wrong; those that compute all of the graph are not."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace

import pytest
import torch
from cases import TaskText, referees_of, write_task

from passagent.config import EvaluatorConfig
from passagent.evaluator import score
from passagent.evaluator.reference import keeping, reference
from passagent.evaluator.reference.drawing import SET_KINDS
from passagent.evaluator.result import MANIFEST, Candidate
from passagent.evaluator.runner.process import Worker
from passagent.evaluator.runner.worker_messages import Audit, Float64, Room, Run
from passagent.evaluator.timing import clocks, timing, turns
from passagent.tasks.inputs import generator_of
from passagent.tasks.meta import TensorMeta
from passagent.tasks.special import KINDS, exchanged, step_bits

CONFIG = EvaluatorConfig(budget_s=1e-6)
ROWS, COLUMNS = 32, 24
F32, I64 = "float32", "int64"
PASS = '''
import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel("""
#include <cmath>
#include <algorithm>
template <class Out, class In, class Other>
void f(Out* out, const In* x, const Other* y, int64_t rows, int64_t n) {{
  for (int64_t row = 0; row < rows; ++row, x += n, y += n) {{
    {kernel}
  }}
}}""", "f")


def pattern({args}):
    return {expression}


def replacement_args({args}):
    return ({args}, )


@torch.fx.wrap
def fused({args}):
    out = torch.empty({shape}, dtype=torch.{dtype}, device=a.device)
    KERNEL(out, a, {other}, a.shape[0], a.shape[1])
    return out


def replacement_func():
    return fused
'''


@dataclass(frozen=True)
class Graph:
    """A graph of one or two matrices, and kernels for a row of it: `x`, `y`, `n`, and `out[row * n + i]`."""

    expression: str
    right: str
    wrong: str
    dtype: str
    inputs: tuple[str, ...] = (F32,)
    recorded: tuple[str, ...] = ()
    by_row: bool = False

    def task(self) -> TaskText:
        names = {"a": "in_0", "b": "in_1"}
        body = re.sub(r"\b[ab]\b", lambda found: names[found[0]], f"return ({self.expression},)")
        described = [([ROWS, COLUMNS], dtype) for dtype in self.inputs]
        if self.recorded:
            described[0] = (*described[0], list(self.recorded))
        return TaskText(body, [described])

    def candidate(self, kernel: str) -> Candidate:
        each = f"for (int64_t i = 0; i < n; ++i) out[row * n + i] = {kernel};"
        args = ", ".join("ab"[: len(self.inputs)])
        text = PASS.format(
            args=args,
            expression=self.expression,
            kernel=kernel if self.by_row else each,
            shape="a.shape[0]" if self.by_row and "row * n" not in kernel else "a.shape",
            dtype=self.dtype,
            other=args[-1],
        )
        return Candidate({"P.py": text, MANIFEST: json.dumps(["P"])})


SUM = """In top = x[0]; double sum = 0;
    for (int64_t i = 0; i < n; ++i) top = %s;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - top);
    for (int64_t i = 0; i < n; ++i) out[row * n + i] = std::exp(x[i] - top) / sum;"""
GREATEST = """In top = x[0];
    for (int64_t i = 1; i < n && top == top; ++i) top = %s ? x[i] : top;
    out[row] = top;"""
MEAN = """double sum = 0, count = 0;
    for (int64_t i = 0; i < n; ++i) sum += double(x[i]) * y[i], count += x[i];
    out[row] = sum / %s;"""
GRAPHS = {
    "isfinite": Graph("torch.isfinite(a)", "std::isfinite(x[i])", "true", "bool"),
    "padding": Graph(
        "a.ne(1)", "x[i] != 1", "true", "bool", (I64,), ("min_val = 0", "max_val = 1099511627775")
    ),
    "threshold": Graph("a.gt(1000000.0)", "x[i] > 1000000.0f", "false", "bool"),
    "long": Graph("a.long()", "int64_t(x[i])", "int32_t(x[i])", I64),
    "quantised": Graph(
        "a.round().clamp(-128, 127).to(torch.int8)",
        "int8_t(std::min(std::max(std::nearbyint(x[i]), -128.0f), 127.0f))",
        "int8_t(int(std::nearbyint(x[i])))",
        "int8",
    ),
    "log2": Graph(
        "a.abs().log2().floor()",
        "std::floor(std::log2(std::abs(x[i])))",
        "std::floor(std::log(std::abs(x[i])) * 1.4426944f)",
        F32,
    ),
    "small_exponential": Graph(
        "a.exp().log()", "std::log(std::exp(x[i]))", "std::log(x[i] < -87.3f ? 0.0f : std::exp(x[i]))", F32
    ),
    "maximum": Graph(
        "a.amax(-1)",
        GREATEST % "!(x[i] <= top)",
        GREATEST % "x[i] > top",
        F32,
        by_row=True,
    ),
    "softmax": Graph("a.softmax(-1)", SUM % "std::max(top, x[i])", SUM % "0", F32, by_row=True),
    "masked_mean": Graph(
        "(a * b).sum(-1) / a.sum(-1).clamp(min=1)",
        MEAN % "std::max(count, 1.0)",
        MEAN % "count",
        F32,
        (I64, F32),
        ("data = " + repr([1] * (ROWS * COLUMNS)),),
        by_row=True,
    ),
}


@pytest.fixture(scope="module")
def referees(forks):
    with referees_of(CONFIG, forks) as on:
        yield on


@pytest.mark.parametrize("name", GRAPHS)
def test_pass_for_random_values_only_is_a_wrong_result(name, referees, tmp_path):
    graph = GRAPHS[name]
    task = write_task(tmp_path / name, graph.task())
    right = referees("cpu").evaluate(task, graph.candidate(graph.right))
    assert right.status == "ok", (right.error, right.violations)
    assert right.protocol["special_values"]
    for _ in range(8):  # what shows a pass up is drawn by chance, for each of its evaluations
        wrong = referees("cpu").evaluate(task, graph.candidate(graph.wrong))
        if wrong.status != "ok":
            break
    assert wrong.status == "wrong_result"
    worst = wrong.graphs[0].worst
    where = f"output 0 at {worst.index} is {worst.got!r}, eager's is {worst.expected!r}, for inputs "
    assert wrong.error.startswith(where)
    assert wrong.error.removeprefix(where) in SET_KINDS
    forgiven = {t: 1.0 if int(t) >= 1 else score.B for t in wrong.es}
    assert wrong.es == pytest.approx(forgiven)  # as an error of accuracy is


@pytest.fixture
def asked(monkeypatch):
    """The requests that workers get from here on."""
    requests, ask = [], Worker.ask

    def asking(self, request, *args):
        requests.append(request)
        return ask(self, request, *args)

    monkeypatch.setattr(Worker, "ask", asking)
    return requests


def test_eager_is_tried_in_other_ways_only_where_a_value_differs_from_its_own(referees, tmp_path, asked):
    graph = GRAPHS["isfinite"]
    task = write_task(tmp_path / "isfinite", graph.task())
    assert referees("cpu").evaluate(task, graph.candidate(graph.right)).status == "ok"
    assert not any(isinstance(request, Room) for request in asked)
    assert referees("cpu").evaluate(task, graph.candidate(graph.wrong)).status == "wrong_result"
    assert sum(isinstance(request, Room) for request in asked) == 1


def test_slow_calls_are_32_for_a_first_candidate_of_a_search_and_20_for_a_later_one(
    referees, tmp_path, asked, monkeypatch
):
    """Both sides' and those in float64 are counted."""
    monkeypatch.setattr(reference, "_SLOW_S", -1.0)
    monkeypatch.setattr(timing, "SLOW_S", 0.0)
    monkeypatch.setattr(turns, "BLOCK_S", 0.0)
    monkeypatch.setattr(clocks, "suspicious", lambda *_: False)  # such short calls are
    graph = GRAPHS["isfinite"]
    task = write_task(tmp_path / "isfinite", graph.task())
    for text, most in ((graph.right, 32), (f"!!{graph.right}", 20)):
        asked.clear()
        assert referees("cpu").evaluate(task, graph.candidate(text), 0.01).status == "ok"
        assert sum(map(calls_of, asked)) <= most


def test_large_graph_is_computed_in_float64_where_a_pass_differs_from_eager(
    referees, tmp_path, asked, monkeypatch
):
    """Eager rounds the products to float16, and the pass does not."""
    monkeypatch.setattr(keeping, "SMALL", 100)
    row = """float top = 100.0f * float(x[0]), sum = 0;
    for (int64_t i = 0; i < n; ++i) top = std::max(top, 100.0f * float(x[i]));
    for (int64_t i = 0; i < n; ++i) sum += std::exp(100.0f * float(x[i]) - top);
    for (int64_t i = 0; i < n; ++i) out[row * n + i] = std::exp(100.0f * float(x[i]) - top) / sum;"""
    graph = Graph("(a * 100).softmax(-1)", row, "", "float16", ("float16",), ("std = 1.0",), by_row=True)
    task = write_task(tmp_path / "steep", graph.task())
    result = referees("cpu").evaluate(task, graph.candidate(graph.right))
    assert result.status == "ok" and result.graphs[0].passes_from_t > score.STRICT_T
    assert any(isinstance(request, Float64) for request in asked)
    graph = replace(graph, right=row.replace("100.0f", "50.0f"))
    assert referees("cpu").evaluate(task, graph.candidate(graph.right)).status == "wrong_result"


def calls_of(request):
    match request:
        case Run():
            return len(request.windows) + (request.settle is not None)
        case Audit():
            return 1 + len(request.sets)
        case Float64():
            return 1
        case Room():
            return 10
    return 0


def test_result_says_that_no_special_values_were_drawn(forks, tmp_path):
    graph = GRAPHS["isfinite"]
    task = write_task(tmp_path / "isfinite", graph.task())
    with referees_of(CONFIG.model_copy(update={"special_values": False}), forks) as others:
        result = others("cpu").evaluate(task, graph.candidate(graph.wrong))
    assert result.status == "ok"
    assert result.protocol["special_values"] is False


META = TensorMeta("in_0", "x", (64, 32), "float32", "cpu", 0.0, 1.0, role="")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_sets_of_floats_hold_their_kind_of_values_and_ordinary_rows(dtype):
    meta, ordinary = replace(META, dtype=dtype), torch.randn(64, 32).to(getattr(torch, dtype))
    finite, others, ends, single, far = (
        exchanged(meta, ordinary, kind, [-3.4e38, 0.3, 7], generator_of(1, kind, "in_0")) for kind in KINDS
    )
    limits = torch.finfo(ordinary.dtype)
    assert {0.3, 7.0} <= {round(value, 2) for value in finite.flatten().tolist()}
    assert finite[finite == finite[:, :1]].numel() > 5 * 32  # rows of one value
    assert others.isnan().any() and others.isposinf().any() and others.isneginf().all(-1).any()
    assert {limits.max, limits.tiny, limits.tiny / 4} <= {abs(value) for value in ends.flatten().tolist()}
    assert ends.isfinite().all()
    assert 1 <= int((single != ordinary).sum()) <= 64
    assert int((far > 10 * ordinary.abs().max()).sum()) == 1 == int((far < -10 * ordinary.abs().max()).sum())
    assert int((far != ordinary).sum()) == 2 and far.isfinite().all()
    for drawn in (finite, others):
        assert int((drawn == ordinary).all(-1).sum()) >= 12


@pytest.mark.parametrize(("dtype", "mean", "std"), [("float16", 0.0, 50.0), ("float32", -1e38, 1e38)])
def test_far_values_of_a_wide_input_are_finite(dtype, mean, std):
    meta, ordinary = (
        replace(META, dtype=dtype, mean=mean, std=std),
        torch.zeros(64, 32).to(getattr(torch, dtype)),
    )
    far = exchanged(meta, ordinary, KINDS[4], [], generator_of(1, KINDS[4], "in_0"))
    assert far.isfinite().all() and 1 <= int((far != 0).sum()) <= 2


@pytest.mark.parametrize(
    ("meta", "held"),
    [
        (replace(META, dtype="int64", role="index", min_val=0, max_val=250001), {0, 1, 250001}),
        (replace(META, dtype="int64", role="any"), {-(2**63), 2**63 - 1, 2**31, -1, 1}),
        (replace(META, dtype="uint8", role="any"), {0, 255, 1}),
        (replace(META, dtype="bool"), {False, True}),
        (replace(META, dtype="float32", levels=(0.0, -math.inf)), {0.0, -math.inf}),
    ],
)
def test_sets_of_integers_and_masks_hold_their_ends_and_rows_of_one_value(meta, held):
    ordinary = torch.zeros(64, 32, dtype=getattr(torch, meta.dtype))
    drawn = exchanged(meta, ordinary, KINDS[0], [1, 0.5], generator_of(1, KINDS[0], "in_0"))
    assert held <= set(drawn.flatten().tolist())
    assert {drawn[row, 0].item() for row in range(64) if (drawn[row] == drawn[row, 0]).all()} >= {1, 0} & held


def test_nudged_floats_move_by_one_unit_but_for_zero_and_what_is_not_finite():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        limits = torch.finfo(dtype)
        kept = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan], dtype=dtype)
        assert torch.equal(step_bits(kept, 1).nan_to_num(5.0), kept.nan_to_num(5.0))
        assert step_bits(torch.tensor([limits.max], dtype=dtype), 1).isinf()
        ones = torch.tensor([1.0, -1.0], dtype=dtype)
        assert torch.equal(step_bits(ones, 1), ones * (1 + limits.eps))
