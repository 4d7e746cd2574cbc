"""Shipped passes: each computes what its pattern does, is refused elsewhere, and fits models as written."""

import ast
import random

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from passagent.errors import UsageError
from passagent.evaluator.matching.loaded_passes import PlannedPass
from passagent.evaluator.matching.matcher import match
from passagent.evaluator.matching.rewrite import replace_match
from passagent.passes import load, load_directory, shipped
from passagent.tasks.capture import forget

ALL = {rewrite.name: rewrite for rewrite in shipped()}
REWRITES = {name: rewrite for name, rewrite in ALL.items() if rewrite.patterns}


class Draw:
    """Sizes and tensors of one dtype by a fixed seed; `batch` is the first size of every input."""

    def __init__(self, dtype, batch, seed):
        self.dtype, self.batch = dtype, batch
        self.random, self.generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def size(self, low=1, high=6):
        return self.random.randint(low, high)

    def tensor(self, *shape):
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.dtype)


def parameters(pattern):
    return [node.target for node in pattern.find_nodes(op="placeholder")]


def patch_embedding(draw, names, count):
    kernel = tuple(draw.size(2, 4) for _ in range(count))
    sizes = [length * draw.size(1, 3) + draw.size(0, length - 1) for length in kernel]
    channels, width = draw.size(), draw.size()
    x = draw.tensor(draw.batch, channels, *sizes)
    if count == 2 and draw.size() > 3:
        x = x.to(memory_format=torch.channels_last)
    return {
        "x": x,
        "weight": draw.tensor(width, channels, *kernel),
        "bias": draw.tensor(width) if draw.size() > 3 else None,
        "stride": kernel,
        "padding": draw.random.choice([0, (0,) * count, "valid"]),
        "dilation": draw.random.choice([1, (1,) * count]),
        "groups": 1,
    }


def batch_norm_in_convolution(draw, names, count):
    groups, affine = draw.size(1, 2), draw.size() > 2
    width = groups * draw.size()
    return {
        "x": draw.tensor(draw.batch, groups * 2, *[draw.size(4, 7) for _ in range(count)]),
        "weight": draw.tensor(width, 2, *[draw.size(1, 3) for _ in range(count)]),
        "bias": draw.tensor(width) if draw.size() > 3 else None,
        "stride": (draw.size(1, 2),) * count,
        "padding": draw.size(0, 1),
        "dilation": 1,
        "groups": groups,
        "mean": draw.tensor(width),
        "variance": draw.tensor(width).square() + 0.1,
        "scale": draw.tensor(width) if affine else None,
        "shift": draw.tensor(width) if affine else None,
        "training": False,
        "momentum": 0.1,
        "eps": 1e-5,
    }


def channels_last(draw, names, _):
    channels, width = draw.size(2, 4), draw.size(2)
    return {
        "x": draw.tensor(draw.batch, channels, draw.size(4, 7), draw.size(4, 7)),
        "weight": draw.tensor(width, channels, draw.size(2, 3), draw.size(2, 3)),
        "bias": draw.tensor(width) if draw.size() > 3 else None,
        "stride": [draw.size(1, 2)] * 2,
        "padding": [draw.size(0, 1)] * 2,
        "dilation": [1, 1],
        "groups": 1,
    }


