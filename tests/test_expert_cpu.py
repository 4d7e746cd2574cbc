"""How the expert's C++ kernels go through memory, and that they stay vectorised; each against eager."""

from __future__ import annotations

import json
import re

import pytest
import torch
import torch.nn.functional as F
from expert_cases import captured, held, r, rewritten, write


def source(authored):
    return "\n".join(authored.files.values())


def text_of(function, inputs):
    """The text of the passes for a function, which were held against eager on these inputs."""
    return source(held(function, inputs))


@pytest.mark.long
@pytest.mark.parametrize(
    ("rows", "length", "dtype"),
    [(40, 49, torch.float32), (33, 512, torch.float16), (700, 5, torch.bfloat16)],
)
def test_a_norm_of_what_lies_across_is_turned(rows, length, dtype):
    def function(x, w, b):
        return F.layer_norm(x.flatten(2).transpose(1, 2), (x.shape[1],), w, b, 1e-5)

    inputs = [r(2, rows, 1, length, dtype=dtype), r(rows, dtype=dtype, seed=1), r(rows, dtype=dtype, seed=2)]
    assert "turn(x + " in text_of(function, inputs)


def test_a_norm_that_is_stored_across_is_turned_back():
    def function(x, y, w, b):
        return F.relu(F.layer_norm(x + y, (x.shape[-1],), w, b, 1e-5).permute(0, 2, 1)).contiguous() * 2

    inputs = [r(2, 37, 96, dtype=torch.bfloat16, seed=k) for k in (0, 1)]
    inputs += [r(96, dtype=torch.bfloat16, seed=k) for k in (2, 3)]
    assert "turn_back(" in text_of(function, inputs)


def test_what_was_split_and_is_walked_as_one_has_one_index():
    def function(table, index, bias):
        rows = table.view(-1, 4)[index.view(-1)].view(6, 50, -1).permute(2, 0, 1)
        return F.softmax(bias + rows.contiguous().unsqueeze(0), -1)

    inputs = [r(3, 7, 4), torch.arange(300).reshape(6, 50) % 21, r(2, 4, 6, 50, seed=1)]
    assert " / " not in text_of(function, inputs).split("float top = ")[1].split("sum")[0]


def test_elements_of_16_bits_are_gathered_before_the_loop_that_computes():
    dtype = torch.bfloat16

    def function(table, index, bias):
        return F.softmax(torch.sigmoid(table[index].permute(2, 0, 1)) * 16 + bias, -1)

    inputs = [r(21, 4, dtype=dtype), torch.arange(300).reshape(6, 50) % 21, r(4, 6, 50, dtype=dtype, seed=1)]
    assert "table" not in text_of(function, inputs).split("#pragma omp simd")[1].split("}")[0]


def test_a_choice_between_what_needs_a_function_has_no_branch():
    given = r(3, 40, 48, dtype=torch.float16)
    assert "either(" in text_of(lambda x: F.pad(F.gelu(x), (0, 0, 0, 1)), [given])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((40, 80), torch.float16),
        ((9, 700), torch.float32),
        ((40, 33), torch.float32),
        ((3, 8), torch.float16),
    ],
)
def test_what_is_the_same_in_every_row_is_computed_before_the_rows(shape, dtype):
    def function(x, mean, variance, w, b):
        return F.batch_norm(F.relu(x), mean, variance, w, b, False, 0.1, 1e-5)

    inputs = [r(*shape, dtype=dtype), *[r(shape[1], dtype=dtype, seed=k).abs() + 0.5 for k in range(1, 5)]]
    text = text_of(function, inputs)
    if min(shape) >= 9 and shape[1] > 64:
        assert "sqrtf" not in text.split("< rows; ++row")[1]


def test_weights_of_16_bits_are_converted_once():
    inputs = [r(20, 48, dtype=torch.bfloat16), *[r(48, dtype=torch.bfloat16, seed=k) for k in (1, 2)]]
    text = text_of(lambda x, w, b: F.layer_norm(x + x, (x.shape[-1],), w, b), inputs)
    assert "load_f32(&w_table[0], w, n" in text or "weight_table[0], weight, n" in text


def test_a_norm_is_not_computed_again_for_what_is_padded():
    def function(x, w, b):
        norm = F.layer_norm(x.flatten(2).transpose(1, 2), (24,), w, b)
        return norm, F.layer_norm(F.pad(norm.view(1, 6, 5, 24), (0, 0, 0, 2, 0, 1)), (24,), w, b)

    inputs = [r(1, 24, 6, 5), r(24, seed=1), r(24, seed=2)]
    assert "reduced again" in held(function, inputs).refused["pad"]


def test_the_same_graph_is_always_written_alike():
    def function(words, places, rows, others, bias):
        return F.layer_norm(F.embedding(words, rows) + F.embedding(places, others), (16,), bias)

    words, places = torch.arange(30).reshape(5, 6) % 9, torch.arange(6).reshape(1, 6)
    inputs = [words, places, r(9, 16), r(9, 16, seed=1), r(16, seed=2)]
    graph = captured(function, inputs)
    assert len({json.dumps(write([graph]).files) for _ in range(12)}) == 1


def test_a_name_that_ends_like_a_helpers_calls_for_no_helper():
    assert "def _square(" not in text_of(lambda x: torch.square(F.relu(x / 11.5)), [r(4, 33)])


def test_threads_are_asked_for_by_all_the_work_where_axes_are_equally_long():
    authored = write([captured(lambda x: x.unsqueeze(1) - x.unsqueeze(2), [r(4, 300)])])
    [work] = re.findall(r"parallel for if \((.*) > \d+\)", source(authored))
    assert sorted(work.split(" * ")) == ["n0", "n0", "n1"]


@pytest.mark.parametrize("dim", [0, 1])
def test_a_long_sum_is_as_near_to_float64_as_eagers(dim):
    def function(x):
        return (torch.relu(x) - torch.relu(x).mean(dim, keepdim=True)) * 300

    x = 1 + r(*((100_000, 16) if dim == 0 else (4, 400_000))).abs() / 100
    graph = captured(function, [x])
    (ours,) = rewritten(write([graph]), graph).graph_module(x)
    exact = function(x.double())
    assert (ours - exact).abs().max() < 4 * (function(x) - exact).abs().max()
