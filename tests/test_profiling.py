"""Profiles: hardware counters read from a real report, and what is concluded from figures."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import cases_of
from cases import write_task as write_case
from tiny_search import FastEvaluator, PacedModel, settings, write_task

from passagent.agent import toolbox
from passagent.agent.workspace import ToolError
from passagent.config import load_config
from passagent.evaluator.captures import graph_of
from passagent.evaluator.hardware.machine import Machine
from passagent.evaluator.judging.speed_of_light import beyond_light, refusal
from passagent.evaluator.reference.eager import Output
from passagent.evaluator.reference.reference import own_bytes
from passagent.evaluator.result import MANIFEST, Evaluation, GraphResult, Speedup
from passagent.experience.diagnosis import Diagnosis, diagnose
from passagent.experience.profiling import nsight
from passagent.experience.profiling.evidence import examine
from passagent.experience.profiling.profile_record import (
    MOST_LINES,
    GraphProfile,
    KernelProfile,
    Profile,
    free_profile,
)
from passagent.kernels.vector_report import read_report
from passagent.options import RunOptions, settings_of
from passagent.search.setup import Parts, started, work
from passagent.store import Store, runs
from passagent.tasks import load_task

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
REPORT = Path(__file__).parent / "data" / "one_block.ncu-rep"
"""An H100's, of a kernel with one block (benchmarks/known_limits.py)."""
BUSY = {
    "compute_percent": 10.0, "memory_percent": 10.0, "tensor_percent": 0.0, "occupancy_percent": 80.0,
    "grid": 4096.0, "threads_an_instruction": 32.0, "local_load_sectors": 0.0, "local_store_sectors": 0.0,
    "global_load_sectors": 4000.0, "global_store_sectors": 4000.0, "global_load_requests": 1000.0,
    "global_store_requests": 1000.0,
}  # fmt: skip
"""A kernel that none of the rules but the last is about."""


def profile(metrics=None, multiprocessors=132, **graph):
    """Of one subgraph with one kernel."""
    kernels = graph.pop("kernels", None) or [
        KernelProfile(name="k", duration_us=100.0, metrics=BUSY | (metrics or {}))
    ]
    one = GraphProfile(name="g", kernels=kernels, **({"wall_us": 110.0, "busy_us": 100.0} | graph))
    return Profile(tier="deep", device="cuda", multiprocessors=multiprocessors, graphs=[one])


def test_a_real_report_has_every_counter_and_is_diagnosed():
    pytest.importorskip("ncu_report", reason="pip install 'passagent[profile]'")
    [kernel] = nsight.read_report(REPORT)
    assert (kernel.name, kernel.registers, kernel.duration_us) == ("one_block_kernel", 32, 539.648)
    assert kernel.metrics["grid"] == 1 and kernel.metrics.keys() == nsight.METRICS.keys() - {
        "duration_ns",
        "registers",
    }
    found = examine(profile(kernels=[kernel]))
    assert (found.main, found.missing) == ("occupancy", [])


@pytest.mark.parametrize(
    ("limit", "metric", "figures"),
    [
        ("memory", "memory busy", {"memory_percent": 85.0}),
        ("memory", "sectors of a load", {"global_load_sectors": 32_000.0}),
        ("compute", "compute units busy", {"compute_percent": 85.0}),
        ("tensor", "tensor cores busy", {"tensor_percent": 90.0, "memory_percent": 95.0}),
        ("spill", "share of traffic to local memory", {"local_load_sectors": 9000.0}),
        ("occupancy", "blocks for each multiprocessor", {"grid": 1.0}),
        ("occupancy", "warps at work", {"occupancy_percent": 9.0}),
        ("divergence", "threads in an instruction", {"threads_an_instruction": 8.0}),
        ("latency", "the busiest unit", {}),
    ],
)
def test_each_limit_is_found_by_its_figure(limit, metric, figures):
    [first, *_] = examine(profile(figures)).limits
    assert (first.limit, first.metric) == (limit, metric)


def test_what_is_not_measured_concludes_nothing():
    silent = profile(kernels=[KernelProfile(name="k", duration_us=9.0, metrics={"grid": 4096.0})])
    found = examine(silent)
    assert found.main is None
    assert {"compute_percent", "memory_percent", "tensor_percent"} <= set(found.missing)
    assert "not measured: " in found.text()


def test_launches_come_before_kernels_and_the_roofline_after():
    waits = examine(profile({"memory_percent": 95.0}, wall_us=1000.0))
    assert [one.limit for one in waits.limits] == ["latency", "memory", "at_the_roofline"]
    many = [KernelProfile(name=f"k{n}", duration_us=2.0, metrics=BUSY) for n in range(20)]
    found = examine(profile(kernels=many, launches=20, wall_us=None, busy_us=None))
    assert (found.main, found.limits[0].value) == ("latency", 2.0)
    found.notes = ["a note"] * 20
    assert len(found.text().splitlines()) == MOST_LINES


