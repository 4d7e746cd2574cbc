"""The rule of precision as a table: what a pass does to a graph, by dtype, and the verdict that it gets."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from passagent.evaluator.correctness.double import in_float64, spread_of
from passagent.evaluator.correctness.precision import Expected, Fact
from passagent.evaluator.judging.agreement import judge_sets, judge_timed
from passagent.evaluator.judging.verdict import Failed, Refused
from passagent.evaluator.result import GraphResult

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
SCALE = 0.125


def product(x, w, b):
    return x @ w * SCALE + b


def quotient(x, w, b):
    return x / x.sum(-1, keepdim=True)


def wide(of):
    """The same, computed in float32 and rounded once."""
    return lambda *inputs: of(*(value.float() for value in inputs)).to(inputs[0].dtype)


def in_blocks(x, w, b):
    """The product's sum from the end, in blocks."""
    parts = torch.arange(x.shape[1] - 1, -1, -1).split(7)
    return sum(x[:, part] @ w[part] for part in parts) * SCALE + b


def narrowed(to):
    """A product of operands that are rounded first."""
    return wide(lambda x, w, b: to(x) @ to(w) * SCALE + b)


def accumulated(dtype):
    """A product whose sum is rounded after every term."""

    def of(x, w, b):
        total = torch.zeros(x.shape[0], w.shape[1])
        for k in range(x.shape[1]):
            total = (total + x[:, k, None] * w[k]).to(dtype).float()
        return total * SCALE + b

    return wide(of)


def truncated(values):
    """float32 with the ten bits of TF32, cut off."""
    return (values.contiguous().view(torch.int32) & ~0x1FFF).view(F32)


def eight_bits(values):
    """Rows of integers of eight bits, each with a scale."""
    most = values.abs().amax(-1, keepdim=True)
    return (values / most * 127).round() * most / 127


def times(factor):
    return wide(lambda x, w, b: x @ w * (SCALE * factor) + b)


def backwards(x, w, b):
    """The quotient with another order of the sum."""
    total = torch.zeros(x.shape[0], 1)
    for k in range(x.shape[1] - 1, -1, -1):
        total = total + x[:, k, None]
    return x / total


RIGHT, REDUCED, WRONG = "ok", "reduced_precision", "wrong_result"
TABLE = [
    # what the pass does, the graph, and verdicts for float32, float16 and bfloat16
    ("the same", product, product, RIGHT, RIGHT, RIGHT),
    ("in float32", product, wide(product), RIGHT, RIGHT, RIGHT),
    ("another order", product, wide(in_blocks), RIGHT, RIGHT, RIGHT),
    ("bfloat16 operands", product, narrowed(lambda x: x.to(BF16).float()), REDUCED, REDUCED, RIGHT),
    ("float16 operands", product, narrowed(lambda x: x.to(F16).float()), REDUCED, RIGHT, RIGHT),
    ("TF32 operands, cut off", product, narrowed(truncated), REDUCED, RIGHT, RIGHT),
    ("operands of eight bits", product, narrowed(eight_bits), REDUCED, REDUCED, REDUCED),
    ("float16 accumulation", product, accumulated(F16), REDUCED, REDUCED, RIGHT),
    ("bfloat16 accumulation", product, accumulated(BF16), WRONG, WRONG, WRONG),
    ("2% off", product, times(1.02), WRONG, WRONG, WRONG),
    ("1% off", product, times(1.01), WRONG, WRONG, WRONG),
    ("0.1% off", product, times(1.001), REDUCED, RIGHT, RIGHT),
    ("0.001% off", product, times(1.00001), RIGHT, RIGHT, RIGHT),
    ("without a term", product, wide(lambda x, w, b: x @ w * SCALE), WRONG, WRONG, WRONG),
    ("the same quotient", quotient, quotient, RIGHT, RIGHT, RIGHT),
    ("another order of a sum near 0", quotient, wide(backwards), RIGHT, RIGHT, RIGHT),
    ("a quotient 2% off", quotient, wide(lambda x, w, b: quotient(x, w, b) * 1.02), WRONG, WRONG, WRONG),
]


def inputs_of(dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """Inputs of a call. The sums of the first rows are near 0."""
    generator = torch.Generator().manual_seed(seed)
    x, w, b = (torch.randn(shape, generator=generator) for shape in ((48, 192), (192, 64), (64,)))
    x[:4, -1] -= x[:4].double().sum(-1).float() - 0.003
    return [value.to(dtype) for value in (x, w, b * 0.1)]


def verdict_of(graph, does, dtype: torch.dtype) -> tuple[str, str]:
    """The verdict on what a pass returns on three input sets, and its message."""
    module = SimpleNamespace(forward=graph)
    sets = [inputs_of(dtype, seed) for seed in range(3)]
    facts = [Fact(contiguous=True, device="cpu")]
    expected = [Expected([graph(*values)], facts, in_float64(module, values)) for values in sets]

    def look_closer(of_set: Expected, chosen: int) -> Expected:
        if not of_set.is_ill_conditioned:
            return of_set
        spread = spread_of(module, sets[chosen], [], seed=7)
        return Expected(of_set.eager, facts, of_set.float64, spread=spread)

    result = GraphResult(name="g", dtype=str(dtype), status="ok")
    returned = {chosen: [does(*values)] for chosen, values in enumerate(sets)}
    try:
        judge_sets(SimpleNamespace(expected=expected, kinds=[]), returned, result, look_closer, True)
    except Refused as refused:
        return refused.violations[0].rule, refused.violations[0].message
    except Failed as failed:
        return failed.status, failed.message
    return result.status, result.error or ""


@pytest.mark.parametrize(
    ("name", "graph", "does", "f32", "f16", "bf16"), TABLE, ids=[row[0] for row in TABLE]
)
def test_verdict_follows_from_error_and_dtype(name, graph, does, f32, f16, bf16):
    verdicts = {dtype: verdict_of(graph, does, dtype) for dtype in (F32, F16, BF16)}
    wanted = {F32: f32, F16: f16, BF16: bf16}
    assert {dtype: verdict for dtype, (verdict, _) in verdicts.items()} == wanted, verdicts


def test_timed_call_on_ill_conditioned_values_is_right_where_the_check_was_stricter():
    module, values = SimpleNamespace(forward=quotient), inputs_of(F32, 0)
    exact = in_float64(module, values)
    eager = Expected([quotient(*values)], [Fact(contiguous=True, device="cpu")], exact)
    spread = spread_of(module, values, [], seed=7)
    result = GraphResult(name="g", dtype="float32", status="ok", passes_from_t=-10)
    judge_timed(eager, [backwards(*values)], result, -5, lambda call: replace(call, spread=spread), True)
    assert result.status == "ok" and result.passes_from_t > -3
    stale = [backwards(*inputs_of(F32, 1))]
    with pytest.raises(Failed, match="stale or wrong values"):
        judge_timed(eager, stale, result, -5, lambda call: replace(call, spread=spread), True)


def test_message_of_reduced_precision_tells_both_figures():
    _, message = verdict_of(product, narrowed(lambda x: x.to(BF16).float()), F32)
    assert "against float64, eager's" in message
