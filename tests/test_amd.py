"""The kernels of the examples compile for AMD's GPUs, too, from their IR; nothing has run on such GPUs."""

import importlib
from pathlib import Path

import pytest

from passagent.plan.recorder_process import recording_process
from passagent.tasks import load_task
from passagent.tasks.reader import examples

pytest.importorskip("triton")


@pytest.mark.long
def test_kernels_of_the_examples_compile_for_amd(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[1] / "benchmarks")
    amd = importlib.import_module("amd_kernels")
    count = 0
    with recording_process() as process:
        for place in examples().values():
            for kernel in amd.kernels_of(process, load_task(place)):
                count += 1
                assert not [why for arch in amd.TARGETS if (why := amd.problem(kernel, arch))], kernel.entry
    assert count >= len(examples())
    broken = kernel.model_copy(update={"ttir": kernel.ttir.replace("tt.store", "tt.stored", 1)})
    assert amd.problem(broken, "gfx942")
