"""A package of passes in a model: beside Inductor, exported, in training, with inputs that do not fit."""

import functools
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import cases
import models_to_extract as models
import packages
import pytest
import torch
import torch._inductor.config as inductor_config
from command import call  # noqa: F401
from expert_cases import captured, write
from test_tasks_capture import write as write_task
from torch._inductor.custom_graph_pass import CustomGraphPass

import passagent as pa
from passagent.errors import PassagentError, UsageError
from passagent.packages import model_timing
from passagent.packages.loading import load_package, load_packages
from passagent.packages.measurement import Ratio
from passagent.packages.model_timing import measure_model
from passagent.packages.package_operators import overload
from passagent.packages.package_writing import drop, pack
from passagent.tasks.extract.model_capture import Model, capture_model, model_of

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def my_passes(recorder, tmp_path_factory) -> Path:
    """A package for the encoder."""
    root = tmp_path_factory.mktemp("packages")
    (root / "other").mkdir()
    model, inputs = models.encoder()
    packages.package_for(recorder, model, inputs, root / "my_passes", other=root / "other" / "my_passes")
    return root / "my_passes"


@pytest.fixture(scope="module")
def other_passes(my_passes) -> Path:
    """A package of the same passes with other kernels."""
    return my_passes.parent / "other" / "my_passes"


@pytest.fixture(scope="module", autouse=True)
def no_cached_graphs():
    with packages.no_cached_graphs():
        yield


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(model, path, **more):
    return torch.compile(model, backend="passagent", options={"passes": str(path), **more})


def calls(path) -> dict[str, tuple[int, int]]:
    """Of each operator of a package: calls that a plan did, and calls that fell back."""
    package = load_package(path)
    return {
        name: (one.planned, one.fallen_back)
        for each in package.passes
        for name, one in each.operators.items()
    }


def grown(path, before) -> tuple[int, int]:
    now = calls(path)
    return tuple(sum(now[name][i] - before[name][i] for name in now) for i in (0, 1))


def test_each_match_is_replaced_by_a_plan_and_the_outputs_agree(my_passes):
    model, inputs = models.encoder()
    done, before = pa.explain(model, *inputs, passes=my_passes), calls(my_passes)
    with torch.no_grad():
        expected, got = model(*inputs), compiled(model, my_passes)(*inputs)
    torch.testing.assert_close(got, expected, **TOLERANCE)
    assert sorted(one.name for one in done.replaced).count("FuseAddLayerNorm") == 3
    assert len(done.replaced) >= 6 and done.refused == []
    assert grown(my_passes, before) == (len(done.replaced), 0)


def test_the_backend_takes_inductors_options_and_names_what_is_missing(my_passes):
    model, inputs = models.encoder()
    with torch.no_grad():
        got = compiled(model, my_passes, epilogue_fusion=False)(*inputs)
        torch.testing.assert_close(got, model(*inputs), **TOLERANCE)
    with pytest.raises(Exception, match="name packages"):
        torch.compile(model, backend="passagent")(*inputs)
    with pytest.raises(UsageError, match="no such directory, and no module"):
        pa.deploy(model, "not_there")


def alone(script: str, path: list[Path], **environment: str) -> str:
    """What a script prints in a process of its own."""
    search = os.pathsep.join(map(str, [*path, Path(pa.__file__).parents[1], Path(models.__file__).parent]))
    head = "import torch, models_to_extract as models, passagent as pa\nmodel, inputs = models.encoder()\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(script)],
        capture_output=True, text=True, check=False, cwd=path[0],
        env=os.environ | {"PYTHONPATH": search} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.long
def test_gradients_are_those_of_eager(my_passes, no_kernels):
    model, inputs = models.encoder()
    weight = torch.randn(2, 16, 32)
    model.train()
    (model(*inputs) * weight).sum().backward()
    expected = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    before = calls(my_passes)
    (compiled(model, my_passes)(*inputs) * weight).sum().backward()
    for one, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(one.grad, grad, rtol=1e-5, atol=1e-5 * float(grad.abs().max()))
    assert grown(my_passes, before)[0] >= 6


