"""The graph that is read from a forward's text is the one that Dynamo captures."""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import replace
from pathlib import Path

import pytest
from test_tasks_capture import write

from passagent.tasks import load_task
from passagent.tasks.as_written import EXTREMES, OPERATORS, SPLITTING
from passagent.tasks.capture import capture
from passagent.tasks.graphio import dump_graph
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module
from passagent.tasks.straight import read_graph

EXAMPLES = Path(__file__).parent.parent / "examples" / "tasks"
INPUTS = (
    "a float32 [2,4,6]; b float32 [2,4,6]; i int64 [2,4]; j int64 [3]; w float32 [6,6]; u float32 [6]; "
    "l float32 [1,4,8]; p float32 [1,4,8,8]; e float32 [1,4,4,8,8]; v float32 [4]; "
    "q float32 [4,4,3]; k float32 [4,4,3,3]; g float32 [4,4,3,3,3]"
)
"""Rows, indices, matrices, channels in one to three dimensions, and weights for these."""

UNIFORM = {
    "torch.{}(a)": """
        abs acos all any asin atan ceil celu clone cos cosh deg2rad detach erf erfc exp exp2 expm1 floor
        frac hardshrink isfinite isinf isnan log log1p log2 logical_not mean nan_to_num neg ones_like
        positive prod reciprocal relu round rsqrt selu sgn sigmoid sign sin sinh sqrt square std sum tan
        tanh trunc var
    """,
    "torch.{}(a, b)": """
        add atan2 cdist div divide eq fmax fmin fmod gt hypot isclose le logical_and logical_or logical_xor
        lt maximum minimum mul multiply ne pow remainder rsub sub subtract true_divide
    """,
    "torch.{}(a, -1)": """
        amax amin argmax argmin count_nonzero cumprod cumsum log_softmax logsumexp softmax squeeze unsqueeze
    """,
    "torch.nn.functional.{}(a)": """
        celu elu gelu hardshrink hardsigmoid hardswish leaky_relu logsigmoid mish normalize relu relu6 selu
        sigmoid silu softplus softshrink softsign tanh tanhshrink
    """,
    "torch.nn.functional.{}(a, b)": """
        mse_loss pairwise_distance
    """,
    "torch._C._nn.{}(a)": """
        hardsigmoid log_sigmoid silu softshrink
    """,
    "(a + 1).{}()": """
        abs abs_ all any bfloat16 bool byte ceil clone contiguous cos detach double erf exp exp_ expm1 floor
        half int isinf isnan log log1p logical_not long neg neg_ prod ravel reciprocal relu relu_ round
        rsqrt rsqrt_ sigmoid sigmoid_ sign sin sqrt sqrt_ square std tan tanh tanh_ trunc var zero_
    """,
    "(a + 1).{}(b)": """
        __add__ __eq__ __ge__ __gt__ __iadd__ __imul__ __le__ __lt__ __mul__ __ne__ __pow__ __radd__
        __rmul__ __rsub__ __sub__ __truediv__ add add_ atan2 copy_ div div_ eq expand_as fmod ge gt le
        logical_and logical_or lt maximum minimum mul mul_ ne pow remainder reshape_as sub sub_ true_divide
        type_as view_as
    """,
    "a.{}(-1)": """
        amax amin argmax argmin count_nonzero cumprod cumsum flip log_softmax logsumexp softmax squeeze
        unsqueeze
    """,
}
OTHERS = """
    torch.zeros_like(a, dtype=torch.int64)
    torch.ge(a, 0)
    torch.floor_divide(a, 2)
    torch.matmul(a, w)
    torch.bmm(a, b.transpose(1, 2))
    torch.mm(w, w)
    torch.addmm(u, w, w)
    torch.baddbmm(a @ b.transpose(1, 2), a, b.transpose(1, 2))
    torch.cat((a, b), dim=-1)
    torch.concat([a, b], 1)
    torch.stack([a, b], dim=0)
    torch.clamp(a, min=0.0, max=1.0)
    torch.clip(a, -1, 1)
    torch.where(a > 0, a, b)
    torch.lerp(a, b, 0.5)
    torch.addcmul(a, a, b, value=0.5)
    torch.arange(0, 6, device=device(type='cuda', index=0))
    torch.linspace(0, 4, steps=5, device=device('cpu'))
    torch.eye(4)
    torch.zeros((2, 3), dtype=torch.float16)
    torch.ones(3)
    torch.full((6,), -float('inf'))
    torch.full_like(a, 2.0)
    torch.empty_like(a)
    torch.tensor(8, dtype=torch.float32)
    torch.as_tensor(a, device=device('cpu'))
    torch.rand([])
    torch.flatten(a, 1)
    torch.permute(a, (2, 0, 1))
    torch.reshape(a, (2, -1))
    torch.transpose(a, 1, 2)
    torch.t(w)
    torch.flip(a, (1,))
    torch.swapaxes(a, 1, 2)
    torch.movedim(a, 1, 2)
    torch.narrow(a, 1, 0, 2)
    torch.select(a, 1, 0)
    torch.roll(a, shifts=(1, -1), dims=(1, 2))
    torch.tile(a, (1, 2))
    torch.tril(w, -1)
    torch.triu(w, diagonal=1)
    torch.diagonal(w)
    torch.outer(u, u)
    torch.dot(u, u)
    torch.mv(w, u)
    torch.gather(a, 2, i.unsqueeze(-1))
    torch.index_select(a, 1, j)
    torch.masked_fill(a, a > 0, 0.0)
    torch.broadcast_to(u, (2, 4, 6))
    torch.conv1d(l, q, v, (1,), (1,), (1,), 1)
    torch.conv2d(p, k, None, (1, 1), (1, 1), (1, 1), 1)
    torch.conv3d(e, g, None, (1, 1, 1), (1, 1, 1), (1, 1, 1), 1)
    torch.conv_transpose1d(l, q)
    torch.conv_transpose2d(p, k)
    torch.prelu(p, v)
    torch.avg_pool1d(l, 2)
    torch.pixel_shuffle(p, 2)
    torch.layer_norm(a, (6,))
    torch.bitwise_not(i)
    torch.channel_shuffle(p, 2)
    torch.adaptive_avg_pool1d(l, 2)
    torch.unflatten(a, 2, (2, 3))
    torch.rot90(w)
    torch.bitwise_and(i, i)
    torch.bitwise_or(i, 1)
    torch.group_norm(p, 2)
    torch.rms_norm(a, (6,))
    torch.embedding(w, i)
    torch.take(u, i)
    torch.nn.functional.hardtanh(a, 0.0, 6.0, False)
    torch.nn.functional.adaptive_avg_pool1d(l, 1)
    torch.nn.functional.adaptive_avg_pool2d(p, (2, 2))
    torch.nn.functional.adaptive_max_pool2d(p, 1)
    torch.nn.functional.avg_pool2d(p, 2)
    torch.nn.functional.batch_norm(p, v, v, v, v, False, 0.1, 1e-05)
    torch.nn.functional.conv2d(p, k)
    torch.nn.functional.dropout(a, 0.1, False, False)
    torch.nn.functional.dropout1d(a, 0.1, False, False)
    torch.nn.functional.dropout2d(p, p=0.1, training=False, inplace=False)
    torch.nn.functional.dropout3d(e, 0.1, False)
    torch.nn.functional.embedding(i, w, 0, None, 2.0, False, False)
    torch.nn.functional.glu(a, dim=-1)
    torch.nn.functional.group_norm(p, 2, v, v, 1e-05)
    torch.nn.functional.instance_norm(p, None, None, v, v, True, 0.1, 1e-05)
    torch.nn.functional.interpolate(p, (16, 16), None, 'bilinear', False)
    torch.nn.functional.layer_norm(a, (6,), u, u, 1e-05)
    torch.nn.functional.linear(a, w, u)
    torch.nn.functional.log_softmax(a, dim=-1)
    torch.nn.functional.max_pool1d(l, 2)
    torch.nn.functional.max_pool2d(p, 3, 2, 1, 1, ceil_mode=False, return_indices=False)
    torch.nn.functional.max_pool3d(e, 2)
    torch.nn.functional.pixel_shuffle(p, 2)
    torch.nn.functional.prelu(p, v)
    torch.nn.functional.scaled_dot_product_attention(a, b, b)
    torch.nn.functional.softmax(a, dim=-1, dtype=torch.float32)
    torch.nn.functional.unfold(p, kernel_size=(3, 3), padding=1)
    torch.nn.functional.fold(torch.nn.functional.unfold(p, 2), (8, 8), 2)
    torch.nn.functional.cosine_similarity(a, b, -1)
    torch.nn.functional.local_response_norm(p, 2)
    torch.nn.functional.avg_pool3d(e, 2)
    torch.nn.functional.avg_pool1d(l, 2)
    torch.nn.functional.conv1d(l, q)
    torch.nn.functional.conv3d(e, g)
    torch.nn.functional.pixel_unshuffle(p, 2)
    torch.nn.functional.channel_shuffle(p, 2)
    torch._C._nn.avg_pool2d(p, 3, 1, 1, False, False, None)
    torch._C._nn.gelu(a, approximate='tanh')
    torch._C._nn.linear(a, w, u)
    torch._C._nn.pad(a, (1, 1), 'constant', 0.0)
    torch._C._nn.softplus(a, 1.0, 20.0)
    torch._C._nn.scaled_dot_product_attention(a, b, b, attn_mask=None, dropout_p=0.0, is_causal=False)
    torch._C._nn.avg_pool3d(e, 2)
    a.mean(-1, keepdim=True)
    a.sum(dim=(1, 2), dtype=torch.float32)
    i.float()
    a.flatten(1, 2)
    a.clamp(min=1e-09)
    (a * 2).clamp_(-1, 1)
    a.clamp_min(0.1)
    a.clip(0, 1)
    a.clamp_max(0.1)
    (a + 1).clamp_min_(0.1)
    u.expand(2, 4, -1)
    (a * 2).fill_(0)
    a.masked_fill(a > 0, -3.4028234663852886e+38)
    (a * 2).masked_fill_(b > 0, float('-inf'))
    a.matmul(w)
    w.mm(w)
    a.bmm(b.transpose(1, 2))
    a.norm(p=2, dim=-1, keepdim=True)
    a.permute(0, 2, 1)
    (a * 2).pow_(2)
    a.repeat(1, 2, 1)
    a.reshape(2, -1)
    a.roll(1, dims=2)
    w.t()
    a.tile((1, 2))
    a.to(dtype=torch.float16)
    a.transpose(-1, -2)
    a.swapaxes(1, 2)
    a.swapdims(1, 2)
    a.movedim(1, 2)
    a.unfold(2, 2, 1)
    a.view(2, 24)
    a.unflatten(2, (2, 3))
    a.narrow(1, 0, 2)
    a.select(1, 0)
    a.index_select(1, j)
    a.gather(2, i.unsqueeze(-1))
    w.tril()
    w.triu(1)
    w.diagonal()
    w.addmm(w, w)
    a.new_zeros((2, 3))
    a.new_ones(3)
    a.new_full((3,), 2.0)
    a.type(torch.float16)
    a.lerp(b, 0.5)
    a.addcmul(a, b)
    u.broadcast_to((2, 4, 6))
    a.where(a > 0, b)
    u.dot(u)
    w.mv(u)
    a.nan_to_num(0.0)
    a.index_add(1, j, a[:, :3])
    a.scatter(2, i.unsqueeze(-1), 0.0)
    a.index_fill(1, j, 0.0)
    torch.nn.functional.softmin(a, -1)
    torch.functional.einsum('bij,jk->bik', a, w)
    torch.functional.norm(a, dim=-1, keepdim=True)
    torch.max(a)
    torch.min(a, b)
    a.max()
    a.min(b)
"""
SEVERAL = """
    torch.functional.split(a, [2, 4], dim=-1)
    torch.chunk(a, 2, dim=1)
    torch.tensor_split(a, 2, dim=1)
    torch.sort(a, -1)
    torch.topk(a, 2, -1)
    torch.unbind(a)
    torch.max(a, -1, keepdim=True)
    torch.min(a, dim=1)
    a.split(2, 1)
    a.chunk(2, dim=-1)
    a.tensor_split(2, -1)
    a.sort(dim=-1, descending=True)
    a.topk(2)
    a.unbind(0)
    a.max(-1)
    a.min(dim=-1)
"""
SINGLE = [form.format(name) for form, names in UNIFORM.items() for name in names.split()] + [
    line.strip() for line in OTHERS.strip().splitlines()
]
PAIRS = [line.strip() for line in SEVERAL.strip().splitlines()]
BODIES = {
    "inputs in the order of their use": "return (torch.add(a, b.transpose(1, 2).transpose(1, 2) * v[0]),)",
    "the method's object before its arguments": "return (a.sub(b.exp()),)",
    "a name of torch's": "torch = b\nreturn (torch.relu(),)",
    "names that are bound again": "x = a\ny = x + 1\nx = y = y * 2\na = x.relu()\nx = None\nreturn (a, y)",
    "in place": "a += b\na -= 1\nb *= 2.0\nb /= a\nreturn (a, b)",
    "a slice that is stored": "x = a * 2\nx[..., 0:2] = b[:, :, 0:2]\nx[0] = 1.0\nreturn (x,)",
    "subscripts": "return (a[..., None], a[:, 1::2], a[-1], a[Ellipsis, 1])",
    "subscripts of several dimensions": "return (a[(0, slice(None, None, None), 2)], a[0, 1:, None])",
    "operators": "return (-a, ~(a > 0), a @ w, 2 - a, a**2, 1 / a, a <= 1, a > b, a - -1.5)",
    "several, of which one is used": "x = a.split(2, 1)\ny = x[1] + 1\nreturn (y, b)",
    "several, used in another order": "x = a.chunk(3, -1)\nc = x[2] - x[0]\nreturn (c, x[0])",
    "an input and numbers among the outputs": "return (a + 1, b, 3, a, True)",
    "an input that is returned first": "return (b, b - a, v)",
    "no operator": "return (a, b)",
    "an output twice": "c = a * b\nreturn [c, (c, a)]",
    "devices": "c = a.to(device(type='cuda', index=0), torch.float16)\nreturn (c.to('cuda:0', copy=True), c)",
    "types": "return (a.to(torch.float16), a.contiguous(memory_format=torch.contiguous_format))",
}
DYNAMOS = {
    "a size": "return (a + a.shape[0],)",
    "a condition": "return (a if a.dim() == 3 else b,)",
    "an operator of Python's": "return (max(2, 3) * a,)",
    "several as a whole": "return (torch.cat(a.chunk(2, -1), -1),)",
    "several that are unpacked": "c, d = a.chunk(2, -1)\nreturn (c, d)",
    "the last of several": "return (a.chunk(2, -1)[-1],)",
    "an operator that it does not know": "return (torch.threshold(a, 0.1, 20),)",
    "what Dynamo writes otherwise": "return (torch.nn.functional.pad(a, (1, 1)),)",
    "a starred argument": "return (torch.permute(a, *[(0, 2, 1)]),)",
    "keywords": "return (a.sum(**{'dim': 1}),)",
    "an index that may be a mask": "return (a[i > 1],)",
    "a mask that is stored under": "c = a + 1\nc[0, i > 1] = 0.0\nreturn (c,)",
    "where something holds": "return (torch.where(a > 0)[0],)",
    "a number of data": "return (torch.full((2,), v[0]),)",
    "a loop": "for _ in range(2):\n    a = a + 1\nreturn (a,)",
    "a chain of comparisons": "return (0 < (a < 1) < 2,)",
    "an equality": "return (a == b, a != 0.5)",
    "a number that is compared": "return (0.5 < a,)",
    "nothing returned": "a += 1",
    "numbers only": "return (a * (2 + 3),)",
    "a number of a tensor": "return (a * float(v[0]),)",
}


