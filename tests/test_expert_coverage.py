"""`passagent tasks check --coverage`: what the expert takes, what stays with eager and why, on real tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import write_subgraph

from passagent.expert.author import ALONE, VIEW, Left, cover, totals
from passagent.expert.read import graph_of
from passagent.tasks import load_task
from passagent.tasks.capture import capture
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module

CHECK = ("tasks", "check", "--coverage")
EXAMPLES = Path(__file__).parents[1] / "examples" / "tasks"
TASKS = sorted(path.parent for path in EXAMPLES.glob("*/graph_list.txt"))


def computing(graph):
    """All but the inputs, whose types are written as FakeTensor."""
    return [n for n in graph.nodes if n.op != "placeholder"]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_every_example_is_covered_by_a_kernel(target):
    for path in TASKS:
        found = cover(path, target)
        assert (found.covered, found.kernels) == (True, found.graphs), path.name
        assert found.regions, path.name


def test_what_stays_is_named_with_its_reason():
    found = cover(EXAMPLES / "conv2d_sigmoid_mul_hardtanh", "cpu")
    assert found.left == [Left("conv2d", "is left to the vendor library", 6)]
    assert found.taken == 3 * found.graphs
    (total,) = totals([found, found])
    assert (total.operator, total.tasks, total.count) == ("conv2d", 2, 12)
    assert {left.why for left in cover(EXAMPLES / "add_rms_norm", "cpu").left} <= {ALONE, VIEW}


def test_shapes_alone_give_the_graph_that_the_evaluator_captures():
    for path in TASKS:
        subgraph = load_task(path).subgraphs[-1]
        real = capture(load_module(subgraph, "cpu"), make_inputs(subgraph, "cpu", 0)).graph_module.graph
        ours = graph_of(subgraph)
        assert [n.format_node() for n in computing(ours)] == [n.format_node() for n in computing(real)]
        for mine, theirs in zip(ours.nodes, real.nodes, strict=True):
            a, b = [n.meta.get("example_value") for n in (mine, theirs)]
            if hasattr(b, "shape"):
                assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


def test_command_prints_what_it_found(call):
    code, out, _ = call(*CHECK, EXAMPLES / "conv2d_sigmoid_mul_hardtanh")
    assert code == 0
    assert "kernels in 6 of 6 graphs: sigmoid + mul + hardtanh" in out
    assert "stays with eager: conv2d (6): is left to the vendor library" in out
    assert "1 of 1 tasks covered (100.0%)" in out


def test_command_as_json_and_a_task_that_cannot_be_read(call, tmp_path):
    broken = write_subgraph(tmp_path / "broken", [4, 33])
    text = (broken / "model.py").read_text()
    (broken / "model.py").write_text(text.replace("def forward(self", "def forwards(self"))
    code, out, err = call(*CHECK, EXAMPLES / "quick_gelu", broken, "--json")
    assert code == 1
    shown = json.loads(out)
    assert [t["covered"] for t in shown["tasks"]] == [True, False]
    assert shown["share_covered"] == 0.5
    assert err.splitlines()[-1].startswith("passagent: error: 1 of 2 tasks could not be read")


def test_an_unknown_target_is_a_mistake(call):
    code, _, err = call(*CHECK, EXAMPLES / "quick_gelu", "--device", "tpu")
    assert (code, err) == (2, "passagent: error: --device tpu: write cpu or cuda\n")