@pytest.mark.long
def test_a_convolution_that_comes_first_is_part_of_the_operator(recorder, tmp_path):
    case = next(
        c.values[0] for c in cases.suite("honest") if c.values[0].name == "convolution_by_the_library"
    )
    task = cases.write_task(tmp_path / "conv_relu", "conv_relu")
    pack([packages.source_of(recorder, task.path, case.candidate.files)], tmp_path / "conv_passes")
    before = calls(tmp_path / "conv_passes")

    class Model(torch.nn.Module):
        def forward(self, x, weight, bias):
            return torch.nn.functional.relu(torch.conv2d(x, weight, bias, (1, 1), (1, 1)))

    function = compiled(Model(), tmp_path / "conv_passes")
    x, weight, bias = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    with torch.no_grad():
        torch.testing.assert_close(function(x, weight, bias), Model()(x, weight, bias), **TOLERANCE)
        assert grown(tmp_path / "conv_passes", before) == (1, 0)
        torch.testing.assert_close(function(x[:1], weight, bias), Model()(x[:1], weight, bias), **TOLERANCE)
    assert grown(tmp_path / "conv_passes", before)[0] == 1


@pytest.mark.long
def test_every_odd_call_gives_the_right_answer(my_passes, no_kernels):
    model, (ids,) = models.encoder()
    with torch.no_grad():
        function = compiled(model, my_passes)
        for given in (ids[:1], ids[:, :7], ids.t().contiguous().t(), ids.int()):
            torch.testing.assert_close(function(given), model(given), **TOLERANCE)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(model, my_passes)(ids), model(ids), **TOLERANCE)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got, expected = compiled(model, my_passes)(ids), model(ids)
        torch.testing.assert_close(got.float(), expected.float(), rtol=0.05, atol=0.05)
    double = models.encoder()[0].double()
    with torch.no_grad():
        torch.testing.assert_close(compiled(double, my_passes)(ids), double(ids))


@pytest.fixture
def add_norm(my_passes):
    """The operator of add and layer norm, its implementation, and inputs that its plan is for."""
    one = next(each for each in load_package(my_passes).passes if each.name == "FuseAddLayerNorm")
    ((name, made),) = one.operators.items()
    (key,) = made.calls
    torch.manual_seed(0)
    given = [torch.randn(shape).contiguous() for shape, _, _ in key]
    return overload(name), made, given


def test_an_operator_falls_back_for_another_shape_stride_dtype_or_tensor(add_norm):
    function, made, given = add_norm
    wide = next(i for i, t in enumerate(given) if t.dim() == 3)
    before = made.planned, made.fallen_back
    torch.testing.assert_close(function(*given), made.by_pattern(*given), **TOLERANCE)
    assert (made.planned, made.fallen_back) == (before[0] + 1, before[1])
    others = [
        [t.double() for t in given],
        [t[:1] if t.dim() == 3 else t for t in given],
        [t.transpose(0, 1).contiguous().transpose(0, 1) if i == wide else t for i, t in enumerate(given)],
        [torch.cat([t.reshape(-1)[:1], t.reshape(-1)])[1:].view_as(t) for t in given],  # not aligned
    ]
    for position, odd in enumerate(others, start=1):
        torch.testing.assert_close(function(*odd), made.by_pattern(*odd), **TOLERANCE)
        assert made.planned + made.fallen_back == before[0] + before[1] + 1 + position
    assert made.fallen_back >= before[1] + 3


@pytest.mark.long
def test_torch_accepts_the_operator(add_norm):
    function, _, given = add_norm
    torch.library.opcheck(function, tuple(given))
    torch.library.opcheck(function, tuple(t.clone().requires_grad_() for t in given), atol=1e-4, rtol=1e-4)


def test_threads_do_not_share_scratch_memory(add_norm):
    from concurrent.futures import ThreadPoolExecutor

    function, made, given = add_norm
    several = [[torch.randn_like(t) for t in given] for _ in range(16)]
    expected = [made.by_pattern(*each) for each in several]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda each: [function(*each) for _ in range(20)][-1], several))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE)


