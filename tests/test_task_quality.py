"""What makes a result on a task worth little, and what a task leaves to the library."""

import json

import pytest
from handmade import convolution
from test_tasks_capture import write

from passagent.errors import TaskError
from passagent.evaluator.judging.plan_reading import library_violations
from passagent.expert.read import graphs
from passagent.expert.read.fusible_regions import find_regions
from passagent.plan.arguments import TupleArg
from passagent.plan.model import Call, Pass, PatternNode, Plan, Recording, SubgraphCalls
from passagent.tasks import load_task
from passagent.tasks.constraints import check_task


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return (a * 0 + 2,)", ["constant output", "outputs hardly depend on the inputs"]),
        ("return (a * 1e-4,)", ["outputs close to each other", "outputs hardly depend on the inputs"]),
        ("return (torch.arange(6.0).view(3, 2) + a * 1e-4,)", ["outputs hardly depend on the inputs"]),
        ("return (a + b,)", []),
        ("return ((a > 0),)", []),
    ],
)
def test_outputs_that_say_little_are_told(tmp_path, body, told):
    [found] = check_task(write(tmp_path, body, "a float32 [3,2]; b float32 [3,2]"))
    assert found.ok
    assert found.weak == told


def recording(target, name="graph", is_called=False):
    nodes = [
        PatternNode(op="placeholder", name="x", target="x", args=[]),
        PatternNode(op="call_function", name="y", target=target, args=[]),
    ]
    plan = convolution() if is_called else Plan(inputs=(), values=(), steps=(), result=TupleArg(items=()))
    one = Pass(name="Fuse", file="Fuse.py", pattern=tuple(nodes), plans=(plan,))
    calls = SubgraphCalls(name=name, calls=(Call(number=0, plan=0, nodes=("y",), arguments=()),))
    return Recording(device="cpu", passes=(one,), subgraphs=(calls,))


def limited(tmp_path, word):
    path = write(tmp_path, "return (torch.nn.functional.linear(a, b),)", "a float32 [3,2]; b float32 [4,2]")
    [subgraph] = load_task(path).subgraphs
    (subgraph.path / "graph_net.json").write_text(json.dumps({"compute_ops": word}))
    return path, load_task(path).subgraphs


@pytest.mark.parametrize(
    ("target", "is_taken"),
    [("torch:_C._nn.linear", True), ("torch:conv2d", True), ("operator:matmul", True), ("torch:relu", False)],
)
def test_products_stay_the_library_s_where_the_task_says_so(tmp_path, target, is_taken):
    _, subgraphs = limited(tmp_path, "library-only")
    found = library_violations(subgraphs, recording(target, subgraphs[0].name), "none")
    assert [one.rule for one in found] == ["compute_ops"] * is_taken
    behind = recording(target, subgraphs[0].name, is_called=True)
    assert library_violations(subgraphs, behind, "none") == []
    _, subgraphs = limited(tmp_path, "allowed")
    assert library_violations(subgraphs, recording(target, subgraphs[0].name), "none") == []


def test_the_expert_leaves_them_to_it_too(tmp_path):
    body = "return (torch.conv2d(a, b, None, (1, 1), (1, 1), (1, 1), 2),)"
    for word, is_written in (("allowed", True), ("library-only", False)):
        path = write(tmp_path / word, body, "a float32 [1,2,8,8]; b float32 [2,1,3,3]")
        [subgraph] = load_task(path).subgraphs
        (subgraph.path / "graph_net.json").write_text(json.dumps({"compute_ops": word}))
        graphs.cache_clear()
        assert bool(find_regions(graphs(str(path))[0], "cuda")[0]) == is_written


def test_another_word_is_an_error(tmp_path):
    _, subgraphs = limited(tmp_path, "some")
    with pytest.raises(TaskError, match="write allowed or library-only"):
        _ = subgraphs[0].compute_ops