def stub_ncu(tmp_path, monkeypatch, text):
    """A program that is found as ncu."""
    program = tmp_path / "bin" / "ncu"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('==ERROR== ERR_NVGPUCTRPERM'); exit(1)", "may not read hardware counters"),
        (
            "print('==ERROR== no such section'); exit(1)",
            "ncu failed .exit code 1.: ==ERROR== no such section",
        ),
        ("print('==WARNING== No kernels were profiled.')", "ncu saw no kernel"),
        ("import time; time.sleep(60)", "took more than 0.5 s"),
    ],
)
def test_counters_that_cannot_be_read_are_one_line(text, said, tmp_path, monkeypatch):
    stub_ncu(tmp_path, monkeypatch, text)
    with pytest.raises(nsight.ProfilerUnavailable, match=said) as raised:
        nsight.collect(["true"], tmp_path / "r.ncu-rep", budget_s=0.5 if "sleep" in text else 30)
    assert "\n" not in str(raised.value)


def test_no_ncu_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(nsight.ProfilerUnavailable, match="ncu is not installed"):
        nsight.find_ncu()


MACHINE = Machine(1e-6, ((1 << 20, 1e10), (1 << 27, 1e10)), (("float32", 1e12),))


def evaluated(graph_times_ms, **graph):
    """Of correct subgraphs that move 1 MB each: 0.1 ms at the speed of light."""
    made = [
        GraphResult(
            name=f"g{n}", dtype="float32", status="ok", passes_from_t=-10, speedup=Speedup(e2e=2.0),
            compiled_ms=ms, eager_ms=2 * ms, moved_bytes=10**6, launches=1, **graph,
        )
        for n, ms in enumerate(graph_times_ms)
    ]  # fmt: skip
    return Evaluation(
        task="t", candidate="c", device="cpu", dispatch="direct", timing="wall", status="ok", as_score=2.0,
        gmean_speedup=2.0, es=None, graphs=made, evaluator_version="1",
    )  # fmt: skip


def test_the_speed_of_light_is_bytes_or_flops_whichever_takes_longer():
    assert MACHINE.light_s(10**6, 0, "float32") == pytest.approx(1e-4)
    assert MACHINE.light_s(10**6, 10**9, "float32") == pytest.approx(1e-3)
    assert MACHINE.light_s(10**6, 10**9, "float64") == pytest.approx(1e-4)  # its peak is not known
    found = diagnose(evaluated([0.101, 0.404]), MACHINE)
    assert found.headroom == pytest.approx(2.0)  # of 1.0 and 4.0
    assert json.loads(found.as_json())["headroom"] == pytest.approx(2.0)
    assert diagnose(evaluated([0.01, 0.4]), MACHINE).headroom is None  # a busy machine's rates


def test_a_free_profile_says_what_the_rates_explain():
    near, bound, far = (examine(free_profile(evaluated([ms]), MACHINE)) for ms in (0.105, 0.2, 9.0))
    assert [one.limit for one in near.limits] == ["memory", "at_the_roofline"]
    assert bound.main == "memory" and bound.limits[0].value == pytest.approx(0.5)
    assert far.main is None
    inexact = evaluated([9.0])
    inexact.as_score = 1.0
    assert examine(free_profile(inexact, MACHINE)).main == "inexact"
    again = Profile.model_validate_json(free_profile(inexact, MACHINE).model_dump_json())
    assert again.format == "profile/1"


def test_what_a_write_would_take_is_no_candidates_time(tmp_path, monkeypatch):
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path))  # no rates of this machine
    eager, fast, honest = ([[10**7] * 4], [[10**4] * 4], [[5 * 10**6] * 4])
    reference = SimpleNamespace(written_bytes=1 << 26)  # 64 MiB in 10 us are 6.7 TB/s
    result = GraphResult(name="g", dtype="float32", status="ok", applied=["P"], left=["P"])

    asked: list[str] = []

    def measured_now(device):
        asked.append(device)
        return MACHINE

    def found(blocks, **change):
        sides = SimpleNamespace(
            eager=SimpleNamespace(counted=eager), compiled=SimpleNamespace(counted=blocks)
        )
        return beyond_light(SimpleNamespace(**vars(reference) | change), result, sides, "cpu", measured_now)

    assert found(honest) is None and found(honest) is None
    assert asked == ["cpu"]  # what was measured is kept
    refused = found(fast)
    assert len(asked) == 2  # where it matters it is measured again
    assert refused is not None and refused.claimed > refused.bound == pytest.approx(2 * 10)
    assert "GB/s" in refusal(refused).message and refusal(refused).measured == refused
    assert found(fast, written_bytes=1 << 20) is None  # a cache's
    result.left = ["P", "zeros_like"]
    assert found(fast) is None  # eager's own operator may have written it