@pytest.mark.gpu
def test_a_package_runs_in_inductors_cuda_graphs(recorder, tmp_path):
    """What a plan keeps must not be in the graph's pool, though it is made while Inductor warms up."""
    model, inputs = models.encoder()
    model, inputs = model.cuda(), tuple(one.cuda() for one in inputs)
    packages.package_for(recorder, model, inputs, tmp_path / "p", device="cuda")
    run = compiled(model, tmp_path / "p", **{"triton.cudagraphs": True})
    before = calls(tmp_path / "p")
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(run(*inputs), model(*inputs), rtol=1e-3, atol=1e-4)
    assert grown(tmp_path / "p", before)[0] > 0


@pytest.mark.long
def test_a_second_process_takes_the_compiled_graph_from_the_cache(my_passes, other_passes, tmp_path):
    script = """
        import json
        from torch._dynamo.utils import counters
        with torch.no_grad():
            got = torch.compile(model, backend="passagent", options={"passes": "my_passes"})(*inputs)
        torch.testing.assert_close(got, model(*inputs).detach(), rtol=1e-4, atol=1e-5)
        hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
        print(hits)
    """
    shutil.copytree(my_passes, tmp_path / "my_passes")
    where = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    assert int(alone(script, [tmp_path], **where)) == 0
    assert int(alone(script, [tmp_path], **where)) >= 1
    shutil.copytree(other_passes, tmp_path / "my_passes", dirs_exist_ok=True)
    assert int(alone(script, [tmp_path], **where)) == 0


@pytest.mark.long
def test_export_and_load_in_a_process_that_only_imports_the_package(my_passes, tmp_path):
    model, inputs = models.encoder()
    piece = capture_model(Model("m", model, inputs)).pieces[0]
    applied = pa.apply(piece.graph_module, my_passes)
    given = tuple(v.detach() if isinstance(v, torch.Tensor) else v for v in piece.inputs)
    with torch.no_grad():
        torch.testing.assert_close(applied(*given)[0], model(*inputs), **TOLERANCE)
        exported = torch.export.export(applied, given)
    assert any("passagent" in str(node.target) for node in exported.graph.nodes)
    torch.export.save(exported, tmp_path / "model.pt2")
    torch.save((given, model(*inputs).detach()), tmp_path / "values.pt")
    script = """
        import torch, my_passes
        given, expected = torch.load("values.pt")
        with torch.no_grad():
            got = torch.export.load("model.pt2").module()(*given)[0]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        print(sum(one.planned for each in my_passes.PACKAGE.passes for one in each.operators.values()))
    """
    assert int(alone(script, [tmp_path, my_passes.parent])) >= 6


class Counting(CustomGraphPass):
    """Another library's pass."""

    seen = 0

    def __call__(self, graph):
        self.seen += 1

    def uuid(self):
        return "counting"


@pytest.mark.long
def test_a_pass_that_was_there_still_runs(my_passes, no_kernels):
    model, inputs = models.encoder()
    other = Counting()
    with torch.no_grad(), inductor_config.patch(pre_grad_custom_pass=other):
        compiled(model, my_passes)(*inputs)
        assert other.seen == 1


def test_two_packages_with_equal_names_live_together(my_passes, other_passes, no_kernels):
    first, second = load_package(my_passes), load_package(other_passes)
    names = [{name for one in package.passes for name in one.operators} for package in (first, second)]
    assert [one.name for one in first.passes] == [one.name for one in second.passes]
    assert names[0].isdisjoint(names[1])
    model, inputs = models.encoder()
    with torch.no_grad():
        for path in (my_passes, other_passes):
            torch._dynamo.reset()
            torch.testing.assert_close(compiled(model, path)(*inputs), model(*inputs), **TOLERANCE)
    assert pa.explain(model, *inputs, passes=[my_passes, other_passes]).replaced


