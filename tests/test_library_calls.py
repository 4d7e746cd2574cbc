"""Passes that call operators of torch: recorded as steps, replayed, and judged by the task's rule."""

from __future__ import annotations

import json
from dataclasses import replace

import cases
import handmade as h
import packages
import pytest
import torch
from plans import replay_of
from torch._inductor.utils import run_and_get_code

from passagent.config import EvaluatorConfig
from passagent.errors import TaskError, UsageError
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.result import MANIFEST, Candidate
from passagent.packages.delivery.deliver import Delivery
from passagent.packages.delivery.pass_files import pass_files
from passagent.packages.loading import load_packages
from passagent.packages.package_writing import pack
from passagent.packages.rewriting import explain_model
from passagent.plan import artefact
from passagent.plan import record as recording
from passagent.plan.check import PlanError
from passagent.plan.facts import H100
from passagent.plan.messages import Recorded
from passagent.plan.model import Launch, OperatorCall
from passagent.plan.show import recording_text
from passagent.tasks import load_task
from passagent.tasks.extract.model_capture import Model
from passagent.tasks.reader import library_rule

TASK = cases.TaskText(
    "y = torch.nn.functional.linear(in_0, in_1, in_2)\nz = torch.nn.functional.gelu(y)\nreturn (z,)",
    [[([6, 16], "float32"), ([24, 16], "float32"), ([24], "float32")]],
)
PASS = '''"""{doc}"""
import torch
from passagent.kernels import cpp_kernel

halve = cpp_kernel(
    "template <class T> void halve(T* x, int64_t n) {{ for (int64_t i = 0; i < n; ++i) x[i] *= T(0.5); }}",
    "halve",
)


def fused(x, w, b):
{body}


def pattern(x, w, b):
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))


def replacement_args(x, w, b):
    return (x, w, b)


def replacement_func():
    return fused
'''
EAGER_S = "    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))"


def candidate(body):
    return Candidate({"Joined.py": PASS.format(doc="Calls.", body=body), MANIFEST: '["Joined"]'})


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return cases.write_task(tmp_path_factory.mktemp("tasks") / "linear_gelu", TASK)


@pytest.fixture
def record(recorder, task):
    def run(body):
        return recording.record(
            recorder, candidate(body), recording.subgraphs_of(task, "cpu"), "cpu", dict(H100)
        )

    return run


CALLS = {
    "the operators of the pattern": (EAGER_S, ["aten::addmm.default", "aten::gelu.default"]),
    "a list of tensors": (
        "    both = torch.cat([x, x], 1)\n"
        "    y = torch.nn.functional.linear(both[:, :16], w, b)\n    return torch.nn.functional.gelu(y)",
        ["aten::cat.default", "aten::addmm.default", "aten::gelu.default"],
    ),
    "casts": (
        "    y = torch.nn.functional.linear(x.double(), w.double(), b.double())\n"
        "    return torch.nn.functional.gelu(y).float()",
        ["aten::_to_copy.default"] * 3
        + ["aten::addmm.default", "aten::gelu.default", "aten::_to_copy.default"],
    ),
    "several results": (
        "    y = torch.nn.functional.linear(x, w, b)\n    z = torch.nn.functional.layer_norm(y, (24,))\n"
        "    z.new_empty(z.shape)\n    return torch.nn.functional.gelu(y)",
        ["aten::addmm.default", "aten::native_layer_norm.default", "aten::gelu.default"],
    ),
    "attention": (
        "    q = x.view(1, 2, 3, 16)\n    torch.nn.functional.scaled_dot_product_attention(q, q, q)\n"
        + EAGER_S,
        ["aten::scaled_dot_product_attention.default", "aten::addmm.default", "aten::gelu.default"],
    ),
    "parts that are copied": (
        "    y = torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))\n    z = torch.empty_like(y)\n"
        "    z[:2] = y[:2]\n    z[2:] = y[2:]\n    return z",
        ["aten::addmm.default", "aten::gelu.default"],
    ),
    "a kernel on what the library made": (
        "    y = torch.nn.functional.linear(x, w, b)\n    z = torch.nn.functional.gelu(y) * 2\n"
        "    halve(z, z.numel())\n    return z",
        ["aten::addmm.default", "aten::gelu.default", "aten::mul.Tensor", "launch"],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_operators_are_steps_of_the_plan_in_their_order(name, record):
    body, expected = CALLS[name]
    answer = record(body)
    assert isinstance(answer, Recorded) and not answer.failed, answer
    [plan] = answer.recording.passes[0].plans
    steps = [step for step in plan.steps if isinstance(step, OperatorCall | Launch)]
    assert [step.operator if isinstance(step, OperatorCall) else "launch" for step in steps] == expected
    x, w, b = torch.randn(6, 16), torch.randn(24, 16), torch.randn(24)
    eager = torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))
    replayed = replay_of(plan)
    for _ in range(2):
        torch.testing.assert_close(replayed(x, w, b), eager)


