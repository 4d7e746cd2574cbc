"""`passagent bench`: what it measures, keeps, goes on with, and sums up. Real evaluations of tiny tasks."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import tiny
from test_bench_summary import evaluation, naive

from passagent import cli
from passagent.config import load_config
from passagent.data.bench.measure import EXPERT, held_out, plan
from passagent.data.bench.results import FILE, Results, Row
from passagent.data.bench.summary import METRICS, summaries_of
from passagent.errors import InfrastructureError, UsageError
from passagent.evaluator import compilers
from passagent.evaluator.result import GraphResult, Measured, Speedup, Violation, Worst
from passagent.evaluator.service.pool import EvaluatorPool
from passagent.option_groups import checked
from passagent.options import BenchOptions
from passagent.tasks import load_task

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("referee_inside")]

QUICK = ["--set", "evaluator.budget_s=1e-6"]

COLUMNS = {
    "fast_1 (%)": "fast_1",
    "Samp. CR (%)": "sample_cr",
    "Sub. CR (%)": "subgraph_cr",
    "G-mean": "gmean_speedup",
    "AS": "as_score",
}


def write_tasks(path: Path, count: int, with_passes: bool = True) -> list[Path]:
    """Tasks that add 1, 2, ... and a pass for each; the second one's does not match."""
    tasks = []
    for number in range(1, count + 1):
        task = tiny.write_task(path / f"task{number}", tiny.MODEL.replace("1.0", f"{number}.0"))
        if with_passes:
            made, added = tiny.candidate(), 2.5 if number == 2 else number
            text = made.files["Fused.py"].replace("* b + 1.0\n", f"* b + {added:.1f}\n")
            made.files["Fused.py"] = text.replace("+ 1.0f);", f"+ {added:.1f}f);")
            made.write(task / "pass_dir")
        tasks.append(task)
    return tasks


def one_line(err: str) -> str:
    """The error, which is stderr's last line."""
    line = err.splitlines()[-1]
    assert line.startswith("passagent: error: ")
    return line


def test_a_refusal_that_rests_on_a_measurement_is_measured_again_and_any_other_is_not():
    rule = {"rule": "clock", "file": "a.py", "line": 0, "message": "slow"}
    measured = Measured(claimed=2.0, seen=40.0, bound=9.5, unit="us a call")

    def row(*violations: Violation) -> Row:
        found = evaluation([]).model_copy(update={"violations": list(violations)})
        return Row(task="t", task_key="k", compiler="c", subject="s", evaluation=found)

    assert row().stands
    assert row(Violation(**rule)).stands
    assert not row(Violation(**rule), Violation(**rule, measured=measured)).stands


def test_shards_of_two_machines_are_one_benchmark(call, referee_inside, tmp_path):
    write_tasks(tmp_path, 2, with_passes=False)
    words = ("task1", "task2", "--compiler", "eager", "--shard", "1/2")
    code, out, err = call("bench", *words, "--out", "second", *QUICK)
    assert code == 0 and "1 measurements" in out, err
    [row] = Results(Path("second")).rows.values()
    assert row.task == "task2"
    first = row.model_copy(update={"task": "task1", "identity": row.identity | {"host": "another"}})
    for name, other in (("first", first), ("third", first.model_copy(update={"identity": {"cpu": "b"}}))):
        Path(name).mkdir()
        Path(name, FILE).write_text(other.model_dump_json() + "\n")
    code, out, _ = call("bench", "first", "second", "--plots", "curves", "--json")
    assert any(Path("curves").iterdir())
    assert code == 0 and json.loads(out)["compilers"][0]["tasks"] == 2, out
    assert json.loads(out)["results_files"] == ["first/results.jsonl", "second/results.jsonl"]
    code, _, err = call("bench", "first", "third")
    assert code == 2 and "under other conditions" in one_line(err)


