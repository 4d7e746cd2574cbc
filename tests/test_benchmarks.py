"""The benchmarks' scripts: they load, and what they take the time of is still there."""

import importlib
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def beside_each_other(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_a_script_loads(name):
    assert importlib.import_module(name).__doc__


def test_what_the_throughput_is_divided_into_is_there():
    with importlib.import_module("evaluator_throughput").watching(Counter()):
        pass


def test_the_simulation_lends_a_device_as_leases_do():
    simulation = importlib.import_module("scale_simulation")
    clock, order = simulation.Clock(), []
    device = simulation.Lease(clock)

    def one(name, alone):
        yield device.take(alone)
        order.append((name, clock.now))
        yield clock.sleep(1.0)
        device.give(alone)

    for name, alone in (("step", False), ("other step", False), ("timing", True), ("late step", False)):
        clock.start(one(name, alone))
    clock.run(10.0)
    assert order == [("step", 0.0), ("other step", 0.0), ("timing", 1.0), ("late step", 2.0)]
    busy = simulation.simulate(8, 1, 1, 20.0, [simulation.Stages(0, 0, 3.0)], spread=0.0, seconds=900)
    assert 0.95 < busy["timing_busy"] <= 1.0


def test_graph_dispatch_sums_up_by_size_and_names_what_is_slower():
    """A subgraph that the expert leaves alone takes eager's time; Inductor's faster draw counts."""
    summary = importlib.import_module("graph_dispatch").summary

    def row(task, size, replaced, **us):
        us = {name.replace("_", " "): value for name, value in us.items()}
        return {
            "task": task, "subgraph": "g", "input_bytes": size, "replaced": {"expert": replaced},
            "us": us, "t": {"expert": -5 if replaced else None, "inductor 1": -4},
            "refused": {"topk": "sorts"},
        }  # fmt: skip

    rows = [
        row("a", 1e5, 1, eager=8.0, expert=4.0, inductor_1=4.0, inductor_2=2.0),
        row("b", 2e7, 0, eager=8.0, inductor_1=8.0, inductor_2=9.0),
        {"task": "c", "subgraph": "g", "input_bytes": 1e5, "error": "RuntimeError: no"},
    ]
    found = summary(rows)
    table = found["table"]
    assert table["all"]["inductor / expert"][0] == pytest.approx(0.5**0.5, abs=1e-4)
    assert table["under 1 MB"]["inductor / expert"] == [0.5, 0.5, 0.5]
    assert (table["over 16 MB"]["left alone"], table["over 16 MB"]["eager / expert"][0]) == (1, 1.0)
    assert [slow["task"] for slow in found["inductor is more than 10% faster"]] == ["a"]
    assert found["failed"] == ["c/g: RuntimeError: no"]
    assert found["agrees from t = -5"] == {"expert": 1, "before": 0, "inductor 1": 0, "inductor 2": 0}
