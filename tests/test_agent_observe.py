"""What a model reads of an evaluation, and how old results are folded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from passagent.agent.observe import observation, verdict
from passagent.agent.tokens import fold
from passagent.agent.tool_specs import ToolAnswer
from passagent.evaluator.result import Evaluation, GraphResult, Mismatch, Speedup, Violation, Worst
from passagent.experience.diagnosis import excerpts, first_error
from passagent.models.types import Message, assistant


def graph(name: str, status: Any = "ok", dtype: str = "float32", **fields: Any) -> GraphResult:
    return GraphResult(name=name, dtype=dtype, status=status, **fields)


def fast(name: str, speedup: float, **fields: Any) -> GraphResult:
    known = {"matches": 1, "applied": ["A"], "nodes_before": 5, "nodes_after": 2, "passes_from_t": -10}
    return graph(
        name, speedup=Speedup(e2e=speedup), eager_ms=0.02, compiled_ms=0.02 / speedup, **{**known, **fields}
    )


def evaluation(status: Any, graphs: list[GraphResult], **fields: Any) -> Evaluation:
    known = {"task": "t", "candidate": "c", "device": "cpu", "dispatch": "direct", "timing": "wall"}
    return Evaluation(
        **{**known, "as_score": None, "es": None, "evaluator_version": "v", **fields},
        status=status,
        graphs=graphs,
    )


def test_success_names_speedups_and_compares() -> None:
    graphs = [fast("slow", 0.9), fast("quick", 2.0, unstable=True)]
    text = observation(
        evaluation("ok", graphs, as_score=1.3416, gmean_speedup=1.3416, fast_1=0.5),
        parent_as=1.2,
        best_as=1.5,
    )
    lines = text.splitlines()
    assert lines[0] == "stage reached: performance"
    assert "rewritten: 2 of 2, operators 5 -> 2" in lines[1]
    assert text.index("0.900x") < text.index("2.000x")
    assert "20.0 -> 10.0 us" in text
    assert "unstable" in text
    assert "+11.8% against the parent's 1.2000" in text
    assert "-10.6% against the best so far, 1.5000" in text
    assert lines[-2:] == ["status: ok", "AS: 1.3416"]


def test_a_mismatch_over_many_graphs_is_told_once() -> None:
    mismatch = Mismatch(
        pass_name="A",
        matched_nodes=3,
        pattern_nodes=5,
        pattern_node="%relu",
        graph_node="%gelu",
        reason="target",
    )
    graphs = [graph(f"g{i}", "mismatch", mismatches=[mismatch]) for i in range(12)] + [fast("g12", 1.5)]
    text = observation(evaluation("mismatch", graphs, as_score=0.12))
    assert "stage reached: matching" in text
    assert "mismatch x 12 graphs: g0 (float32), g1 (float32), g2 (float32), ..." in text
    mismatch_line = "A.py: the pattern matched 3 of 5 nodes, not %relu, held against %gelu: target"
    assert text.count(mismatch_line) == 1
    assert text.endswith("status: mismatch\nAS: 0.1200")


def test_neither_passes_nor_getitem_are_left_over() -> None:
    left = ["A", "getitem", "dropout"]
    text = observation(evaluation("ok", [fast("g", 1.5, left=left), fast("h", 1.5, left=left[:2])]))
    assert "operators 5 -> 2, 5 -> 2 (left: dropout)\n" in text and "getitem" not in text


def test_errors_that_differ_are_told_apart() -> None:
    graphs = [
        graph("a", "runtime_error", error="boom at line 3"),
        graph("b", "runtime_error", error="boom at line 4"),
    ]
    text = observation(evaluation("runtime_error", [*graphs, *graphs], as_score=0.1, error="boom at line 3"))
    assert text.count("line 3") == text.count("line 4") == 1
    assert "in a (float32), a (float32)" in text


def test_a_wrong_result_names_the_worst_element() -> None:
    worst = Worst(output=1, index=[0, 3], expected=1.5, got=1.25)
    graphs = [
        graph("g", "wrong_result", "float16", worst=worst, max_abs_diff=0.25, passes_from_t=0, matches=1)
    ]
    text = observation(evaluation("wrong_result", graphs, as_score=0.4))
    assert (
        "output 1 at [0, 3]: expected 1.5, got 1.25; it passes from t = 0 on (full credit needs t <= -5); "
        "largest difference 0.25" in text
    )


def test_a_wrong_result_with_a_reason_names_its_worst_element_too() -> None:
    reason = "output 1 is far from eager's for inputs of large magnitude"
    worst = Worst(output=1, index=[0, 3], expected=1.5, got=1.25, passes_from_t=0)
    graphs = [graph(f"g{i}", "wrong_result", error=reason, worst=worst, max_abs_diff=0.25) for i in range(2)]
    text = observation(evaluation("wrong_result", graphs, as_score=0.1, error=reason))
    assert text.count(reason) == 1
    assert text.count("output 1 at [0, 3]: expected 1.5, got 1.25; it passes from t = 0 on") == 2


def test_violations_name_rule_file_line_and_count() -> None:
    rule = Violation(rule="torch_op", file="A.py", line=7, message="x * y computes; write a kernel")
    refused = evaluation("refused", [], violations=[rule, rule])
    text = observation(refused)
    assert "[torch_op] A.py:7: x * y computes; write a kernel (x 2)" in text
    assert text.endswith("status: refused\nAS: none")
    assert verdict(refused)["as_score"] is None


def test_passes_without_effect_and_loose_results_are_told() -> None:
    idle = Mismatch(
        pass_name="B", matched_nodes=0, pattern_nodes=2, pattern_node="%x", graph_node=None, reason="none"
    )
    graphs = [fast("g", 1.2, mismatches=[idle], passes_from_t=-3, max_abs_diff=0.001)]
    loose = evaluation("ok", graphs, as_score=1.1, gmean_speedup=1.2)
    assert verdict(loose) == {
        "status": "ok",
        "as_score": 1.1,
        "gmean_speedup": 1.2,
        "is_loose": True,
        "is_run": True,
    }
    text = observation(loose)
    assert "matched in no graph" in text
    assert "B.py: the pattern matched 0 of 2 nodes" in text
    assert "less exact than t = -5" in text
    assert "passes from t = -3" in text


def test_many_graphs_and_long_errors_stay_short() -> None:
    graphs = [fast(f"g{i}", 1 + i / 100) for i in range(400)]
    graphs += [graph(f"bad{i}", "compile_error", error="e" * 9000) for i in range(5)]
    text = observation(evaluation("compile_error", graphs, as_score=0.9))
    assert len(text) < 7000
    assert "... 386 more ..." in text
    graphs = [graph(f"bad{i}", "runtime_error", error=f"error {i} " + "e" * 3000) for i in range(50)]
    text = observation(evaluation("runtime_error", graphs, as_score=0.1))
    assert len(text) < 15_000
    assert "... 38 more kinds of failure ..." in text


def result(number: int, answer: ToolAnswer, name: str = "file_editor") -> Message:
    known = {"role": "tool", "tool_call_id": f"c{number}", "name": name}
    return known | {"content": answer.text, "data": answer.data}


def test_folding_changes_the_prefix_seldom() -> None:
    messages: list[Message] = [
        {"role": "system", "content": "s" * 2000},
        {"role": "user", "content": "t" * 2000},
    ]
    for number in range(40):
        messages += [assistant("looking"), result(number, ToolAnswer("v" * 2000))]

    sent = [fold(messages[:length], 10_000).messages for length in range(4, len(messages) + 1, 2)]
    changes = sum(before != after[: len(before)] for before, after in pairwise(sent))
    assert 2 <= changes <= 5


SOURCE = '''"""Fuses it."""

from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
void scale(float* out, const float* a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = b[i];
}""",
    "scale",
)


