"""Arithmetic on sizes and on expressions, by Python's operators."""

import pytest

from passagent.expert.lower.expressions import Trace
from passagent.expert.lower.symbolic_sizes import Unsupported, fixed


def test_constant_sizes_are_computed_and_others_are_named():
    (n,) = Trace("cpu").input((12,), "float32").shape
    assert [str(size) for size in (fixed(3) * 4, n + 0, n + 2, n - n, n * 2)] == [
        "12", "s0[0]", "(s0[0] + 2)", "(s0[0] - s0[0])", "(s0[0] * 2)"
    ]  # fmt: skip


def test_a_division_of_sizes_is_relied_on():
    trace = Trace("cpu")
    (n,) = trace.input((12,), "float32").shape
    assert str(n // 4) == "(s0[0] // 4)"
    assert list(trace.guards) == ["s0[0] % 4 == 0"]
    with pytest.raises(Unsupported, match="12 is no multiple of 5"):
        n // 5


def test_a_size_is_named_like_those_that_it_equals():
    trace = Trace("cpu")
    a, b = trace.input((12, 12), "float32").shape
    trace.equal(a, b)
    assert str(a) == str(b)
    assert trace.constant(b) == 12
    assert str(a) == "12"


def test_constants_of_indices_are_computed_and_those_of_values_are_not():
    trace = Trace("cpu")
    index, value = trace.index(trace.axis(fixed(4))), trace.input((4,), "float32").expr
    assert index * 1 + 0 is index
    assert (trace.integer(3) - 1).data == 2
    assert (index // 2).data == "index_div"
    assert (value + 0.0).data == "add"
    assert (1.0 / value).args == (trace.const(1.0, "float32"), value)