def subgraph_of(path: Path, body: str):
    """A subgraph with this body."""
    (subgraph,) = load_task(write(path, body, INPUTS)).subgraphs
    return subgraph


def both(subgraph):
    """The nodes and the inputs' order, as read and as captured."""
    captured = capture(load_module(subgraph, "cpu"), make_inputs(subgraph, "cpu", 0))
    found = read_graph(subgraph, "cpu")
    assert found is not None
    return tuple((plain(one.graph_module), one.order) for one in (found, captured))


def plain(graph_module):
    """The nodes as text. Dynamo takes all of several tensors out, and their names tell how many they were."""
    for k, node in enumerate(graph_module.graph.nodes):
        if node.target is operator.getitem and re.fullmatch(r"getitem(_\d+)?", node.name):
            node.name = f"item_{k}"
    return [str(node) for node in dump_graph(graph_module)]


def name_of(expression: str) -> str:
    """As OPERATORS has it."""
    text = ast.unparse(ast.parse(expression, mode="eval").body.func)
    return text if text.startswith("torch.") else f".{text.rpartition('.')[2]}"


@pytest.mark.parametrize("first", range(0, len(SINGLE), 16))
def test_an_operator_is_what_dynamo_makes_of_it(tmp_path, first):
    lines = [f"tmp_{k} = {expression}" for k, expression in enumerate(SINGLE[first : first + 16])]
    returned = ", ".join(f"tmp_{k}" for k in range(len(lines)))
    read, captured = both(subgraph_of(tmp_path, "\n".join([*lines, f"return ({returned},)"])))
    assert read == captured


