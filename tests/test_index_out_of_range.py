"""An index out of range: where eager raises, so do kernels, passes of the expert and what is deployed."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from cases import F32, I64, TASKS, TaskText, referees_of, write_task
from expert_cases import captured, fresh, r, rewritten, write

from passagent.config import EvaluatorConfig
from passagent.evaluator.result import Candidate
from passagent.kernels import cpp_kernel
from passagent.tasks.capture import capture
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module
from passagent.tasks.uses import wrong_indices

ROWS = 50
TABLE = r(ROWS, 64)


def ids(*shape: int, high: int = ROWS, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


INDEXING = {
    "embedding": (lambda i, w: F.embedding(i, w) * 2.0, [ids(8, 32), TABLE]),
    "embedding behind a sum": (lambda i, w: F.embedding(i + 2, w) * 2.0, [ids(8, 32, high=ROWS - 2), TABLE]),
    "rows that are normed": (lambda i, w: F.layer_norm(F.embedding(i, w), (64,)), [ids(4, 9), TABLE]),
    "gather": (lambda i, x: torch.gather(x, 1, i) + 1.0, [ids(50, 32, high=64), TABLE]),
    "brackets": (lambda i, x: x[i] * 2.0, [ids(8, 32), TABLE]),
    "one_hot": (lambda i, x: F.one_hot(i, ROWS).float() @ x, [ids(8, 32), TABLE]),
    "one_hot alone": (lambda i, x: F.one_hot(i, ROWS) * 2.0, [ids(8, 32), TABLE]),
    "one_hot of int32": (lambda i, x: F.one_hot(i.long(), ROWS) * 2.0, [ids(8, dtype=torch.int32), TABLE]),
    "embedding by int32": (lambda i, w: F.embedding(i, w) * 2.0, [ids(8, dtype=torch.int32), TABLE]),
    "gather by int32": (lambda i, x: x.gather(0, i) + 1.0, [ids(9, 64, dtype=torch.int32), TABLE]),
    "brackets by int32": (lambda i, x: x[i] * 2.0, [ids(8, dtype=torch.int32), TABLE.half()]),
    "brackets of columns": (lambda i, x: x[:, i] * 2.0, [ids(8, 32), TABLE.T.contiguous()]),
    "brackets of two axes": (lambda i, x: x[i, i] * 2.0, [ids(8), TABLE]),
    "index_select": (lambda i, x: torch.index_select(x, 0, i) * 2.0, [ids(32), TABLE.bfloat16()]),
    "index_select by int32": (lambda i, x: x.index_select(0, i) * 2.0, [ids(32, dtype=torch.int32), TABLE]),
    "index_select of columns": (lambda i, x: x.index_select(1, i) * 2.0, [ids(9), TABLE.T.contiguous()]),
}
LEFT = {
    "scatter": (lambda i, x: x.scatter(1, i, 1.0) * 2.0, [ids(64, 8), TABLE.T.contiguous()]),
    "scatter_add": (lambda i, x: (x * 2.0).scatter_add(1, i, x), [ids(64, 8), TABLE.T.contiguous()]),
}
"""What the expert leaves to eager, beside a kernel of its own."""


@pytest.mark.parametrize("name", [*INDEXING, *LEFT])
def test_a_pass_of_the_expert_raises_where_eager_does(name):
    function, inputs = (INDEXING | LEFT)[name]
    raised = (RuntimeError, "is out of bounds") if name in LEFT else (IndexError, "index out of range")
    graph = captured(function, inputs)
    pass_ = rewritten(write([graph]), graph)
    assert pass_.applied
    known = inputs[0]
    for value in (*range(-ROWS, ROWS, 7), ROWS - 1, ROWS, 64, -ROWS - 1, -65, 1 << 30, -(1 << 30)):
        given = [known.clone(), inputs[1]]
        given[0].view(-1)[-1] = value
        try:
            (want,) = graph.graph_module(*fresh(graph, given))
        except (IndexError, RuntimeError):
            with pytest.raises(raised[0], match=raised[1]):
                pass_.graph_module(*fresh(graph, given))
        else:
            torch.testing.assert_close(pass_.graph_module(*fresh(graph, given))[0], want)


@pytest.mark.parametrize("name", INDEXING)
def test_a_triton_kernel_of_the_expert_asserts_its_indices(name):
    function, inputs = INDEXING[name]
    authored = write([captured(function, inputs)], "cuda")
    assert any("tl.device_assert(" in text for text in authored.files.values())


def test_a_status_of_a_kernel_is_an_index_error():
    kernel = cpp_kernel("int f(float* x, int64_t status) { x[0] += 1; return status; }", "f")
    x = torch.zeros(1)
    kernel(x, 0)
    with pytest.raises(IndexError, match=r"index out of range in self \(kernel f\)"):
        kernel(x, 1)
    assert x.item() == 2


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("return (torch.nn.functional.embedding(in_0, in_1),)", [([2, 5], I64), ([10, 4], F32)]),
        ("return (torch.gather(in_1, 1, in_0.view(2, 5)),)", [([10], I64), ([2, 7], F32)]),
        ("return (in_1[in_0],)", [([2, 5], I64), ([10, 4], F32)]),
        ("return (torch.nn.functional.one_hot(in_0, 6),)", [([2, 5], I64)]),
        ("return (in_1.scatter(1, in_0, in_2),)", [([2, 3], I64), ([2, 7], F32), ([2, 3], F32)]),
        ("in_1[in_0] = in_2\nreturn (in_1,)", [([3], I64), ([7, 2], F32), ([3, 2], F32)]),
    ],
)
def test_eager_raises_for_each_wrong_index(body, inputs, tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "indexing", TaskText(body, [inputs]))
    (subgraph,) = write_task(tmp_path, "indexing").subgraphs
    graph = capture(load_module(subgraph, "cpu"), make_inputs(subgraph, "cpu", 0))
    wrong = wrong_indices(subgraph, graph.graph_module, graph.order)
    assert {value > 0 for _, _, value in wrong} == {True, False}
    for position, element, value in wrong:
        values = make_inputs(subgraph, "cpu", 0, 0)
        values[position].view(-1)[element] = value
        with pytest.raises((IndexError, RuntimeError)):
            graph.graph_module(*[values[i] for i in graph.order])


def without_checks(text: str) -> str:
    """A pass of the expert whose kernels do not look at indices."""
    return re.sub(r"^ *tl\.device_assert\(.*\)\n", "", text.replace("return 1;", ";"), flags=re.MULTILINE)


@pytest.mark.long
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_evaluator_accepts_a_pass_of_the_expert_that_checks_its_indices(device, forks, tmp_path):
    task = write_task(tmp_path / "embedding", "embedding")
    files = write([captured(lambda i, w: F.embedding(i, w) * 2.0, [ids(8, 32), TABLE])], device).files
    with referees_of(EvaluatorConfig(budget_s=1e-6), forks) as referees:
        result = referees(device).evaluate(task, Candidate(files))
        assert result.status == "ok", result.error
        unchecked = {name: without_checks(text) for name, text in files.items()}
        result = referees(device).evaluate(task, Candidate(unchecked))
    assert result.status == "wrong_result"
    assert "holds the index 50: eager raises, the pass does not; check it" in result.error


def test_a_pass_that_takes_no_index_from_the_end_is_wrong(forks, tmp_path, monkeypatch):
    body, inputs = (
        "tmp_0 = in_1[in_0]\ntmp_1 = tmp_0 * 2.0\nreturn (tmp_1,)",
        [([8, 32], I64), ([50, 64], F32)],
    )
    monkeypatch.setitem(TASKS, "brackets", TaskText(body, [inputs]))
    task = write_task(tmp_path / "brackets", "brackets")
    files = write([captured(lambda i, x: x[i] * 2.0, [ids(8, 32), TABLE])], "cpu").files
    by_start = {name: re.sub(r"\(\w+ < 0\) \? [^:;]+ : (\w+)", r"\1", text) for name, text in files.items()}
    assert by_start != files
    with referees_of(EvaluatorConfig(budget_s=1e-6), forks) as referees:
        whole, part = (referees("cpu").evaluate(task, Candidate(each)) for each in (files, by_start))
    assert whole.status == "ok", whole.error
    assert part.status != "ok", part.error
