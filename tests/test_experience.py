"""Diagnosis, traffic and the curated knowledge."""

import importlib.util
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from closeness import assert_as_exact_as_eager

from passagent.errors import InfrastructureError, UsageError
from passagent.evaluator.hardware import machine as hardware
from passagent.evaluator.hardware.machine import Machine, measure_machine
from passagent.evaluator.result import Evaluation, GraphResult, Mismatch, Speedup, Violation, Worst
from passagent.experience import knowledge
from passagent.experience.diagnosis import LABELS, diagnose
from passagent.experience.knowledge import read, search
from passagent.sandbox.environment import ask_module
from passagent.tasks import load_task
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "tasks"
MACHINE = Machine(issue_s=1e-6, bandwidths=((2**20, 400e9), (2**23, 100e9), (2**29, 10e9)))


def graph(name="g", status="ok", eager=0.2, compiled=0.1, **fields) -> GraphResult:
    values = {"name": name, "dtype": "float32", "status": status, "nodes_before": 5, "nodes_after": 1}
    if status == "ok":
        values |= {"speedup": Speedup(e2e=eager / compiled), "eager_ms": eager, "compiled_ms": compiled}
    return GraphResult(**(values | fields))


def evaluation(*graphs: GraphResult, status="ok", **fields) -> Evaluation:
    values = {
        "task": "t", "candidate": "c", "device": "cpu", "dispatch": "direct", "timing": "wall",
        "status": status, "as_score": None, "es": None, "graphs": list(graphs), "evaluator_version": "v",
    }  # fmt: skip
    return Evaluation(**(values | fields))


def test_limiters_by_their_share_of_the_time():
    slow_by_bytes = evaluation(graph(compiled=0.1, eager=0.2, moved_bytes=2**23))
    found = diagnose(slow_by_bytes, MACHINE)  # 0.084 ms at 100 GB/s
    assert found.label == "memory_bound"
    assert "0.0839 ms (84% of the time)" in found.text
    assert "8.39 MB" in found.text
    assert "2.00x" in found.text
    tiny = evaluation(graph(compiled=0.005, eager=0.004, nodes_after=4, moved_bytes=1000))
    found = diagnose(tiny, MACHINE)
    assert found.label == "latency_bound"
    assert "issuing takes 0.0040 ms (80%)" in found.text
    assert "1 of 1 subgraphs are slower than eager" in found.text
    assert diagnose(evaluation(graph(compiled=1.0, moved_bytes=1000)), MACHINE).label == "unexplained"
    hostless = tiny.model_copy(update={"dispatch": "graph"})  # no time is spent on issuing
    assert diagnose(hostless, MACHINE).label == "unexplained"


def test_bandwidth_is_that_of_the_working_set():
    """Between two measured sizes it is not the rate of the smaller one, which may be that of a cache."""
    assert MACHINE.bandwidth(0) == MACHINE.bandwidth(2**20) == 400e9
    assert MACHINE.bandwidth(2**23) == pytest.approx(100e9)
    assert MACHINE.bandwidth(2**26) == pytest.approx((100e9 * 10e9) ** 0.5)  # half of the way in logarithms
    assert MACHINE.bandwidth(2**28) < 15e9
    assert MACHINE.bandwidth(2**29) == MACHINE.bandwidth(2**31) == 10e9
    # 64 MiB at the rate of a cache, 0.67 ms, would explain less than SHARE of 2 ms
    between = evaluation(graph(compiled=2.0, eager=4.0, moved_bytes=2**26))
    assert diagnose(between, MACHINE).label == "memory_bound"


def test_the_whole_takes_the_most_frequent_limiter_and_on_a_tie_the_slowest():
    graphs = [
        graph("a", compiled=1.0, eager=3.0, moved_bytes=90_000_000),
        graph("b", compiled=1.0, eager=2.0, moved_bytes=90_000_000),
        graph("c", compiled=0.002, eager=0.002, moved_bytes=10),
    ]
    assert diagnose(evaluation(*graphs), MACHINE).label == "memory_bound"
    assert diagnose(evaluation(*graphs[1:]), MACHINE).label == "latency_bound"


def test_an_inexact_candidate_is_not_told_what_bounds_its_speed():
    """AS far below the geometric mean of the speedups: subgraphs, dtypes and t are named, and no limiter."""
    graphs = [
        graph("a", dtype="float16", passes_from_t=-4, moved_bytes=2**23),
        graph("b", dtype="bfloat16", passes_from_t=-3, moved_bytes=2**23),
        graph("c", passes_from_t=-6, moved_bytes=2**23),
    ]
    found = diagnose(evaluation(*graphs, as_score=1.2, gmean_speedup=2.0), MACHINE)
    assert found.label == "inexact"
    assert "AS is 1.200, the geometric mean of the speedups 2.000" in found.text
    assert "b (bfloat16) fails at t = -4; a (float16) fails at t = -5. A t" in found.text
    near = evaluation(*graphs, as_score=1.9, gmean_speedup=2.0)
    assert diagnose(near, MACHINE).label == "memory_bound"


