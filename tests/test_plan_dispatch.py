"""`dispatch: plan`: host code runs once, elsewhere; what it decided is checked, replayed and judged."""

from __future__ import annotations

import pytest
import torch
from cases import TASKS, Case, suite, write_task
from pydantic import ValidationError
from tiny import HONEST, KERNEL, candidate
from tiny import write_task as write_tiny

from passagent.config import EvaluatorConfig
from passagent.evaluator.referee import Referee
from passagent.tasks.reader import load_task

CONFIG = EvaluatorConfig(dispatch="plan", warmups=3, trials=20, max_trials=40, timeout_s=120, memory_gb=6)
NO_PLAN = {"checks_itself_where_it_is_debugged": "does not compile in Triton at all"}
"""Honest designs that are refused, and why."""
INERT = [
    "addresses_told_by_what_was_warned_of",
    "cache_by_a_fingerprint",
    "cache_by_data_ptr",
    "cache_in_a_cached_dict",
    "cache_in_a_helper_module",
    "cache_made_by_a_call",
    "cache_of_a_tuple",
    "cache_under_a_local_name",
    "cached_function_behind_a_function",
    "cached_function_takes_tensors",
    "class_replaced_by_a_module",
    "container_s_method_as_a_class_s",
    "context_as_a_decorator",
    "counts_calls_by_the_depth_of_ranges",
    "counts_calls_by_the_size_of_a_dict",
    "counts_calls_by_what_a_kernel_has_planned",
    "counts_calls_then_cheats",
    "counts_calls_with_a_generator",
    "counts_calls_with_an_iterator",
    "counts_calls_with_itertools",
    "counts_calls_without_augmentation",
    "cpp_cheap_where_no_pattern_is_behind",
    "cpp_cheap_where_the_allocators_header_is_behind",
    "delegates_in_late_calls_only",
    "enumeration_of_another_module_counts",
    "half_precision_at_addresses_seen_before",
    "iterator_in_an_object_counts",
    "replacement_is_cached",
    "returns_an_input_untouched_in_late_calls",
    "returns_memory_of_an_input_in_late_calls",
    "reuses_its_output_in_late_calls",
    "stack_enters_after_its_end",
    "stack_enters_what_counts",
    "text_of_an_enumeration_reads_attributes",
    "type_told_by_a_membership",
    "type_told_by_an_equality",
    "type_told_to_a_function_named_str",
    "uncontiguous_in_late_calls",
    "writes_over_an_input_in_late_calls",
    "wrong_shape_in_late_calls",
]
"""Attacks that are `ok`: a plan has no later call to differ in; two cheapen what is credited as cheap."""


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return load_task(write_tiny(tmp_path_factory.mktemp("task") / "silu_mul_add"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    root = tmp_path_factory.mktemp("tasks")
    return {name: write_task(root / name, name) for name in TASKS}


@pytest.fixture(scope="module")
def referee():
    with Referee(CONFIG) as one:
        yield one


def test_a_pass_is_timed_as_its_plan(referee, task):
    result = referee.evaluate(task, candidate())
    assert (result.status, result.dispatch, result.timing) == ("ok", "plan", "wall")
    assert result.as_low <= result.as_score <= result.as_high
    for graph in result.graphs:
        assert (graph.matches, graph.applied, graph.left) == (1, ["Fused"], ["Fused"])
        assert graph.speedup.low <= graph.speedup.e2e <= graph.speedup.high


SLOW_HOST = """    import time
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        pass
"""


def test_host_code_is_not_in_timed_calls(referee, task):
    """It takes 0.2 s; static inspection, which forbids a clock in timed calls, is not asked."""
    result = referee.evaluate(task, candidate(SLOW_HOST + HONEST))
    assert result.status == "ok", result.violations
    assert all(graph.compiled_ms < 100 for graph in result.graphs)


def test_wrong_values_are_wrong(referee, task):
    result = referee.evaluate(task, candidate(setup=KERNEL.replace("+ 1.0f", "+ 1.5f")))
    assert {graph.status for graph in result.graphs} == {"wrong_result"}


REFUSED = {
    "an operator": ("    out = torch.empty_like(a)\n    return a * b + 1.0", "mul", 3),
    "a value": ("    out = torch.empty_like(a)\n    if a.sum() > 0:\n        pass\n    return out", "sum", 3),
    "an item": ("    a.flatten()[0].item()\n" + HONEST, "value", 2),
    "another plan the second time": (
        "    global COUNT\n    COUNT += 1\n    kernel(a, a, b, COUNT)\n" + HONEST,
        "another plan",
        0,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_host_code_that_is_no_plan_is_refused_at_its_line(referee, task, name):
    body, said, line = REFUSED[name]
    one = candidate(body, KERNEL + "\nCOUNT = 0")
    result = referee.evaluate(task, one)
    assert result.status == "refused"
    [found] = result.violations
    assert (found.rule, found.file) == ("recording", "Fused.py")
    assert said in found.message
    if line:
        text = one.files["Fused.py"].splitlines()
        assert text[found.line - 1].strip() == body.splitlines()[line - 2].strip()


def test_all_kernels_that_do_not_build_are_told(referee, task):
    other = (
        KERNEL.replace("kernel = ", "other = ")
        .replace("silu_mul_add", "other")
        .replace("const float x", "oops x")
    )
    body = HONEST.replace("    return", "    other(out, a, b, a.numel())\n    return")
    result = referee.evaluate(
        task, candidate(body, KERNEL.replace("T(round", "missing(round") + "\n" + other)
    )
    assert {graph.status for graph in result.graphs} == {"compile_error"}
    assert all("oops" in graph.error and "missing" in graph.error for graph in result.graphs)


BREAKS = {
    "a store beyond the output": (HONEST, KERNEL.replace("out[i] =", "out[i + 1] ="), "out_of_bounds"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_kernels_do_is_audited(referee, task, name):
    body, setup, rule = BREAKS[name]
    result = referee.evaluate(task, candidate(body, setup))
    assert result.status == "refused"
    assert rule in {found.rule for found in result.violations}


def test_a_constant_is_mapped_read_only(referee, task):
    body = HONEST.replace("a.numel())", "a.numel(), TABLE)")
    writes = KERNEL.replace("int64_t n)", "int64_t n, float* table)").replace(
        "  for", "  table[0] += 1;\n  for"
    )
    result = referee.evaluate(task, candidate(body, f"{writes}\nTABLE = torch.tensor([1.0, 2.0])"))
    assert result.status == "runtime_error"
    assert "SIGSEGV" in result.graphs[0].error


COPIED = """
def pattern(x):
    return x.transpose(0, 1).contiguous()
def replacement_args(x):
    return (x,)
def copied(x):
    out = x.transpose(0, 1).contiguous()
    idle(out, out.numel())
    return out
def replacement_func():
    return copied
"""


def test_a_copy_that_no_kernel_changes_is_torchs_work(referee, tasks):
    from passagent.evaluator.result import MANIFEST, Candidate

    kernel = 'idle = cpp_kernel("template <class T> void idle(T* out, int64_t n) {}", "idle")'
    text = f"import torch\nfrom passagent.kernels import cpp_kernel\n{kernel}\n{COPIED}"
    result = referee.evaluate(tasks["transpose_copy"], Candidate({"Copied.py": text, MANIFEST: '["Copied"]'}))
    assert result.status == "refused"
    assert {found.rule for found in result.violations} == {"delegated_copy"}


@pytest.mark.parametrize("extra", [{"host_extensions": True}, {"protocol": "passbench"}])
def test_what_needs_host_code_in_timed_calls_goes_with_no_plan(extra):
    with pytest.raises(ValidationError, match="host code in timed calls; use dispatch: direct"):
        EvaluatorConfig(dispatch="plan", **extra)


@pytest.mark.long
@pytest.mark.parametrize("case", suite("honest")[::6])
def test_an_honest_design_is_accepted(case: Case, referee, tasks):
    if case.device != "cpu" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    result = referee.evaluate(tasks[case.task], case.candidate)
    if case.name in NO_PLAN:
        assert result.status == "refused"
    else:
        assert result.status == "ok", f"{result.error} {result.violations}"
        assert all(graph.matches for graph in result.graphs)


@pytest.mark.long
@pytest.mark.parametrize("case", suite("adversarial")[::8])
def test_an_attack_does_not_pay(case: Case, referee, tasks):
    """It is refused, fails or is wrong, or its host code was of no effect: a plan has no second call."""
    if case.device != "cpu":
        pytest.skip("needs a GPU")
    result = referee.evaluate(tasks[case.task], case.candidate)
    assert result.status != "ok" or case.name in INERT, "accepted"
