"""From a model to the package that pays, or to the reason why there is none."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import models_to_extract as models
import pytest
import tiny_search
import torch
from test_cli import one_line
from torch import nn

import passagent as pa
from passagent.config import load_config, override
from passagent.errors import PassagentError, UsageError
from passagent.kernels import toolchain
from passagent.packages import optimizing, region_searches
from passagent.packages.measurement import Measurement, Ratio
from passagent.packages.optimized import (
    DROPPED,
    FAILED,
    KEPT,
    LEFT,
    NOTHING,
    WAITING,
    Optimized,
    RegionOutcome,
)
from passagent.packages.region_searches import RegionSearches, runs_of
from passagent.search import setup
from passagent.store import Store, runs
from passagent.store.pass_library import PassLibrary
from passagent.tasks import load_task
from passagent.tasks.extract.extracting import Regions, model_hash
from passagent.tasks.extract.model_capture import Model, capture_model
from passagent.tasks.extract.regions import cut, scheduled_kernels

FILE = str(Path(models.__file__))
QUICK = {
    "evaluator.budget_s": 1e-6, "search.finalists": 0,
}  # fmt: skip


def searches(tmp_path, iters: int = 2, **more) -> RegionSearches:
    config = load_config(None, tiny_search.settings(iters, 1, 1))
    return RegionSearches(tmp_path / "runs", config, lambda _: None, parts=tiny_search.parts(), **more)


def two_regions(tmp_path) -> dict[Path, None]:
    second = tiny_search.TASK_MODEL.replace("relu", "silu")
    found = {}
    for name, text in (("first", tiny_search.TASK_MODEL), ("second", second)):
        path = tiny_search.write_task(tmp_path / name)
        (path / "graphs/g/model.py").write_text(text)
        found[path] = None
    return found


def states(tmp_path) -> list[str]:
    with Store.open(tmp_path / "runs", create=False) as store:
        return sorted(run.state for run in runs.list_runs(store))


@pytest.mark.parametrize("at_once", [1, 2])
def test_each_region_is_a_run_and_finished_ones_are_not_searched_again(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(region_searches, "at_once", lambda _: at_once)
    wanted = two_regions(tmp_path)
    asyncio.run(searches(tmp_path).run(wanted))
    assert states(tmp_path) == ["finished", "finished"]
    logs = [path.read_text() for path in (tmp_path / "runs").glob("*/run.log")]
    assert [log.count("island 0 stops") for log in logs] == [1, 1]
    asyncio.run(searches(tmp_path).run(wanted))
    assert states(tmp_path) == ["finished", "finished"]
    assert [len(runs_of(tmp_path / "runs", load_task(path))) for path in wanted] == [1, 1]


def test_regions_are_searched_one_by_one_on_a_cpu_and_where_money_is_limited(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    gpu = {"evaluator.device": "cuda:0"}
    counts = [
        region_searches.at_once(load_config(None, settings))
        for settings in ({}, gpu, gpu | {"search.max_cost": 1.0}, gpu | {"search.max_tokens": 1000})
    ]
    assert counts == [1, region_searches.MOST_AT_ONCE, 1, 1]


def test_a_region_may_spend_what_the_others_have_left(tmp_path, monkeypatch):
    spent = SimpleNamespace(task_key="another", tokens=600, cost=0.25, state="finished")
    monkeypatch.setattr(region_searches, "runs_of", lambda _, task=None: [] if task else [spent])
    given, started = [], setup.started

    def noted(runs_dir, task, config, *more):
        given.append((config.search.max_tokens, config.search.max_cost))
        return started(runs_dir, task, config, *more)

    monkeypatch.setattr(setup, "started", noted)
    limited = searches(tmp_path)
    limited.config = override(limited.config, {"search.max_tokens": 1000, "search.max_cost": 1.0})
    asyncio.run(limited.run(dict(list(two_regions(tmp_path).items())[:1])))
    assert given == [(400, 0.75)] and not limited.failed


def test_a_person_stops_it_and_the_same_call_goes_on(tmp_path):
    wanted, stopped = two_regions(tmp_path), searches(tmp_path)
    stopped.say = lambda line: stopped.stop("interrupted", interrupted=True) if "AS" in line else None
    asyncio.run(stopped.run(wanted))
    assert stopped.is_interrupted and states(tmp_path) == ["stopped"]
    asyncio.run(searches(tmp_path).run(wanted))
    assert states(tmp_path) == ["finished", "finished"]


def test_a_linear_is_a_region_with_what_follows_it_alone():
    model, inputs = models.encoder()
    piece = capture_model(Model("m", model, inputs)).pieces[0]
    kernels = scheduled_kernels(piece.graph_module, piece.inputs)
    found = [
        tuple(node.target.__name__ for node in region.nodes if callable(node.target))
        for region in cut(piece.graph_module.graph, kernels, products=True)[0]
    ]
    assert found.count(("linear", "gelu")) == found.count(("linear",)) == 3
    assert not any("linear" in one for one in cut_names(piece, kernels))


def cut_names(piece, kernels):
    return [[node.name for node in region.nodes] for region in cut(piece.graph_module.graph, kernels)[0]]


def test_the_state_of_another_model_is_refused(tmp_path):
    state = tmp_path / "state"
    (state / "tasks").mkdir(parents=True)
    regions = Regions(state / "tasks", [], 0.0, [], [], "of another one")
    (state / "tasks" / "regions.json").write_text(json.dumps(regions.data()))
    model, inputs = models.encoder()
    with pytest.raises(UsageError, match="is of another model"):
        pa.optimize(model, *inputs, out=tmp_path / "passes", state=state)
    with pytest.raises(UsageError, match="extract them again"):
        Regions.read(tmp_path)


def test_a_model_is_known_by_its_graphs_and_inputs():
    def hashed(width, rows):
        return model_hash(capture_model(Model("m", models.Layer(width).eval(), (torch.randn(rows, width),))))

    assert hashed(32, 4) == hashed(32, 4)
    assert len({hashed(32, 4), hashed(32, 5), hashed(48, 4)}) == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--out", "not-a-name"], "is no name of a Python package"),
        (["--out", "full"], "is there already"),
        (["--out", "new", "--max-time", "soon"], "max_time = 'soon': write a time, such as 90"),
    ],
)
def test_usage_mistakes(call, tmp_path, words, told):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    code, _, err = call("optimize", f"{FILE}:encoder", *words)
    assert code == 2 and told in one_line(err)


def test_the_report_says_what_was_kept_and_what_is_left(tmp_path):
    kept = RegionOutcome(
        "01_linear", ("linear",), 20, 3000.0, 2000.0, KEPT, "", "1a2b", False, ["FuseLinear"]
    )
    kept.inductor_us, kept.pass_us = 2500.0, 2000.0
    lost = RegionOutcome(
        "02_gelu", ("gelu",), 4, 300.0, 20.0, DROPPED, "the whole model is faster without it"
    )
    gain = Ratio(1.1, 1.05, 1.15)
    measured = Measurement("cpu", {"eager": 6e3, "default": 5e3}, {"default": gain}, {}, [])
    found = Optimized("bert", "a CPU", tmp_path, [kept, lost], Path("my_passes"), measured)
    text = found.markdown()
    assert "**1.100x (1.050 to 1.150) of Inductor (default) with the passes in my_passes**" in text
    assert "| 01_linear | 20 | 3000 | 2500 | 2000 | 2000 | kept: 1.25x of Inductor's kernels |" in text
    assert found.data()["regions"][0]["vs_inductor"] == 1.25
    found.package, found.why_not = None, "no pass is faster"
    assert "**nothing to gain: no pass is faster**" in found.markdown()
    assert str(found).endswith("nothing to gain: no pass is faster")


def region(outcome: str, why: str = "") -> RegionOutcome:
    return RegionOutcome("01_gelu", ("gelu",), 1, 10.0, 1.0, outcome, why)


@pytest.mark.parametrize(
    ("regions", "stopped", "headline", "code"),
    [
        (
            [region(LEFT), region(WAITING), region(WAITING)], "the time is over",
            "no gain shown yet: 2 of 3 regions not tried (the time is over); the same command goes on", 0,
        ),
        (
            [region(FAILED, "RuntimeError: lost"), region(WAITING)], None,
            "no gain shown yet: 2 of 2 regions not tried (RuntimeError: lost); the same command goes on", 1,
        ),
        ([region(LEFT), region(NOTHING)], None, "nothing to gain: no pass is faster", 0),
    ],
)  # fmt: skip
def test_the_headline_says_what_was_not_tried(call, monkeypatch, tmp_path, regions, stopped, headline, code):
    found = Optimized("m", "a CPU", tmp_path, regions, why_not="no pass is faster", stopped=stopped)
    monkeypatch.setattr(optimizing, "optimize", lambda *_: found)
    assert headline in found.markdown() and found.data()["headline"] == headline
    exit_code, out, err = call("optimize", f"{FILE}:encoder", "--out", "passes")
    assert exit_code == code and headline in out
    assert err == ("" if code == 0 else f"passagent: error: {headline}\n")


def test_a_package_that_pays_in_cuda_graphs_is_used_in_them(tmp_path):
    gains = {"default": Ratio(0.9, 0.8, 0.95), "cuda-graph": Ratio(1.2, 1.1, 1.3)}
    sides = {"default": "eager", "cuda-graph": "eager in a CUDA graph"}
    measured = Measurement("a GPU", {}, gains, {}, [], sides)
    found = Optimized("m", "a GPU", tmp_path, [region(KEPT)], Path("p"), measured, mode="cuda-graph")
    assert "1.200x (1.100 to 1.300) of eager in a CUDA graph with the passes in p" in str(found)
    assert 'use it: model = passagent.deploy(model, "p")' in str(found)


def test_a_search_that_crashes_is_its_regions_alone(tmp_path, monkeypatch):
    wanted, real = two_regions(tmp_path), RegionSearches._converse

    async def crash(self, task, name, config):
        if name == "first":
            raise SystemError("recursion depth mismatch")
        await real(self, task, name, config)

    monkeypatch.setattr(RegionSearches, "_converse", crash)
    search = searches(tmp_path)
    asyncio.run(search.run(wanted))
    assert search.failed == {"first": "SystemError: recursion depth mismatch"}
    assert states(tmp_path) == ["finished"]


def test_without_a_compiler_nothing_is_measured(call, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    toolchain.compiler.cache_clear()
    try:
        code, out, err = call("optimize", f"{FILE}:encoder", "--out", "passes")
    finally:
        toolchain.compiler.cache_clear()
    assert code == 1 and out == "" and "install g++" in one_line(err)


@pytest.mark.long
def test_a_model_is_optimized_gone_on_with_and_remembered(tmp_path, referee_inside):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).eval(), torch.randn(4, 64)
    told, library = [], tmp_path / "library.db"
    more = {"library": library, "iters": 1, "settings": QUICK, "on_progress": told.append}
    found = pa.optimize(model, x, out=tmp_path / "passes", **more)
    assert {one.operators for one in found.regions} == {("linear", "gelu"), ("linear",)}
    assert (found.package is None) == bool(found.why_not)
    if found.package is not None:
        torch._dynamo.reset()
        fast = torch.compile(model, backend="passagent", options={"passes": str(found.package)})
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert json.loads((found.state / "report.json").read_text())["model"] == "Sequential"
    with Store.open(found.state / "runs", create=False) as store:
        made = len(runs.list_runs(store))
    if found.package is None:  # else the package is there, and the command says so
        again = pa.optimize(model, x, out=tmp_path / "passes", **more)
        with Store.open(again.state / "runs", create=False) as store:
            assert len(runs.list_runs(store)) == made
    with PassLibrary.open(library) as opened:
        kept = opened.passes()
    other = pa.optimize(model, x, out=tmp_path / "other", **more)
    assert sum(one.from_library for one in other.regions) == len(kept)


def test_searches_cut_the_region_under_way_when_their_time_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(RegionSearches, "_converse", lambda *_: asyncio.sleep(100))
    late = searches(tmp_path, deadline=time.monotonic() + 0.2)
    asyncio.run(late.run(two_regions(tmp_path)))
    assert late.stop_reason == "the time is over" and not late.failed


@pytest.mark.long
def test_ctrl_c_stops_the_command_and_it_says_how_to_go_on(tmp_path):
    words = [sys.executable, "-m", "passagent", "optimize", f"{FILE}:encoder", "--out", "passes"]
    with subprocess.Popen(
        [*words, "--library", "library.db", "--iters", "50"], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        for line in process.stdout:
            if "region 1" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("passagent: interrupted; what was found is stored"), out + err


def test_optimize_cuts_the_timing_of_the_model_when_its_time_is_over(tmp_path, monkeypatch):
    def package_for_ever(*_: object) -> None:
        assert callable(signal.getsignal(signal.SIGALRM))
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 1000
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        threading.Event().wait(100)

    (tmp_path / "passes").mkdir()
    monkeypatch.setattr(RegionSearches, "run", lambda *_: asyncio.sleep(0))
    monkeypatch.setattr(optimizing, "_is_as_fast_as_inductor", lambda *_: True)
    monkeypatch.setattr(optimizing, "read_sources", lambda *_: [])
    monkeypatch.setattr(optimizing, "pack", package_for_ever)
    found = pa.optimize(nn.GELU(), torch.randn(4, 64), out=tmp_path / "passes", max_time=1000)
    assert found.package is None and "before the whole model was timed" in found.headline()
    assert found.headline() in (found.state / "report.md").read_text()


def test_optimize_cuts_a_capture_when_its_time_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(optimizing, "capture_model", lambda *_, **__: threading.Event().wait(100))
    with pytest.raises(PassagentError, match="the time was over before the model was captured"):
        pa.optimize(nn.GELU(), torch.randn(4, 64), out=tmp_path / "passes", max_time=0.2)


def test_a_package_without_a_name_is_called_after_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fast_GELU").mkdir()
    (tmp_path / "fast_GELU" / "kept.txt").touch()
    with pytest.raises(pa.UsageError, match="--out fast_GELU: is there already"):
        pa.optimize(nn.GELU(), torch.randn(4, 64))


def measured_at(ratio: float, losers: tuple[str, ...] = ()) -> Measurement:
    gain = Ratio(ratio, ratio - 0.01, ratio + 0.01)
    passes = {name: Ratio(0.9, 0.8, 0.95) for name in losers}
    us = {"eager": 2.0, "default": 1.0, "default + passes": 1.0 / ratio}
    return Measurement("cpu", us, {"default": gain}, passes, [])


def test_shipped_and_own_passes_are_tried_first_and_kept_where_they_pay(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/clamp.py").write_text(
        "import torch\n"
        "def pattern(x, inplace): return torch.nn.functional.relu(x, inplace=inplace)\n"
        "def replacement(x, inplace): return x.clamp(min=0)\n"
    )
    model, image = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU()).eval(), torch.randn(2, 3, 16, 16)
    answers = [measured_at(1.2), measured_at(1.1, ("clamp",)), measured_at(1.3)]
    seen: list[tuple[list[str], bool, bool]] = []

    def measure(model, packages, modes, is_quick, freezes, compiled):
        names = [rewrite.name for rewrite in packages[0].rewrites]
        seen.append((names, is_quick, (tmp_path / "passes").exists()))
        return answers[len(seen) - 1]

    monkeypatch.setattr(optimizing, "measure_model", measure)
    monkeypatch.setattr(RegionSearches, "run", lambda *_: asyncio.sleep(0))
    given = {"out": tmp_path / "passes", "passes_dir": str(tmp_path / "mine"), "library": "off"}
    found = pa.optimize(model, image, **given)
    both = ["patch_embedding", "clamp"]
    assert seen == [(both, True, False), (both, False, True), (["patch_embedding"], False, True)]
    assert found.package == tmp_path / "passes" and found.gain.ratio == 1.3
    manifest = json.loads((tmp_path / "passes/manifest.json").read_text())
    assert (manifest["mode"], manifest["frozen"]) == ("default", False)
    assert [path.name for path in (tmp_path / "passes/rewrites").iterdir()] == ["patch_embedding.py"]
    assert found.rewrites == {"patch_embedding": "kept", "clamp": "dropped"}
    assert "- patch_embedding: kept" in (found.state / "report.md").read_text()
    with pytest.raises(UsageError, match="is there already"):
        pa.optimize(model, image, **given)


@pytest.mark.parametrize(("low", "high"), [(0.78, 0.82), (0.95, 1.15)])
def test_a_package_that_is_no_faster_than_the_faster_of_eager_and_inductor_is_not_recommended(
    call, tmp_path, monkeypatch, low, high
):
    ratio = (low + high) / 2
    us = {"eager": 1.0, "default": 2.0, "default + passes": 1 / ratio}  # with passes Inductor is faster
    gain = Ratio(ratio, low, high)
    found = Measurement("cpu", us, {"default": gain}, {}, [], {"default": "eager"}, [], "eager", gain)
    monkeypatch.setattr(optimizing, "measure_model", lambda *_, **__: found)
    monkeypatch.setattr(optimizing, "extract_regions", lambda _, out, *__: Regions(out, [], 0.0, [], [], ""))
    (tmp_path / "model.py").write_text(
        "import torch\ndef model(): return torch.nn.Conv2d(3, 8, 4, 4).eval(), (torch.randn(2, 3, 16, 16),)\n"
    )
    code, out, _ = call("optimize", "model.py:model", "--out", "passes")
    why = f"with the passes the model is {ratio:.3f} times as fast as eager ({low:.3f} to {high:.3f})"
    assert code == 0 and f"\nnothing to gain: {why}, which proves no gain\n" in out
    assert "use it" not in out.lower() and not (tmp_path / "passes").exists()
    report = (tmp_path / "passes.state/report.md").read_text()
    assert f"**nothing to gain: {why}, which proves no gain**" in report


class Loud(nn.Module):
    """Prints in every call, and drops in training mode."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, 4)

    def forward(self, x):
        print("loud")
        return nn.functional.dropout(self.conv(x), training=self.training)