# Mistakes


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["missing"], "missing: no such directory or sample list"),
        (["task1", "--json", "--markdown"], "--json and --markdown: one form at a time"),
        (["task1", "--compiler", "pass_dir"], "task1/pass_dir: no passes here, nor for any other task"),
        (["task1", "--compiler", "pass_dir", "--pass-dir", "mine"], "mine/task1: no passes here"),
        (["task1", "--compiler", "run", "--model", "experd"], "unknown model; did you mean 'expert'?"),
        (["task1", "--compiler", "inducter"], "--compiler inducter: unknown; did you mean 'inductor'"),
        (["task1", "--compiler", "torch:aot_eagre"], "has no backend 'aot_eagre'; did you mean 'aot_eager'"),
        (["task1", "--compiler", "torch:inductor:fast"], "inductor has no mode 'fast'; known: "),
        (["task1", "--compiler", "torch:aot_eager:default"], "only the backend inductor has modes"),
        (["task1", "--out", "list.txt/x"], "cannot be written"),
        (["task1", "--shard", "2/2"], "--shard 2/2: write I/N with I from 0 to N-1"),
    ],
)
def test_usage_mistakes(call, tmp_path, words, told):
    write_tasks(tmp_path, 1, with_passes=False)
    (tmp_path / "list.txt").write_text("task1\n")
    code, out, err = call("bench", *words)
    assert (code, out) == (2, "")
    assert told in one_line(err)
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
def test_any_backend_of_torch_compile(call, tmp_path):
    autotune = {"backend": "inductor", "mode": "max-autotune"}
    assert compilers.arguments("torch:inductor:max-autotune") == autotune
    assert (compilers.arguments("torch:tvm"), compilers.arguments("inductor")) == ({"backend": "tvm"}, {})
    write_tasks(tmp_path, 1, with_passes=False)
    backend = ["--compiler", "torch:aot_eager", "--compiler", "eager"]
    code, out, err = call("bench", "task1", *backend, *QUICK, "--out", "kept", "--json")
    assert code == 0, err
    found = {one["compiler"]: one for one in json.loads(out)["results"]}
    assert found.keys() == {"torch:aot_eager", "eager"}
    assert found["torch:aot_eager"]["status"] == "ok" and found["torch:aot_eager"]["as_score"] > 0
    row = json.loads((tmp_path / "kept/results.jsonl").read_text().splitlines()[0])
    assert row["evaluation"]["dispatch"] == "dynamo"
    assert row["evaluation"]["graphs"][0]["eager_ms"] != row["evaluation"]["graphs"][0]["compiled_ms"]


# Measuring, and the forms of the table


