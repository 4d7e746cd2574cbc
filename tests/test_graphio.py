"""A captured graph as plain data: what comes back is the same graph, and what cannot travel is refused."""

import json
import math
import operator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from passagent.errors import TaskError
from passagent.tasks import load_task
from passagent.tasks.capture import capture
from passagent.tasks.graphio import dump_graph, load_graph
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module

TASKS = sorted(
    path for path in (Path(__file__).parent.parent / "examples" / "tasks").iterdir() if path.is_dir()
)


def through(graph_module: fx.GraphModule) -> fx.GraphModule:
    """The graph as another process would get it."""
    nodes = dump_graph(graph_module.graph)
    text = json.dumps(nodes, allow_nan=False)
    assert json.loads(text) == nodes
    return load_graph(json.loads(text))


def assert_same_graph(one: fx.GraphModule, other: fx.GraphModule):
    other.graph.lint()
    nodes, others = list(one.graph.nodes), list(other.graph.nodes)
    assert [(n.op, n.name, n.target) for n in nodes] == [(n.op, n.name, n.target) for n in others]
    assert [repr((n.args, n.kwargs)) for n in nodes] == [repr((n.args, n.kwargs)) for n in others]
    for node in nodes:
        node.type = None  # an annotation
    one.recompile()
    assert one.code == other.code


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.name)
def test_captured_graphs_of_the_examples(path):
    subgraph = load_task(path).subgraphs[0]
    inputs = make_inputs(subgraph, "cpu", seed=1, variant=1)
    captured = capture(load_module(subgraph, "cpu"), inputs)
    loaded = through(captured.graph_module)
    assert_same_graph(captured.graph_module, loaded)
    given_ = [inputs[i] for i in captured.order]
    with torch.no_grad():
        want = captured.graph_module(*[v.clone() if isinstance(v, torch.Tensor) else v for v in given_])
        torch.testing.assert_close(loaded(*given_), want, rtol=0, atol=0, equal_nan=True, check_stride=True)


def call(target, *args, **kwargs) -> fx.GraphModule:
    """A graph of one call; its one placeholder stands in each place of X."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    args, kwargs = fx.node.map_aggregate((args, kwargs), lambda a: x if a is X else a)
    graph.output((graph.call_function(target, tuple(args), dict(kwargs)),))
    return fx.GraphModule(torch.nn.Module(), graph)


X = object()
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(),
    st.text(max_size=5),
    st.complex_numbers(allow_nan=False, allow_infinity=False),
    st.just(...),
    st.sampled_from([torch.float32, torch.bool, torch.complex64, torch.float8_e4m3fn]),
    st.sampled_from([torch.device("cpu"), torch.device("cuda", 1), torch.device("meta")]),
    st.sampled_from([torch.channels_last, torch.contiguous_format, torch.preserve_format]),
    st.sampled_from([torch.strided, torch.sparse_coo]),
    st.lists(st.integers(0, 9), max_size=3).map(torch.Size),
    st.builds(
        slice, st.none() | st.integers(-3, 3), st.none() | st.integers(-3, 3), st.none() | st.integers(1, 3)
    ),
)
arguments = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(min_size=1, max_size=3), inner, max_size=2),
    ),
    max_leaves=6,
)


@given(
    st.lists(arguments, max_size=3),
    st.dictionaries(st.sampled_from(["dim", "out", "p"]), arguments, max_size=2),
)
def test_any_argument_comes_back_as_it_was(args, kwargs):
    graph_module = call(torch.add, X, *args, **kwargs)
    node = list(graph_module.graph.nodes)[1]
    text = json.dumps(dump_graph(graph_module.graph), allow_nan=False)
    loaded = list(load_graph(json.loads(text)).graph.nodes)[1]
    assert loaded.target is torch.add
    assert repr((loaded.args, loaded.kwargs)) == repr((node.args, node.kwargs))


FUNCTIONS = [
    torch.add, torch.relu, torch.nn.functional.relu, F.silu, F.gelu, F.linear, F.conv2d, F.layer_norm,
    F.softmax, F.max_pool2d, F.max_pool1d, F.adaptive_max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d,
    F.batch_norm, F.scaled_dot_product_attention, F.one_hot, F.pad, F.hardtanh, F.hardswish, F.embedding,
    F.normalize, operator.add, operator.iadd, operator.getitem, operator.setitem, operator.matmul,
    operator.neg, operator.eq, math.sqrt, math.floor, getattr, max, min, torch.conv2d, torch.sym_max,
    torch.sym_float, torch.sym_not, torch._C._nn.gelu, torch._C._nn.linear,
    torch._C._nn.scaled_dot_product_attention, torch.special.erf, torch._C._special.special_erf,
    torch.fft.rfft, torch.linalg.vector_norm, torch._C._linalg.linalg_vector_norm, torch.Tensor.add,
    torch.ops.aten.add.Tensor, torch.ops.aten.relu.default, torch.ops.aten.mul, torch.einsum,
    torch._C._log_api_usage_once, torch.stack, torch.meshgrid, torch.broadcast_tensors, torch.bmm,
    torch.ops.prims.add.default,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_function_is_found_again(function):
    loaded = through(call(function, *[X] * (3 if function is operator.setitem else 2)))
    assert list(loaded.graph.nodes)[1].target is function


def local(x):
    return x


@pytest.mark.parametrize("target", [local, lambda x: x, json.dumps])
def test_an_unknown_function_is_refused(target):
    with pytest.raises(TaskError):
        dump_graph(call(target, X).graph)


NAMES = [
    "os:system",
    "subprocess:run",
    "passagent.tasks.graphio:load_graph",
    "torch:no_such_operator",
    "torch.nn.no_such_module:relu",
    "torch:ops.aten.no_such.default",
]


@pytest.mark.parametrize("name", NAMES)
def test_data_that_names_something_else_is_refused(name):
    nodes = dump_graph(call(torch.relu, X).graph)
    nodes[1]["target"] = name
    with pytest.raises(TaskError, match=name.rpartition(":")[2]):
        load_graph(nodes)


def test_modules_and_attributes_are_refused():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.scale = torch.nn.ReLU(), torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return self.inner(x) if self.training else x * self.scale

    for is_training, kind in ((True, "call_module"), (False, "get_attr")):
        with pytest.raises(TaskError, match=kind):
            dump_graph(fx.symbolic_trace(Scaled().train(is_training)).graph)


@pytest.mark.parametrize("value", [torch.ones(1), object(), b"bytes", torch.Generator(), {1, 2}])
def test_an_argument_without_a_plain_form_is_refused(value):
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.add, (x, value)),))
    with pytest.raises(TaskError, match=type(value).__name__):
        dump_graph(graph)
