"""Patterns against captured graphs: what matches, what does not, and what the diagnosis says."""

import math
import operator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

from passagent.evaluator.matching.matcher import MatchError, explain, match, match_at
from passagent.evaluator.matching.pattern import PassLoadError, trace_pattern
from passagent.tasks import load_task
from passagent.tasks.capture import capture
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module

EXAMPLES = sorted(
    path.parent for path in (Path(__file__).parents[1] / "examples/tasks").glob("*/graph_list.txt")
)
HEAD = "import torch\nimport torch.nn.functional as F\nimport operator\n"
HEAD += "from torch import device\nfrom math import inf\n\n"


def pattern(body: str, parameters: str = "x, y") -> fx.Graph:
    """The graph of `def pattern(parameters)` with this body; imports are given."""
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    source = f"{HEAD}def pattern({parameters}):\n{lines}\n"
    names: dict = {}
    exec(compile(source, "P.py", "exec"), names)
    return trace_pattern(names["pattern"], source, "P.py")


def captured(function, *inputs) -> fx.Graph:
    """What Dynamo captures of a function."""

    class Module(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    return capture(Module(), list(inputs)).graph_module.graph


X, Y = torch.randn(4, 8), torch.randn(4, 8)


def operators(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op not in ("placeholder", "output")]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_forward_of_a_real_task_is_a_pattern_of_its_whole_graph(path):
    for subgraph in load_task(path).subgraphs:
        graph = capture(load_module(subgraph, "cpu"), make_inputs(subgraph, "cpu", 0)).graph_module.graph
        body = subgraph.source[subgraph.source.index("def forward(self,") :]
        source = HEAD + "\n".join(
            line.removeprefix("    ")
            for line in body.replace("def forward(self,", "def pattern(").split("\n")
        )
        names: dict = {}
        exec(compile(source, "P.py", "exec"), names)
        (found,) = match(trace_pattern(names["pattern"], source, "P.py"), graph)
        assert set(found.nodes.values()) == set(operators(graph))


PARAMETERS = "x, a, b, c, d, e"
MATCHING = {
    "positional for keyword": (
        lambda x, y: torch.nn.functional.softmax(x, dim=-1),
        "return F.softmax(x, -1)",
        "x",
    ),
    "default left out": (
        lambda x, y: torch.nn.functional.layer_norm(x, (8,)),
        "return F.layer_norm(x, [8], None, None)",
        "x",
    ),
    "keyword of a built-in": (lambda x, y: torch.sum(x, dim=1), "return torch.sum(x, 1)", "x"),
    "keyword of a method": (lambda x, y: x.sum(1, keepdim=False), "return x.sum(dim=1)", "x"),
    "axis for dim": (lambda x, y: x.mean(1, True), "return x.mean(axis=1, keepdims=True)", "x"),
    "sizes apart or together": (lambda x, y: x.view(2, 16), "return x.view((2, 16))", "x"),
    "a shape as a parameter": (lambda x, y: x.view(2, 16), "return x.view(shape)", "x, shape"),
    "numbers as parameters": (
        lambda x, y: x.view(2, 16)[:, 3:5] * 0.5,
        "return x.view(a, b)[:, c:d] * e",
        PARAMETERS,
    ),
    "the same number twice": (
        lambda x, y: torch.nn.functional.pad(x, (1, 1)),
        "return F.pad(x, (p, p))",
        "x, p",
    ),
    "a list of tensors as a parameter": (
        lambda x, y: torch.cat([x, y], 1),
        "return torch.cat(parts, 1)",
        "parts",
    ),
    "another device": (
        lambda x, y: torch.arange(4, device=x.device) + x[0, 0],
        "return torch.arange(4, device=device(type='cuda', index=0)) + x[0, 0]",
        "x",
    ),
    "factory alone": (lambda x, y: (torch.zeros(2, 3), x + 1), "return torch.zeros(2, 3)", ""),
    "in-place operators": (
        lambda x, y: torch.nn.functional.relu(x.mul_(2).add(y), inplace=True),
        "x = x.mul_(2)\nreturn F.relu(x.add(y), inplace=True)",
        "x, y",
    ),
    "field of a named result": (
        lambda x, y: torch.max(x, 1).values * 2,
        "return torch.max(x, 1).values * 2",
        "x",
    ),
    "unpacked, one part unused": (
        lambda x, y: x.chunk(2, -1)[1] + 1,
        "a, b = x.chunk(2, -1)\nreturn b + 1",
        "x",
    ),
    "ellipsis and None": (lambda x, y: x[..., None, 1:], "return x[..., None, 1:]", "x"),
    "number on the left": (lambda x, y: 1.0 - x, "return 1.0 - x", "x"),
    "comparison by method": (lambda x, y: x.__eq__(0), "return x.__eq__(0)", "x"),
    "attention": (
        lambda x, y: torch.nn.functional.scaled_dot_product_attention(
            x[None], y[None], y[None], is_causal=True
        ),
        "return F.scaled_dot_product_attention(x[None], y[None], y[None], None, 0.0, True)",
        "x, y",
    ),
    "einsum": (
        lambda x, y: torch.einsum("ij,kj->ik", x, y),
        'return torch.einsum("ij,kj->ik", x, y)',
        "x, y",
    ),
    "finfo": (
        lambda x, y: x + torch.finfo(torch.float32).min,
        "return x + torch.finfo(torch.float32).min",
        "x",
    ),
    "random number that nobody uses": (
        lambda x, y: (torch.rand([]), x + 1)[1],
        "torch.rand([])\nreturn x + 1",
        "x",
    ),
}


@pytest.mark.parametrize("name", MATCHING)
def test_matches(name):
    function, body, parameters = MATCHING[name]
    graph = captured(function, X.clone(), Y.clone())
    traced = pattern(body, parameters)
    found = match(traced, graph)
    assert len(found) == 1, explain(traced, graph, name)


def test_augmented_assignment_is_in_place():
    def function(x, y):
        z = x * 2
        z += y
        z[:, 1:] = y[:, 1:]
        return z, torch.relu(z)

    graph = captured(function, X, Y)
    traced = pattern("z = x * 2\nz += y\nz[:, 1:] = y[:, 1:]\nreturn z, torch.relu(z)")
    assert [node.target for node in operators(traced)] == [node.target for node in operators(graph)]
    assert len(match(traced, graph)) == 1


def test_parameters_are_bound_to_nodes_and_literals():
    graph = captured(lambda x: torch.nn.functional.pad(x * 0.25, (1, 3)), X)
    (found,) = match(pattern("return F.pad(x * s, (a, b))", "x, s, a, b"), graph)
    (placeholder, *_) = graph.nodes
    assert found.bindings == {"x": placeholder, "s": 0.25, "a": 1, "b": 3}


LITERALS = [2, 2.0, True, 1, 1.0, 0.0, -0.0, 0, False, math.nan, math.inf]


def test_pattern_literal_matches_only_the_same_literal():
    graphs = [captured(lambda x, number=number: torch.clamp(x, number), X) for number in LITERALS]
    for written in LITERALS:
        is_named = isinstance(written, float) and not math.isfinite(written)
        text = f'float("{written}")' if is_named else repr(written)
        traced = pattern(f"return torch.clamp(x, {text})", "x")
        found = [repr(number) for number, graph in zip(LITERALS, graphs, strict=True) if match(traced, graph)]
        assert found == [repr(written)]


def test_parameter_that_occurs_twice_matches_only_the_same_literal_twice():
    traced = pattern("return torch.clamp(torch.clamp(x, s), s)", "x, s")
    pairs = [(2.0, 2), (0.0, -0.0), (1, True), (math.nan, math.nan), (-0.0, -0.0)]
    graphs = [captured(lambda x, a=a, b=b: torch.clamp(torch.clamp(x, a), b), X) for a, b in pairs]
    assert [len(match(traced, graph)) for graph in graphs] == [0, 0, 0, 1, 1]


def test_matches_do_not_overlap_and_follow_the_graph():
    graph = captured(lambda x: torch.relu(torch.relu(torch.relu(torch.relu(torch.relu(x))))), X)
    found = match(pattern("return torch.relu(torch.relu(x))", "x"), graph)
    nodes = operators(graph)
    assert [set(each.nodes.values()) for each in found] == [set(nodes[0:2]), set(nodes[2:4])]


def test_backtracks_over_users():
    graph = captured(lambda x: (torch.relu(x + 1), torch.relu(x + 1) * 2, (x + 1).sigmoid() * 2), X)
    (found,) = match(pattern("a = x + 1\nreturn a.sigmoid() * 2", "x"), graph)
    assert operators(graph)[-1] in found.nodes.values()


def test_disconnected_outputs():
    graph = captured(lambda x, y: (torch.relu(x), torch.tanh(y), x.exp()), X, Y)
    (found,) = match(pattern("return torch.tanh(b), torch.relu(a)", "a, b"), graph)
    first, second, *_ = graph.nodes
    assert found.bindings == {"a": first, "b": second}
    assert [output.target for output in found.outputs] == [torch.tanh, torch.relu]


MISMATCHING = {
    "literal": (lambda x, y: x * 0.5, "return x * 0.25", "x", "0.25", "0.5"),
    "int and float": (lambda x, y: x * 2, "return x * 2.0", "x", "2.0", "the graph 2;"),
    "dtype": (lambda x, y: x.to(torch.float16), "return x.to(torch.bfloat16)", "x", "bfloat16", "float16"),
    "slice": (lambda x, y: x[:, 1:5], "return x[:, 1:4]", "x", "stop", "5"),
    "length": (lambda x, y: x.view(2, 2, 8), "return x.view(4, 8)", "x", "2 elements", "3"),
    "method for function": (
        lambda x, y: torch.sigmoid(x),
        "return x.sigmoid()",
        "x",
        "told apart",
        "torch.sigmoid",
    ),
    "in-place": (lambda x, y: x.add_(1), "return x.add(1)", "x", "in-place", "add_(1)"),
    "operator": (lambda x, y: (x + y).tanh(), "return (x + y).exp()", "x, y", ".exp", ".tanh"),
    "absent": (lambda x, y: x + y, "return F.gelu(x)", "x", "gelu", "operator.add"),
    "parameter for two values": (lambda x, y: x * y, "return x * x", "x", "parameter x", "two parameters"),
    "two different": (
        lambda x, y: torch.nn.functional.pad(x, (1, 2)),
        "return F.pad(x, (p, p))",
        "x, p",
        "parameter p",
        "2",
    ),
}


@pytest.mark.parametrize("name", MISMATCHING)
def test_diagnosis_names_both_sides(name):
    function, body, parameters, *texts = MISMATCHING[name]
    traced, graph = pattern(body, parameters), captured(function, X.clone(), Y.clone())
    assert match(traced, graph) == []
    reason = explain(traced, graph, name).reason
    assert all(text in reason for text in texts), reason


def forged_graph(x, y):
    a = x + y
    b = torch.relu(a)
    c = torch.tanh(b) + b
    x.add_(1)
    return torch.tanh(a), torch.exp(x), c * 3


FORGED = {
    "too few": ("return torch.relu(x + y)", ["a"], "covers 1 nodes, its pattern 2"),
    "no such node": ("return torch.relu(x + y)", ["a", "z"], "covers z, which the graph does not have"),
    "an input": (
        "return torch.relu(x)",
        ["l_args_0_"],
        "`placeholder l_args_0_` is not `relu = torch.relu(x)`",
    ),
    "another operator": ("return torch.exp(x)", ["b"], "`b = torch.relu(a)` is not `exp = torch.exp(x)`"),
    "another literal": ("return x * 2", ["mul"], "is not `mul = operator.mul(x, 2)`"),
    "another value": (
        "return torch.tanh(torch.relu(x))",
        ["b", "tanh_1"],
        "is not `tanh = torch.tanh(relu)`",
    ),
    "one parameter for two values": ("return x + x", ["a"], "is not `add = operator.add(x, x)`"),
    "a node twice": ("return torch.relu(x), torch.relu(y)", ["b", "b"], "is not `relu_1 = torch.relu(y)`"),
    "a parameter of its own": ("return torch.relu(x), torch.tanh(y)", ["b", "tanh"], "computes a parameter"),
    "an output that others use": ("return torch.relu(x + y)", ["a", "b"], "leak: a is also used outside"),
    "others in between": ("b = torch.relu(x)\nreturn b, y + b", ["b", "c"], "not convex: `tanh = "),
    "an input is written": (
        "return torch.exp(x), x + y",
        ["exp", "a"],
        "must run after one of its operators",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_place_is_refused_in_one_line(name):
    body, names, reason = FORGED[name]
    with pytest.raises(MatchError) as error:
        match_at(pattern(body, "x, y" if "y" in body else "x"), captured(forged_graph, X.clone(), Y), names)
    assert reason in str(error.value) and "\n" not in str(error.value), error.value


def test_leak_names_the_user():
    def function(x, y):
        a = x + y
        return torch.relu(a), torch.tanh(a)

    graph = captured(function, X, Y)
    traced = pattern("a = x + y\nreturn torch.relu(a)")
    assert match(traced, graph) == []
    found = explain(traced, graph, "P")
    assert found.matched_nodes == found.pattern_nodes == 2
    assert "leak" in found.reason
    assert "torch.tanh" in found.reason
    assert found.pattern_node.startswith("a = ")
    assert len(match(pattern("a = x + y\nreturn torch.relu(a), a"), graph)) == 1


def test_not_convex_is_refused():
    def function(x):
        a = torch.relu(x)
        return a, torch.tanh(a) + a

    traced = pattern("a = torch.relu(x)\nreturn a, t + a", "x, t")
    graph = captured(function, X)
    assert match(traced, graph) == []
    found = explain(traced, graph, "P")
    assert "convex" in found.reason
    assert "torch.tanh" in found.reason


def test_operator_that_must_follow_the_match_is_moved_behind_it():
    def function(x):
        a = torch.relu(x)
        b = torch.tanh(a)
        return a, b, torch.exp(x)

    graph = captured(function, X)
    (found,) = match(pattern("return torch.relu(x), torch.exp(x)", "x"), graph)
    assert [node.target for node in found.followers] == [torch.tanh]


def test_write_between_the_matched_operators_is_refused():
    def function(x, y):
        a = x * 2
        x.add_(1)
        return a, x * 3

    graph = captured(function, X.clone(), Y)
    traced = pattern("return x * 2, x * 3", "x")
    assert match(traced, graph) == []
    found = explain(traced, graph, "P")
    assert "memory" in found.reason
    assert "add_" in found.reason


def test_write_through_a_view_is_seen():
    def function(x, y):
        view = x.view(-1)
        a = x * 2
        view[0] = 7.0
        return a, x * 3

    graph = captured(function, X.clone(), Y)
    assert match(pattern("return x * 2, x * 3", "x"), graph) == []


def test_order_of_writes_within_the_pattern_counts():
    def function(x, y):
        a = x * 2
        b = x.add_(1)
        return a, b

    graph = captured(function, X.clone(), Y)
    assert len(match(pattern("a = x * 2\nreturn a, x.add_(1)", "x"), graph)) == 1
    traced = pattern("b = x.add_(1)\nreturn x * 2, b", "x")
    assert match(traced, graph) == []
    assert "order" in explain(traced, graph, "P").reason


def test_parameter_cannot_be_a_value_of_the_match_itself():
    graph = captured(lambda x: torch.tanh(torch.relu(x)), X)
    assert match(pattern("return torch.relu(x), torch.tanh(y)"), graph) == []


BAD_PATTERNS = {
    "for i in (1, 2):\n    x = x + i\nreturn x": "P.py:8: a pattern is a list of assignments",
    "return print(x)": "P.py:8: a pattern may call torch only, not `print`",
    "return x.view(x.shape[0], -1)": "P.py:8: `x.shape` is a plain value in the captured graph",
    "return x.size(0) + y": "plain value in the captured graph",
    "return [i for i in x]": "write the operators one by one",
    "return torch.nothing(x)": "P.py:8: AttributeError",
    "return missing(x)": "P.py:8: name 'missing' is not defined",
    "return x": "holds no operator",
    "return {'a': x + 1}": "write the operators one by one",
    "x + 1": "returns nothing",
    "return x + 1": "parameter y is used by no operator",
}


@pytest.mark.parametrize("body", BAD_PATTERNS)
def test_bad_pattern_names_the_line(body):
    with pytest.raises(PassLoadError) as error:
        pattern(body)
    assert BAD_PATTERNS[body] in str(error.value)


UNARY = [torch.relu, torch.tanh, torch.exp, torch.sigmoid]
BINARY = [operator.add, operator.mul, operator.sub, torch.maximum]


@st.composite
def dags(draw):
    """A random graph of 3 to 30 operators on two inputs, and a connected-by-order cut of it."""
    graph = fx.Graph()
    values = [graph.placeholder("a"), graph.placeholder("b")]
    for _ in range(draw(st.integers(3, 30))):
        first = draw(st.sampled_from(values))
        if draw(st.booleans()):
            values.append(graph.call_function(draw(st.sampled_from(UNARY)), (first,)))
        elif draw(st.booleans()):
            values.append(graph.call_function(operator.mul, (first, draw(st.integers(2, 5)) / 2)))
        else:
            values.append(
                graph.call_function(draw(st.sampled_from(BINARY)), (first, draw(st.sampled_from(values))))
            )
    graph.output((*[value for value in values[2:] if not value.users], values[2]))
    nodes = operators(graph)
    start = draw(st.integers(0, len(nodes) - 2))
    end = draw(st.integers(start + 2, min(len(nodes), start + 10)))
    return graph, nodes[start:end]


def cut(nodes: list[fx.Node], change: fx.Node | None = None) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """The operators as a pattern, with parameters for what they take; `change` gets another operator."""
    graph, image = fx.Graph(), {}
    for outside in dict.fromkeys(i for node in nodes for i in node.all_input_nodes if i not in nodes):
        image[outside] = graph.placeholder(f"p_{outside.name}")
    for node in nodes:
        if node is change and isinstance(node.args[-1], float):
            image[node] = graph.call_function(node.target, (image[node.args[0]], 77.0))
        else:
            image[node] = graph.node_copy(node, image.__getitem__)
            if node is change:
                image[node].target = torch.erf if len(node.args) == 1 else torch.hypot
    graph.output(tuple(image[node] for node in nodes if any(user not in nodes for user in node.users)))
    return graph, {image[node]: node for node in nodes}


@settings(max_examples=50)
@given(dags())
def test_a_range_cut_out_of_a_graph_matches_there(case):
    graph, nodes = case
    traced, _ = cut(nodes)
    found = match(traced, graph)
    assert found, explain(traced, graph, "P")
    for each in found:
        for ours, theirs in each.nodes.items():
            assert ours.target == theirs.target
            for a, b in zip(ours.args, theirs.args, strict=True):
                if isinstance(a, fx.Node) and a.op != "placeholder":
                    assert each.nodes[a] is b
                elif not isinstance(a, fx.Node):
                    assert a == b
    taken = [node for each in found for node in each.nodes.values()]
    assert len(taken) == len(set(taken))


@settings(max_examples=50)
@given(dags(), st.data())
def test_a_changed_operator_does_not_match_and_is_named(case, data):
    graph, nodes = case
    changed = data.draw(st.sampled_from(nodes))
    traced, image = cut(nodes, changed)
    assert match(traced, graph) == []
    found = explain(traced, graph, "P")
    assert found.matched_nodes < found.pattern_nodes
    named = next(ours for ours, theirs in image.items() if theirs is changed)
    here = found.graph_node is not None and found.graph_node.startswith(f"{changed.name} = ")
    if found.matched_nodes == len(nodes) - 1 and here:
        assert found.pattern_node.startswith(f"{named.name} = ")
    else:  # elsewhere in the graph, or in two parts that do not touch, another alignment comes as far
        assert found.matched_nodes >= 1


def test_a_long_graph_is_matched_whole():
    graph = fx.Graph()
    value = graph.placeholder("x")
    for i in range(2000):
        value = graph.call_function(operator.add, (value, 1.0 if i % 2 else 2.0))
    graph.output((value,))
    traced = fx.Graph()
    part = traced.placeholder("x")
    for i in range(2000):
        part = traced.call_function(operator.add, (part, 1.0 if i % 2 else 2.0))
    traced.output(part)
    assert len(match(traced, graph)) == 1
    assert len(match(pattern("return x + 2.0 + 1.0", "x"), graph)) == 1000


def test_a_search_without_end_is_given_up():
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(14)]
    graph.output(tuple(graph.call_function(torch.relu, (x,)) for x in inputs))
    traced = fx.Graph()
    parts = [traced.call_function(torch.relu, (traced.placeholder(f"x{i}"),)) for i in range(13)]
    traced.output((*parts, traced.call_function(torch.relu, (parts[0],))))
    assert match(traced, graph) == []
    assert explain(traced, graph, "P").matched_nodes < 14
