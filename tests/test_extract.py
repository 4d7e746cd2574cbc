"""A model becomes tasks: what is written runs, gives the model's outputs, and is captured again as it was."""

import json
import shutil
import warnings
from pathlib import Path

import models_to_extract as models
import pytest
import torch
from torch import nn

import passagent as pa
from passagent.tasks import load_task
from passagent.tasks.constraints import check_task
from passagent.tasks.extract.extracting import validate
from passagent.tasks.extract.model_capture import Model, capture_model
from passagent.tasks.extract.sample import clean_graph
from passagent.tasks.reader import FILES

FILE = str(Path(models.__file__))
FAILING = next(n for n, text in enumerate(Path(FILE).read_text().splitlines(), 1) if "no network" in text)


@pytest.fixture
def extract(call):
    """`passagent extract` of a factory: exit code, standard output and error."""
    yield lambda factory, *options: call("extract", f"{FILE}:{factory}", *options)
    torch._dynamo.reset()


def only(path: Path):
    (subgraph,) = load_task(path).subgraphs
    return subgraph


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """An encoder, its inputs, and what was extracted of it."""
    model, inputs = models.encoder()
    out = tmp_path_factory.mktemp("extracted") / "encoder"
    return model, inputs, pa.extract(model, *inputs, name="encoder", out=out)


def test_a_model_becomes_a_task_that_gives_the_models_outputs(encoder):
    model, inputs, extracted = encoder
    (graph,) = extracted.graphs
    assert extracted.ok and graph.is_exact
    assert torch.equal(extracted.result, model(*inputs))
    subgraph = only(extracted.path)
    assert {file.name for file in subgraph.path.iterdir()} == set(FILES)
    assert subgraph.graph_hash == graph.hash.instance
    assert all(result.ok for result in check_task(extracted.path))


def test_buffers_that_are_indices_are_kept_and_weights_are_statistics(encoder):
    model, _, extracted = encoder
    metas = {meta.original_name: meta for meta in only(extracted.path).inputs}
    assert metas["L_self_buffers_positions_"].data == tuple(range(64))
    weight = next(meta for name, meta in metas.items() if name.endswith("first_parameters_weight_"))
    deviation = float(model.layers[0].first.weight.detach().std())
    assert weight.data is None and weight.std == pytest.approx(deviation, rel=0.2)


def test_graph_breaks_are_named_and_every_piece_is_kept_in_order(extract, tmp_path):
    code, out, err = extract("broken", "--out", tmp_path / "out", "--json")
    assert code == 0, err
    data = json.loads(out)
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
    code, out, err = extract("bare", "--inputs", f"{FILE}:inputs", "--out", tmp_path / "out")
    assert code == 0, err
    assert "the model's, bit for bit" in out


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
    exit_code, _, err = extract(command, "--out", tmp_path / "out")
    assert exit_code == code
    assert said in err and len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []  # no half directory


def test_a_directory_that_is_there_stays(extract, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    code, _, err = extract("encoder", "--out", tmp_path / "out")
    assert code == 2 and "is there already" in err
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("old", "new", "is_exact", "problem"),
    [
        ("1e-05", "1e-02", False, "differs from that of the model"),
        ("return (", "return (tmp_0, ", False, "gives 2 outputs, the model 1"),
        ("torch._C._nn.gelu(", "torch._C._nn.gelu(1.0 * ", True, "another graph"),
        ("class GraphModule", "class Other", False, "defines no class GraphModule"),
    ],
)
def test_validation_compares_outputs_and_nodes(encoder, tmp_path, old, new, is_exact, problem):
    model, inputs, extracted = encoder
    piece = capture_model(Model("encoder", model, inputs)).pieces[0]
    path = Path(shutil.copytree(only(extracted.path).path, tmp_path / "g"))
    text = (path / "model.py").read_text()
    assert old in text
    (path / "model.py").write_text(text.replace(old, new))
    problems, exact = validate(path, clean_graph(piece.graph_module, piece.inputs), piece.outputs, "cpu")
    assert exact == is_exact and problem in problems[0]


def test_captured_inputs_and_outputs_are_those_before_and_after_each_piece():
    def model(x, y):
        z = x * y
        x.add_(1)
        torch._dynamo.graph_break()
        return x * y + z

    x, y = torch.rand(4), torch.rand(4)
    before = x.clone()
    captured = capture_model(Model("m", model, (x, y)))
    assert torch.equal(x, before)
    for piece in captured.pieces:
        inputs = [value.clone() for value in piece.inputs]
        assert all(map(torch.equal, piece.graph_module(*inputs), piece.outputs))
    assert torch.equal(captured.result, model(x.clone(), y))


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
