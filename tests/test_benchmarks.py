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