def test_a_plan_is_shown_with_its_calls(record):
    text = recording_text(record(EAGER_S).recording)
    assert "v4 = aten.addmm(v2, v0, v3)" in text
    assert "v5 = aten.gelu(v4)" in text


REFUSED = {
    "x.add_(1)": "aten.add_ writes into a tensor that exists; call the form that returns a new one",
    "torch.mm(x, w.t(), out=x.new_empty(6, 24))": "aten.mm writes into a tensor that exists",
    "torch.rand_like(x)": "aten.rand_like draws random numbers; leave it in the graph",
    "torch.nn.functional.dropout(x, 0.5)": "draws random numbers; leave it in the graph",
    "torch.nonzero(x)": "aten.nonzero has a result whose size depends on values; write a kernel",
    "torch.arange(4)": "aten.arange computes from no tensor; make the values in a kernel",
    "x.new_empty(6, 16)[:2] = x[:2].half()": "aten.copy_ converts or repeats what it copies",
    "x.sum().item()": "reads a value of a tensor",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_no_plan_calls_is_refused_with_what_to_write_instead(text, record):
    answer = record(f"    {text}\n{EAGER_S}")
    assert not isinstance(answer, Recorded), answer
    assert REFUSED[text] in answer.message
    assert (answer.file, answer.line) == ("Joined.py", 12)


def test_an_operator_that_returns_another_tensor_than_the_plan_has_is_an_error():
    values = [h.given(shape=(4, 8)), h.made(shape=(4, 8))]
    step = h.called("transpose_copy.int", h.value(0), h.number(0), h.number(1), values=(1,))
    call = replay_of(h.plan([h.value(0)], values, [step], h.value(1)))
    with pytest.raises(PlanError, match=r"transpose_copy\.int returns another tensor than the plan"):
        call(torch.zeros(4, 8))


def test_a_result_with_other_strides_than_the_plan_s_is_copied():
    values = [h.given(shape=(4, 8), stride=(1, 4)), h.made(shape=(4, 8))]
    call = replay_of(h.plan([h.value(0)], values, [h.called("neg", h.value(0), values=(1,))], h.value(1)))
    x = torch.randn(8, 4).t()
    assert torch.equal(call(x), -x)
    assert call(x).stride() == (8, 1)


def test_what_an_operator_returns_is_freed_when_the_call_ends():
    values = [h.given(shape=(1 << 20,)), h.made(shape=(1 << 20,)), h.made(shape=())]
    steps = [
        h.called("neg", h.value(0), values=(1,)),
        h.called("sum", h.value(1), values=(2,)),
    ]
    call, x = replay_of(h.plan([h.value(0)], values, steps, h.value(2))), torch.ones(1 << 20)
    before = _resident_bytes()
    for _ in range(200):
        assert call(x).item() == -(1 << 20)
    assert _resident_bytes() - before < 100 << 20


def _resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


JOINED = '''"""One product instead of two."""
import torch


def fused(x, w, v):
    both = torch.nn.functional.linear(x, torch.cat([w, v]))
    return both[..., :24].contiguous(), both[..., 24:].contiguous()


def pattern(x, w, v):
    return torch.nn.functional.linear(x, w), torch.nn.functional.linear(x, v)


def replacement_args(x, w, v):
    return (x, w, v)


def replacement_func():
    return fused
'''
JOINED_FILES = {"Joined.py": JOINED, MANIFEST: '["Joined"]'}


class TwoLinears(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.v = (torch.nn.Parameter(torch.randn(24, 16)) for _ in range(2))

    def forward(self, x):
        y, z = torch.nn.functional.linear(x, self.w), torch.nn.functional.linear(x, self.v)
        return torch.relu(y) * z


@pytest.fixture(scope="module")
def two_linears(tmp_path_factory):
    text = cases.TaskText(
        "y = torch.nn.functional.linear(in_0, in_1)\nz = torch.nn.functional.linear(in_0, in_2)\n"
        "return (y, z)",
        [[([6, 16], "float32"), ([24, 16], "float32"), ([24, 16], "float32")]],
    )
    return cases.write_task(tmp_path_factory.mktemp("tasks") / "two_linears", text)


@pytest.fixture(scope="module")
def joined(recorder, two_linears, tmp_path_factory):
    """A package of a pass that calls operators alone, recorded for `TwoLinears` on [6, 16]."""
    place = tmp_path_factory.mktemp("joined")
    packed = pack([packages.source_of(recorder, two_linears.path, JOINED_FILES)], place / "package")
    assert not packed.left_out
    return place / "package"


def test_such_a_pass_is_right(two_linears, referee):
    said(two_linears, "all")
    result = referee.evaluate(load_task(two_linears.path), Candidate(JOINED_FILES))
    assert (result.status, result.protocol["library"]) == ("ok", "all"), result.error


def test_such_a_pass_becomes_a_file_for_the_measured_shapes(
    two_linears, referee, recorder, tmp_path, no_kernels
):
    said(two_linears, "all")
    task = load_task(two_linears.path)
    evaluation = referee.evaluate(task, Candidate(JOINED_FILES))
    source = packages.source_of(recorder, two_linears.path, JOINED_FILES)
    delivery = Delivery("abc", 1, "me", task.name, evaluation, JOINED_FILES)
    recorded = artefact.read(source.plans).recording
    for name, text in pass_files(delivery, recorded, task).items():
        (tmp_path / name).write_text(text)
    model = TwoLinears()
    with torch.no_grad():
        rewriting = explain_model(Model("two", model, (torch.randn(6, 16),)), load_packages(tmp_path))
        assert [site.name for site in rewriting.replaced] == ["Joined"]
        other = explain_model(Model("two", model, (torch.randn(5, 16),)), load_packages(tmp_path))
        assert "its condition does not hold" in other.refused[0].reason
        compiled = torch.compile(model, backend="passagent", options={"passes": str(tmp_path)})
        x = torch.randn(6, 16)
        torch.testing.assert_close(compiled(x), model(x))
    beside = replace(delivery, files=JOINED_FILES | {"helper.py": "x = 1\n"})
    with pytest.raises(UsageError, match=r"the passes use helper.py, and such a file must stand alone"):
        pass_files(beside, recorded, task)


def test_pass_with_a_kernel_becomes_no_such_file(two_linears, referee, recorder):
    task = load_task("example:quick_gelu")
    source = packages.source_of(recorder, task.path)
    evaluation = referee.evaluate(load_task(two_linears.path), Candidate(JOINED_FILES))
    delivery = Delivery("abc", 1, "me", task.name, evaluation, source.files)
    with pytest.raises(UsageError, match=r"launches kernels; passagent package abc --out DIR takes it"):
        pass_files(delivery, artefact.read(source.plans).recording, task)


@pytest.mark.long
def test_a_pass_of_operators_is_deployed_as_operators(joined):
    torch.manual_seed(0)
    model, x = TwoLinears(), torch.randn(6, 16)
    with torch.no_grad():
        rewriting = explain_model(Model("two", model, (x,)), load_packages(joined))
        assert [(site.name, site.operator) for site in rewriting.replaced] == [("Joined", "")]
        assert rewriting.prepared_bytes == 2 * 24 * 16 * 4
        compiled = torch.compile(model, backend="passagent", options={"passes": str(joined)})
        code = run_and_get_code(compiled, x)[1][0]
        assert "passagent" not in code and code.count("extern_kernels.mm(") + code.count(".mm(") >= 1
        torch.testing.assert_close(compiled(x), model(x))
        model.w.mul_(2)  # what was prepared of it is computed anew
        torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(compiled(x[:3]), model(x[:3]))


@pytest.mark.long
def test_it_trains(joined, no_kernels):
    torch.manual_seed(0)
    model, x = TwoLinears(), torch.randn(6, 16)
    expected = torch.autograd.grad(model(x).sum(), [model.w, model.v])
    compiled = torch.compile(model, backend="passagent", options={"passes": str(joined)})
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), [model.w, model.v]), expected)


