"""What eager takes when a subgraph is first timed on a machine is kept; speedups are stated for that pace."""

import json

import pytest
from tiny import candidate, write_task

from passagent.config import EvaluatorConfig
from passagent.evaluator.judging import judging
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.reference import pace
from passagent.sandbox import cache
from passagent.sandbox.cache import cache_dir
from passagent.tasks.reader import load_task


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path / "cache"))
    return load_task(write_task(tmp_path / "silu_mul_add"))


@pytest.fixture
def gpu_names(monkeypatch):
    monkeypatch.setattr(pace, "device_name", lambda device: f"name of {device}")


def test_the_first_measurement_is_kept(task, gpu_names):
    one, other, _ = task.subgraphs
    assert pace.kept_ns(one, "cuda:0", "direct") is None
    assert pace.keep(one, "cuda:0", "direct", 70_000.0) == 70_000.0
    assert pace.keep(one, "cuda:0", "direct", 50_000.0) == 70_000.0
    assert pace.kept_ns(one, "cuda:0", "direct") == 70_000.0
    assert [pace.kept_ns(one, "cuda:0", "dynamo"), pace.kept_ns(other, "cuda:0", "direct")] == [None, None]
    assert [pace.keep(one, "cpu", "direct", 70_000.0), pace.kept_ns(one, "cpu", "direct")] == [None, None]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"eager_ns": null}', '{"eager_ns": -1}', '{"eager_ns": 0}'])
def test_what_cannot_be_read_is_measured_again(task, gpu_names, text):
    one = task.subgraphs[0]
    pace.keep(one, "cuda:0", "direct", 70_000.0)
    [path] = (cache_dir() / "pace").iterdir()
    path.write_text(text)
    assert pace.kept_ns(one, "cuda:0", "direct") is None
    assert pace.keep(one, "cuda:0", "direct", 60_000.0) == 60_000.0
    assert json.loads(path.read_text()) == {"eager_ns": 60_000.0}


def test_a_disk_that_is_full_stops_nothing(task, gpu_names, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "write_whole", full)
    assert pace.keep(task.subgraphs[0], "cuda:0", "direct", 70_000.0) == 70_000.0


@pytest.mark.long
def test_an_evaluation_asks_once_for_each_subgraph_and_states_its_speedups_for_it(task, monkeypatch, forks):
    kept, asked = [], []
    together = judging.together

    def keep(subgraph, device, dispatch, eager_ns):
        kept.append((subgraph.name, dispatch))
        return 1000.0 * len(kept)

    def noted(timings, pace_ns):
        asked.append(pace_ns)
        return together(timings, pace_ns)

    monkeypatch.setattr(pace, "keep", keep)
    monkeypatch.setattr(judging, "together", noted)
    config = EvaluatorConfig(budget_s=1e-6, timeout_s=120, memory_gb=6)
    with Referee(config, forks) as referee:
        for _ in range(2):
            assert referee.evaluate(task, candidate()).status == "ok"
    assert kept == [(subgraph.name, "direct") for subgraph in reversed(task.subgraphs)]
    assert asked == [3000.0, 2000.0, 1000.0] * 4  # two pairs of workers, two evaluations


@pytest.mark.gpu
def test_eagers_time_on_a_gpu_is_kept(task):
    config = EvaluatorConfig(device="cuda", budget_s=1e-6, timeout_s=120)
    with Referee(config) as referee:
        result = referee.evaluate(task, "eager")
    found = [pace.kept_ns(subgraph, "cuda", "direct") for subgraph in task.subgraphs]
    for graph, eager_ns in zip(result.graphs, found, strict=True):
        assert eager_ns is not None and eager_ns > 0 and graph.eager_ms > 0