def fused(a):
    return kernel(a, missing)
'''


def test_errors_quote_the_lines_they_mean() -> None:
    files = {"Fused.py": SOURCE, "lib/helper.py": "x = 1\ny = 2\n"}
    build = "scale does not compile:\nscale.cpp:3:45: error: 'b' was not declared in this scope (Fused.py:5)"
    text = observation(evaluation("compile_error", [graph("g", "compile_error", error=build)]), files=files)
    assert "  >  8    for (int64_t i = 0; i < n; ++i) out[i] = b[i];" in text
    assert "  >  5  kernel = cpp_kernel(" in text
    error = "NameError: name 'missing' is not defined (Fused.py:15)"
    text = observation(evaluation("runtime_error", [graph("g", "runtime_error", error=error)]), files=files)
    assert "  Fused.py:\n    13  \n    14  def fused(a):\n  > 15      return kernel(a, missing)" in text
    rule = Violation(rule="torch_op", file="lib/helper.py", line=2, message="computes; write a kernel")
    text = observation(evaluation("refused", [], violations=[rule]), files=files)
    assert "[torch_op] lib/helper.py:2: computes; write a kernel" in text
    assert ">  2  y = 2" in text
    for message in ("other.py:3: no such file", "Fused.py:999: beyond", "scale.cpp:999: beyond", "x" * 9000):
        assert excerpts(message, files) == ""
    assert excerpts("\n".join(f"Fused.py:{line}" for line in range(1, 17)), files).count(">") == 6


def test_intervals_and_exactness_are_told() -> None:
    row = fast("g", 1.5).model_copy(update={"speedup": Speedup(e2e=1.5, low=1.43, high=1.58)})
    text = observation(
        evaluation("ok", [row], as_score=1.5, as_low=1.43, as_high=1.58), diagnosis="memory-bound on 1 of 1"
    )
    assert "speedup over eager [95% interval], slowest first:" in text
    assert "1.500x [1.430, 1.580]" in text
    assert "AS 1.5000 [1.4300, 1.5800]" in text
    assert "diagnosis: memory-bound on 1 of 1" in text
    worst = Worst(output=0, index=[7], expected=1.0, got=1.1)
    wrong = [
        graph(
            f"g{i}",
            "wrong_result",
            worst=worst,
            passes_from_t=t,
            float64_error=3e-3,
            eager_float64_error=1e-7,
        )
        for i, t in enumerate([-2, None])
    ]
    text = observation(evaluation("wrong_result", wrong, as_score=0.2))
    assert "g0 (float32): output 0 at [7]: expected 1, got 1.1; it passes from t = -2 on" in text
    assert "g1 (float32): output 0 at [7]: expected 1, got 1.1; it passes at no t" in text
    assert "relative error against float64 0.003, eager's own 1e-07" in text


def test_lines_of_a_cuda_kernel_are_quoted() -> None:
    source = SOURCE.replace("cpp_kernel", "cuda_kernel").replace("void scale", "__global__ void scale")
    for message in ("scale.cu(3): error: identifier", "scale.cu:3:45: error"):
        assert ">  8    for (int64_t i" in excerpts(message, {"Fused.py": source})


def test_the_first_error_is_told_in_one_line() -> None:
    """Of an earlier attempt: an episode's memory gave failures without reasons."""
    files = {"Fused.py": SOURCE, "A.py": "import torch\n\n\ndef pattern(x):\n    return torch.relu(x)\n"}

    def of(status: Any, fields: dict[str, Any], **more: Any) -> str:
        return first_error(
            evaluation(status, [fast("right", 2.0), graph("g", status, **fields)], **more), files
        )

    build = "scale does not compile:\nscale.cpp:3:45: error: 'b' was not declared in this scope (Fused.py:5)"
    expected = "Fused.py:8: scale.cpp:3:45: error: 'b' was not declared in this scope (Fused.py:5)"
    assert of("compile_error", {"error": build}) == expected
    error = "NameError: name 'missing' is not defined (Fused.py:15)"
    assert of("runtime_error", {"error": error}) == "Fused.py:15: NameError: name 'missing' is not defined"
    triton = "CompilationError: at 2:4:\ndef kernel(x):\n    y = z\nNameError('z is not defined') (A.py:4)"
    assert of("compile_error", {"error": triton}) == (
        "A.py:4: CompilationError: at 2:4: NameError('z is not defined')"
    )
    mismatch = Mismatch(
        pass_name="A",
        matched_nodes=0,
        pattern_nodes=1,
        pattern_node="%relu",
        graph_node="%gelu",
        reason="target",
    )
    assert of("mismatch", {"mismatches": [mismatch]}) == (
        "A.py:4: the pattern matched 0 of 1 nodes, not %relu, held against %gelu: target"
    )
    worst = Worst(output=1, index=[0, 3], expected=1.5, got=1.25)
    assert of("wrong_result", {"worst": worst, "passes_from_t": 0}) == (
        "g: output 1 at [0, 3]: expected 1.5, got 1.25; it passes from t = 0 on"
    )
    rule = Violation(rule="torch_op", file="A.py", line=7, message="x * y computes; write a kernel")
    assert first_error(evaluation("refused", [], violations=[rule, rule]), files) == (
        "A.py:7: x * y computes; write a kernel (rule torch_op)"
    )
    assert first_error(evaluation("load_error", [], error="no pass\nat all"), files) == "no pass"
    assert first_error(evaluation("ok", [fast("g", 1.2)]), files) == ""
    assert len(of("runtime_error", {"error": "e" * 9000})) <= 220