def said(task, word):
    """Have the task say which operators a pass may call."""
    (task.subgraphs[0].path / "graph_net.json").write_text(json.dumps({"library": word}))


@pytest.fixture(scope="module")
def referee(forks):
    with Referee(EvaluatorConfig(device="cpu", budget_s=0.05), forks) as referee:
        yield referee


def test_a_task_that_says_nothing_leaves_computing_to_kernels(referee, tmp_path):
    task = cases.write_task(tmp_path / "task", TASK)
    result = referee.evaluate(task, candidate(EAGER_S))
    assert (result.status, result.protocol["library"]) == ("refused", "none")
    assert "aten.addmm computes in host code; compute it in a kernel" in result.violations[0].message


def test_the_chosen_rule_comes_before_the_task_s(tmp_path):
    task = cases.write_task(tmp_path / "task", TASK)
    assert [library_rule(chosen, task.subgraphs) for chosen in (None, "all")] == ["none", "all"]
    said(task, "all")
    task = load_task(task.path)
    assert [library_rule(chosen, task.subgraphs) for chosen in (None, "none")] == ["all", "none"]
    said(task, "some")
    with pytest.raises(TaskError, match="library is 'some'; write none or all"):
        library_rule(None, load_task(task.path).subgraphs)


def test_a_recording_that_calls_in_spite_of_the_rule_is_refused(tmp_path, record):
    """The process that records is the candidate's: who reads its answer asks again."""
    from passagent.evaluator.judging.plan_reading import library_violations

    recorded = record(EAGER_S).recording
    task = cases.write_task(tmp_path / "task", TASK)
    assert library_violations(task.subgraphs, recorded, "all") == []
    [violation] = library_violations(task.subgraphs, recorded, "none")
    assert (violation.rule, violation.file) == ("library", "Joined.py")


