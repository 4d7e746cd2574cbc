"""The data model of plans: JSON and back is exact, and what is not in the schema is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from passagent.plan import arguments
from passagent.plan.arguments import FloatArg, IntArg, TupleArg, ValueArg
from passagent.plan.model import Alloc, Alternative, Choice, Launch, NativeKernel, Parameter, Plan
from passagent.plan.values import InputValue, MadeValue

KERNEL = NativeKernel(
    kind="cpp", text="void f(float* x) {}", entry="f", signature=(Parameter(type="float*"),)
)
TENSOR = {"shape": (2, 3), "stride": (3, 1), "dtype": "float32", "device": "cpu"}


def plan(**changed: object) -> Plan:
    launch = Launch(kernel=KERNEL.digest(), args=(ValueArg(value=1),))
    fields: dict = {
        "inputs": (ValueArg(value=0), FloatArg(value=(0.1).hex())),
        "values": (InputValue(**TENSOR), MadeValue(**TENSOR)),
        "steps": (Alloc(value=1), Choice(of=(Alternative(name="BLOCK: 8", steps=(launch,)),))),
        "result": TupleArg(items=(ValueArg(value=1),)),
        "kernels": {KERNEL.digest(): KERNEL},
    }
    return Plan(**fields | changed)


@given(st.recursive(
    st.one_of(
        st.integers(-(1 << 63), (1 << 64) - 1).map(lambda n: IntArg(value=n)),
        st.floats().map(lambda x: FloatArg(value=x.hex())),
        st.text(max_size=20).map(lambda s: arguments.StrArg(value=s)),
        st.builds(arguments.ComplexArg, real=st.floats().map(float.hex), imag=st.floats().map(float.hex)),
        st.sampled_from([arguments.NoneArg(), arguments.EllipsisArg(), ValueArg(value=0)]),
        st.booleans().map(lambda b: arguments.BoolArg(value=b)),
    ),
    lambda inner: st.lists(inner, max_size=4).map(lambda items: TupleArg(items=tuple(items))),
    max_leaves=8,
))  # fmt: skip
def test_every_argument_comes_back_from_json_with_every_bit(argument):
    one = plan(inputs=(argument,))
    back = Plan.model_validate_json(one.canonical())
    assert back == one and back.digest() == one.digest()


def test_equal_plans_have_one_digest_and_others_another():
    assert plan().digest() == plan().digest()
    assert plan().digest() != plan(result=ValueArg(value=1)).digest()


def forged(**changes: object) -> str:
    return json.dumps(json.loads(plan().canonical()) | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"more": 1}, "Extra inputs are not permitted"),
        ({"version": 2}, "Input should be 1"),
        ({"result": {"kind": "value", "value": 2}}, "value 2 of 2 among the results"),
        ({"result": {"kind": "value", "value": "0"}}, "valid integer"),
        ({"result": {"kind": "address", "value": 0, "offset": 0}}, "a address among the results"),
        ({"inputs": [{"kind": "value", "value": 1}]}, "value 1 is given, but is no input"),
        ({"inputs": [{"kind": "int", "value": 1 << 64}]}, "less than"),
        ({"inputs": [{"kind": "float", "value": "__import__('os')"}]}, "match pattern"),
        ({"inputs": [{"kind": "object"}]}, "does not match any of the expected tags"),
        ({"steps": [{"step": "alloc", "value": 1 << 70}]}, "less than"),
        ({"steps": [{"step": "launch", "kernel": "0" * 64, "args": []}]}, "the plan does not hold"),
        (
            {"kernels": {key: KERNEL.model_dump(mode="json") for key in (KERNEL.digest(), "0" * 64)}},
            "the digest that it is listed by",
        ),
        ({"constants": {"0" * 64: "AAAA"}}, "the bytes that its digest says"),
    ],
)
def test_what_is_not_in_the_schema_is_refused(changes, said):
    with pytest.raises(ValidationError, match=said):
        Plan.model_validate_json(forged(**changes))


def test_nesting_without_end_is_refused():
    deep = '{"kind":"tuple","items":[' * 5000 + "]}" * 5000
    with pytest.raises(ValidationError):
        Plan.model_validate_json(forged().replace('"inputs": [', f'"inputs": [{deep},'))