def test_a_model_that_prints_and_trains_fills_a_log_and_is_warned_of_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(optimizing, "measure_model", lambda *_, **__: measured_at(1.2))
    monkeypatch.setattr(RegionSearches, "run", lambda *_: asyncio.sleep(0))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        image = torch.randn(2, 3, 16, 16)
        found = pa.optimize(Loud(), image, out=tmp_path / "passes", library="off", on_progress=print)
    assert len([one for one in seen if "training mode" in str(one.message)]) == 1
    printed = capsys.readouterr().out
    assert "capturing Loud" in printed and "loud" not in printed
    assert "loud" in (found.state / "model.log").read_text()


def test_passes_of_regions_are_packaged_before_each_is_left_out_once(tmp_path, monkeypatch):
    ratios = [1.1, 1.2]

    def measure(model, packages, modes, is_quick, *_):
        if not is_quick:
            signal.setitimer(signal.ITIMER_REAL, 0.01)  # the time is over
            threading.Event().wait(100)
        return measured_at(ratios.pop(0))

    monkeypatch.setattr(optimizing, "measure_model", measure)
    monkeypatch.setattr(RegionSearches, "run", lambda *_: asyncio.sleep(0))
    monkeypatch.setattr(optimizing, "_is_as_fast_as_inductor", lambda *_: True)
    monkeypatch.setattr(optimizing, "read_sources", lambda *_: [])
    model, image = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.GELU()).eval(), torch.randn(2, 3, 16, 16)
    found = pa.optimize(model, image, out=tmp_path / "passes", library="off", max_time=1000)
    assert found.package == tmp_path / "passes" and found.gain.ratio == 1.2
    assert "before the whole model was timed" in found.stopped


