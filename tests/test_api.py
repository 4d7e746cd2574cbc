"""passagent from Python: the snippet of the docs for real, everywhere that Python runs, and its errors."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import tiny
import tiny_search
from test_resume_real import children_of

import passagent as pa
from passagent import api, cli
from passagent.evaluator.result import MANIFEST
from passagent.evaluator.timing import timing
from passagent.option_groups import options_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("referee_inside")]

TASK = "example:add_layer_norm"
QUICK = {"evaluator.budget_s": 1e-6, "search.finalists": 0}
QUICK_EVALUATOR = {key: value for key, value in QUICK.items() if key.startswith("evaluator.")}


def in_python(code: str, cwd: Path, **more):
    """A script's process, ended; no `if __name__ == "__main__"` in it."""
    (cwd / "script.py").write_text(code)
    return subprocess.run(
        [sys.executable, "script.py"], cwd=cwd, capture_output=True, text=True, check=False, **more
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def small(place):
    """A task of one subgraph that takes no time."""
    return tiny.write_subgraph(place / "small", [4, 64])


@pytest.fixture(scope="module")
def evaluator():
    with pa.Evaluator(device="cpu", settings=QUICK_EVALUATOR) as evaluator:
        yield evaluator


@pytest.fixture(scope="module")
def searched(place, small):
    """A run of the expert, and the events that it told."""
    events = []
    run = pa.run(
        pa.load_task(small),
        model="expert",
        iters=1,
        runs_dir=place / "runs",
        on_event=events.append,
        settings=QUICK,
    )
    return run, events


def test_importing_it_imports_nothing_heavy():
    code = (
        "import sys, passagent\n"
        "heavy = {'torch', 'rich', 'pydantic', 'sqlite_utils', 'numpy', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "passagent.Evaluator, passagent.run; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_public_names_are_those_of_the_api():
    assert pa.__all__ == api.__all__
    assert all(getattr(pa, name) is getattr(api, name) for name in pa.__all__)
    assert set(pa.__all__) <= set(dir(pa))
    packages = {path.name for path in Path(pa.__file__).parent.iterdir() if path.is_dir()}
    assert not packages & set(pa.__all__)  # importing it would replace the function
    undocumented = [name for name in pa.__all__ if not (getattr(pa, name).__doc__ or "").strip()]
    assert undocumented == []
    with pytest.raises(AttributeError, match="no attribute 'evaluete'"):
        pa.evaluete  # noqa: B018


@pytest.mark.parametrize(
    ("name", "in_a_terminal_only"),
    [
        ("run", {"json", "events"}),
        ("resume", {"json"}),
        ("fork", {"json", "node", "runs_dir"}),
        ("bench", {"json", "markdown", "plots"}),
        ("collect", {"json"}),
        ("export", {"json", "runs_dir"}),
    ],
)
def test_an_option_has_its_name_in_python(name, in_a_terminal_only):
    import typer

    command = typer.main.get_command(cli.app).commands[name]
    options = {one.name for one in command.params if one.param_type_name == "option"} - {"help_all"}
    group = inspect.signature(getattr(pa, name)).parameters["options"].annotation
    keywords = options_of(getattr(api, group.removeprefix("Unpack[").removesuffix("]")))
    assert {*keywords} == options - in_a_terminal_only


def test_a_collection(small, referee_inside, tmp_path):
    tasks = [str(small), str(tiny.write_subgraph(tmp_path / "other", [2, 96]))]
    words = {"trials": 1, "max_steps": 2, "parallel": 2, "model": "expert", "settings": QUICK_EVALUATOR}
    first = pa.collect(tasks, **words, shard="0/2", runs_dir=tmp_path / "first")
    assert (first.data["trials"], first.data["failed"], first.data["broken"]) == (1, {}, {})
    [row] = first.data["table"]
    assert (row["model"], row["runs"]) == ("expert", 1) and "median steps" in first._repr_html_()
    [run] = [pa.open_run(runs_dir=first.runs_dir)]
    assert run.state == "finished" and run.data["episodes"] == 1

    second = pa.collect(tasks, **words, shard="1/2", runs_dir=str(tmp_path / "second"))
    pa.export([first.runs_dir, second.runs_dir], format="passagent", out=tmp_path / "data")
    assert len((tmp_path / "data/provenance.jsonl").read_text().splitlines()) == 2
    with pytest.raises(pa.UsageError, match="--shard 2/2"):
        pa.collect(tasks, shard="2/2", runs_dir=tmp_path / "first")
    with pytest.raises(pa.UsageError, match="islands: is 1 in a collection"):
        pa.collect(tasks, runs_dir=tmp_path / "new", settings={"search.islands": 2})
    assert not (tmp_path / "new").exists()


def test_a_search_and_what_it_found(searched, small, evaluator):
    run, events = searched
    assert run.state == "finished" and run.data["episodes"] == 1
    assert [type(event).__name__ for event in events][:2] == ["Joined", "EpisodeBegun"]
    assert {type(event).__name__ for event in events} >= {"Proposed", "Judged", "EpisodeEnded", "Left"}
    best = run.best
    assert best.status == "ok" and MANIFEST in best.files and best.as_score > 0
    assert [node.id for node in run.nodes() if node.id == best.id] == [best.id]
    assert best.note.endswith("keep 4") and not any("[plan:" in node.note for node in run.nodes())
    frame = run.nodes().to_pandas()
    assert list(frame["id"]) == [node.id for node in run.nodes()] and "as_score" in frame
    assert "*" in run.tree() and "<pre" in run.tree()._repr_html_()
    assert f"run {run.id} finished" in str(run) and "<pre" in run._repr_html_()
    task = pa.load_task(small)
    result = evaluator.evaluate(task, best.files)
    assert (result.status, result.from_store) == ("ok", False)
    assert result.as_score > 0 and result.speedup > 0
    assert len(result.table().splitlines()) >= 1 + len(task.subgraphs)
    again = evaluator.evaluate(task, best.plan)
    assert (again.status, again.evaluation.plans) == ("ok", result.evaluation.plans)
    assert "launch" in str(best.plan)


@pytest.mark.long
def test_a_run_is_opened_and_gone_on_with(searched, place):
    run, _ = searched
    assert pa.open_run("last", runs_dir=place / "runs") == run
    more = pa.resume(run, iters=3)
    assert more == run and run.data["episodes"] == 3
    with pytest.raises(pa.UsageError, match="is fixed for a run's life"):
        pa.resume("last", runs_dir=place / "runs", settings={"search.seed": 5})
    new = pa.fork(run.best, iters=1, settings={"search.islands": 1})
    assert new.id != run.id and new.data["episodes"] == 1


def test_a_data_set_of_one_run(searched, place, tmp_path):
    run, _ = searched
    summary = pa.export(run, format="trl", out=tmp_path / "data")
    told = [json.loads(line) for line in (tmp_path / "data/provenance.jsonl").read_text().splitlines()]
    assert summary.examples == len(told) and {row["run"] for row in told} == {run.id}
    with pytest.raises(pa.UsageError, match="no column 'as_scor'; did you mean 'as_score'"):
        pa.export(run, format="trl", out=tmp_path / "other", keep="as_scor > 1")


@pytest.mark.long
def test_a_benchmark(small, referee_inside, tmp_path):
    tiny.candidate().write(tmp_path / "passes" / small.name)
    words = {"compiler": ["eager", "pass_dir"], "pass_dir": str(tmp_path / "passes"), "settings": QUICK}
    found = pa.bench([str(small)], out=str(tmp_path / "kept"), **words)
    assert found.failed == [] and found.paths[0].is_file()
    assert "pass_dir" in found.table() and "<pre" in found._repr_html_()
    rows = found.measured.rows
    assert [(row.compiler, row.evaluation.status) for row in rows] == [("eager", "ok"), ("pass_dir", "ok")]


def test_a_candidate_is_a_directory_files_or_a_plan(evaluator, small, tmp_path):
    given = tiny.candidate()
    given.write(tmp_path / "dir")
    first = evaluator.evaluate(small, tmp_path / "dir")
    assert first.status == "ok" and "<pre" in first._repr_html_() and "AS" in str(first)
    named = {name: text for name, text in given.files.items() if name != MANIFEST}
    assert evaluator.evaluate(small, named).evaluation.candidate == given.key
    wrong = evaluator.evaluate(str(small), {"Bad.py": "def pattern(:"})
    assert (wrong.status, wrong.as_score is None or wrong.as_score < 1) == ("load_error", True)


@pytest.mark.long
def test_what_is_kept_is_found_again_and_measured_when_asked(small, referee_inside, tmp_path, monkeypatch):
    settings = {key: value for key, value in QUICK.items() if key[0] == "e"}
    monkeypatch.setattr(timing, "UNSTABLE", 10.0)  # what is unstable is never found again
    with pa.Evaluator(settings=settings, runs_dir=tmp_path) as evaluator:
        first = evaluator.evaluate(small, tiny.candidate())
        again = evaluator.evaluate(small, tiny.candidate())
        fresh = evaluator.evaluate(small, tiny.candidate(), fresh=True)
    assert [first.from_store, again.from_store, fresh.from_store] == [False, True, False]
    stored, returned = (datetime.fromisoformat(one.measured_at) for one in (again, first))
    assert abs(returned - stored) < timedelta(minutes=1)  # it is stored, then returned


@pytest.mark.long
def test_threads_share_an_evaluator(evaluator, small):
    async def main():
        one = asyncio.to_thread(evaluator.evaluate, small, tiny.candidate())
        two = asyncio.to_thread(evaluator.evaluate, small, tiny.candidate(tiny.HONEST + "  # the same"))
        return await asyncio.gather(one, two)

    assert [result.status for result in asyncio.run(main())] == ["ok", "ok"]


def test_a_second_evaluation_starts_no_process(evaluator, small):
    evaluator.evaluate(small, tiny.candidate())
    before = children_of(os.getpid())
    assert evaluator.evaluate(small, tiny.candidate(f"{tiny.HONEST}  # another")).status == "ok"
    assert before and set(children_of(os.getpid())) <= set(before)


@pytest.mark.long
def test_it_works_while_a_loop_runs(small, tmp_path):
    """A notebook's cell is run while its kernel's loop is."""
    settings = {**QUICK, "search.expert_seeds": 0}

    async def cell():
        return pa.run(small, iters=1, islands=1, runs_dir=tmp_path / "cell", settings=settings)

    assert asyncio.run(cell()).best.status == "ok"


@pytest.mark.long
def test_a_script_needs_no_guard_and_nothing_is_printed(small, tmp_path):
    code = (
        "import passagent as pa\n"
        f"run = pa.run({str(small)!r}, iters=1, islands=1, settings={QUICK!r})\n"
        f"with pa.Evaluator(settings={{'evaluator.budget_s': 1e-6}}) as evaluator:\n"
        f"    assert evaluator.evaluate({str(small)!r}, run.best.files).status == 'ok'\n"
    )
    done = in_python(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


STOPPED = """
import sys; sys.path.insert(0, {tests!r})
import os, signal, tiny_search
import passagent as pa
from passagent.search import setup, session
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts with & has it ignored
real = setup.started
def slow(runs_dir, task, config, new, parts):
    return real(runs_dir, task, config, new, tiny_search.parts({seconds}))
setup.started = slow
def tell(event):
    print("event", flush=True)
stop = session.Session.stop
def told(self, *words, **more):
    stop(self, *words, **more)
    print("stopping", flush=True)
session.Session.stop = told
try:
    pa.run({task!r}, settings={settings!r}, on_event=tell)
except KeyboardInterrupt as error:
    print("stopped:", error)
print(pa.open_run().state)
"""


@pytest.mark.parametrize(("times", "seconds", "events"), [(1, 0.05, 30), (2, 600.0, 2)])
def test_ctrl_c_stops_a_search_and_all_is_stored(tmp_path, times, seconds, events):
    """The first waits for the model's reply; the second does not."""
    task = tiny_search.write_task(tmp_path / "task")
    settings = tiny_search.settings(10**6, 2, 1)
    code = STOPPED.format(
        tests=str(Path(__file__).parent), task=str(task), seconds=seconds, settings=settings
    )
    (tmp_path / "script.py").write_text(code)
    words = [sys.executable, "script.py"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    for _ in range(events):
        assert process.stdout.readline() == "event\n"
    process.send_signal(signal.SIGINT)
    if times == 2:
        while (line := process.stdout.readline()) != "stopping\n":
            assert line == "event\n"
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    said = "stopped: stopped; what was begun is stored" if times == 1 else "stopped: "
    assert said in out and out.splitlines()[-1] == "stopped", out[-500:]


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: pa.load_task("no/such"), pa.PassagentError, "no/such"),
        (lambda: pa.load_task("example:no_such"), pa.UsageError, "example:no_such"),
        (lambda: pa.run(TASK, itters=1), pa.UsageError, "no option 'itters'; did you mean 'iters'"),
        (lambda: pa.run(TASK, settings={"search.x": 1}), pa.UsageError, "search.x: unknown key"),
        (lambda: pa.run(TASK, model="experd"), pa.UsageError, "--model experd: unknown model"),
        (lambda: pa.run(TASK, device="tpu"), pa.UsageError, "tpu"),
        (lambda: pa.Evaluator(device="tpu"), pa.UsageError, "tpu"),
        (lambda: pa.open_run("last"), pa.UsageError, "holds no runs"),
        (lambda: pa.bench([TASK], compiler=["pass_dir"]), pa.UsageError, "no passes here"),
        (lambda: pa.export("runs", format="trl", out="x"), pa.UsageError, "holds no runs"),
    ],
)
def test_a_mistake_is_an_exception_of_one_line(call, error, said, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=re.escape(said)) as raised:
        call()
    assert len(str(raised.value).splitlines()) == 1
    assert capfd.readouterr() == ("", "")


def test_a_candidate_that_is_none_is_told(evaluator, small, tmp_path):
    with pytest.raises(pa.UsageError, match="no such pass directory"):
        evaluator.evaluate(small, tmp_path / "no")
    with pytest.raises(pa.UsageError, match=r"holds no \.py file"):
        evaluator.evaluate(small, {})


def test_without_pandas_a_line_says_what_to_install(searched, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(pa.UsageError, match="pip install pandas"):
        searched[0].nodes().to_pandas()
