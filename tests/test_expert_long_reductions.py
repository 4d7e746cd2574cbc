"""On CUDA many programs share a long reduction: parts first, then what they left. No GPU is needed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from expert_cases import captured, write
from interpreting import interpreted

from passagent.expert.choices import default
from passagent.expert.write.cuda_grid import Work, launches

LARGE = torch.zeros(3000, 2000)


def kernels(function, *sets) -> int:
    authored = write([captured(function, inputs) for inputs in sets], "cuda")
    assert not authored.refused
    return "".join(authored.files.values()).count("@triton_kernel")


@pytest.mark.parametrize(
    ("function", "inputs", "count"),
    [
        (lambda x: torch.isinf(x).any(), [LARGE.half()], 2),
        (lambda x: (x * 2.0).sum(), [LARGE], 2),
        (F.mse_loss, [LARGE, LARGE + 1], 2),
        (lambda x: x.amax() + x.abs().mean(), [LARGE], 2),  # they share a loop
        (lambda x: (x * 2.0).argmax(), [LARGE], 2),
        (lambda x: torch.max(x, 0), [torch.zeros(100000, 64)], 2),
        (lambda x: x / x.sum(), [LARGE], 3),  # not each of the last kernel's programs adds up the parts
        (lambda x, y: x.sum() * y.sum(), [LARGE, torch.zeros(70000)], 4),
        (lambda x, w: (x * w).sum(), [LARGE, torch.zeros(2000)], 2),
        (lambda x: (x * 2.0).sum(0), [torch.zeros(100000, 64)], 2),
        (lambda x: (x * 2.0).sum(1), [LARGE], 1),  # rows enough
        (lambda x: (x * 2.0).sum(), [torch.zeros(30, 1000)], 1),  # one program's block
    ],
)
def test_programs_share_what_a_few_would_reduce_alone(function, inputs, count):
    assert kernels(function, inputs) == count


def test_each_program_has_one_block():
    works = write([captured(lambda x: (x * 2.0).sum(), [LARGE])], "cuda").works
    assert [work.function for work in works] == ["_split", "_rows"]
    parts, last = launches(works, default("cuda"))
    assert (parts.programs, parts.block, last.programs) == (works[1].lanes, 8192, 1)
    few = launches([Work("_split", (), 1, 64000, 0, 256000)], default("cuda"))[0]
    assert few.programs == 250  # smaller blocks, so that all processors have one
    outer = launches([Work("_split", (), 1, 64, 100000, 25600000)], default("cuda"))[0]
    assert (outer.programs, outer.block, outer.together) == (391, 64, 256)


@pytest.mark.long
def test_what_programs_share_equals_eager_in_the_interpreter():
    interpreted("""
        import torch
        import torch.nn.functional as F
        from expert_cases import held, r

        one = r(300, 131).half()
        one[200, 7] = float("inf")
        cases = [
            (lambda x: torch.isinf(x).any(), [one]),
            (lambda x: x.amin((1, 2)) + x.abs().mean((1, 2)), [r(2, 300, 131).bfloat16()]),
            (lambda x: (x - x.mean()) / x.std(), [r(300, 131)]),
            (lambda x: x.mul_(2.0).sum(), [r(300, 131).abs()]),
            (lambda x: torch.max(x, 1), [r(2, 1500, 50).round()]),
        ]
        for function, inputs in cases:
            authored = held(function, inputs, "cuda")
            assert "partial1" in "".join(authored.files.values())
    """)


@pytest.mark.long
def test_sizes_choose_between_one_kernel_and_two():
    interpreted("""
        from expert_cases import captured, check, held_in_each, r

        def function(x):
            return (x * 2.0).abs().sum()

        sets = [[r(300, 131)], [r(9, 11)], [r(300, 131).half()]]
        authored = held_in_each([(function, inputs) for inputs in sets], "cuda")
        text = "".join(authored.files.values())
        assert text.count("@triton_kernel") == 3 and "> 32768" in text
        unseen = [r(100, 1009)]
        check(authored, captured(function, unseen), unseen)
    """)
