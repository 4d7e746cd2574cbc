"""Plans are untrusted data: what is wrong is refused in one line, and nothing crashes the check."""

import copy
import json

import handmade as h
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from passagent.plan import arguments as a
from passagent.plan import check, memory
from passagent.plan import model as m
from passagent.plan import values as v
from passagent.plan.check import PlanError
from passagent.plan.replay import Replay

PLANS = [h.everything(), h.tuned(), h.on_gpu(), h.convolution()]


@pytest.mark.parametrize("plan", PLANS)
def test_honest_plans_pass(plan):
    assert h.read(plan.canonical()) == plan


def changed(plan, **fields):
    return plan.model_copy(update=fields)


def with_value(plan, number, /, **fields):
    values = list(plan.values)
    values[number] = values[number].model_copy(update=fields)
    return changed(plan, values=tuple(values))


def with_step(plan, number, /, **fields):
    steps = list(plan.steps)
    steps[number] = steps[number].model_copy(update=fields)
    return changed(plan, steps=tuple(steps))


def with_argument(plan, number, position, argument):
    args = list(plan.steps[number].args)
    args[position] = argument
    return with_step(plan, number, args=tuple(args))


EVERYTHING, GPU, CONVOLUTION = h.everything(), h.on_gpu(), h.convolution()
_READ = CONVOLUTION.steps[0].arguments
WRONG = {
    "no operator": (with_step(CONVOLUTION, 0, operator="os::system.default"), "operator"),
    "an operator that torch does not have": (
        with_step(CONVOLUTION, 0, operator="aten::convolute.default"),
        "calls aten::convolute.default, which this torch does not have",
    ),
    "an operator that draws": (
        with_step(CONVOLUTION, 0, operator="aten::bernoulli.default"),
        "aten.bernoulli draws random numbers",
    ),
    "an operator in place": (
        with_step(CONVOLUTION, 0, operator="aten::relu_.default"),
        "aten.relu_ writes into a tensor that exists",
    ),
    "an operator that only allocates": (
        with_step(CONVOLUTION, 0, operator="aten::empty_like.default"),
        "aten.empty_like computes nothing",
    ),
    "an operator that reads a file": (
        with_step(CONVOLUTION, 0, operator="aten::from_file.default"),
        "aten.from_file computes from no tensor",
    ),
    "a result that a step makes": (
        with_step(CONVOLUTION, 0, values=(4,)),
        "allocates value 4, which is made",
    ),
    "a result that is given": (with_step(CONVOLUTION, 0, values=(2,)), "computes value 2, which is made"),
    "a result made twice": (
        changed(CONVOLUTION, steps=(CONVOLUTION.steps[0], *CONVOLUTION.steps)),
        "computes value 3, which is made already",
    ),
    "an operator on what it makes": (
        with_step(CONVOLUTION, 0, arguments=(h.value(3), *_READ[1:])),
        "uses value 3 before it is made",
    ),
    "view beyond its memory": (with_value(EVERYTHING, 4, offset=17), "value 4 is a view of bytes 68 to 132"),
    "view before its memory": (with_value(EVERYTHING, 4, offset=-1), "value 4 is a view of bytes -4"),
    "view by its strides": (with_value(EVERYTHING, 8, stride=(28, 2)), "value 8 is a view of bytes"),
    "view of a wider dtype": (with_value(EVERYTHING, 4, dtype="float64"), "value 4 is a view of bytes"),
    "view elsewhere": (with_value(EVERYTHING, 4, device="cuda"), "value 4 is on cuda"),
    "memory": (with_value(EVERYTHING, 9, shape=(1 << 41, 8)), "at most 2\\*\\*40"),
    "sum of memory": (
        changed(EVERYTHING, values=(*EVERYTHING.values, *[h.made(shape=(1 << 37,))] * 2)),
        "the plan allocates",
    ),
    "constant of another size": (
        with_value(EVERYTHING, 6, shape=(3,), stride=(1,)),
        "value 6 is no contiguous",
    ),
    "constant with a gap": (with_value(EVERYTHING, 6, stride=(2,)), "value 6 is no contiguous"),
    "word beyond a table": (
        with_value(EVERYTHING, 7, addresses=(v.ConstantAddress(word=2, value=0, offset=0),)),
        "no word of 64 bits",
    ),
    "address beyond a value": (
        with_value(EVERYTHING, 7, addresses=(v.ConstantAddress(word=0, value=0, offset=129),)),
        "129 bytes from the start of value 0",
    ),
    "not made": (changed(EVERYTHING, steps=EVERYTHING.steps[1:]), "uses value 2 before it is made"),
    "made twice": (changed(EVERYTHING, steps=(h.m.Alloc(value=2), *EVERYTHING.steps)), "made already"),
    "an input made": (with_step(EVERYTHING, 0, value=0), "allocates value 0"),
    "an input not given": (
        changed(EVERYTHING, inputs=EVERYTHING.inputs[1:]),
        "value 0 is an input that no call",
    ),
    "fill of another type": (
        with_step(EVERYTHING, 1, number=a.ComplexArg(real="inf", imag="inf")),
        "is no float32",
    ),
    "fill of a constant": (with_step(EVERYTHING, 1, value=6), "writes value 6, a constant"),
    "fill of an expanded": (with_value(EVERYTHING, 8, stride=(0, 2)), "elements share memory"),
    "copy of another shape": (with_step(EVERYTHING, 10, source=4), "another shape or dtype"),
    "no output": (changed(EVERYTHING, steps=EVERYTHING.steps[:10]), "value 5, which no step writes"),
    "constant output": (changed(EVERYTHING, result=h.value(6)), "returns value 6, a constant"),
    "number for a pointer": (
        with_argument(EVERYTHING, 5, 0, h.number(4096)),
        "a int for a parameter of type 'float\\*'",
    ),
    "address for a pointer": (
        with_argument(EVERYTHING, 5, 0, a.AddressArg(value=0, offset=0)),
        "a address for a parameter",
    ),
    "pointer to another dtype": (with_argument(EVERYTHING, 5, 0, h.value(7)), "argument 0 of add: a value"),
    "too few arguments": (
        with_step(EVERYTHING, 5, args=EVERYTHING.steps[5].args[:3]),
        "3 arguments; it has 4",
    ),
    "a grid for C++": (with_step(EVERYTHING, 5, grid=(2, 1, 1)), "C\\+\\+ has none"),
    "a block for C++": (with_step(EVERYTHING, 5, block=(2, 1, 1)), "only CUDA C\\+\\+"),
    "a grid that is too high": (with_step(GPU, 1, grid=(1, 65536, 1)), "the grid"),
    "clusters beyond the grid": (
        with_step(h.on_gpu(h.triton(options=m.Options(num_ctas=4))), 1, grid=(1 << 29, 1, 1)),
        "with the grid .536870912, 1, 1.; CUDA takes",
    ),
    "an int that is too long": (with_argument(GPU, 1, 3, h.number(1 << 31)), "argument n of add: a int"),
    "memory of the host": (with_value(GPU, 0, device="cpu"), "not on cuda"),
    "nothing launched": (with_step(GPU, 1, grid=(0, 1, 1)), "value 2, which no step writes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_with_a_reason(name):
    plan, reason = WRONG[name]
    with pytest.raises(PlanError, match=reason) as caught:
        h.read(plan.canonical())
    assert "\n" not in str(caught.value)


def test_no_plan_at_all():
    for text in (b"", b"{}", b"[" * 10_000, b'{"version": 2}', EVERYTHING.canonical()[:-1]):
        with pytest.raises(PlanError, match="no plan: "):
            h.read(text)


def test_what_only_one_alternative_makes_is_no_output():
    plan = h.tuned()
    alternatives = [m.Alternative(name="a", steps=(plan.steps[0],)), m.Alternative(name="b", steps=())]
    steps = (m.Choice(of=tuple(alternatives)), *plan.steps[2:])
    with pytest.raises(PlanError, match="uses value 1 before it is made"):
        check.check(changed(plan, steps=steps))


def leaves(data, path=()):
    """Paths to all fields of a plan as JSON, but texts of kernels and bytes of constants."""
    if isinstance(data, dict):
        for key, item in data.items():
            if key not in ("kernels", "constants", "version"):
                yield from leaves(item, (*path, key))
    elif isinstance(data, list):
        yield path
        for position, item in enumerate(data):
            yield from leaves(item, (*path, position))
    else:
        yield path


def mutated(plan, path, value):
    """The text of a plan with another value at one place."""
    data = json.loads(plan.canonical())
    at = data
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    return json.dumps(data)


def reasonable(draw, old):
    """Another value for a field: near the old one, or of another kind."""
    numbers = (
        st.integers(-10, 40) | st.integers(-(1 << 65), 1 << 65) | st.sampled_from([1 << 31, 1 << 40, 1 << 62])
    )
    if isinstance(old, list) and draw(st.booleans()):
        again = copy.deepcopy(old)
        return draw(st.sampled_from([again * 2, again[1:], again[::-1], [*again, 0], []]))
    if type(old) is int and draw(st.booleans()):
        return draw(numbers)
    return draw(
        numbers | st.none() | st.booleans() | st.text(max_size=5) | st.floats() | st.just([]) | st.just({})
    )


@st.composite
def mutations(draw, plans):
    plan = draw(st.sampled_from(plans))
    data = json.loads(plan.canonical())
    part = draw(st.sampled_from(["values", "steps", "inputs", "result"]))
    views = [n for n, value in enumerate(plan.values) if value.kind == "view"]
    if part == "values" and views and draw(st.booleans()):  # where most can go wrong
        number = draw(st.sampled_from(views))
        path = draw(st.sampled_from(list(leaves(data[part][number], (part, number)))))
    else:
        path = draw(st.sampled_from(list(leaves(data[part], (part,)))))
    old = data
    for part in path:
        old = old[part]
    return mutated(plan, path, reasonable(draw, old))


@settings(max_examples=300)
@given(mutations(PLANS))
def test_a_plan_with_one_field_changed_is_refused_or_stays_within_bounds(text):
    try:
        plan = h.read(text)
    except PlanError:
        return
    for number, value in enumerate(plan.values):
        if value.kind == "view" and 0 not in value.shape:
            base = plan.values[value.of]
            size = getattr(torch, value.dtype).itemsize
            last = sum((n - 1) * step for n, step in zip(value.shape, value.stride, strict=True))
            assert value.offset * size >= 0
            assert (value.offset + last + 1) * size <= memory.span(base), number
    for step in m.flat(plan.steps):
        if step.step == "launch":
            kernel = plan.kernels[step.kernel]
            assert len(step.args) == len(kernel.signature)
            for argument, parameter in zip(step.args, kernel.signature, strict=True):
                assert (argument.kind == "value") == ("*" in parameter.type)


COPIES = h.plan(
    [h.value(0), h.value(1)],
    [h.given(), h.given(), h.made(), h.view(0, 8, shape=(2, 8)), h.view(1, 3, shape=(2, 8), stride=(16, 1)),
     h.view(2, 1, shape=(3, 7), stride=(8, 1), dtype="int32"), h.view(0, 2, shape=(8, 4), stride=(1, 7))],
    [m.Alloc(value=2), m.Copy(value=3, source=4), m.Fill(value=2, number=h.real(1)),
     m.Fill(value=5, number=h.number(-7)), m.Fill(value=6, number=h.real(3))],
    h.a.TupleArg(items=(h.value(2), h.value(3), h.value(6))),
)  # fmt: skip


@settings(max_examples=300)
@given(mutations([COPIES]))
def test_a_forged_plan_never_writes_beside_its_tensors(text):
    try:
        plan = h.read(text)
        if sum(memory.span(value) for value in plan.values) > 1 << 20:
            return
        replay = Replay(plan, {})
    except PlanError:
        return
    zones, inputs = [], []
    for value in plan.values[:2]:
        zone = torch.full((3 * 4096,), 0x5A, dtype=torch.uint8)
        inside = zone[4096 : 4096 + memory.span(value)].view(memory.dtype_of(value))
        zones.append((zone, memory.span(value)))
        inputs.append(inside.as_strided(value.shape, value.stride))
    try:
        replay.call(*[inputs[argument.value] for argument in plan.inputs])
    except TypeError:
        return  # other inputs than these
    for zone, size in zones:
        assert (zone[:4096] == 0x5A).all()
        assert (zone[4096 + size :] == 0x5A).all()


def test_float_beyond_64_bits_is_not_well_formed():
    text = EVERYTHING.canonical().decode().replace((0.5).hex(), "0x1.0p+9999")
    with pytest.raises(PlanError, match="should match pattern"):
        h.read(text)


def test_check_that_raises_anything_refuses_the_plan():
    """A number that no schema has seen stands for what nobody has thought of."""
    beyond = a.FloatArg.model_construct(kind="float", value="0x1.0p+9999")
    step = m.Fill.model_construct(step="fill", value=2, number=beyond)
    with pytest.raises(PlanError, match="cannot be checked: OverflowError"):
        check.check(changed(EVERYTHING, steps=(EVERYTHING.steps[0], step, *EVERYTHING.steps[1:])))


def looking_up(launches, words=1 << 14):
    """A plan of so many launches that are given a table of addresses."""
    table = bytes(8 * words)
    addresses = tuple(v.ConstantAddress(word=n, value=0, offset=0) for n in range(words))
    digest = h.hashlib.sha256(table).hexdigest()
    constant = h.made(v.ConstantValue, (words,), dtype="int64", data=digest, addresses=addresses)
    call = h.launch(h.GATHERING, h.value(1), h.value(0), h.value(2), h.number(1))
    steps = [m.Alloc(value=2), *[call] * launches]
    return h.plan([h.value(0)], [h.given(), constant, h.made()], steps, h.value(2), [h.GATHERING], [table])


def choosing(choices, many=1 << 12):
    """A plan of so many tensors, and of choices between a thousand alternatives that do nothing."""
    empty = m.Choice(of=(m.Alternative(name="", steps=()),) * 1000)
    steps = [m.Alloc(value=n) for n in range(1, many)] + [empty] * choices
    return h.plan([h.value(0)], [h.given(), *[h.made(shape=(1,))] * (many - 1)], steps, h.value(0))


@pytest.mark.parametrize("plan", [looking_up(100), choosing(10)], ids=["addresses", "alternatives"])
def test_plan_whose_check_would_take_minutes_is_refused(plan):
    with pytest.raises(PlanError, match="steps to check"):
        check.check(plan)


def test_check_of_several_plans_counts_their_steps_together():
    steps = check.Steps()
    check.check(looking_up(15), steps)
    with pytest.raises(PlanError, match="steps to check"):
        check.check(looking_up(15), steps)
