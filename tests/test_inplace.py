"""What may be left in an input that eager writes into: what was there, or what an operator left there."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from passagent.evaluator.correctness.inplace import States, states_of

NAN = float("nan")


def states(before, *after, dtype=torch.float32, due=()) -> States:
    values = [torch.tensor(v, dtype=dtype) for v in after]
    return States(0, torch.tensor(before, dtype=dtype), values, list(due) or [False] * len(after))


def test_elements_count_as_eagers_last_where_they_are_in_one_of_its_states():
    known = states([1.0, NAN, 3.0, 4.0], [2.0, 2.0, 6.0, 8.0], [0.0, 0.0, -6.0, -8.0])
    assert known.judged(None).tolist() == [0.0, 0.0, -6.0, -8.0]
    left = torch.tensor([1.0, NAN, 6.0 + 1e-6, 8.5])
    assert known.judged(left).tolist() == [0.0, 0.0, -6.0, 8.5]


def test_what_was_there_before_is_told_exactly():
    known = states([1.0, 1.0], [5.0, 5.0])
    assert known.judged(torch.tensor([1.0 + 1e-6, 1.0]))[0] != 5.0


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.complex64], ids=str)
def test_inputs_of_every_kind_are_judged(dtype):
    known = states([0, 1, 0], [1, 1, 0], [1, 0, 1], dtype=dtype)
    left = torch.tensor([0, 0, 0], dtype=dtype)
    assert known.judged(left).equal(torch.tensor([1, 0, 1], dtype=dtype))


def test_another_shape_or_dtype_is_handed_on_to_be_compared():
    known = states([0.0, 1.0], [1.0, 1.0])
    for left in (torch.zeros(3), torch.zeros(2, dtype=torch.int32)):
        assert known.judged(left) is left


def test_the_states_are_taken_after_each_operator_also_through_views():
    def function(x, y):
        x.add_(y)
        x.view(-1)[:1].mul_(3)
        return torch.relu_(x) + y.clone().add_(1)

    x, y = torch.tensor([1.0, -4.0]), torch.ones(2)
    found, due = states_of(fx.symbolic_trace(function), [x, y], [x, y])
    assert due == [[True, True, False], [True]]  # statements, a value that is used, and no write at all
    assert [state.tolist() for state in found[0]] == [[2.0, -3.0], [6.0, -3.0], [6.0, 0.0]]
    assert [state.tolist() for state in found[1]] == [[1.0, 1.0]]


@pytest.mark.parametrize(
    "write",
    [
        lambda cache, x: cache.copy_(x),
        lambda cache, x: cache.index_put_((torch.arange(2),), x),
        lambda cache, x: cache.__setitem__(slice(0, 2), x),
        lambda cache, x: cache.narrow(0, 0, 2).copy_(x),
        lambda cache, x: cache.add_(x),
    ],
)
def test_a_write_whose_value_nobody_uses_must_be_made(write):
    class Model(torch.nn.Module):
        def forward(self, cache, x):
            write(cache, x)
            return x * 2

    cache, x = torch.zeros(2), torch.ones(2)
    given = cache.clone()
    (after,), (due,) = states_of(fx.symbolic_trace(Model()), [given, x], [given])
    assert due == [True] and after[0].equal(x)
    known = States(0, cache, after, due)
    assert known.judged(None).equal(cache) and known.judged(cache).equal(cache)  # to be held against x
    assert known.judged(x).equal(x)


def test_elements_that_a_due_write_leaves_alone_may_stay_in_an_earlier_state():
    known = states([1.0, 1.0], [2.0, 2.0], [2.0, 7.0], due=(False, True))
    assert known.judged(torch.tensor([1.0, 7.0])).tolist() == [2.0, 7.0]
    assert known.judged(torch.tensor([2.0, 2.0])).tolist() == [2.0, 2.0]  # to be held against 2, 7
