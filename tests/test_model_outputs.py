"""What a model returns, compared with eager: every tensor, against float64, with the place and size."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

import passagent as pa
from passagent.errors import PassagentError
from passagent.packages.model_outputs import find_difference, outputs_in_float64, read_outputs
from passagent.tasks.extract.model_capture import Model

Pair = namedtuple("Pair", "left right")


@dataclass
class Returned:
    logits: torch.Tensor
    states: tuple
    loss: torch.Tensor | None = None


class Registered:
    def __init__(self, value):
        self.value = value


torch.utils._pytree.register_pytree_node(
    Registered, lambda one: ([one.value], None), lambda values, _: Registered(values[0])
)


def test_tensors_are_read_from_every_container():
    x = torch.ones(2)
    returned = Returned(x, (Pair(x, {"key": [x]}), Registered(x), 3), None)
    assert list(read_outputs(returned)) == [
        "output.logits",
        "output.states[0].left",
        "output.states[0].right['key'][0]",
        "output.states[1][0]",
    ]
    cache = SimpleNamespace(keys=[x], size=3, forward=torch.nn.ReLU())
    cache.itself = cache
    assert list(read_outputs((x, cache))) == ["output[0]", "output[1].keys[0]"]
    assert list(read_outputs(OrderedDict(a=x))) == ["output['a']"]
    assert list(read_outputs(x)) == ["output"] and read_outputs((3, None, "text")) == {}


def test_a_model_that_returns_no_tensor_is_not_measured():
    with pytest.raises(PassagentError, match="returns no tensor"):
        pa.measure(lambda x: {"size": x.shape[0]}, torch.ones(3), passes=[])


class Cancelling(torch.nn.Module):
    """Returns a product, and beside it the rounding errors of the same in two parts, of about 1e-7."""

    def __init__(self, at: int):
        super().__init__()
        self.weight, self.at = torch.nn.Parameter(torch.randn(64, 64)), at

    def forward(self, x):
        y, at = x @ self.weight, self.at
        return Returned(y, ((x[:, :at] @ self.weight[:at] + x[:, at:] @ self.weight[at:]) - y,))


def differing(change) -> str:
    """The difference of a model's outputs from eager's after `change`, of float32 values."""
    torch.manual_seed(0)
    model, x = Cancelling(32), torch.randn(32, 64)
    with torch.no_grad():
        eager, exact = read_outputs(model(x)), outputs_in_float64(Model("m", model, (x,)))
        other = Cancelling(24)
        other.load_state_dict(model.state_dict())
        got = read_outputs(other(x))
    assert exact["output.logits"].dtype == torch.float64
    change(got)
    return find_difference(eager, exact, got)


def test_an_output_near_zero_is_held_against_eagers_own_error():
    assert differing(lambda got: None) == ""


@pytest.mark.parametrize(
    ("place", "value"), [("output.states[0]", 1.0), ("output.logits", float("nan")), ("output.logits", 1e9)]
)
def test_a_wrong_value_is_named_with_its_place_and_size(place, value):
    def change(got):
        got[place][3, 5:9] = value

    text = differing(change)
    assert text.startswith(f"{place}[3, ") and f" is {value:.6g}, eager's is " in text


def test_a_result_of_half_precision_is_found():
    def change(got):
        got["output.logits"] = got["output.logits"].half().float()

    assert differing(change).startswith("output.logits[")


def test_a_missing_output_another_dtype_and_another_integer_are_named():
    x = {"output": torch.arange(4)}
    assert find_difference(x, {}, {}) == "output is returned by eager alone"
    assert "output is float32, eager's is int64" in find_difference(x, {}, {"output": torch.ones(4)})
    assert find_difference(x, {}, {"output": torch.tensor([0, 1, 2, 4])}) == "output[3] is 4, eager's is 3"


def test_where_float64_does_not_run_eagers_values_are_the_measure():
    def bits(x):
        return x.view(torch.int32).float() * 1e-9 + x

    x = torch.randn(100)
    assert outputs_in_float64(Model("bits", bits, (x,))) == {}
    eager = read_outputs(bits(x))
    assert find_difference(eager, {}, {"output": eager["output"] * (1 + 1e-7)}) == ""
    assert find_difference(eager, {}, {"output": eager["output"] * 1.01}).startswith("output[")


def half_outputs(at: int, by: float):
    """Outputs around 1 and of 0, in float16 and float64; one is off."""
    exact = torch.ones(8, 512, dtype=torch.float64)
    exact[:, ::2] = 0
    values = exact.half()
    values[3, at] += by
    return {"output": values}, {"output": exact}


def test_a_single_value_may_be_as_far_off_as_eagers_worst():
    (eager, exact), (got, _) = half_outputs(10, 0.004), half_outputs(20, 0.007)
    assert find_difference(eager, exact, got) == ""
    assert find_difference(eager, exact, half_outputs(20, 0.02)[0]).startswith("output[3, 20] is 0.02")
    assert find_difference(eager, exact, half_outputs(20, float("nan"))[0]).startswith("output[3, 20] is nan")
    for outputs in (eager, exact):
        outputs["output"][5, 7] = float("inf")
    assert find_difference(eager, exact, got).startswith("output[5, 7] is 1, eager's is inf")
