"""Passes of library operators in a model: values prepared once, outputs in eager's strides, packages."""

import copy
from collections import Counter

import pytest
import torch
from packages import time_briefly
from torch import nn

import passagent as pa
from passagent.errors import PassagentError
from passagent.packages import loading
from passagent.packages.loading import load_package, load_packages, package_of
from passagent.packages.model_timing import measure_model
from passagent.packages.package_writing import drop, pack
from passagent.passes import load, load_directory
from passagent.tasks.extract.model_capture import Model

pytestmark = pytest.mark.slow

SHIPPED = "passagent.passes"
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


class Vision(nn.Module):
    """A patch embedding and one attention, with a convolution and its norm before them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.patch, self.place = nn.Conv2d(4, 32, 4, 4), nn.Parameter(torch.randn(1, 16, 32))
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = self.patch(torch.relu(self.norm(self.stem(x)))).flatten(2).transpose(1, 2) + self.place
        heads = [
            part(x).unflatten(-1, (2, 16)).transpose(1, 2) for part in (self.query, self.key, self.value)
        ]
        attended = nn.functional.scaled_dot_product_attention(*heads)
        return x + self.out(attended.transpose(1, 2).flatten(2))


EXPECTED = {"batch_norm_in_convolution", "channels_last", "three_linears", "patch_embedding"}


@pytest.fixture
def model() -> Vision:
    torch.manual_seed(0)
    return Vision().eval()


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def image(batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, 16, 16)


def compiled(model, passes=SHIPPED):
    return torch.compile(model, backend="passagent", options={"passes": passes})


def check(run, model, *batches: int) -> None:
    for batch in batches or (2,):
        x = image(batch)
        got, expected = run(x), model(x)
        torch.testing.assert_close(got, expected, **TOLERANCE)
        assert got.stride() == expected.stride()


def test_explain_names_the_places_of_shipped_passes(model):
    explained = pa.explain(model, image(2), passes=SHIPPED)
    assert {site.name for site in explained.replaced} == EXPECTED


def test_compiled_model_follows_each_change_of_its_parameters(model, no_kernels):
    run = compiled(model)
    with torch.no_grad():
        check(run, model, 2, 3, 5)  # the batch becomes symbolic
        model.query.weight.add_(1)
        check(run, model)
        model.norm.running_mean.sub_(2)
        check(run, model)
        model.load_state_dict(Vision().state_dict())
        check(run, model)
        model.value.bias = nn.Parameter(torch.randn(32))
        check(run, model)
        model.double()
        x = image(2).double()
        torch.testing.assert_close(run(x), model(x))


def test_optimizer_step_is_seen_by_the_compiled_model(model, no_kernels):
    run = compiled(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.no_grad():
        check(run, model)
    model(image(2)).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        check(run, model)


def test_gradients_are_eagers_where_the_model_trains(model, no_kernels):
    run, x, twin = compiled(model), image(2), copy.deepcopy(model)
    run(x).square().mean().backward()
    twin(x).square().mean().backward()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-3, atol=1e-5)


def test_training_mode_and_autocast_are_left_as_they_are(model, no_kernels):
    run = compiled(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        x = image(2)
        torch.testing.assert_close(run(x), model(x), rtol=0.05, atol=0.05)
    model.train()
    twin, x = copy.deepcopy(model), image(2)
    torch.testing.assert_close(run(x), twin(x), **TOLERANCE)
    torch.testing.assert_close(model.norm.running_mean, twin.norm.running_mean)


class Masked(nn.Module):
    """An attention of two heads whose mask `mask(x)` builds."""

    def __init__(self, mask, groups=1):
        super().__init__()
        self.mask, self.groups = mask, groups
        self.query, self.key = nn.Linear(32, 32), nn.Linear(32, 32 // groups)

    def forward(self, x):
        batch, length, _ = x.shape
        q = self.query(x).view(batch, length, 2, 16).transpose(1, 2)
        k = self.key(x).view(batch, length, -1, 16).transpose(1, 2)
        v = k * 0.5
        if self.groups > 1:
            sizes = batch, 2 // self.groups, self.groups, length, 16
            k = k[:, :, None, :, :].expand(*sizes).reshape(batch, 2, length, 16)
            v = v[:, :, None, :, :].expand(*sizes).reshape(batch, 2, length, 16)
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(x))


def places(x):
    return torch.arange(x.shape[1], device=x.device)


def all_true(x):
    """As models of transformers write it where nobody gives them a mask."""
    return (places(x)[None, None, :, None] >= 0).expand(x.shape[0], -1, x.shape[1], x.shape[1])


def causal(x):
    lower = places(x)[None, None, None, :] <= places(x)[None, None, :, None]
    return (lower.new_ones(()) & lower).expand(x.shape[0], -1, -1, -1)


def window(x):
    return causal(x) & (places(x)[:, None] - places(x) < 3)


def written_later(x):
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
    mask[:, 1:].logical_and_(x[0, :, 0].gt(0)[:, None])
    return mask


def drawn(x):
    return (torch.rand(x.shape[1], x.shape[1]) < 0.5) | torch.eye(x.shape[1], dtype=torch.bool)


def permuted_bias(x):
    table = places(x)[:, None, None] * torch.tensor([0.1, 0.2]) + places(x)[None, :, None] * 0.3
    return table.permute(2, 0, 1).expand(x.shape[0], -1, -1, -1)


MASKS = [
    (all_true, 1, {"attention_mask": 1}),
    (causal, 1, {"attention_mask": 1}),
    (causal, 2, {"attention_mask": 1, "grouped_attention": 1}),
    (window, 2, {"grouped_attention": 1}),
    (permuted_bias, 1, {"attention_mask": 1}),
    (written_later, 1, {}),
    (drawn, 1, {}),
]


@pytest.mark.parametrize(("mask", "groups", "expected"), MASKS)
def test_an_attention_is_written_without_the_mask_that_says_nothing(mask, groups, expected, no_kernels):
    torch.manual_seed(0)
    model, x = Masked(mask, groups).eval(), torch.randn(2, 6, 32)
    with torch.no_grad():
        explained = pa.explain(model, x, passes=SHIPPED)
        assert Counter(site.name for site in explained.replaced if "attention" in site.name) == expected
        if mask is not drawn:
            torch.testing.assert_close(compiled(model)(x), model(x), **TOLERANCE)


class Tables(nn.Module):
    """A small network of parameters, in place, and angles; what is drawn, counted or a view besides."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))
        self.places = nn.Parameter(torch.randn(6, 2))
        self.register_buffer("rates", torch.rand(4))
        self.register_buffer("count", torch.zeros(4))
        self.weight = nn.Parameter(torch.randn(4, 6))

    def forward(self, x):
        self.count.add_(1)
        table = torch.sigmoid(self.network(self.places))
        angles = torch.arange(6, device=x.device)[:, None] * self.rates
        noise = torch.rand_like(self.weight) * 0
        view = self.weight.t()
        return x * table + angles.cos() + view + noise.t() + self.count.square()