def test_what_gives_several_tensors_is_what_dynamo_makes_of_it(tmp_path):
    lines = [f"x = {expression}\na_{k} = x[0]\nb_{k} = x[1] * 2" for k, expression in enumerate(PAIRS)]
    returned = ", ".join(f"b_{k}, a_{k}" for k in range(len(lines)))
    read, captured = both(subgraph_of(tmp_path, "\n".join([*lines, f"return ({returned},)"])))
    assert read == captured


def test_every_known_operator_is_among_these():
    assert {name_of(expression) for expression in SINGLE} == OPERATORS | EXTREMES
    assert {name_of(expression) for expression in PAIRS} == SPLITTING | EXTREMES


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_statements_are_what_dynamo_makes_of_them(tmp_path, body):
    read, captured = both(subgraph_of(tmp_path, body))
    assert read == captured


@pytest.mark.parametrize("subgraphs", [slice(1), pytest.param(slice(1, None), marks=pytest.mark.long)])
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/")), ids=lambda path: path.name)
def test_the_examples_are_read(path, subgraphs):
    for subgraph in load_task(path).subgraphs[subgraphs]:
        read, captured = both(subgraph)
        assert read == captured


@pytest.mark.parametrize("body", DYNAMOS.values(), ids=DYNAMOS)
def test_the_rest_is_left_to_dynamo(tmp_path, body):
    assert read_graph(subgraph_of(tmp_path, body), "cpu") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import torch\n", "import torch\nimport numpy as torch\n"),
        ("import torch\n", "import torch\ntorch.relu = torch.neg\n"),
        ("(torch.nn.Module)", "(torch.nn.Module, metaclass=type)"),
        ("    def forward", "    scale = 2\n\n    def forward"),
        ("    def forward", "    @torch.no_grad()\n    def forward"),
    ],
)
def test_a_module_that_holds_more_is_left_to_dynamo(tmp_path, old, new):
    subgraph = subgraph_of(tmp_path, "return (a + 1,)")
    assert read_graph(subgraph, "cpu") is not None
    assert old in subgraph.source
    assert read_graph(replace(subgraph, source=subgraph.source.replace(old, new, 1)), "cpu") is None


def test_a_number_among_the_inputs_is_left_to_dynamo(tmp_path):
    subgraph = subgraph_of(tmp_path, "return (a + 1,)")
    number = replace(subgraph.inputs[1], dtype="int", shape=(), data=[3])
    assert number.is_python_scalar
    assert read_graph(replace(subgraph, inputs=(subgraph.inputs[0], number)), "cpu") is None
