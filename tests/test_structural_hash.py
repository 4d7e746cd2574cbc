"""The structural hash: equal under renaming, reformatting and reordering, else different."""

import ast
import operator
import random
import re
from dataclasses import replace
from pathlib import Path

import black
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_tasks_capture import write
from torch import fx

from passagent.evaluator.matching.effects import Memory
from passagent.tasks import load_task
from passagent.tasks.extract.structural_hash import hash_subgraph, structural_hash
from passagent.tasks.meta import TensorMeta

EXAMPLES = sorted(
    path.parent for path in (Path(__file__).parent.parent / "examples" / "tasks").glob("*/graph_list.txt")
)
KEPT = ("placeholder", "output")
UNARY = (torch.relu, torch.tanh, torch.neg, torch.sigmoid)
BINARY = (torch.add, torch.sub, torch.mul, torch.maximum)


@st.composite
def programs(draw):
    """Inputs, and operators on earlier values: (function, operands, literals by name)."""
    inputs, steps = draw(st.integers(1, 3)), []
    for number in range(draw(st.integers(1, 10))):
        value = st.integers(0, inputs + number - 1)
        kind = draw(st.sampled_from(["unary", "binary", "literal", "sum"]))
        if kind == "unary":
            steps.append((draw(st.sampled_from(UNARY)), [draw(value)], {}))
        elif kind == "binary":
            steps.append((draw(st.sampled_from(BINARY)), [draw(value), draw(value)], {}))
        elif kind == "literal":
            literal = draw(st.floats(-2, 2) | st.integers(-3, 3))
            function = draw(st.sampled_from([operator.iadd, operator.mul]))
            steps.append((function, [draw(value)], {"": literal}))
        else:
            steps.append((torch.sum, [draw(value)], {"dim": draw(st.sampled_from([0, 1])), "keepdim": True}))
    outputs = draw(st.lists(st.integers(inputs, inputs + len(steps) - 1), min_size=1, max_size=3))
    return inputs, steps, outputs


def build(program, name="v{}") -> fx.Graph:
    inputs, steps, outputs = program
    graph = fx.Graph()
    values = [graph.placeholder(name.format(number)) for number in range(inputs)]
    for number, (function, operands, extra) in enumerate(steps):
        literals = [value for key, value in extra.items() if not key]
        named = {key: value for key, value in extra.items() if key}
        args = (*(values[i] for i in operands), *literals)
        values.append(graph.create_node("call_function", function, args, named, name.format(inputs + number)))
    graph.output(tuple(values[i] for i in outputs))
    return graph


def metas(graph: fx.Graph) -> list[TensorMeta]:
    return [
        TensorMeta(node.name, node.name, (4, 4), "float32", "cpu")
        for node in graph.find_nodes(op="placeholder")
    ]


def hashed(graph: fx.Graph):
    return structural_hash(graph, metas(graph))


def reordered(graph: fx.Graph, seed: int) -> fx.Graph:
    """Another order of the nodes in which all that depends on values or memory is as before."""
    chance, memory = random.Random(seed), Memory(graph)
    made, known, left = fx.Graph(), {}, list(graph.nodes)
    output = left.pop()
    while left:
        ready = [node for node in left if memory.before[node] <= known.keys()]
        node = chance.choice(ready)
        left.remove(node)
        known[node] = made.node_copy(node, known.__getitem__)
    made.output(fx.node.map_arg(output.args[0], known.__getitem__))
    return made


@settings(max_examples=60, deadline=None)
@given(programs(), st.integers(0, 1 << 30))
def test_names_and_order_do_not_matter(program, seed):
    graph = build(program)
    assert hashed(build(program, "other_{}")) == hashed(graph)
    assert hashed(reordered(graph, seed)) == hashed(graph)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(programs(), st.data())