CHANGES = {
    "its hash differs": lambda path: next(path.rglob("*.cpp")).write_text("other"),
    "is missing": lambda path: next(path.rglob("*.cpp")).unlink(),
    "is damaged": lambda path: (path / "manifest.json").write_text("{"),
    "is of format 9": lambda path: (path / "manifest.json").write_text('{"format": 9}'),
    "outside of the package": lambda path: (path / "manifest.json").write_text(
        '{"format": 1, "files": {"../outside": "0"}}'
    ),
}


@pytest.mark.parametrize("told", CHANGES)
def test_a_package_that_was_changed_is_refused(my_passes, tmp_path, told):
    shutil.copytree(my_passes, tmp_path / "my_passes")
    CHANGES[told](tmp_path / "my_passes")
    with pytest.raises(PassagentError, match=told):
        load_package(tmp_path / "my_passes")


@pytest.mark.long
def test_without_a_compiler_calls_fall_back(my_passes, tmp_path):
    script = """
        from passagent.tasks.extract.model_capture import Model
        from passagent.tasks.extract.model_capture import capture_model
        piece = capture_model(Model("m", model, inputs)).pieces[0]
        applied = pa.apply(piece.graph_module, "my_passes")
        with torch.no_grad():
            torch.testing.assert_close(applied(*piece.inputs)[0], model(*inputs), rtol=1e-4, atol=1e-5)
        import my_passes
        made = [one for each in my_passes.PACKAGE.passes for one in each.operators.values()]
        print(sum(one.planned for one in made), sum(one.fallen_back for one in made) >= 6)
    """
    where = {"PASSAGENT_CACHE": str(tmp_path / "cache"), "PATH": "/nonexistent", "CXX": "/nonexistent/c++"}
    assert alone(script, [my_passes.parent], **where) == "0 True"


def test_another_constant_is_explained(my_passes):
    model, inputs = models.encoder()
    for layer in model.layers:
        layer.norm.eps = 1e-3
    found = pa.explain(model, *inputs, passes=my_passes)
    refused = [one for one in found.refused if one.name == "FuseAddLayerNorm"]
    assert len(refused) == 1 and "the pattern has 1e-05, the graph 0.001" in refused[0].reason
    assert sum(one.name == "FuseGelu" for one in found.replaced) == 3