ATTENTION = '''"""Attention as the library's operator."""
import torch


def fused(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def pattern(q, k, v):
    weights = torch.softmax(torch.matmul(q, k.transpose(-2, -1)) * 0.125, dim=-1)
    return torch.matmul(weights, v)


def replacement_args(q, k, v):
    return (q, k, v)


def replacement_func():
    return fused
'''


@pytest.mark.gpu
@pytest.mark.parametrize("dispatch", ["direct", "graph"])
def test_attention_on_a_gpu_is_one_operator(tmp_path, dispatch):
    text = cases.TaskText(
        "w = torch.matmul(in_0, in_1.transpose(-2, -1)) * 0.125\n"
        "return (torch.matmul(torch.softmax(w, dim=-1), in_2),)",
        [[([4, 8, 512, 64], "float16")] * 3],
    )
    task = cases.write_task(tmp_path / "attention", text)
    said(task, "all")
    files = {"Attention.py": ATTENTION, MANIFEST: '["Attention"]'}
    # a row of scores that are all -inf is NaN in the softmax, and 0 in the fused forms
    config = EvaluatorConfig(device="cuda", dispatch=dispatch, budget_s=0.2, special_values=False)
    with Referee(config) as referee:
        result = referee.evaluate(load_task(task.path), Candidate(files))
    assert result.status == "ok", (result.error, result.violations)
    assert any("aten::scaled_dot_product_attention.default" in text for text in result.plan_files.values())
