"""Where extremes stand: ties, NaN, infinities and signed zeros as eager has them, on both targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from expert_cases import captured, held, r, rewritten, write
from interpreting import interpreted
from test_expert_cuda import source


def hard(*shape: int, dtype: torch.dtype = torch.float32, special: bool = True) -> torch.Tensor:
    """Few values, so that most extremes are tied; rows of -inf; zeros of both signs; NaN here and there."""
    x = r(*shape).mul(2.0).round()
    if not dtype.is_floating_point:
        return x.to(dtype)
    x = x.to(dtype)
    flat = x.view(-1)
    flat[: shape[-1]] = float("-inf")
    if special:
        flat[2::5] = -0.0
        flat[shape[-1] + 1 :: 31] = float("inf")
        flat[shape[-1] + 2 :: 37] = float("nan")
        flat[-1] = -float("nan")
    return x


def everywhere(x: Any) -> Any:
    """argmax and argmin along each dimension and over all, with and without keepdim."""
    found = [f(x, d, keepdim=d % 2 == 0) for f in (torch.argmax, torch.argmin) for d in range(x.dim())]
    return (*found, x.argmax(), torch.argmin(x, dim=None, keepdim=True), (x * 2).argmax(-1, True))


def both(x: Any) -> Any:
    large, small = torch.max(x, 1), torch.min(x, dim=-1, keepdim=True)
    return (*large, *small, x.max(0).indices)


def of_narrow(x: Any) -> Any:
    """What is compared, counted or cast takes other types than the inputs'."""
    return (*torch.max(x.abs() > 0.5, -1), *torch.min((x * 9).to(torch.int16), 0), x.sum(0).argmax())


def chained(x: Any, y: Any) -> Any:
    at = (F.relu(x) + y).argmax(1)
    return at, at * 2 + 1, F.one_hot((x - y).argmin(-1), 33).float() * 0.5


CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    **{f"{len(s)}-D": (everywhere, [hard(*s)]) for s in [(37,), (5, 70), (2, 3, 5, 4)]},
    **{str(d): (everywhere, [hard(6, 33, dtype=d)]) for d in (torch.bfloat16, torch.int8)},
    "int32 limits": (everywhere, [torch.tensor([[5, -(2**31), 2**31 - 1], [-(2**31)] * 3]).int()]),
    "both results": (both, [hard(5, 7, 33, special=False)]),
    "narrow": (of_narrow, [r(5, 70)]),
    "gathered": (lambda x: x.gather(1, x.argmax(1, keepdim=True)) * 2.0, [r(5, 70)]),
    "chained": (chained, [hard(3, 7, 33), r(7, 33).round()]),
    "swept lanes": (lambda x: x.argmin(-1), [hard(70, 33000)]),
    "swept rows": (lambda x: x.argmax(1), [hard(2, 2100, 17)]),
    "lies across": (lambda x: (x.transpose(1, 2) * 2.0).argmax(-1), [hard(2, 1100, 17)]),
}


@pytest.mark.parametrize("name", CASES)
def test_positions_equal_eagers(name):
    function, inputs = CASES[name]
    authored = held(function, inputs)
    assert not authored.refused and "cpp_kernel" in "".join(authored.files.values())


@pytest.mark.long
def test_positions_equal_eagers_in_the_interpreter():
    interpreted("""
        from test_expert_positions import CASES, held
        for name, (function, inputs) in CASES.items():
            authored = held(function, inputs, "cuda")
            assert not authored.refused and "@triton.jit" in "".join(authored.files.values()), name
    """)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_a_position_among_elements_of_64_bits_stays_with_eager(dtype, target):
    inputs = [hard(5, 70, dtype=dtype)]
    authored = write([captured(lambda x: (x + 1).argmax(-1), inputs)], target)
    name = str(dtype).removeprefix("torch.")
    assert authored.refused["argmax"] == f"the position of an extreme of {name} is not lowered"
    graph = captured(lambda x: torch.max(x + 1, -1).values * 2, inputs)
    assert not write([graph], target).refused  # the maximum itself does not


def test_a_row_without_elements_has_no_position():
    graph = captured(lambda x: (x * 2.0).argmax(1), [r(3, 7)])
    ours = rewritten(write([graph]), graph).graph_module
    assert ours(r(0, 7))[0].shape == (0,)
    with pytest.raises(RuntimeError, match=r"does not take tensors of shapes \(3, 0\)"):
        ours(r(3, 0))


def test_nobody_looks_for_a_position_that_is_not_used():
    assert "bits" not in source(lambda x: torch.max(x, 1)[0], [r(5, 7, 33)])