class Scaled(torch.nn.Module):
    """A number and two operators."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * self.number) + 1.0


@pytest.mark.parametrize(("measured", "other"), [(1.0, True), (0.0, -0.0)])
def test_number_of_another_type_or_sign_is_another_constant(recorder, tmp_path, measured, other):
    x = torch.randn(32, 128)
    files = write(
        [captured(Scaled(number), [x]) for number in (measured, 7.5)]
    ).files  # its pattern has a parameter
    pa.extract(Scaled(measured), x, name="scaled", out=tmp_path / "task")
    pack([packages.source_of(recorder, tmp_path / "task", files)], tmp_path / "scaled_passes")
    found = [pa.explain(Scaled(n), x, passes=tmp_path / "scaled_passes") for n in (measured, other)]
    assert [len(one.replaced) for one in found] == [1, 0]
    assert found[1].refused[0].reason == f"was measured with other constants than number0={other}"


def test_another_shape_is_refused_with_what_was_measured(my_passes):
    model, _ = models.encoder()
    found = pa.explain(model, torch.randint(50, (2, 9)), passes=my_passes)
    reasons = {one.name: one.reason for one in found.refused}
    assert found.replaced == []
    assert reasons["FuseGelu"] == "was measured with shape [2, 16, 64] of tensor 0, not [2, 9, 64]"


class Transposed(torch.nn.Module):
    """Two gelus of one transposed tensor, which is written between them or not."""

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.writes = writes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = (x * 2).transpose(1, 2)
        first = torch.nn.functional.gelu(turned)
        return first + torch.nn.functional.gelu(turned.add_(1) if self.writes else turned)


def test_an_input_that_was_measured_contiguous_is_made_so_once(my_passes, no_kernels):
    model, x = Transposed(writes=False), torch.randn(2, 64, 16)
    found = pa.explain(model, x, passes=my_passes)
    assert [one.laid_out for one in found.replaced] == [("contiguous",)] * 2
    assert "as contiguous copies" in str(found)
    before = calls(my_passes)
    torch.testing.assert_close(compiled(model, my_passes)(x), model(x), **TOLERANCE)
    assert grown(my_passes, before) == (2, 0)


def test_an_input_that_is_written_is_not_copied(my_passes, no_kernels):
    model, x = Transposed(writes=True), torch.randn(2, 64, 16)
    found = pa.explain(model, x, passes=my_passes)
    assert found.replaced == [] and any("strides" in one.reason for one in found.refused)
    torch.testing.assert_close(compiled(model, my_passes)(x), model(x), **TOLERANCE)


@pytest.fixture(scope="module")
def gelu_passes(recorder, tmp_path_factory):
    """Makes, once for each device, the package of a gelu that was measured on a contiguous [2, 16, 64]."""

    @functools.cache
    def package(device: str) -> Path:
        out = tmp_path_factory.mktemp("gelu") / f"gelu_{device}"
        packages.package_for(
            recorder, torch.nn.GELU(), (torch.randn(2, 16, 64, device=device),), out, device=device
        )
        return out

    return package


def turned_gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu((x * 2).transpose(1, 2))


BEHIND = {
    "output": lambda y: y,
    "as_strided": lambda y: y.as_strided((2, 3), (1, 1)),
    "another pass": torch.nn.functional.gelu,
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("behind", BEHIND)
def test_an_output_behind_a_contiguous_copy_has_eagers_strides(gelu_passes, behind, device):
    model, x = (lambda x: BEHIND[behind](turned_gelu(x))), torch.randn(2, 64, 16, device=device)
    before, expected = calls(gelu_passes(device)), model(x)
    got = compiled(model, gelu_passes(device))(x)
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected, **TOLERANCE)
    assert grown(gelu_passes(device), before) == (1 + (behind == "another pass"), 0)


def test_a_pass_behind_a_copied_output_takes_it_uncopied(gelu_passes):
    model = lambda x: BEHIND["another pass"](turned_gelu(x))  # noqa: E731
    found = pa.explain(model, torch.randn(2, 64, 16), passes=gelu_passes("cpu"))
    first, second = found.replaced
    assert first.laid_out == ("contiguous",)
    assert second.laid_out[0].startswith("p_")  # the first one's operator


@pytest.mark.long
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_call_with_other_strides_is_compiled_again_and_right(gelu_passes, device):
    model = lambda x: torch.nn.functional.gelu(x) * torch.sigmoid(x)  # noqa: E731
    function, before = compiled(model, gelu_passes(device)), calls(gelu_passes(device))
    for x in (torch.randn(2, 16, 64), torch.randn(2, 16, 128)[..., ::2], torch.randn(2, 64, 16).mT):
        given = torch.empty_strided(x.shape, x.stride(), device=device).copy_(x)
        torch.testing.assert_close(function(given), model(given), **TOLERANCE)
        assert function(given).stride() == model(given).stride()
    assert grown(gelu_passes(device), before) == (6, 0)


RELU = """
import torch
from passagent.kernels import cpp_kernel

_KERNEL = cpp_kernel(
    "void relu(const float* x, float* y, int64_t n)"
    "{{ for (int64_t i = 0; i < n; ++i) y[i] = x[i] > 0 ? x[i] : 0; }}",
    "relu",
)


def pattern(x):
    return {pattern}


def replacement_args(x):
    return (x,)


def relu(x):
    y = {made}
    _KERNEL(x, y, x.numel())
    return {returned}


def replacement_func():
    return relu
