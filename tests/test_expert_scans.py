"""Running sums and products on CUDA. Their values are exact in float32, so any order must give eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cases
import pytest
import torch
from expert_cases import captured, write
from interpreting import interpreted
from test_expert_cuda import source

from passagent.evaluator.result import Candidate
from passagent.expert.author import author
from passagent.expert.choices import default
from passagent.expert.read.reading import graphs
from passagent.plan import compile as compiling
from passagent.plan import record as recording
from passagent.plan.facts import H100
from passagent.plan.messages import Recorded


def n(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def signs(*shape: int) -> torch.Tensor:
    """1 and -1."""
    return (n(*shape) % 2) * 2 - 1


def exclusive(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(torch.cat((torch.zeros_like(x.select(1, 0).unsqueeze(1)), x), 1)[:-1], dim=1)


SCANS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "sum": (lambda x: torch.cumsum(x, dim=1), [n(5, 37)]),
    "product": (lambda x: torch.cumprod(x, dim=1), [signs(5, 37)]),
    "one dimension": (lambda x: x.cumsum(0) * 2.0, [n(301)]),
    "one element": (lambda x: x.cumsum(1) * 2.0, [n(7, 1)]),
    "reversed": (lambda x: torch.cumsum(x.flip(1), 1).flip(1), [n(5, 37)]),
    "product reversed": (lambda x: torch.cumprod(x * 1.0, 1).flip(1), [signs(5, 37)]),
    "exclusive": (exclusive, [n(5, 37)]),
    "masked": (lambda x, m: torch.cumsum(x * m, 1) + 1.0, [n(5, 37), n(5, 37) > 0]),
    "padded rows": (lambda x: (x + 1.0).flip(-1).cumsum(-1).flip(-1), [n(3, 4, 33)]),
    "middle": (lambda x: torch.relu(x).cumsum(1) + x, [n(3, 37, 50)]),
    "middle reversed": (lambda x: (x + 1.0).cumsum(1).flip(1), [n(3, 37, 50)]),
    "first": (lambda x: x.cumsum(0), [n(37, 50)]),
    "few rows": (lambda x: (x + 1.0).cumsum(1) + x, [n(3, 5, 50)]),
    "few factors": (lambda x: x.cumprod(0), [signs(5, 50)]),
    "tall": (lambda x: x.cumsum(1) * 3.0, [n(2, 2100, 17)]),
    "tall product": (lambda x: x.cumprod(1) * 3.0, [signs(2, 2100, 17)]),
    "long": (lambda x: (x.cumsum(1) * 2.0, (x + 1.0).cumsum(1)), [n(2, 40001)]),
    "long product": (lambda x: x.cumprod(1) * 2.0, [signs(2, 40001)]),
    "long exclusive": (exclusive, [n(3, 32768)]),
    "long reduced": (lambda x: x.cumsum(1).amax(1), [n(2, 40001)]),
    "whole": (lambda x: x.cumsum(1).amax(), [n(300, 131)]),
    "half": (lambda x: x.cumsum(-1) * 0.5, [n(3, 4, 45, dtype=torch.float16)]),
    "wider": (lambda x: x.cumsum(1, dtype=torch.float32) * 2.0, [n(3, 45, dtype=torch.bfloat16)]),
    "positions": (lambda x: (x != 1).int().cumsum(1).type_as(x) * x + 1, [n(3, 45, dtype=torch.int64)]),
    "flattened": (lambda x: x.flatten(1).cumsum(1), [n(3, 4, 5)]),
    "transposed": (lambda x: x.transpose(1, 2).cumsum(1), [n(3, 45, 20)]),
    "twice": (lambda x: x.cumsum(1).cumsum(1), [n(6, 45)]),
    "of a softmax": (lambda x: (torch.softmax(x, 1) > 0.01).float().cumsum(1), [n(6, 45)]),
    "two inputs": (lambda x, y: (x.cumsum(1) + y.cumsum(1), x * y), [n(6, 45), n(6, 45) + 1.0]),
    "stored in a cat": (lambda x, y: torch.cat([x.cumsum(1), y], 1) * 2.0, [n(6, 45), n(6, 7)]),
    "beside a cat": (lambda x, y: torch.cat([y, y], 1) * x.cumsum(1), [n(6, 44), n(6, 22)]),
    "broadcast": (lambda x, y: (x + y).cumsum(0), [n(40, 1), n(1, 50)]),
    "in place": (lambda x: x.mul_(2.0).cumsum_(1), [n(6, 45)]),
}


@pytest.mark.long
def test_kernels_equal_eager_in_the_interpreter():
    interpreted("""
        from expert_cases import check_empty, held, held_in_each
        from test_expert_scans import SCANS
        for name, (function, inputs) in SCANS.items():
            authored = held(function, inputs, "cuda")
            assert not authored.refused and len(authored.fused) == 1, (name, authored.refused)
        check_empty(*SCANS["masked"], target="cuda")
        function, sets = SCANS["sum"][0], [SCANS[name][1] for name in ("sum", "long", "masked")]
        sets = [*(inputs[:1] for inputs in sets), [sets[0][0].half()]]
        held_in_each([(function, inputs) for inputs in sets], "cuda")
    """)


@pytest.mark.parametrize(
    ("name", "line", "looped"),
    [
        ("masked", "tl.cumsum(tl.where(inside, rounded, 0.0), axis=1)", False),
        ("reversed", "tl.cumsum(tl.where(inside, x_v, 0.0), axis=1, reverse=True)", False),
        ("product", "tl.cumprod(tl.where(inside, x_v, 1.0), axis=1)", False),
        ("first", "tl.cumsum(tl.where(inside, x_v, 0.0), axis=0)", False),
        ("long product", "running = carry * tl.cumprod(", True),
        ("few factors", "running = carry * tl.where(", True),
    ],
)
def test_a_row_is_one_programs_block_or_carried_from_block_to_block(name, line, looped):
    text = source(SCANS[name][0], SCANS[name][1])
    assert line in text and text.count("@triton_kernel") == 1
    assert ("carry = " in text) == looped
    assert "-1" not in text  # what is flipped twice is read and stored as it lies


@pytest.mark.parametrize(
    ("function", "inputs", "why"),
    [
        (lambda x: x.cumsum(1)[:, 3:] - 1.0, [n(6, 45)], "is read elsewhere than it is computed"),
        (lambda x: x.cumsum(1).view(3, 4, 5) + 1.0, [n(3, 20)], "is read elsewhere than it is computed"),
        (lambda x: x.cumsum(0).cumsum(1), [n(6, 45)], "along one of several axes of a row"),
        (
            lambda x: x.cumsum(1).flip(1),
            [n(2, 40001)],
            "from the last element on, where no block holds the row",
        ),
        (lambda x: x.cumsum(0), [n(1 << 22, 2)], "a few long sums keep few of the device's processors busy"),
    ],
)
def test_what_has_no_form_stays_with_eager(function, inputs, why):
    assert write([captured(function, inputs)], "cuda").refused["cumsum"] == why


@pytest.mark.parametrize("function", [lambda x: x.cumsum(1) * 2.0, lambda x: x.cumprod(1) * 2.0])
def test_on_the_cpu_the_library_scans(function):
    (why,) = write([captured(function, [n(5, 37)])]).refused.values()
    assert why == "is left to the vendor library"


@pytest.mark.long
def test_scans_are_recorded_and_compiled_without_a_gpu(recorder, tmp_path, monkeypatch):
    """What Triton makes of them passes the check of a plan's IR."""
    body = (
        "a = torch.cumsum(in_0.flip(1), 1).flip(1)\nb = torch.cumprod(in_0, 1)\nc = in_1.cumsum(1)\n"
        "return (a, b, c)"
    )
    shapes = [([5, 37], cases.F32), ([2, 40000], cases.F16)]
    monkeypatch.setitem(cases.TASKS, "scans", cases.TaskText(body, [shapes]))
    task = cases.write_task(tmp_path / "scans", "scans")
    subgraphs = recording.subgraphs_of(task, "cuda")
    authored = author(list(graphs(str(task.path))), "cuda", default("cuda"))
    answer = recording.record(recorder, Candidate(authored.files), subgraphs, "cuda", dict(H100))
    assert isinstance(answer, Recorded), answer.message
    plans = [plan for one in answer.recording.passes for plan in one.plans]
    kernels = {k.digest(): k for plan in plans for k in plan.kernels.values()}.values()
    assert sum(kernel.ttir.count('"tt.scan"') for kernel in kernels) >= 3
    for kernel in kernels:
        compiling.build_triton(kernel, "sm_90")
