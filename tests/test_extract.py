"""A model becomes tasks: what is written runs, gives the model's outputs, and is captured again as it was."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import models_to_extract as models
import pytest
import torch
from torch import nn

import passagent as pa
from passagent import cli
from passagent.tasks import load_task
from passagent.tasks.constraints import check_task
from passagent.tasks.extract.extracting import validate
from passagent.tasks.extract.factories import Model, load_model
from passagent.tasks.extract.model_capture import capture_model

FILE = str(Path(models.__file__))
FAILING = next(n for n, text in enumerate(Path(FILE).read_text().splitlines(), 1) if "no network" in text)


@pytest.fixture
def extract(monkeypatch, capsys):
    """`passagent extract`, in this process: another one would import torch and Dynamo."""

    def run(command: str, *options: str) -> subprocess.CompletedProcess[str]:
        words = ["passagent", "extract", f"{FILE}:{command}", *options]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return subprocess.CompletedProcess(words, exit_.value.code or 0, *capsys.readouterr())

    yield run
    torch._dynamo.reset()


def only(path: Path):
    (subgraph,) = load_task(path).subgraphs
    return subgraph


def test_a_model_becomes_a_task_that_gives_the_models_outputs(tmp_path):
    model, inputs = models.encoder()
    extracted = pa.extract(model, *inputs, name="encoder", out=tmp_path / "encoder")
    (graph,) = extracted.graphs
    assert extracted.ok and graph.is_exact
    assert torch.equal(extracted.result, model(*inputs))
    subgraph = only(tmp_path / "encoder")
    assert {file.name for file in subgraph.path.iterdir()} == {
        "model.py", "weight_meta.py", "input_meta.py", "input_tensor_constraints.py", "graph_net.json",
        "graph_hash.txt",
    }  # fmt: skip
    assert subgraph.graph_hash == graph.hash.instance
    assert all(result.ok for result in check_task(tmp_path / "encoder"))


def test_buffers_that_are_indices_are_kept_and_weights_are_statistics(tmp_path):
    model, inputs = models.encoder()
    pa.extract(model, *inputs, out=tmp_path / "out")
    metas = {meta.original_name: meta for meta in only(tmp_path / "out").inputs}
    assert metas["L_self_buffers_positions_"].data == list(range(64))
    weight = next(meta for name, meta in metas.items() if name.endswith("first_parameters_weight_"))
    assert weight.data is None and weight.std == pytest.approx(
        float(model.layers[0].first.weight.detach().std()), rel=0.2
    )


def test_graph_breaks_are_named_and_every_piece_is_kept_in_order(extract, tmp_path):
    done = extract("broken", "--out", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    line = next(n for n, text in enumerate(Path(FILE).read_text().splitlines(), 1) if "print(end" in text)
    assert [one.partition(": ")[0] for one in data["breaks"]] == [f"{FILE}:{line}"]
    assert [graph["name"] for graph in data["graphs"]] == ["broken_0", "broken_1"]
    first, second = load_task(tmp_path / "out").subgraphs
    assert "gelu" in first.source and "tanh" in second.source
    assert json.loads((second.path / "graph_net.json").read_text())["order"] == 1


@pytest.mark.long
def test_inputs_keep_strides_levels_and_signs(tmp_path):
    model, inputs = models.odd()
    assert pa.extract(model, *inputs, out=tmp_path / "out").ok
    by_name = {meta.original_name: meta for meta in only(tmp_path / "out").inputs}
    for name, value in zip(("x", "mask", "wide", "part", "grown"), inputs, strict=True):
        assert (by_name[f"L_{name}_"].stride or value.contiguous().stride()) == value.stride(), name
    assert by_name["L_x_"].min_val >= 0
    assert set(by_name["L_mask_"].levels) == {0.0, float("-inf")}


@pytest.mark.long
def test_training_is_captured_with_gradients(tmp_path):
    model, inputs = models.training()
    extracted = pa.extract(model, *inputs, out=tmp_path / "out")
    assert extracted.ok and extracted.result.requires_grad
    grads = {meta.original_name: meta.requires_grad for meta in only(tmp_path / "out").inputs}
    assert all(grads.values())


def test_dynamic_sizes_become_an_input(tmp_path):
    model, inputs = models.encoder()
    extracted = pa.extract(model, *inputs, dynamic=True, out=tmp_path / "out")
    assert extracted.ok, extracted.problems
    subgraph = only(tmp_path / "out")
    sizes = [meta.data for meta in subgraph.inputs if meta.is_python_scalar]
    assert 16 in sizes
    assert json.loads((subgraph.path / "graph_net.json").read_text())["dynamic"]


@pytest.mark.long
def test_a_module_and_inputs_of_another_function(extract, tmp_path):
    done = extract("bare", "--inputs", f"{FILE}:inputs", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "the model's, bit for bit" in done.stdout


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("nothing", 2, "defines no function 'nothing'"),
        ("failing", 1, f"models_to_extract.py:{FAILING}: fails: RuntimeError: no network"),
        ("wrong", 2, "returned a int"),
        ("bare", 2, "a factory takes nothing and returns `module, example_inputs`"),
        ("no_tensors", 1, "no operator on tensors"),
        ("fails_inside", 1, "cannot be captured"),
        ("autocast", 1, "turns autocast on"),
    ],
)
def test_what_cannot_be_extracted_is_one_line(extract, tmp_path, command, code, said):
    done = extract(command, "--out", str(tmp_path / "out"))
    assert done.returncode == code
    assert said in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []  # no half directory


def test_a_directory_that_is_there_stays(extract, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    done = extract("encoder", "--out", str(tmp_path / "out"))
    assert done.returncode == 2 and "is there already" in done.stderr
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine"]


def test_validation_compares_outputs_and_nodes(tmp_path):
    from passagent.tasks.extract.graph_text import clean_graph
    from passagent.tasks.extract.model_capture import capture_model

    model = load_model(f"{FILE}:encoder")
    pa.extract(model.module, *model.args, name="m", out=tmp_path / "out")
    piece = capture_model(model).pieces[0]
    clean = clean_graph(piece.graph_module, piece.inputs)
    path = only(tmp_path / "out").path
    whole = (path / "model.py").read_text()

    def validated(old: str, new: str):
        assert old in whole
        (path / "model.py").write_text(whole.replace(old, new))
        return validate(path, clean, piece.outputs, "cpu")

    found = validated("1e-05", "1e-02")
    assert not found[1] and "differs from that of the model" in found[0][0]
    found = validated("return (", "return (tmp_0, ")
    assert not found[1] and "gives 2 outputs, the model 1" in found[0][0]
    found = validated("torch._C._nn.gelu(", "torch._C._nn.gelu(1.0 * ")
    assert found[1] and "another graph" in found[0][0]
    found = validated("class GraphModule", "class Other")
    assert not found[1] and "defines no class GraphModule" in found[0][0]


def test_a_captured_input_lies_in_the_argument_unless_it_was_written():
    from passagent.tasks.extract.factories import Model
    from passagent.tasks.extract.model_capture import capture_model

    def model(x, y):
        z = x * y
        x.add_(1)
        torch._dynamo.graph_break()
        return x * y + z

    x, y = torch.rand(4), torch.rand(4)
    before = x.clone()
    captured = capture_model(Model("m", model, (x, y)), saves_memory=True)
    first, second = [[one.data_ptr() for one in piece.inputs] for piece in captured.pieces]
    assert {x.data_ptr(), y.data_ptr()} <= {*first}
    assert x.data_ptr() not in second and y.data_ptr() in second
    assert torch.equal(x, before)
    for piece in captured.pieces:
        given = [one.clone() for one in piece.inputs]
        assert all(map(torch.equal, piece.graph_module(*given), piece.outputs))
    assert torch.equal(captured.result, model(x.clone(), y))
    own = capture_model(Model("m", model, (x, y))).pieces[0].inputs
    assert not {x.data_ptr(), y.data_ptr()} & {one.data_ptr() for one in own}


@pytest.mark.parametrize(
    ("module", "warns"),
    [
        (nn.Dropout(0.1), True),
        (nn.BatchNorm1d(4), True),
        (nn.LayerNorm(4), False),
        (nn.Dropout(0.1).eval(), False),
    ],
)
def test_a_model_in_training_mode_whose_calls_differ_is_warned_of(module, warns):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        capture_model(
            Model("m", nn.Sequential(module, nn.ReLU()).train(module.training), (torch.randn(3, 4),))
        )
    told = [str(one.message) for one in seen if "training mode" in str(one.message)]
    assert len(told) == warns and all(text.startswith("m is in training mode") for text in told)