def test_what_is_computed_of_parameters_alone_is_prepared_and_follows_them(no_kernels):
    torch.manual_seed(0)
    model, x = Tables().eval(), torch.randn(3, 6, 4)
    with torch.no_grad():
        explained = pa.explain(model, x, passes=SHIPPED)
        prepared = [site.nodes for site in explained.replaced if site.name == "parameters_once"]
        assert len(prepared) == 2
        assert explained.prepared_bytes == 2 * 6 * 4 * 4
        run, twin = compiled(model), copy.deepcopy(model)
        for change in (None, model.places, model.rates, model.network[0].weight):
            if change is not None:
                change.mul_(1.5)
                twin.load_state_dict(model.state_dict())
            twin.count.copy_(model.count)
            torch.testing.assert_close(run(x), twin(x), **TOLERANCE)


def test_a_mask_of_two_attentions_is_prepared_once(no_kernels):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.randn(6, 6, 2))

        def forward(self, x):
            mask = self.bias.permute(2, 0, 1)
            y = nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
            return nn.functional.scaled_dot_product_attention(y, y, x, attn_mask=mask)

    model, x = Two().eval(), torch.randn(2, 2, 6, 16)
    with torch.no_grad():
        explained = pa.explain(model, x, passes=SHIPPED)
        found = Counter(site.name for site in explained.replaced)
        assert found == {"attention_mask": 2, "parameters_once": 2}
        assert explained.prepared_bytes == 2 * 6 * 6 * 4
        torch.testing.assert_close(compiled(model)(x), model(x), **TOLERANCE)