def test_failures_name_where_and_how():
    wrong = graph(
        "b", "wrong_result", dtype="float16", max_abs_diff=0.5, passes_from_t=-2,
        worst=Worst(output=1, index=[0, 3], expected=1.0, got=1.5),
    )  # fmt: skip
    found = diagnose(evaluation(graph("a"), wrong, status="wrong_result"), MACHINE)
    assert found.label == "wrong_result"
    assert "1 of 2 subgraphs fail: b: output 1 at [0, 3]: expected 1, got 1.5" in found.text
    attempts = [
        Mismatch(
            pass_name="P",
            matched_nodes=2,
            pattern_nodes=5,
            pattern_node="add",
            graph_node="mul",
            reason="target",
        ),
        Mismatch(
            pass_name="P", matched_nodes=1, pattern_nodes=5, pattern_node="x", graph_node=None, reason="none"
        ),
    ]
    found = diagnose(evaluation(graph(status="mismatch", mismatches=attempts), status="mismatch"), MACHINE)
    assert "the pattern matched 2 of 5 nodes, not add, held against mul: target" in found.text
    broken = Violation(rule="torch_op", file="p.py", line=7, message="use a kernel")
    found = diagnose(evaluation(status="refused", violations=[broken]), MACHINE)
    assert (found.label, found.text) == ("refused", "p.py:7: use a kernel (rule torch_op)")
    assert diagnose(evaluation(status="load_error", error="no manifest"), MACHINE).text.endswith(
        "no manifest"
    )
    assert {found.label, "wrong_result", "mismatch"} <= set(LABELS)


def test_the_machine_is_measured_once_a_day(tmp_path, monkeypatch):
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path))
    monkeypatch.setattr(hardware, "_LEAST_S", 0.0)
    monkeypatch.setattr(hardware, "PRODUCTS", {"cpu": (64, 64)})
    monkeypatch.setattr(hardware, "SIZES", hardware.SIZES[:2])
    measure_machine.cache_clear()
    machine = measure_machine("cpu")
    assert 0 < machine.issue_s < 1 and all(0 < rate < 1e14 for _, rate in machine.bandwidths)
    [kept] = (tmp_path / "machine").iterdir()

    def measured_again():
        measure_machine.cache_clear()
        return measure_machine("cpu")

    assert measured_again() == machine
    for spoil in (lambda: kept.write_text("[]"), lambda: os.utime(kept, (0, 0)), kept.unlink):
        spoil()
        assert measured_again() != machine  # no two measurements agree to the last digit
        machine = measured_again()


def test_search_ranks_by_query_and_operators():
    assert search("leaks outside the match pattern parameter")[0].path == "constraints/pass_format.md"
    assert search("zzzqqq nowhere") == []
    plain, tilted = (search("example pass complete", names, limit=10) for names in ((), ["layer_norm"]))
    assert [passage.path for passage in plain] != [passage.path for passage in tilted]
    assert len(search("memory", limit=2)) == 2


def test_read_is_confined_to_the_documents():
    assert read().startswith("# Knowledge")
    assert read("knowledge/guidance/memory.md") == read("guidance/memory.md")
    for path in ("../pyproject.toml", "/etc/passwd", "guidance/../../README.md", "guidance", "hints.yaml"):
        with pytest.raises(UsageError, match="no document"):
            read(path)
    with pytest.raises(UsageError, match=r"did you mean 'guidance/memory\.md'"):
        read("guidance/memry.md")


def test_the_index_and_the_documents_agree():
    named = set(re.findall(r"`([\w/]+\.(?:md|py))`", read()))
    present = {path for path in knowledge.documents() if not path.endswith((".json", "index.md"))}
    assert named == present


def test_a_users_own_documents_are_found(tmp_path, monkeypatch):
    (tmp_path / "knowledge" / "guidance").mkdir(parents=True)
    (tmp_path / "knowledge" / "guidance" / "memory.md").write_text("# Ours\n\nxylophone bandwidth\n")
    monkeypatch.setenv("PASSAGENT_RESOURCES", str(tmp_path))
    assert [passage.heading for passage in search("xylophone")] == ["Ours"]
    assert read("guidance/memory.md").startswith("# Ours")
    assert read("guidance/fusion.md").startswith("# Fusion")


@pytest.mark.long
@pytest.mark.parametrize("name", ["quick_gelu", "add_layer_norm"])
def test_the_cpu_samples_compute_what_eager_does(name):
    """On every dtype, as exactly as eager does."""
    file = ROOT / "knowledge" / "code_samples" / f"cpu_{name}" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"sample_{name}", file)
    sample = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sample)
    for subgraph in load_task(EXAMPLES / name).subgraphs:
        module = load_module(subgraph, "cpu")
        inputs = make_inputs(subgraph, "cpu", seed=5, variant=1)
        if name == "quick_gelu":
            arguments = (inputs[0], 1.702)
        else:
            scale, bias, weight, residual, x = inputs
            arguments = (x, scale, residual, weight, bias, 1e-6)
        with torch.no_grad():
            got = sample.replacement_func()(*arguments)
        assert_as_exact_as_eager(got, module, inputs)


@pytest.mark.parametrize(
    ("words", "timeout_s", "said"),
    [
        (["passagent.no_such_module"], None, "No module named passagent.no_such_module"),
        (["http.server", "--bind", "127.0.0.1", "0"], 1.0, "no answer within 1 s"),
        (["platform"], None, "exit code 0"),
    ],
)
def test_process_without_an_answer_is_named(words, timeout_s, said):
    with pytest.raises(InfrastructureError, match=said):
        ask_module(*words, timeout_s=timeout_s)


def test_answer_of_a_process_is_its_last_line(tmp_path, monkeypatch):
    (tmp_path / "answering.py").write_text("import sys\nprint('noise')\nprint([len(sys.argv), 2])\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert ask_module("answering", "word") == [2, 2]


@pytest.mark.long
def test_process_whose_child_holds_its_streams_is_not_waited_for(tmp_path, monkeypatch):
    (tmp_path / "holding.py").write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "open(sys.argv[1], 'w').write(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InfrastructureError, match="no answer within 10 s"):
        ask_module("holding", str(tmp_path / "pid"), timeout_s=10)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # it was there still
