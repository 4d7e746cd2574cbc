"""In models of `transformers` at least one region is replaced by a plan, and the outputs agree."""

import importlib.util

import packages
import pytest
import torch
import whole_models

from passagent.packages.loading import load_package

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="needs pip install passagent[models]"
    ),
]


@pytest.mark.parametrize("make", whole_models.TRANSFORMERS, ids=lambda make: make.__name__)
def test_regions_are_replaced_and_outputs_agree(recorder, tmp_path, make):
    model, inputs = make()
    packages.package_for(recorder, model, inputs, tmp_path / make.__name__)
    options = {"passes": str(tmp_path / make.__name__), "replaced": set()}
    torch._dynamo.reset()
    with torch.no_grad():
        expected, got = (
            model(*inputs)[0],
            torch.compile(model, backend="passagent", options=options)(*inputs)[0],
        )
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    made = [one for each in load_package(tmp_path / make.__name__).passes for one in each.operators.values()]
    replaced = options["replaced"]
    assert len(replaced) >= 1 and sum(one.planned for one in made) >= len(replaced)