def test_output_of_a_replaced_operator_has_eagers_strides():
    model = nn.Conv2d(3, 8, 4, 4).eval()
    run, x = compiled(model), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert run(x).stride() == model(x).stride()
        torch.testing.assert_close(run(x), model(x), **TOLERANCE)


def test_write_into_a_view_of_an_output_is_seen_through_it(no_kernels):
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, 8, 4, 4)

        def forward(self, x):
            y = self.patch(x)
            y.flatten(2).add_(1)
            return y * 2

    model = Written().eval()
    run, x = compiled(model), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), **TOLERANCE)


@pytest.mark.parametrize(
    ("replacement", "reason"),
    [
        ("return x[:1]", "returns the shape"),
        ("return x.double()", "returns torch.float64"),
        ("return x.view(x.shape)", "memory of its input"),
        ("raise ValueError('no')", "fails here: ValueError: no"),
        ("return x * torch.tensor(2.0)", "torch.full"),
    ],
)
def test_replacement_that_is_not_eagers_is_refused_with_its_reason(tmp_path, replacement, reason):
    pattern = "import torch\n\n\ndef pattern(x):\n    return torch.relu(x)\n"
    (tmp_path / "mine.py").write_text(f"{pattern}\n\ndef replacement(x):\n    {replacement}\n")
    explained = pa.explain(lambda x: torch.relu(x).add_(1), torch.ones(3), passes=tmp_path)
    (miss,) = explained.refused
    assert reason in miss.reason and not explained.replaced


def test_package_holds_passes_as_files_and_refuses_changed_ones(model, tmp_path, no_kernels):
    shipped = [each for each in load_packages(SHIPPED)[0].rewrites if each.name in EXPECTED]
    pack([], tmp_path / "kept", shipped)
    package = load_package(tmp_path / "kept")
    assert {each.name for each in package.rewrites} == EXPECTED
    with torch.no_grad():
        check(compiled(model, str(tmp_path / "kept")), model)
    fewer = load_package(drop(package, ["three_linears"], tmp_path / "fewer"))
    assert {each.name for each in fewer.rewrites} == EXPECTED - {"three_linears"}
    file = tmp_path / "kept/rewrites/patch_embedding.py"
    file.write_text(file.read_text() + "\n# changed\n")
    loading._load.cache_clear()
    with pytest.raises(PassagentError, match="not what was packaged"):
        load_package(tmp_path / "kept")


def test_one_rewrite_alone_is_a_package_of_its_own(model):
    file = load_packages(SHIPPED)[0].path / "patch_embedding.py"
    alone = package_of(file.parent, [load(file)])
    explained = pa.explain(model, image(2), passes=alone)
    assert {site.name for site in explained.replaced} == {"patch_embedding"}


def test_explain_tells_the_memory_of_prepared_values(model):
    explained = pa.explain(model, image(2), passes=SHIPPED)
    joined, folded = 3 * 32 * 33, 4 * 3 * 9 + 4
    assert explained.prepared_bytes == 4 * (joined + folded)
    assert "take 0.0 MB" in str(explained)


PASS = """
import torch

def pattern(x):
    return torch.nn.functional.{name}(x) * {factor}

def replacement(x):
    return torch.nn.functional.{name}(x * 1.0) * {factor}
"""


def test_each_of_many_passes_is_timed_by_a_side_that_was_compiled(tmp_path, monkeypatch, no_kernels):
    """Dynamo compiles one function eight times, here once, and runs eager then."""

    class Many(nn.Module):
        def forward(self, x):
            for factor in range(2, 4):
                x = nn.functional.relu(x) * factor
            return x + 1 if torch.compiler.is_compiling() else x

    for factor in range(2, 4):
        (tmp_path / f"relu_{factor}.py").write_text(PASS.format(name="relu", factor=factor))
    package = package_of(tmp_path, load_directory(tmp_path))
    time_briefly(monkeypatch)
    with torch._dynamo.config.patch(recompile_limit=1):
        measured = measure_model(Model("many", Many(), (torch.randn(8),)), [package], ["default"])
    assert len(measured.passes) == 2
    assert {line.partition(":")[0] for line in measured.unequal} == measured.us.keys() - {"eager"}