def test_each_operator_operand_and_literal_matters(program, data):
    inputs, steps, outputs = program
    live = {index - inputs for index in outputs}
    for number in sorted(range(len(steps)), reverse=True):
        if number in live or steps[number][0] is operator.iadd:
            live |= {index - inputs for index in steps[number][1]} | {number}
    number = data.draw(st.sampled_from(sorted(one for one in live if one >= 0)))
    function, operands, extra = steps[number]
    among = UNARY if function in UNARY else BINARY if function in BINARY else ()
    changes = [(one, operands, extra) for one in among if one is not function]
    for key, value in extra.items():
        other = (not value) if isinstance(value, bool) else 1 - value if key == "dim" else value + 0.5
        changes.append((function, operands, {**extra, key: other}))
    changed = [*steps]
    changed[number] = data.draw(st.sampled_from(changes))
    assert hashed(build((inputs, changed, outputs))).instance != hashed(build(program)).instance
    assert hashed(build((inputs, changed, outputs))).structure != hashed(build(program)).structure


RAND, RELU, ADD = (torch.rand_like, [0], {}), (torch.relu, [0], {}), (operator.iadd, [0], {"": 1})


def test_a_value_used_twice_is_not_two_equal_values():
    twice, each = (torch.add, [1, 1], {}), (torch.add, [1, 2], {})
    programs = [([RAND, twice], 2), ([RAND, RAND, each], 3), ([RELU, RELU, each], 3), ([RELU, twice], 2)]
    assert len({hashed(build((1, steps, [out]))).instance for steps, out in programs}) == 4


def test_the_order_of_operands_matters():
    def graph(first: int, second: int) -> fx.Graph:
        return build((2, [RELU, (torch.tanh, [1], {}), (torch.sub, [first, second], {})], [4]))

    assert hashed(graph(2, 3)) == hashed(graph(2, 3))
    assert hashed(graph(2, 3)).structure != hashed(graph(3, 2)).structure


def test_dead_operators_do_not_matter_and_what_writes_memory_does():
    plain, dead = build((1, [RELU, ADD], [1])), build((1, [RELU, (torch.tanh, [0], {}), ADD], [1]))
    assert hashed(plain) == hashed(dead)
    programs = [([RELU], 1), ([ADD, RELU], 2), ([RELU, ADD], 1)]
    assert len({hashed(build((1, steps, [out]))).instance for steps, out in programs}) == 3


@pytest.mark.parametrize("change", [{"shape": (4, 8)}, {"dtype": "float16"}, {"shape": (4, 4, 1)}])
def test_inputs_matter_to_the_instance_and_their_rank_to_the_structure(change):
    graph = build((2, [(torch.add, [0, 1], {})], [2]))
    first, second = metas(graph)
    other = structural_hash(graph, [replace(first, **change), second])
    assert other.instance != hashed(graph).instance
    assert (other.structure != hashed(graph).structure) == ("shape" in change and len(change["shape"]) == 3)


def test_one_structure_for_all_sizes(tmp_path):
    """Two shapes of a region: sizes in views differ, an axis does not."""
    hashes = []
    for name, size, axis in (("a", 4, -1), ("b", 8, -1), ("c", 8, 0)):
        text = f"y = x.view({size}, 2, -1)\nreturn (torch.softmax(y, {axis}),)"
        path = write(tmp_path / name, text, f"x float32 [{size},6]")
        hashes.append(hash_subgraph(load_task(path).subgraphs[0]))
    assert hashes[0].structure == hashes[1].structure != hashes[2].structure
    assert len({each.instance for each in hashes}) == 3


@pytest.mark.parametrize("task", EXAMPLES, ids=lambda path: path.name)
def test_the_text_of_real_tasks_may_be_renamed_and_reformatted(task):
    subgraph = load_task(task).subgraphs[0]
    renamed = re.sub(r"\b(in|tmp)_(\d+)\b", r"\1_of_\2", subgraph.source)
    source = black.format_str(ast.unparse(ast.parse(renamed)), mode=black.Mode(line_length=40))
    inputs = tuple(replace(meta, name=meta.name.replace("in_", "in_of_")) for meta in subgraph.inputs)
    assert source != subgraph.source
    assert hash_subgraph(replace(subgraph, source=source, inputs=inputs)) == hash_subgraph(subgraph)
