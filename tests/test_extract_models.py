"""Models of `transformers` and `timm` are extracted whole, and what is written gives their outputs."""

import importlib.util

import pytest
import torch
import whole_models

import passagent as pa

pytestmark = pytest.mark.long


def needs(library: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(library) is None
    return pytest.mark.skipif(missing, reason=f"needs {library}: pip install passagent[models]")


MODELS = [
    *(pytest.param(one, id=one.__name__, marks=needs("transformers")) for one in whole_models.TRANSFORMERS),
    *(pytest.param(one, id=one.__name__, marks=needs("timm")) for one in whole_models.TIMM),
]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_model_is_one_graph_that_gives_its_outputs(tmp_path, make, dynamic):
    model, inputs = make()
    extracted = pa.extract(model, *inputs, name=make.__name__, dynamic=dynamic, out=tmp_path / "out")
    assert extracted.ok, extracted.problems
    assert extracted.breaks == [] and len(extracted.graphs) == 1
    with torch.no_grad():
        expected = model(*inputs)
    first = expected if isinstance(expected, torch.Tensor) else expected[0]
    got = extracted.result if isinstance(extracted.result, torch.Tensor) else extracted.result[0]
    assert torch.equal(got, first)
    assert extracted.graphs[0].is_exact or not torch.backends.mkldnn.is_available()


@needs("transformers")
def test_the_regions_of_each_of_12_layers_are_one_task(tmp_path):
    model, inputs = whole_models.bert_of_12_layers()
    regions = pa.extract_regions(model, *inputs, name="bert", out=tmp_path / "out")
    counts = {task.operators: task.count for task in regions.tasks}
    assert counts[("gelu",)] == 12 and counts[("dropout", "add", "layer_norm")] == 24
    assert all(task.problems == () for task in regions.tasks)