def test_expanded_and_overlapping_outputs_are_written_once():
    assert own_bytes(Output((4, 8), "float32", (8, 1))) == 128
    assert own_bytes(Output((4, 8), "float32", (0, 1))) == 32
    assert own_bytes(Output((4, 8), "float16", (1, 1))) == 22
    assert own_bytes(Output((0, 8), "float32", (8, 1))) == 0


@pytest.mark.long
def test_flops_are_counted_by_torch():
    from passagent.evaluator.reference.graph_costs import count_flops

    task = load_task("example:conv2d_sigmoid_mul_hardtanh")
    subgraph = task.subgraphs[0]
    kept = graph_of(subgraph, "cpu")
    flops = count_flops(kept.nodes, kept.order, subgraph)
    assert flops is not None and flops > 0
    plain = load_task("example:quick_gelu").subgraphs[0]
    kept = graph_of(plain, "cpu")
    assert count_flops(kept.nodes, kept.order, plain) == 0


def test_gcc_says_which_loops_are_vector_code():
    report = read_report(
        "k.cpp:3:9: missed: couldn't vectorize loop\n"
        "k.cpp:3:9: missed: not vectorized: control flow in loop.\n"
        "k.cpp:7:9: optimized: loop vectorized using 32 byte vectors\n"
        "k.cpp:7:9: missed: couldn't vectorize loop\n"
        "other.h:1:1: missed: couldn't vectorize loop\n",
        "k.cpp",
    )
    assert report == (1, 1, ["line 3: control flow in loop"])


def test_run_until_sol_ends_with_the_first_pass_at_the_speed_of_light(tmp_path):
    headrooms = iter([3.0, 1.2, 1.05])

    def diagnose(evaluation):
        return Diagnosis("memory_bound", "", next(headrooms, 1.0))

    stand_ins = Parts(PacedModel(), FastEvaluator(), diagnose)
    until = settings_of(RunOptions, {"until": "sol", "settings": {"search.reuse": False}})
    config = load_config(None, settings(12, 1, 1) | until)
    task = load_task(str(write_task(tmp_path / "tiny")))
    with started(tmp_path / "runs", task, config, True, stand_ins) as session:
        asyncio.run(work(session))
        done = session.progress()
    assert done.headroom <= 1.05 and done.episodes < 12
    assert runs_reason(tmp_path) == "a pass is within 10% of the speed of light"


def runs_reason(tmp_path):
    """Why the newest run stopped."""
    with Store.open(tmp_path / "runs", create=False) as store:
        return runs.list_runs(store)[0].stop_reason


def test_the_figures_of_six_known_kernels_name_their_limits():
    """As an H200 gave them (benchmarks/known_limits.py)."""
    recorded = json.loads((RESULTS / "known-limits-cuda-2026-11-26.json").read_text())["kernels"]
    found = {}
    for name, row in recorded.items():
        first = row["repeats"][0]
        kernels = [
            KernelProfile(name=one["name"], duration_us=one["duration_us"], metrics=one["metrics"])
            for one in first["kernels"]
        ]
        figures = {key: first[key] for key in ("wall_us", "busy_us", "launches")}
        found[name] = examine(profile(kernels=kernels, **figures)).main
    assert found == {name: row["wanted"] for name, row in recorded.items()} and len(found) == 6


def test_an_episode_has_three_profiles_and_a_resume_counts_them():
    asked = []

    async def limits(files, deep):
        asked.append(deep)
        if deep:
            raise ToolError("profile: these files were not evaluated yet")
        return "memory: 85%"

    files = {"P.py": "x = 1\n", MANIFEST: '["P"]'}
    tool = toolbox.profile(SimpleNamespace(files=lambda: files), limits)
    assert tool.replay is not None
    tool.replay({}, {}, "call_1")  # made before a crash
    with pytest.raises(ToolError, match="not evaluated yet"):
        asyncio.run(tool.run({"deep": True}, "1"))
    assert [asyncio.run(tool.run({}, name)).text for name in "23"] == ["memory: 85%"] * 2
    with pytest.raises(ToolError, match="the 3 profiles of this episode are used"):
        asyncio.run(tool.run({}, "4"))
    assert asked == [True, False, False]


@pytest.mark.long
def test_the_command_judges_a_pass_and_says_what_limits_it(call, referee_inside, tmp_path):
    case = cases_of("honest")["pass_with_its_own_cpp"]
    place = tmp_path / "pass"
    place.mkdir()
    for name, text in case.candidate.files.items():
        (place / name).write_text(text)
    task = write_case(tmp_path / "task", case.task).path
    words = ["profile", place, task, "--runs-dir", tmp_path / "runs"]
    code, shown, err = call(*words)
    assert code == 0, err
    assert "headroom" in shown and "what limits it:" in shown
    said = json.loads(call(*words, "--json")[1])
    evidence = said.pop("evidence")
    record = Profile.model_validate(said)
    assert (record.format, record.tier) == ("profile/1", "free")
    [graph, *_] = record.graphs
    assert graph.launches and graph.kernels[0].vector_loops is not None and graph.light_us
    assert "limits" in evidence
