"""KernelBench's table of a benchmark, from results as they are stored."""

import json
import math

import pytest
import tiny
from test_bench_summary import evaluation

import passagent as pa
from passagent.data.bench.kernelbench import LEVELS_P, Place, lines
from passagent.data.bench.results import FILE, Row
from passagent.errors import UsageError
from passagent.evaluator.result import GraphResult, Speedup
from passagent.tasks import load_task
from passagent.view.bench_table import suite_data, suite_text

TIMES = {"a": (1.0, 0.8, 0.4), "b": (2.0, 1.0, 1.6), "c": (4.0, 8.0, 2.0), "d": (3.0, 1.5, None)}
"""By problem: what eager, inductor and the expert take, ms; None: it is wrong."""
PLACES = {
    "a": Place("level1", "a"),
    "b": Place("level2", "b"),
    "c0": Place("level2", "c"),
    "c1": Place("level2", "c"),
    "d": Place("level2", "d"),
}


def graph(eager, own, **more):
    right = own is not None
    speedup = Speedup(e2e=eager / own) if right else None
    given = {"status": "ok" if right else "wrong_result", "passes_from_t": -10 if right else 2}
    given |= {"speedup": speedup, "eager_ms": eager, "moved_bytes": 1000, "nodes_before": 4}
    return GraphResult(name="g", dtype="float32", **given | more)


def row(task, compiler, graphs, error=None):
    judged = None if error else evaluation(graphs)
    facts = {"task": task, "task_key": task, "compiler": compiler, "subject": "s"}
    return Row(**facts, error=error, evaluation=judged)


@pytest.fixture
def rows():
    found = []
    for key, place in PLACES.items():
        parts = 2 if place.problem == "c" else 1
        eager, inductor, expert = TIMES[place.problem]
        for compiler, own in (("inductor", inductor), ("expert", expert)):
            found.append(row(key, compiler, [graph(eager / parts, own if own is None else own / parts)]))
    return found


def fast_p(is_correct, baseline, actual, p):
    """KernelBench's formula (score.py): over all problems, strictly faster."""
    ratios = [b / a for ok, b, a in zip(is_correct, baseline, actual, strict=True) if ok]
    return sum(ratio > p for ratio in ratios) / len(baseline)


@pytest.mark.parametrize(("base", "column"), [("eager", 0), ("inductor", 1)])
def test_the_figures_are_those_of_kernelbench_s_formulas(rows, base, column):
    found = lines(PLACES, rows, ["inductor", "expert"], lambda _: 1e9)
    [line] = [one for one in found if (one.compiler, one.base, one.level) == ("expert", base, "all")]
    times = list(TIMES.values())
    right, actual = [one[2] is not None for one in times], [one[2] or 1.0 for one in times]
    baseline = [one[column] for one in times]
    for p in LEVELS_P:
        assert line.fast[p].value == pytest.approx(fast_p(right, baseline, actual, p))
    ratios = [b / a for ok, b, a in zip(right, baseline, actual, strict=True) if ok]
    assert line.gmean.value == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    assert line.gmean.low < line.gmean.value < line.gmean.high
    assert line.problems == 4 and [one.problems for one in found if one.level == "level1"] == [1, 1, 1]
    least = [1e-3 if name != "c" else 2e-3 for name in "abc"]
    shares = [low / own for low, own in zip(least, actual, strict=False)]
    assert line.light.value == pytest.approx(math.prod(shares) ** (1 / 3))
    assert "fast_1.2" in suite_text(found) and suite_data(found)[0]["fast"]["1.2"]["value"] is not None


def test_a_problem_that_the_other_is_wrong_on_or_was_not_measured_is_not_compared(rows):
    rows = [one for one in rows if one.compiler == "expert"]
    rows += [row("a", "inductor", [graph(1.0, None)]), row("b", "inductor", [], "no memory")]
    found = lines(PLACES, rows, ["inductor", "expert"], None)
    assert [one for one in found if one.base == "inductor"] == []
    assert [one.problems for one in found if one.compiler == "inductor"] == [1, 1]
    assert all(one.light.value is None for one in found)


def test_a_problem_that_is_left_to_eager_counts_as_eager(rows):
    def line(base, rows):
        found = lines(PLACES, rows, ["inductor", "expert"], lambda _: 1e9)
        return next(one for one in found if (one.compiler, one.base, one.level) == ("expert", base, "all"))

    others = [one for one in rows if (one.task, one.compiler) != ("a", "expert")]
    left = row("a", "expert", [graph(1.0, 1.0)]).model_copy(update={"left": True})
    eager, inductor = line("eager", [*others, left]), line("inductor", [*others, left])
    assert eager.problems == inductor.problems == 4
    assert eager.gmean.value == pytest.approx((1.0 * (2.0 / 1.6) * 2.0) ** (1 / 3))  # a, b, c; d is wrong
    assert inductor.gmean.value == pytest.approx((0.8 * (1.0 / 1.6) * 4.0) ** (1 / 3))
    assert eager.fast[0.0].value == pytest.approx(0.75) and eager.fast[1.0].value == pytest.approx(0.5)
    assert eager.as_score.value is not None


def test_shards_give_the_suites_table_from_its_tasks(tmp_path):
    shards = []
    for number, own in enumerate((0.5, 0.25)):
        task = load_task(tiny.write_task(tmp_path / f"tasks/t{number}"))
        place = task.subgraphs[0].path / "graph_net.json"
        origin = {"suite": "kernelbench", "file": f"KernelBench/level2/{number}_X.py"}
        place.write_text(json.dumps({"origin": origin, "group": f"level2_{number}_X"}))
        key = load_task(task.path).key
        shards.append(tmp_path / f"shard{number}")
        shards[-1].mkdir()
        measured = [row(key, "inductor", [graph(1.0, 0.5)]), row(key, "expert", [graph(1.0, own)])]
        (shards[-1] / FILE).write_text("".join(one.model_dump_json() + "\n" for one in measured))
    places = [str(one) for one in shards]
    with pytest.raises(UsageError, match="name the directory of the tasks with --root"):
        pa.bench(places, suite="kernelbench")
    found = pa.bench(places, suite="kernelbench", root=str(tmp_path / "tasks")).measured
    line = next(one for one in found.suite if (one.compiler, one.base) == ("expert", "inductor"))
    assert line.problems == 2 and line.gmean.value == pytest.approx(math.sqrt(1.0 * 2.0))
    place.write_text("{}")
    with pytest.raises(UsageError, match="passagent tasks import kernelbench"):
        pa.bench(places, suite="kernelbench", root=str(tmp_path / "tasks"))