def test_a_package_for_several_inputs_is_compiled_for_each(tmp_path, monkeypatch):
    model, images = nn.Conv2d(3, 8, 4, 4).eval(), [torch.randn(size, 3, 16, 16) for size in (2, 5)]
    monkeypatch.setattr(optimizing, "measure_model", lambda *_: measured_at(1.2))
    monkeypatch.setattr(RegionSearches, "run", lambda *_: asyncio.sleep(0))
    inputs = [((image,), weight) for image, weight in zip(images, (1, 3), strict=True)]
    found = pa.optimize(model, inputs, out=tmp_path / "passes", library="off")
    assert json.loads((tmp_path / "passes/manifest.json").read_text())["static"] is True
    deployed = pa.deploy(model, found.package)
    with torch.no_grad():
        for image in images:
            torch.testing.assert_close(deployed(image), model(image))
    with pytest.raises(UsageError, match="weights of its inputs must be positive"):
        pa.optimize(model, [((images[0],), 0.0)], out=tmp_path / "other", library="off")


def test_the_report_has_the_full_measurement_of_the_first_package(tmp_path, monkeypatch):
    model, image = nn.Conv2d(3, 8, 4, 4).eval(), torch.randn(2, 3, 16, 16)
    full = measured_at(1.1)
    answers = [measured_at(1.2), full]
    monkeypatch.setattr(optimizing, "measure_model", lambda *_: answers.pop(0))
    monkeypatch.setattr(RegionSearches, "run", lambda *_: asyncio.sleep(0))
    found = pa.optimize(model, image, out=tmp_path / "passes", library="off")
    assert found.package == tmp_path / "passes" and found.measurement is full
    assert found.rewrites == {"patch_embedding": "kept"}


def test_a_package_of_a_stopped_optimisation_is_gone_on_with(tmp_path, monkeypatch):
    model, image = nn.Conv2d(3, 8, 4, 4).eval(), torch.randn(2, 3, 16, 16)
    monkeypatch.setattr(optimizing, "measure_model", lambda *_, **__: measured_at(1.2))

    def stop(self, *_):
        self.stop("stopped by the test")
        return asyncio.sleep(0)

    monkeypatch.setattr(RegionSearches, "run", stop)
    for _ in range(2):
        found = pa.optimize(model, image, out=tmp_path / "passes", library="off")
        assert found.package == tmp_path / "passes" and found.stopped


def test_shipped_passes_that_do_not_compile_cost_themselves_alone(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no kernel image\nmore")

    model, image = nn.Conv2d(3, 8, 4, 4).eval(), torch.randn(2, 3, 16, 16)
    monkeypatch.setattr(optimizing, "measure_model", fail)
    monkeypatch.setattr(RegionSearches, "run", lambda *_: asyncio.sleep(0))
    found = pa.optimize(model, image, out=tmp_path / "passes", library="off")
    assert found.package is None
    assert found.rewrites == {"patch_embedding": "failed: RuntimeError: no kernel image"}
