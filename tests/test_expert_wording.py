"""How the expert's code reads."""

import ast

import pytest
import torch
import torch.nn.functional as F
from expert_cases import CASES, captured, case_of, check, r, write

from passagent.expert.lower.symbolic_sizes import before_divisions, conditions, product, simplified
from passagent.expert.read.pattern_text import unused_in_inference


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("(1 * (s0[0] * s0[1]))", "s0[0] * s0[1]"),
        ("((s0[1] * s0[2]) * (s0[3] * 2)) * 3", "s0[1] * s0[2] * s0[3] * 6"),
        ("(s0[0] * 0)", "0"),
        ("1 > 0", "True"),
        ("3 == 4", "False"),
        ("s0[1] == s0[1]", "True"),
        ("(s0[1] // 1) + 0", "s0[1]"),
        ("(s0[1] * s0[2]) % 1", "0"),
        ("s0[1] // (s0[2] * s0[3])", "s0[1] // (s0[2] * s0[3])"),
        ("(s0[1] // s0[2]) * s0[2]", "s0[1] // s0[2] * s0[2]"),
        ("-2 <= size0 < 0", "-2 <= size0 < 0"),
        ("0 <= 1 < s0[1]", "1 < s0[1]"),
        ("7 // 0", "7 // 0"),
        ("number0 == 0.1", "number0 == 0.1"),
        ("-(size3) % (s0[1] * s0[2])", "-size3 % (s0[1] * s0[2])"),
    ],
)
def test_an_expression_is_as_short_as_it_can_be(text, reads):
    assert simplified(text) == reads


def test_a_product_of_none_is_one():
    assert product([]) == "1"
    assert product(["1", "s0[0] + 1", "s0[1]"]) == "(s0[0] + 1) * s0[1]"


def test_conditions_that_hold_are_left_out_and_equal_sizes_are_one_chain():
    guards = ["s0[2] == s1[0]", "1 > 0", "s2[0] == 1", "s0[2] == s2[1]", "s1[1] == s2[0]"]
    assert conditions(guards) == ["s0[2] == s1[0] == s2[1]", "s2[0] == s1[1] == 1"]


def test_two_bounds_are_one_comparison():
    guards = ["0 <= size0", "size0 < s0[1]", "size1 < 3", "0 < size1"]
    assert conditions(guards) == ["0 <= size0 < s0[1]", "size1 < 3", "0 < size1"]


def test_a_division_that_others_imply_is_not_asked():
    chunks = ["s0[0] % s0[1] == 0", "s0[0] % (s0[0] // s0[1]) == 0", "s0[0] // (s0[0] // s0[1]) == s0[1]"]
    assert conditions(chunks) == chunks[:1]
    assert conditions(chunks[1:]) == chunks[1:]
    assert conditions([chunks[0], "s0[0] // s0[1] == s0[2]"]) == ["s0[0] == s0[1] * s0[2]"]
    viewed = ["s0[0] * s0[1] * s0[2] % size0 == 0", "s0[0] == s0[0] * s0[1] * s0[2] // size0"]
    assert conditions([*viewed, "s0[1] * s0[2] == size0"]) == ["s0[1] * s0[2] == size0"]
    assert conditions([*viewed, "s0[1] * s0[3] == size0"]) == [*viewed, "s0[1] * s0[3] == size0"]


def test_what_divides_stays_where_it_stands():
    """A division by zero is not asked before what excludes it."""
    guards = ["s0[0] == 1", "s0[1] > 0", "s0[0] == s1[0] // s0[1]"]
    assert conditions(guards) == guards


def test_before_a_division_is_asked_whether_it_can_be_done():
    guards = ["s0[0] % size0 == 0", "s0[0] // (s0[1] // size0) == 3", "s0[2] % 2 == 0"]
    asked = ["size0 > 0", guards[0], "s0[1] // size0 > 0", *guards[1:]]
    assert before_divisions(guards) == asked


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_nothing_that_a_generator_leaves_is_in_a_pass(name, target):
    """No condition on constants and no factor of 1."""
    texts = write([case_of(name)[0]], target).files
    for text in (text for file, text in texts.items() if file.endswith(".py")):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                assert not all(isinstance(side, ast.Constant) for side in sides), ast.unparse(node)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                assert "1" not in {ast.unparse(side) for side in (node.left, node.right)}, ast.unparse(node)


@pytest.mark.parametrize(
    ("made", "inputs"),
    [
        (lambda p: lambda x, y: F.dropout(x + y, p, False), [r(4, 6), r(4, 6, seed=1)]),
        (
            lambda p: lambda x, m, v: F.relu(F.batch_norm(x, m, v, None, None, False, p, 1e-5)),
            [r(2, 3, 4, 4), r(3), r(3).abs()],
        ),
    ],
)
def test_a_number_that_inference_does_not_read_may_be_any(made, inputs):
    """The pass matches a graph that differs in a dropout's probability or in a batch norm's momentum."""
    authored = write([captured(made(0.3), inputs)])
    check(authored, captured(made(0.7), inputs), inputs)


def test_a_number_that_training_reads_stays():
    assert _unused(F.dropout, True) is None
    assert _unused(F.dropout, False) == "p"


def _unused(function, training):
    graph = torch.fx.Graph()
    node = graph.call_function(function, (graph.placeholder("x"), 0.3, training))
    return unused_in_inference(node, ("args", 1))