@pytest.mark.long
def test_the_table_is_what_was_measured(call, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    write_tasks(tmp_path / "tasks", 2)
    tiny.write_task(tmp_path / "tasks/task3")  # has no passes
    words = ["bench", "tasks", "--compiler", "pass_dir", *QUICK, "--out", "kept"]
    code, out, err = call(*words, "--json")
    assert code == 0
    assert "no passes for 1 of 3 tasks" in err and "3/3 task3 pass_dir: load_error" in err
    data = json.loads(out)
    assert [r["status"] for r in data["results"]] == ["ok", "mismatch", "load_error"]
    assert data["failed"] == []
    [line] = data["compilers"]
    assert (line["compiler"], line["dispatch"]) == ("pass_dir", "direct")
    assert (line["tasks"], line["asked"], line["subgraphs"]) == (3, 3, 9)
    expected = naive(data["results"])
    for metric in METRICS:
        assert line[metric]["value"] == pytest.approx(expected[metric]), metric
        assert line[metric]["low"] <= line[metric]["high"]
    assert line["sample_cr"]["value"] == line["subgraph_cr"]["value"] == 1 / 3
    lines = (tmp_path / "kept/results.jsonl").read_text()
    assert len(lines.splitlines()) == 3
    graphs = json.loads(lines.splitlines()[0])["evaluation"]["graphs"]
    assert all(graph["eager_samples_ms"] for graph in graphs)

    code, out, err = call(*words, "--markdown")  # answered from what is kept
    assert (code, "3 of them made before" in err) == (0, True)
    header, _, cells = ([cell.strip() for cell in text.strip("|").split("|")] for text in out.splitlines())
    shown = dict(zip(header, cells, strict=True))
    for name, metric in COLUMNS.items():
        unit, digits = (100, 1) if "%" in name else (1, 3)
        wanted = [f"{figure * unit:.{digits}f}" for figure in line[metric].values()]
        assert re.findall(r"[\d.]+", shown[name]) == wanted, name

    code, out, _ = call(*words, "--plots", "pictures")
    table = out[: out.index("wrote")]
    assert "pass_dir      3  33.3" in table
    assert f"{line['as_score']['value']:.3f}" in table
    assert (tmp_path / "kept/results.jsonl").read_text() == lines  # nothing was measured twice
    for name, label in [("es", "ES(t), eager = 1"), ("s", "S(t), eager = 1")]:
        svg = ET.parse(tmp_path / f"pictures/{name}.svg")
        assert label in [element.text for element in svg.iter() if element.text]


@pytest.mark.long
def test_a_task_that_fails_does_not_stop_the_others(call, tmp_path, monkeypatch):
    write_tasks(tmp_path / "tasks", 1)
    (tmp_path / "tasks/broken").mkdir(parents=True)
    (tmp_path / "tasks/broken/graph_list.txt").write_text("graphs/nowhere\n")
    model = tiny.MODEL.replace("tmp_0 * in_1", "tmp_0.view(7, 7) * in_1")
    failing = tiny.write_task(tmp_path / "tasks/failing", model)
    lost = tiny.write_task(tmp_path / "tasks/lost")
    tiny.candidate().write(failing / "pass_dir")
    tiny.candidate().write(lost / "pass_dir")
    real, asked = EvaluatorPool.evaluate, []

    async def evaluate(pool, task_path, subject):
        asked.append(task_path.name)
        if task_path.name == "lost":
            raise InfrastructureError("no device is fit")
        return await real(pool, task_path, subject)

    monkeypatch.setattr(EvaluatorPool, "evaluate", evaluate)
    monkeypatch.setattr("passagent.search.candidates.RETRY_AFTER_S", (0.0, 0.0))
    words = ["bench", "tasks", "--compiler", "pass_dir", *QUICK, "--out", "kept", "--json"]
    code, out, err = call(*words)
    assert code == 1
    data = json.loads(out)
    assert [result["task"] for result in data["results"]] == ["task1"]
    reasons = {(item["task"], item["compiler"]): item["reason"] for item in data["failed"]}
    assert list(reasons) == [("broken", None), ("failing", "pass_dir"), ("lost", "pass_dir")]
    assert "graphs/nowhere: no such directory" in reasons["broken", None]
    assert "failing/graphs/g0_float32" in reasons["failing", "pass_dir"]
    assert reasons["lost", "pass_dir"] == "no device is fit"
    assert asked.count("lost") == 3
    assert (data["compilers"][0]["tasks"], data["compilers"][0]["asked"]) == (1, 4)
    assert "3 not measured, such as broken" in one_line(err)

    monkeypatch.setattr(EvaluatorPool, "evaluate", real)
    code, out, _ = call(*words)  # the machine is well again
    assert code == 1
    assert [result["task"] for result in json.loads(out)["results"]] == ["lost", "task1"]


MATMUL = """import torch

class GraphModule(torch.nn.Module):

    def forward(self, in_0, in_1):
        tmp_0 = torch.matmul(in_0, in_1)
        return (tmp_0,)
"""


@pytest.mark.long
def test_the_expert_beside_others(call, tmp_path):
    tiny.write_task(tmp_path / "tasks/silu_mul")
    tiny.write_subgraph(tmp_path / "tasks/matmul", [4, 4], model=MATMUL)
    words = ["bench", "tasks", "--compiler", "expert", *QUICK, "--out", "kept", "--json"]
    code, out, err = call(*words)
    assert code == 0 and "matmul expert: left whole to eager, counted as 1.0" in err
    assert "cannot be compared" not in err
    data = json.loads(out)
    left, result = data["results"]
    assert left["left_to_eager"] and not result["left_to_eager"]
    assert (left["task"], left["as_score"], left["graphs"][0]["speedup"]["e2e"]) == ("matmul", 1.0, 1.0)
    assert (result["task"], result["status"]) == ("silu_mul", "ok")
    [line] = data["compilers"]
    assert (line["compiler"], line["tasks"], line["asked"]) == ("expert", 2, 2)
    assert line["subgraph_cr"]["value"] == 1.0
    row = json.loads((tmp_path / "kept/results.jsonl").read_text().splitlines()[-1])
    assert all(graph["compiled_samples_ms"] for graph in row["evaluation"]["graphs"])

    code, out, err = call("bench", "tasks/silu_mul", *words[2:])  # kept; linear was not asked for
    assert (code, "1 of them made before" in err) == (0, True)
    assert json.loads(out)["results"] == [result]
    assert "left whole to eager by the expert, counted as 1.0: matmul\n" in call(*words[:-1])[1]

    # What was written is there to be read, and to be measured as passes.
    code, out, _ = call(
        "bench", "tasks/silu_mul", "--compiler", "pass_dir", "--pass-dir", "kept/passes", *QUICK, "--json"
    )
    assert code == 0
    assert json.loads(out)["results"][0]["status"] == "ok"


@pytest.mark.long
def test_held_out_shapes_are_measured_and_not_shown(call, tmp_path):
    tiny.write_task(tmp_path / "task")
    names = [one.name for one in load_task(tmp_path / "task").subgraphs]
    [hidden] = held_out(names, 0.5)
    words = ["bench", "task", "--compiler", "expert", "--hold-out-shapes", "1/2", *QUICK, "--out", "kept"]
    code, out, _ = call(*words, "--json")
    lines = {line["compiler"]: (line["tasks"], line["subgraphs"]) for line in json.loads(out)["compilers"]}
    assert (code, lines["expert"]) == (0, (1, 3))
    assert (lines["expert, seen shapes"], lines["expert, held-out shapes"]) == ((1, 2), (1, 1))
    [seen] = (tmp_path / "kept/seen").glob("*/task/graph_list.txt")
    assert [Path(line).name for line in seen.read_text().splitlines()] == [n for n in names if n != hidden]
    assert {graph["name"] for graph in json.loads(out)["results"][0]["graphs"]} == set(names)
    code, out, err = call(*words)
    assert "expert, seen shapes" in out and "1 of them made before" in out + err


def test_each_part_has_its_own_line():
    graphs = [GraphResult(name=f"g{n}", dtype="float32", status="ok", passes_from_t=-10) for n in range(4)]
    hidden = held_out([graph.name for graph in graphs], 0.5)
    for graph in graphs:
        graph.speedup = Speedup(e2e=1.5 if graph.name in hidden else 3.0)
    facts = {"task": "t", "task_key": "k", "compiler": "expert", "subject": "s"}
    rows = [Row(**facts, evaluation=evaluation(graphs), hidden=sorted(hidden)),
            Row(**facts, evaluation=evaluation(graphs[:1]))]  # fmt: skip
    whole, seen, held = summaries_of(["expert"], rows)
    assert [line.compiler for line in (seen, held)] == ["expert, seen shapes", "expert, held-out shapes"]
    assert (whole.subgraphs, seen.subgraphs, held.subgraphs, held.tasks) == (5, 2, 2, 1)
    assert (seen.as_score.value, held.as_score.value) == (pytest.approx(3.0), pytest.approx(1.5))


def test_what_is_held_out_depends_on_names_alone():
    names = [f"g{number}" for number in range(9)]
    assert held_out(names, 1 / 3) == held_out(names[::-1], 1 / 3)
    assert len(held_out(names, 1 / 3)) == 3
    assert (held_out(["g"], 0.9), len(held_out(names, 0.99))) == (set(), 8)


def test_another_expert_is_measured_anew(tmp_path, monkeypatch):
    task = load_task(tiny.write_subgraph(tmp_path / "graph", [4, 64]))
    options = checked(BenchOptions, {"compiler": [EXPERT]})
    [first] = plan([task], load_config(), options)
    [same] = plan([task], load_config(), options)
    monkeypatch.setattr("passagent.data.bench.measure.expert_version", lambda: "another")
    [other] = plan([task], load_config(), options)
    assert first.row.key == same.row.key != other.row.key


@pytest.mark.long
@pytest.mark.parametrize("compiler", [pytest.param("run", marks=pytest.mark.slow), "expert"])
def test_bench_measures_the_best_pass_of_a_search(call, tmp_path, compiler):
    tiny.write_subgraph(tmp_path / "graph", [4, 64])
    few = ["--iters", "1", "--set", "search.islands=1", "--set", "search.finalists=0",
           "--set", "agent.max_evaluations=1"]  # fmt: skip
    words = ["bench", "graph", "--compiler", compiler, *few, *QUICK, "--out", "kept", "--json"]
    code, out, _ = call(*words)
    assert code == 0
    data = json.loads(out)
    [result] = data["results"]
    stored = json.loads(call("show", result["run"], "--runs-dir", "kept/searches", "--json")[1])
    assert (stored["state"], stored["task"], result["status"]) == ("finished", "graph", "ok")
    assert json.loads(call(*words)[1]) == data  # nothing is searched again


# Going on


def program(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    """`passagent bench` as a process of its own."""
    command = [sys.executable, "-m", "passagent", "bench", "tasks", "--compiler", "pass_dir", *QUICK]
    return subprocess.Popen(
        [*command, "--out", "kept", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(Path(cli.__file__).parents[1]), *filter(None, sys.path)])},
    )


