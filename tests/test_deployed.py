"""`pa.deploy`: a model with a package, as it was measured; it warns of passes that do nothing."""

import json
import warnings

import pytest
import torch
from torch import nn

import passagent as pa
from passagent.packages.loading import CompileSettings, load_package
from passagent.packages.package_writing import drop, pack
from passagent.passes import shipped


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)

    def forward(self, x):
        return self.patches(x).flatten(2).sum(2)


@pytest.fixture
def model():
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield Tower().eval()
    torch._dynamo.reset()


def package_at(path, names, is_frozen=False):
    """A package of shipped passes, as `optimize` writes it."""
    every = path.with_name("every")
    pack([], every, [each for each in shipped() if each.name in names])
    return drop(load_package(every), [], path, CompileSettings("default", is_frozen))


def called(deployed, x):
    """What it returns, and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        result = deployed(x)
    return result, [str(each.message) for each in caught if "passagent" in str(each.message)]


def test_deployed_model_computes_the_same_and_follows_its_weights(model, tmp_path):
    package = package_at(tmp_path / "mine", ["patch_embedding"])
    deployed, x = pa.deploy(model, package), torch.randn(2, 3, 8, 8)
    result, said = called(deployed, x)
    assert said == []
    torch.testing.assert_close(result, model(x))
    assert deployed.patches is model.patches and list(deployed.state_dict()) == list(model.state_dict())
    model.load_state_dict({name: 2 * value for name, value in model.state_dict().items()})
    torch.testing.assert_close(called(deployed, x)[0], 2 * result)


def test_frozen_package_keeps_the_weights_of_the_first_call_for_each_layout(model, tmp_path):
    package = package_at(tmp_path / "mine", ["patch_embedding"], is_frozen=True)
    deployed, x = pa.deploy(model, package), torch.randn(2, 3, 8, 8)
    result, said = called(deployed, x)
    assert said == []
    torch.testing.assert_close(result, model(x))
    with torch.no_grad():
        model.patches.weight.mul_(2)
    torch.testing.assert_close(called(deployed, x)[0], result)
    assert torch._inductor.config.freezing is False


def test_pass_that_does_nothing_is_named_once_with_both_versions(model, tmp_path):
    package = package_at(tmp_path / "mine", ["patch_embedding", "three_linears"])
    manifest = json.loads((package / "manifest.json").read_text())
    (package / "manifest.json").write_text(json.dumps(manifest | {"torch": "2.9.1"}))
    deployed, x = pa.deploy(model, package), torch.randn(2, 3, 8, 8)
    here = torch.__version__
    expected = f"mine: three_linears does nothing here (packaged with torch 2.9.1, this is {here})"
    assert called(deployed, x)[1] == [f"{expected}; passagent explain says more"]
    assert called(deployed, x)[1] == []


def test_shipped_passes_that_do_not_fit_are_no_problem(model):
    deployed, x = pa.deploy(model, "passagent.passes"), torch.randn(2, 3, 8, 8)
    result, said = called(deployed, x)
    assert said == []
    torch.testing.assert_close(result, model(x))