"""


def relu_source(recorder, task: Path, pattern: str, made: str, returned: str):
    files = {
        "Relu.py": RELU.format(pattern=pattern, made=made, returned=returned),
        "sorted_output_pass_rule_names.json": '["Relu"]',
    }
    return packages.source_of(recorder, task, files)


def test_an_output_whose_strides_no_copy_has_is_left_to_eager(recorder, tmp_path):
    task = write_task(tmp_path / "task", "y = torch.relu(x)\nz = y[:, ::2]\nreturn (z,)", "x float32 [8,16]")
    pattern, made = "torch.relu(x)[:, ::2]", "torch.empty_like(x)"
    pack([relu_source(recorder, task, pattern, made, "y[:, ::2]")], tmp_path / "halves")
    model, x = (lambda x: torch.relu(x)[:, ::2]), torch.randn(8, 16)
    assert len(pa.explain(model, x, passes=tmp_path / "halves").replaced) == 1
    found = pa.explain(lambda x: model(x.t()), x.t().contiguous(), passes=tmp_path / "halves")
    assert [one.reason for one in found.refused] == [
        "eager's output 0 has strides [1, 16], which no copy has"
    ]


def test_a_pass_that_writes_its_input_is_left_out(recorder, tmp_path):
    task = write_task(tmp_path / "task", "y = torch.relu_(x)\nreturn (y,)", "x float32 [64]")
    with pytest.raises(PassagentError, match="writes into an input"):
        pack([relu_source(recorder, task, "torch.relu_(x)", "x", "x")], tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.long
def test_the_command_packages_what_best_wrote(call, my_passes, tmp_path):  # noqa: F811
    model, inputs = models.encoder()
    regions = pa.extract_regions(model, *inputs, name="model", out=tmp_path / "regions")
    task = next(one for one in regions.tasks if one.operators == ("gelu",))
    best = shutil.copytree(next((my_passes / "passes").glob("*_gelu")), tmp_path / "best")
    (best / "sorted_output_pass_rule_names.json").write_text('["FuseGelu"]')
    words = ("package", str(best), "--out", str(tmp_path / "one"))
    code, _, err = call(*words)
    assert code == 2 and "give --task TASK for each directory" in err
    code, _, err = call(*words, "--task", "example:quick_gelu")
    assert code == 2 and "its plans are not of task" in err
    code, out, _ = call(*words, "--task", str(regions.path / task.name))
    assert code == 0 and "torch.ops.passagent.p_" in out
    assert load_package(tmp_path / "one").passes[0].name == "FuseGelu"
    code, out, _ = call("explain", str(my_passes), f"{models.__file__}:encoder")
    assert code == 0 and "FuseGelu: replaces gelu" in out and "places replaced" in out


@pytest.mark.long
def test_a_model_is_timed_with_and_without_passes_and_losers_are_dropped(
    my_passes, monkeypatch, tmp_path, no_kernels
):
    packages.time_briefly(monkeypatch)
    model, inputs = models.encoder()
    found = pa.measure(model, *inputs, passes=my_passes)
    names = [one.name for one in load_package(my_passes).passes]
    assert set(found.us) == {
        "eager",
        "default",
        "default + passes",
        "default, frozen",
        *(f"default, without {n}" for n in names),
    }
    assert found.unequal == [] and set(found.gains) == {"default"} and set(found.passes) == set(names)
    for one in (*found.gains.values(), *found.passes.values()):
        assert 0 < one.low <= one.ratio <= one.high
    found.passes.update({"FuseGelu": Ratio(0.8, 0.7, 0.9), "FuseAddLayerNorm": Ratio(0.99, 0.9, 1.1)})
    assert "FuseGelu" in found.losers and "FuseAddLayerNorm" not in found.losers
    fewer = load_package(drop(load_package(my_passes), ["FuseGelu"], tmp_path / "fewer"))
    assert [one.name for one in fewer.passes] == [name for name in names if name != "FuseGelu"]
    assert ["FuseGelu", "the model is faster without it"] in fewer.manifest["left_out"]


def test_a_gain_is_over_the_faster_of_eager_and_inductor(gelu_passes, monkeypatch, no_kernels):
    took = {"eager": 448_000, "default": 631_000, "default + passes": 459_000}
    times = {name: [[ns] * 2] * 8 for name, ns in took.items()}
    monkeypatch.setattr(model_timing, "_times", lambda *_: times)
    found = pa.measure(torch.nn.GELU(), torch.randn(2, 16, 64), passes=gelu_passes("cpu"))
    assert found.baseline("default") == "eager" and found.gains["default"].high < 1
    assert found.us["default + passes"] == pytest.approx(459)
    times["default"] = [[400_000] * 2] * 8
    found = pa.measure(torch.nn.GELU(), torch.randn(2, 16, 64), passes=gelu_passes("cpu"))
    assert found.baseline("default") == "Inductor (default)"
    assert found.gains["default"].ratio == pytest.approx(400 / 459)


def test_of_several_inputs_times_are_added_by_their_weights(gelu_passes, monkeypatch, no_kernels):
    small, large = torch.randn(2, 16, 64), torch.randn(8, 16, 64)
    model = model_of("gelu", torch.nn.GELU(), [((small,), 1), ((large,), 3)])
    assert (model.shapes, model.weight) == ("(8, 16, 64)", 3.0)
    took = {"(2, 16, 64)": (100_000, 50_000), "(8, 16, 64)": (400_000, 500_000)}

    def timed(sides, *_):
        before, after = took[sides["eager"].model.shapes]
        return {side: [[after if "passes" in side else before] * 2] * 8 for side in sides}

    monkeypatch.setattr(model_timing, "_times", timed)
    found = measure_model(model, load_packages(gelu_passes("cpu")))
    assert found.us["default"] == pytest.approx((100 + 3 * 400) / 4)
    assert found.gains["default"].ratio == pytest.approx((100 + 3 * 400) / (50 + 3 * 500))
    rows = [(row.shapes, row.weight, round(row.gains["default"].ratio, 3)) for row in found.inputs]
    assert rows == [("(8, 16, 64)", 3.0, 0.8), ("(2, 16, 64)", 1.0, 2.0)]
    assert "(2, 16, 64), weight 1: default with passes 2.000x (2.000 to 2.000)" in str(found).splitlines()


@pytest.mark.gpu
def test_on_a_gpu_each_mode_has_baselines_that_are_called_as_it_is(gelu_passes):
    x = torch.randn(2, 16, 64, device="cuda")
    found = pa.measure(torch.nn.GELU(), x, passes=gelu_passes("cuda"))
    assert found.baselines["default"] in ("eager", "default")
    assert found.baselines["cuda-graph"] in ("eager in a CUDA graph", "cuda-graph")
    assert found.left_out == [] and found.unequal == []


class Printing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("called")
        return torch.nn.functional.gelu(x)


def test_what_a_model_prints_while_it_is_timed_is_not_in_the_output(
    gelu_passes, monkeypatch, capsys, no_kernels
):
    packages.time_briefly(monkeypatch)
    pa.measure(Printing(), torch.randn(2, 16, 64), passes=gelu_passes("cpu"))
    assert "called" not in capsys.readouterr().out


@pytest.mark.long
def test_wrong_outputs_are_found_when_a_model_is_timed(my_passes, monkeypatch, no_kernels):
    packages.time_briefly(monkeypatch)
    model, inputs = models.encoder()
    package = load_package(my_passes)
    one = next(each for each in package.passes if each.name == "FuseGelu")
    ((_, made),) = one.operators.items()
    right = type(made).__call__
    wrong = lambda self, *given: right(self, *given) * (1.5 if self is made else 1)  # noqa: E731
    monkeypatch.setattr(type(made), "__call__", wrong)
    found = pa.measure(model, *inputs, passes=my_passes)
    difference = found.unequal[0]
    assert difference.startswith("default + passes: output[") and ", eager's is " in difference


@pytest.mark.long
def test_a_pattern_may_write_what_it_made(recorder, tmp_path):
    class Normed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16)

        def forward(self, x):
            return torch.nn.functional.relu(self.norm(self.conv(x)), inplace=True)

    torch.manual_seed(0)
    model, x = Normed().eval(), torch.randn(2, 8, 16, 16)
    packages.package_for(recorder, model, (x,), tmp_path / "normed")
    before = calls(tmp_path / "normed")
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, tmp_path / "normed")(x), model(x), **TOLERANCE)
    assert grown(tmp_path / "normed", before)[0] == 1