def linears(draw, names, _):
    width = draw.size()
    biases = draw.random.choice(["all", "none", "some"])
    bindings = {"x": draw.tensor(draw.batch, draw.size(), width)}
    for number in range(1, len(names) // 2 + 1):
        height = draw.size()
        bindings[f"weight_{number}"] = draw.tensor(height, width)
        has_bias = biases == "all" or (biases == "some" and number == 1)
        bindings[f"bias_{number}"] = draw.tensor(height) if has_bias else None
    return bindings


def gelu_epilogue(draw, names, _):
    width, height = draw.size(), draw.size()
    x = draw.tensor(draw.batch, draw.size(), width)
    return {"x": x, "weight": draw.tensor(height, width), "bias": draw.tensor(height)}


def attention(draw, heads):
    """An attention of `heads` heads of keys and values, each of them for two heads of queries."""
    queries, keys, width = draw.size(2), draw.size(2), draw.size()
    bias = draw.tensor(queries, keys, 2 * heads).permute(2, 0, 1)  # as a table of places gives it
    return {
        "query": draw.tensor(draw.batch, 2 * heads, queries, width),
        "key": draw.tensor(draw.batch, heads, keys, width),
        "value": draw.tensor(draw.batch, heads, keys, width),
        "mask": bias[None],
        "dropout": 0.0,
        "is_causal": False,
        "scale": draw.random.choice([None, 0.3]),
    }


def attention_mask(draw, names, _):
    return attention(draw, draw.size(2)) | {"enable_gqa": True}


def grouped_attention(draw, names, _):
    bindings = attention(draw, draw.size(1, 3))
    batch, heads, keys, width = bindings["key"].shape
    sizes, shape = (batch, heads, 2, keys, width), (batch, 2 * heads, keys, width)
    return bindings | {
        "key_sizes": sizes, "key_shape": shape, "value_sizes": sizes, "value_shape": shape,
    }  # fmt: skip


DRAWS = {
    "channels_last": channels_last,
    "attention_mask": attention_mask,
    "grouped_attention": grouped_attention,
    "patch_embedding": patch_embedding,
    "batch_norm_in_convolution": batch_norm_in_convolution,
    "three_linears": linears,
    "two_linears": linears,
    "gelu_epilogue": gelu_epilogue,
}
"""What a pattern may bind, by a Draw, the pattern's parameters, and the spatial dimensions of its input."""
CASES = [(name, number) for name, rewrite in REWRITES.items() for number in range(len(rewrite.patterns))]


def drawn(name, number, draw):
    return DRAWS[name](draw, parameters(REWRITES[name].patterns[number]), (2, 1, 3)[number % 3])


@pytest.fixture(autouse=True)
def _gelu_of_cuda(monkeypatch):
    """Where the operator runs here, on a CPU, it takes the tanh formula, as on CUDA."""

    def product(bias, rows, weight, use_gelu):
        assert use_gelu
        return functional.gelu(torch.addmm(bias, rows, weight), approximate="tanh")

    monkeypatch.setattr(torch, "_addmm_activation", product)


def values_of(name, number, bindings):
    """Return what the pattern gives and what the replacement gives, as tuples."""
    graph = REWRITES[name].patterns[number]
    eager = fx.GraphModule({}, graph)(*[bindings[parameter] for parameter in parameters(graph)])
    replaced = REWRITES[name].replacement(**bindings)
    return [tuple(value) if isinstance(value, (tuple, list)) else (value,) for value in (eager, replaced)]


def in_float64(bindings):
    doubled = {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in bindings.items()
    }
    return doubled | {name: torch.float64 for name in ("dtype", "cast") if doubled.get(name) is not None}


def test_every_shipped_pass_has_draws_and_a_page():
    page = (REWRITES["patch_embedding"].file.parents[2] / "docs" / "passes.md").read_text()
    files = {path.stem for path in REWRITES["patch_embedding"].file.parent.glob("[!_]*.py")}
    assert files == ALL.keys()
    assert REWRITES.keys() == DRAWS.keys()
    assert [name for name in ALL if f"`{name}`" not in page] == []
    docs = {name: ast.get_docstring(ast.parse(rewrite.file.read_text())) for name, rewrite in ALL.items()}
    assert [name for name, doc in docs.items() if not {"Right", "See"} & {*doc.split()}] == []


@pytest.mark.parametrize(("name", "number"), CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_replacement_on_random_sizes_is_as_close_as_the_pattern(name, number, dtype):
    """Both are held against the pattern in float64: lower dtypes may round elsewhere, and no worse."""
    for seed, batch in enumerate([3, 1, 2, 0, 4, 1]):
        bindings = drawn(name, number, Draw(dtype, batch, seed))
        if name != "gelu_epilogue":
            assert REWRITES[name].applies(**bindings)
        eager, replaced = values_of(name, number, bindings)
        exact, _ = values_of(name, number, in_float64(bindings))
        for ours, theirs, right in zip(replaced, eager, exact, strict=True):
            assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)
            if right.numel():
                rounding = 16 * torch.finfo(dtype).eps * max(1.0, right.abs().max().item())
                allowed = 2 * (theirs.double() - right).abs().max().item() + rounding
                assert (ours.double() - right).abs().max().item() <= allowed


@pytest.mark.parametrize(("name", "number"), CASES)
def test_replacement_in_training_gives_the_gradients_of_the_pattern(name, number):
    """The linears' also where their outputs are written in place, which autograd refuses for some views."""
    bindings = drawn(name, number, Draw(torch.float64, 2, 7))
    fixed = ("mean", "variance", "hidden")
    tensors = [value for parameter, value in bindings.items() if parameter not in fixed]
    inputs = [value.requires_grad_() for value in tensors if isinstance(value, torch.Tensor)]
    gradients = []
    for values in values_of(name, number, bindings):
        results = [value.mul_(0.5) for value in values] if name.endswith("linears") else values
        losses = [(value * value.detach().cos()).sum() for value in results]
        gradients.append(torch.autograd.grad(losses, inputs))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("patch_embedding", {"stride": (1, 1)}),
        ("patch_embedding", {"padding": 1}),
        ("patch_embedding", {"padding": (0, 1)}),
        ("patch_embedding", {"padding": "same"}),
        ("patch_embedding", {"dilation": (1, 2)}),
        ("patch_embedding", {"groups": 2}),
        ("patch_embedding", {"x": torch.zeros(4, 12, 12)}),
        ("patch_embedding", {"weight": torch.zeros(2, 4, 1, 1), "stride": 1}),
        ("batch_norm_in_convolution", {"training": True}),
        ("batch_norm_in_convolution", {"training": True, "mean": None, "variance": None}),
        ("batch_norm_in_convolution", {"x": torch.zeros(2, 5, 5)}),
        ("three_linears", {"weight_2": torch.zeros(4)}),
        ("three_linears", {"weight_2": torch.zeros(4, 4, dtype=torch.float64)}),
        ("two_linears", {"bias_1": torch.zeros(1, 4)}),
        ("channels_last", {"weight": torch.zeros(2, 1, 3, 3)}),
        ("gelu_epilogue", {}),  # on the CPU
        ("attention_mask", {"mask": None}),
        ("attention_mask", {"mask": torch.zeros(6, 6)}),
        ("attention_mask", {"dropout": 0.1}),
        ("grouped_attention", {"key": torch.zeros(2, 3, 4)}),
        ("grouped_attention", {"key_shape": (2, 1, 4, 4)}),
        ("grouped_attention", {"query": torch.zeros(2, 5, 4, 4)}),
    ],
)  # fmt: skip
def test_pass_is_refused_where_the_identity_does_not_hold(name, changes):
    bindings = drawn(name, 0, Draw(torch.float32, 2, 5))
    assert REWRITES[name].applies(**bindings | changes) is False


