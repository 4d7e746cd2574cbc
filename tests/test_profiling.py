"""Profiles: hardware counters read from a real report, and what is concluded from figures."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from passagent.profiling import nsight
from passagent.profiling.evidence import MOST_LINES, examine
from passagent.profiling.profile_record import GraphProfile, KernelProfile, Profile

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
    names = nsight.metric_names(REPORT)
    unknown = [
        own for own, ps in nsight.METRICS.items() if not any(re.fullmatch(p, n) for p in ps for n in names)
    ]
    assert unknown == []
    [kernel] = nsight.read_report(REPORT)
    assert (kernel.name, kernel.registers, kernel.duration_us) == ("one_block_kernel", 32, 539.648)
    assert kernel.metrics["grid"] == 1 and kernel.metrics.keys() == nsight.METRICS.keys() - {
        "duration_ns",
        "registers",
    }
    assert kernel.rules[0].speedup_percent is not None
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
    assert len(found.text(notes=["a note"] * 20).splitlines()) == MOST_LINES


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
