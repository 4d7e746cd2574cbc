"""Forty questions in the words of KernelBench's operators, each with the document that answers it.

They were written before the search was tuned, and labelled by reading.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial

import pytest

from passagent.agent.tokens import tokens
from passagent.agent.toolbox import search_knowledge
from passagent.config import EvaluatorConfig
from passagent.errors import UsageError
from passagent.evaluator.target import Cuda, target_of
from passagent.experience import knowledge

LEAST = 36
"""Questions whose document must be among the first three."""
GPU = {
    "softmax over rows of 4096 elements in bfloat16": "row_softmax",
    "LogSoftmax along dim 1": "row_softmax",
    "Gemm Sigmoid LogSumExp: logsumexp of a row": "row_softmax",
    "LayerNorm over the last three dimensions": "layer_norm",
    "RMSNorm across the channel axis": "layer_norm",
    "GroupNorm with 8 groups followed by Hardtanh": "group_norm",
    "InstanceNorm2d of 112 x 64 x 512 x 512": "group_norm",
    "Frobenius norm of the whole tensor": "split_reductions",
    "L1Norm: mean of abs over a long dimension with few rows": "split_reductions",
    "Sum reduction over a dimension that is not the last": "column_reductions",
    "Max reduction over dim 1 of a 3d tensor": "column_reductions",
    "Argmax over a dimension": "argmax",
    "cumsum along a row of 32768": "scans",
    "masked cumsum, reverse and exclusive": "scans",
    "Max Pooling 2D with kernel size, stride, padding and dilation": "pooling",
    "Average Pooling 3D": "pooling",
    "Mish, Softplus and Swish on a large tensor": "pointwise_chains",
    "ELU, SELU and HardSigmoid": "pointwise_chains",
    "Gemm, multiply, LeakyReLU": "matmul_epilogues",
    "Linear with bias, then GELU": "matmul_epilogues",
    "tall skinny matrix multiplication": "matmul_shapes",
    "matmul for lower triangular matrices": "matmul_shapes",
    "ConvTranspose2d, bias add, clamp, scaling, divide": "convolution_epilogues",
    "conv depthwise separable 2D": "depthwise_convolution",
    "ScaledDotProductAttention with a relative position bias": "attention",
    "CrossEntropyLoss of logits and targets": "losses",
    "HuberLoss and KLDivLoss to a scalar": "losses",
    "bilinear upsample, interpolate by a factor of two": "interpolation",
    "concatenate two feature maps, then ReLU": "concatenation",
    "embedding lookup of tokens and positions": "gather",
}
"""Question to document of hardware/nvidia/optimisation/."""
CPU = {
    "Softmax over rows of floats": "optimisation/softmax",
    "LayerNorm and RMSNorm": "optimisation/norms",
    "MaxPool2d with padding": "optimisation/pooling",
    "cumprod and cumsum": "optimisation/scans",
    "GELU, Sigmoid and Tanh": "optimisation/activations",
    "Matmul with bias, scaling and LeakyReLU": "optimisation/matmul",
    "depthwise Conv2d": "optimisation/convolution",
    "CosineSimilarityLoss and TripletMarginLoss": "optimisation/losses",
    "Mean reduction over a dimension": "optimisation/reductions",
    "Min reduction: why does the compiler not vectorise my loop": "debugging/not_vectorised",
}
"""Question to document of hardware/cpu/."""


class Rocm(Cuda):
    """A target of a user's own, for AMD GPUs."""

    foreign = re.compile(r"nvidia|cuda_kernel|cpp_kernel|\bcpus?\b|\bcpu_|\bomp\b|openmp", re.IGNORECASE)


def rank(question: str, device: str, answer: str) -> int:
    """At which place the document is found, from 1; 0: not at all."""
    found = knowledge.search(question, limit=6, target=target_of(EvaluatorConfig(device=device)))
    paths = list(dict.fromkeys(passage.path for passage in found))
    return paths.index(answer) + 1 if answer in paths else 0


def test_the_document_that_answers_is_among_the_first_three() -> None:
    asked = [(text, "cuda", f"hardware/nvidia/optimisation/{name}.md") for text, name in GPU.items()]
    asked += [(text, "cpu", f"hardware/cpu/{name}.md") for text, name in CPU.items()]
    assert len(asked) == 40
    assert all(answer in knowledge.documents() for _, _, answer in asked)
    missed = [one for one in asked if rank(*one) not in (1, 2, 3)]
    assert len(asked) - len(missed) >= LEAST, missed


@pytest.mark.parametrize(("device", "questions"), [("cuda", GPU), ("cpu", CPU)])
def test_an_answer_has_at_most_two_passages_and_400_tokens(device: str, questions: dict[str, str]) -> None:
    tool = search_knowledge(partial(knowledge.search, target=target_of(EvaluatorConfig(device=device))))
    for question in questions:
        text = asyncio.run(tool.run({"query": question}, "c")).text
        assert 1 <= len(re.findall(r"^\[\S+\.\w+\] ", text, re.MULTILINE)) <= 2, question
        assert tokens(text) <= 400, question


def test_what_exp_f32_costs_is_known_and_the_softmax_page_uses_it() -> None:
    cost, softmax = (knowledge.read(f"hardware/cpu/optimisation/{n}.md") for n in ("activations", "softmax"))
    said = re.search(r"^## What exp_f32 costs\n(.+?)\n\n", cost, re.MULTILINE | re.DOTALL)
    assert said is not None and "as much as `expf`" in said[1]
    [code] = re.findall(r"^```cpp\n(.*?)^```", softmax, re.MULTILINE | re.DOTALL)
    assert "exp_f32(" in code and not re.search(r"\b(std::exp|expf)\(", code)


@pytest.mark.parametrize(("platform", "least"), [("nvidia", 30), ("cpu", 15), ("amd", 8)])
def test_each_platform_has_short_documents_with_a_source(platform: str, least: int) -> None:
    place = f"hardware/{platform}/"
    found = {path: text for path, text in knowledge.documents().items() if path.startswith(place)}
    assert len(found) >= least
    for path, text in found.items():
        assert path.removeprefix(place).split("/")[0] in ("architecture", "optimisation", "debugging")
        assert 15 <= len(text.splitlines()) <= 40, path
        assert "\nSource: " in text, path


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (target_of(EvaluatorConfig(device="cpu")), "cpu"),
        (target_of(EvaluatorConfig(device="cuda")), "nvidia"),
        (Rocm(EvaluatorConfig(device="cuda")), "amd"),
    ],
)
def test_a_target_sees_only_what_works_there(target: Cuda, shown: str) -> None:
    """In the index, in what is found, and in what can be read."""
    platforms = {path.split("/")[1] for path in knowledge.documents() if path.startswith("hardware/")}
    assert platforms == {"nvidia", "cpu", "amd"}
    named = set(re.findall(r"hardware/(\w+)/", knowledge.read(target=target)))
    found = knowledge.search("kernel memory slow layer_norm", limit=99, target=target)
    seen = {passage.path.split("/")[1] for passage in found if passage.path.startswith("hardware/")}
    assert named == seen == {shown}
    assert all(target.admits(passage.text + passage.path) for passage in found)
    for path, whole in knowledge.documents().items():
        if path.startswith(f"hardware/{shown}/"):
            assert "\nSource: " in knowledge.read(path, target), "its source is left out"
        try:
            assert target.admits(knowledge.read(path, target))
        except UsageError:
            assert not target.admits(path + whole)
    for platform in platforms - {shown}:
        with pytest.raises(UsageError, match="no document"):
            knowledge.read(f"hardware/{platform}/optimisation/reductions.md", target)