def test_gelu_epilogue_applies_on_cuda_in_low_precision_without_gradients():
    applies, replacement = REWRITES["gelu_epilogue"].applies, REWRITES["gelu_epilogue"].replacement
    with FakeTensorMode(), torch.no_grad():
        for dtype, right in [(torch.float16, True), (torch.bfloat16, True), (torch.float32, False)]:
            shapes = (3, 2, 8), (6, 8), (6,)
            x, weight, bias = (torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes)
            assert applies(x, weight, bias) is right
            assert not applies(x, weight, None)
            assert replacement(x, weight, bias).shape == (3, 2, 6)
        weight = torch.empty(6, 8, dtype=torch.float16, device="cuda", requires_grad=True)
        x, bias = x.half(), bias.half()
        assert applies(x, weight, bias)
        with torch.enable_grad():
            assert not applies(x, weight, bias)


class PatchEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.projection, self.norm = nn.Conv2d(3, 12, kernel_size=4, stride=4), nn.LayerNorm(12)

    def forward(self, x):
        return self.norm(self.projection(x).flatten(2).transpose(1, 2))


class Attention(nn.Module):
    """An encoder's attention."""

    def __init__(self, bias=True):
        super().__init__()
        self.query, self.value, self.out = (nn.Linear(12, 12) for _ in range(3))
        self.key = nn.Linear(12, 12, bias=bias)

    def forward(self, x):
        q, k, v = (
            layer(x).view(*x.shape[:2], 3, 4).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(q, k, v)
        return self.out(attended.transpose(1, 2).reshape(x.shape))


class GroupedAttention(nn.Module):
    """A decoder's attention with fewer key and value heads than query heads: layers of different widths."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(12, 24), nn.Linear(12, 8), nn.Linear(12, 8)

    def forward(self, x):
        layers = self.query, self.key, self.value
        q, k, v = (layer(x).view(*x.shape[:2], -1, 4).transpose(1, 2) for layer in layers)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class GatedMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(12, 12, bias=False) for _ in range(3))

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def convolutional():
    norm = nn.BatchNorm2d(8)
    norm.running_mean.uniform_(-1, 1), norm.running_var.uniform_(0.5, 2)
    layers = nn.Conv2d(3, 8, 3, padding=1, bias=False), norm, nn.ReLU()
    return nn.Sequential(*layers, nn.Conv2d(8, 8, 3, groups=2), nn.BatchNorm2d(8, affine=False))


TOKENS, IMAGE = (2, 5, 12), (2, 3, 9, 8)
MODELS = [
    (PatchEmbedding, IMAGE, ["patch_embedding"]),
    (lambda: nn.Sequential(nn.Conv1d(3, 4, 3, 3), nn.Conv1d(4, 4, 2, 1)), (2, 3, 9), ["patch_embedding"]),
    (lambda: nn.Conv3d(3, 4, (1, 2, 2), (1, 2, 2)), (2, 3, 2, 4, 5), ["patch_embedding"]),
    (Attention, TOKENS, ["three_linears"]),
    (lambda: Attention(bias=False), TOKENS, ["three_linears"]),
    (GroupedAttention, TOKENS, ["three_linears"]),
    (GatedMLP, TOKENS, ["two_linears"]),
    (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), IMAGE, ["channels_last"]),
    (convolutional, IMAGE, ["batch_norm_in_convolution"] * 2),
    (lambda: nn.Sequential(nn.Linear(12, 8), nn.GELU("tanh")), TOKENS, ["gelu_epilogue"]),
    (lambda: nn.Sequential(nn.Linear(12, 8), nn.GELU()), TOKENS, []),
]


@pytest.mark.parametrize(("factory", "shape", "expected"), MODELS)
def test_model_as_users_write_it_is_rewritten_and_computes_the_same(factory, shape, expected):
    torch.manual_seed(0)
    model, inputs = factory().eval(), [torch.randn(shape)]
    applied = []

    def backend(graph_module, _):
        for rewrite in REWRITES.values():
            applied.extend([rewrite.name] * apply_everywhere(rewrite, graph_module.graph))
        graph_module.recompile()
        return graph_module.forward

    with torch.no_grad():
        forget()
        rewritten = torch.compile(model, backend=backend)(*inputs)
        forget()
        torch.testing.assert_close(rewritten, model(*inputs))
    assert applied == expected


def apply_everywhere(rewrite, graph):
    """Replace each match that the pass applies to; return how many. Gelu's epilogue applies on a CPU, too."""
    count = 0
    for pattern in rewrite.patterns:
        for site in match(pattern, graph):
            names, nodes = list(site.bindings), tuple(site.bindings.values())
            values = fx.map_arg(site.bindings, lambda node: node.meta["example_value"])
            if rewrite.name != "gelu_epilogue" and not rewrite.applies(**values):
                continue
            count += 1

            def call(*arguments, names=names):
                return rewrite.replacement(**dict(zip(names, arguments, strict=True)))

            planned = PlannedPass(rewrite.name, str(rewrite.file), pattern)
            replace_match(graph, planned, site, call, nodes)
    return count


GOOD = """
import torch
def pattern(x, y): return torch.relu(x + y)
def replacement(x, y, z=None): return (x + y).clamp(min=0)
"""


def test_own_directory_of_passes_is_loaded_in_order_of_names_but_for_underscores(tmp_path):
    for name in ("second", "first", "_helper"):
        (tmp_path / f"{name}.py").write_text(GOOD)
    rewrites = load_directory(tmp_path)
    assert [rewrite.name for rewrite in rewrites] == ["first", "second"]
    assert rewrites[0].applies(x=None, y=None) is True
    assert torch.equal(rewrites[0].replacement(torch.ones(2), -torch.ones(2)), torch.zeros(2))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import torch\ndef pattern(x): return (", "does not import: SyntaxError"),
        ("import no_such_module", "does not import: ModuleNotFoundError: No module named"),
        ("def pattern(x): return x", "defines no function replacement"),
        ("", "defines no function pattern and no function replacement"),
        (GOOD.replace("y, z=None", "z"), "replacement must take what pattern takes (x, y)"),
        (GOOD.replace("z=None", "z"), "and have defaults for others: missing a required argument: 'z'"),
        (GOOD + "def applies(x): return True", "applies must take what pattern takes (x, y)"),
        (GOOD.replace("torch.relu(x + y)", "print(x)"), "a pattern may call torch only, not `print`"),
    ],
)
def test_own_pass_with_an_error_is_refused_in_one_line(tmp_path, text, reason):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(UsageError) as caught:
        load(tmp_path / "mine.py")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'mine.py'}:") and reason in message and "\n" not in message


def test_own_directory_without_passes_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no pass; write one as a file"):
        load_directory(tmp_path)
