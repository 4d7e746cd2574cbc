"""The expert's matrix products on the CPU: with and without a bias, an activation, whole blocks."""

import packages
import pytest
import torch
from closeness import assert_as_exact_as_eager
from torch import nn

import passagent as pa
from passagent.expert.author import author
from passagent.expert.choices import Plan
from passagent.expert.read.reading import graphs
from passagent.packages.loading import load_package
from passagent.packages.package_writing import pack
from passagent.tasks.extract.model_capture import Model, capture_model

MODELS = {
    "blocks": (nn.Sequential(nn.Linear(64, 96), nn.GELU()), (2, 9, 64)),
    "rest": (nn.Sequential(nn.Linear(300, 70, bias=False), nn.Tanh()), (13, 300)),
    "tall": (nn.Linear(16, 33), (300, 16)),
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory, recorder):
    """A package for all of them, and what each is asked."""
    place, sources, asked = tmp_path_factory.mktemp("products"), [], {}
    torch.manual_seed(0)
    for name, (model, shape) in MODELS.items():
        asked[name] = torch.randn(shape)
        pa.extract(model.eval(), asked[name], name=name, out=place / name)
        sources.append(packages.source_of(recorder, place / name))
    pack(sources, place / "products")
    return place, asked


@pytest.mark.parametrize("name", MODELS)
def test_a_product_gives_what_eager_gives(packed, name):
    place, asked = packed
    module = MODELS[name][0]
    piece = capture_model(Model(name, module, (asked[name],))).pieces[0]
    graph = pa.apply(piece.graph_module, place / "products")
    operators = [o for one in load_package(place / "products").passes for o in one.operators.values()]
    before = sum(one.planned for one in operators)
    with torch.no_grad():
        found = graph(*piece.inputs)
        assert_as_exact_as_eager(found[0], module, [asked[name]])
    assert sum(one.planned for one in operators) == before + 1


def test_it_is_one_kernel_with_its_activation(packed):
    place, _ = packed
    authored = author(list(graphs(str(place / "blocks"))), "cpu", Plan())
    assert authored.fused == ["linear + gelu"]
    assert author(list(graphs(str(place / "blocks"))), "cuda", Plan()).fused == ["gelu"]
