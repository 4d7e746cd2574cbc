"""`passagent experiment memory`: the split, the outcome, and that it goes on without making a run twice."""

import asyncio
import json
import math
from dataclasses import replace

import pytest
import tiny_search
from test_cli import call, one_line  # noqa: F401

from passagent.benchmark import memory_experiment
from passagent.benchmark.memory_experiment import Course, Experiment, Protocol, compare, iterations_to
from passagent.config import load_config
from passagent.errors import UsageError
from passagent.experience.hint_library import HintLibrary
from passagent.store import Store, runs
from passagent.tasks import load_task

TASKS = tuple(f"/some/where/task-{k}" for k in range(31))


def test_the_halves_depend_on_names_only_and_share_nothing():
    protocol = Protocol(TASKS, ("off", "learned"), 1, "{}")
    learn, compared = protocol.halves()
    assert not {*learn} & {*compared} and {*learn} | {*compared} == {*TASKS}
    assert abs(len(learn) - len(compared)) <= 1
    moved = replace(protocol, tasks=tuple(path.replace("/some", "/other") for path in TASKS[::-1]))
    assert moved.halves() == tuple(
        [path.replace("/some", "/other") for path in half] for half in (learn, compared)
    )


def test_iterations_are_counted_from_one_and_never_is_one_more():
    assert [iterations_to([0.0, 0.5, 1.0], target) for target in (0.0, 0.4, 0.95, 2.0)] == [1, 2, 3, 4]


def run_of(arm: str, task: int, seed: int, first: int, final: float = 0.5) -> Course:
    """A run of 8 episodes that finds all it finds in episode `first`."""
    best = [0.0 if k < first else final for k in range(1, 9)]
    return Course(arm, f"task {task}", seed, best, final)


def test_an_arm_is_compared_by_pairs():
    off = [run_of("off", task, seed, 6) for task in range(5) for seed in (1, 2)]
    sooner = [run_of("learned", task, seed, 2 if task else 3) for task in range(5) for seed in (1, 2)]
    found = compare([*off, *sooner], "learned")
    assert found.ratio == pytest.approx(math.exp((4 * math.log(1 / 3) + math.log(1 / 2)) / 5))
    assert found.low <= found.ratio <= found.high < 1 and (found.pairs, found.tasks, found.left_out) == (
        10,
        5,
        0,
    )
    assert found.area == pytest.approx(0.5 * (4 * 4 + 3) / 5 / 8) and found.area_low > 0
    same = compare([*off, *(one._replace(arm="learned") for one in off)], "learned")
    assert (same.ratio, same.low, same.high, same.area) == (1, 1, 1, 0)
    nothing = [run_of("off", 9, 1, 1, -0.2), run_of("learned", 9, 1, 1)]
    assert compare([*off, *sooner, *nothing], "learned").left_out == 1
    assert compare(nothing, "learned").ratio is None
    alone = compare([*off, *sooner[:2], run_of("learned", 77, 1, 1)], "learned")
    assert alone.pairs == 2, "a run without its partner says nothing"


@pytest.fixture
def experiment(tmp_path, monkeypatch) -> Experiment:
    pool = tiny_search.FastEvaluator()
    monkeypatch.setattr(memory_experiment, "open_pool", lambda *given: pool)
    paths = tuple(str(tiny_search.write_task(tmp_path / f"relu-{k}")) for k in range(2))
    for k, path in enumerate(paths):  # two tasks of two structures
        [model] = load_task(path).subgraphs
        text = model.source.replace("relu", ("relu", "sigmoid")[k])
        (model.path / "model.py").write_text(text)
    settings = {"search.iters": 2, "search.islands": 1, "search.finalists": 0, "search.expert_seeds": 0}
    config = load_config(None, settings)
    protocol = Protocol(paths, ("off", "learned"), 1, config.model_dump_json())
    return Experiment(tmp_path / "out", protocol, config, lambda line: None)


@pytest.mark.long
def test_it_learns_on_one_half_and_is_compared_on_the_other(experiment):
    asyncio.run(experiment.run())
    learn, compared = experiment.protocol.halves()
    assert [(one.arm, one.seed) for one in experiment.courses] == [("off", 1), ("learned", 1)]
    assert {one.task for one in experiment.courses} == {load_task(compared[0]).name}

    def made() -> list[tuple[str, str]]:
        with Store.open(experiment.place / "runs") as store:
            return sorted((run.id, run.task) for run in runs.list_runs(store))

    before = made()
    assert len(before) == 3
    with HintLibrary.open(experiment.library) as library:
        assert {entry.source.task for entry in library.entries()} <= {load_task(learn[0]).key}
        stored = {row["task"] for row in library.rows("SELECT task FROM outcomes")}
        assert load_task(compared[0]).key not in stored
        assert not library.rows(
            "SELECT 1 FROM exemplars WHERE operators != 'relu' AND operators != 'sigmoid'"
        )
    again = Experiment(experiment.place, experiment.protocol, experiment.config, experiment.say)
    asyncio.run(again.run())
    assert made() == before and again.courses == experiment.courses
    other = replace(experiment.protocol, seeds=2)
    with pytest.raises(UsageError, match="holds another experiment"):
        Experiment(experiment.place, other, experiment.config, experiment.say).check()
    kept = json.loads((experiment.place / "protocol.json").read_text())
    assert "95%" in kept["outcome"] and kept["arms"] == ["off", "learned"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arms", "off,learnt"], "no arm 'learnt'; did you mean 'learned'?"),
        (["--arms", "learned"], "name off, and at least one of"),
        ([], "name at least two"),
    ],
)
def test_usage_mistakes(call, tmp_path, words, message):  # noqa: F811
    task = tiny_search.write_task(tmp_path / "task")
    code, _, err = call("experiment", "memory", "--tasks", task, *words)
    assert code == 2 and message in one_line(err)