def stop_after(
    process: subprocess.Popen[str], file: Path, rows: int, number: signal.Signals
) -> tuple[str, str]:
    """Send a signal as soon as `rows` results are stored; stdout and stderr."""
    deadline = time.monotonic() + 300
    while not file.exists() or file.read_bytes().count(b"\n") < rows:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    return process.communicate(timeout=300)


@pytest.mark.long
def test_going_on_after_ctrl_c_and_after_a_kill(tmp_path):
    write_tasks(tmp_path / "tasks", 3)
    file = tmp_path / "kept/results.jsonl"
    interrupted = program(tmp_path)
    _, err = stop_after(interrupted, file, 1, signal.SIGINT)
    assert interrupted.returncode == 130
    [line] = err.splitlines()
    assert "results.jsonl; the same command" in line and "goes on" in line
    first = file.read_text()

    killed = program(tmp_path)
    stop_after(killed, file, 2, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    before = file.read_text()
    assert before.startswith(first)
    with file.open("a") as torn:  # what a kill in the middle of a write leaves
        torn.write(before.splitlines()[0][:1000])

    rest = program(tmp_path, "--json")
    out, err = rest.communicate(timeout=300)
    assert rest.returncode == 0, err
    data = json.loads(out)
    assert [result["task"] for result in data["results"]] == ["task1", "task2", "task3"]
    after = file.read_text()
    assert after.startswith(before)
    assert [json.loads(line)["task"] for line in after.splitlines()] == ["task1", "task2", "task3"]
    assert "task1 pass_dir" not in err and "task3 pass_dir" in err


@pytest.mark.long
def test_changed_passes_are_measured_and_other_conditions_are_not_mixed(call, tmp_path):
    [task] = write_tasks(tmp_path, 1)
    words = ["bench", "task1", "--compiler", "pass_dir", *QUICK, "--out", "kept"]
    first = json.loads(call(*words, "--json")[1])
    tiny.candidate(body="    return torch.add(a, b)").write(task / "pass_dir")
    second = json.loads(call(*words, "--json")[1])
    assert (first["results"][0]["status"], second["results"][0]["status"]) == ("ok", "refused")
    first_line, lines = (tmp_path / "kept/results.jsonl").read_text().splitlines()
    assert json.loads(first_line)["evaluation"]["status"] == "ok"
    code, _, err = call(*words, "--set", "evaluator.timeout_s=11")
    assert code == 2
    assert "timeout_s 120.0 (now 11.0); give another --out, or --fresh" in one_line(err)
    row = json.loads(lines)
    for name, other in [("evaluator", "0.0.1+cafe"), ("host", "elsewhere"), ("torch", "1.0")]:
        changed = row | {"identity": row["identity"] | {name: other}}
        (tmp_path / "kept/results.jsonl").write_text(json.dumps(changed) + "\n")
        code, _, err = call(*words)
        assert code == 2
        assert f"{name} {other} (now {row['identity'][name]})" in one_line(err)
    code, out, _ = call(*words, "--fresh")
    assert code == 0
    assert "0 of them made before" in out
    assert json.loads((tmp_path / "kept/results.jsonl.old").read_text())["identity"]["torch"] == "1.0"
    (tmp_path / "kept/results.jsonl").write_text("{}\n")
    code, _, err = call(*words)
    assert code == 2
    assert "results.jsonl:1: not a result of passagent bench" in one_line(err)


def test_rows_come_back_as_they_were(tmp_path):
    values = GraphResult(name="g", dtype="float32", status="wrong_result", max_abs_diff=math.inf)
    values.worst = Worst(output=0, index=[1], expected=1.0, got=math.nan)
    row = Row(task="t", task_key="k", compiler="eager", subject="eager", identity={"a": 1}, at="now")
    row.evaluation = evaluation([values])
    Results(tmp_path, {"a": 1}).add(row)
    [back] = Results(tmp_path, {"a": 1}).rows.values()
    assert back.model_dump_json() == row.model_dump_json()
    assert back.evaluation and math.isnan(back.evaluation.graphs[0].worst.got)  # type: ignore[union-attr]
    with pytest.raises(UsageError, match=r"a 1 \(now 2\)"):
        Results(tmp_path, {"a": 2})
