"""The command line: one clear line for every mistake, the right exit code, JSON that is nothing but JSON."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import tiny_search

from passagent import cli
from passagent.evaluator.candidate import HELPER, HELPER_HEAD
from passagent.evaluator.result import MANIFEST, Evaluation
from passagent.search import setup
from passagent.store import Store
from passagent.view.evaluation import evaluation_text

ROOT = Path(__file__).parents[1]
PROGRAM = Path(tiny_search.__file__)
NOT_SETTINGS = ("help", "help_all", "version", "install_completion", "show_completion")


@pytest.fixture
def task(tmp_path):
    return tiny_search.write_task(tmp_path / "task")


@pytest.fixture
def stored(task, call, capsys):
    """A finished tiny run in `runs`."""
    from passagent.cli import running

    running.run(
        str(task),
        {"settings": tiny_search.settings(6, 2, 1), "runs_dir": "runs"},
        True,
        parts=tiny_search.parts(),
    )
    capsys.readouterr()


def one_line(err: str) -> str:
    """The single error line on stderr."""
    [line] = err.splitlines()
    assert line.startswith("passagent: error: ")
    return line


def test_help_and_version_import_nothing_heavy(call):
    code, out, _ = call("--version")
    assert (code, out) == (0, "passagent 0.1.0\n")
    assert call("--help")[0] == 0
    program = (
        "import sys; sys.argv = ['passagent', '--help']\n"
        "from passagent import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'rich', 'pydantic', 'sqlite_utils', 'jinja2', 'openai', 'anthropic', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_looking_at_runs_imports_no_torch():
    program = (
        "import sys\n"
        "from passagent.data.collect import campaign, trials\n"
        "from passagent.data.export import making\n"
        "from passagent.data.pipeline import grouping\n"
        "from passagent.tasks import reader, tasklist\n"
        "from passagent.view import doctor, hint_report, node_changes, run_summary, trajectory\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_evaluators_process_starts_its_fork_server_before_it_imports_what_is_heavy():
    program = (
        "import sys\n"
        "from passagent.evaluator.service import serve\n"
        "heavy = {'torch', 'pydantic', 'numpy', 'triton'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "from passagent.evaluator import Candidate, Evaluation"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_option_is_an_environment_variable():
    import typer

    def options(command, words):
        for name, child in getattr(command, "commands", {}).items():
            yield from options(child, (*words, name))
        for option in command.params:
            if option.param_type_name == "option" and option.name not in NOT_SETTINGS:
                yield words, option

    found = list(options(typer.main.get_command(cli.app), ()))
    assert {words for words, _ in found} >= {("run",), ("runs",), ("eval",), ("bench",), ("tasks", "check")}
    for words, option in found:
        assert str(option.envvar).startswith("PASSAGENT_"), (words, option.name)


def test_an_environment_variable_stands_for_an_option(call, task, monkeypatch):
    monkeypatch.setenv("PASSAGENT_MODEL", "experd")
    code, _, err = call("run", task)
    assert code == 2
    assert "--model experd: unknown model; did you mean 'expert'?" in one_line(err)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "missing"], "missing: no such directory"),
        (["run", "empty"], "holds neither graph_list.txt nor model.py"),
        (["eval", "missing"], "missing: no such directory"),
        (["tasks", "check", "missing"], "missing: no such directory"),
        (["run", "task", "--model", "openai/gpt-5"], "OPENAI_API_KEY is not set"),
        (["run", "task", "--model", "anthropic/claude-5"], "ANTHROPIC_API_KEY is not set"),
        (["run", "task", "--model", "opnai/gpt-5"], "unknown provider 'opnai'; did you mean 'openai'?"),
        (["run", "task", "--model", "replay:missing.jsonl"], "replay:missing.jsonl: cannot be read"),
        (["run", "task", "--config", "kernel_fundry"], "did you mean 'kernel_foundry'?"),
        (["run", "task", "--set", "search.itres=3"], "unknown key; did you mean 'search.iters'?"),
        (["run", "task", "--set", "search.iters"], "write key=value"),
        (
            ["run", "task", "--set", "search.iters=many"],
            "search.iters = 'many': input should be a valid integer",
        ),
        (["run", "task", "--iters", "0"], "search.iters = 0: input should be greater than or equal to 1"),
        (["run", "task", "--iters", "many"], "iters = 'many': input should be a valid integer"),
        (["run", "task", "--max-cost", "nan"], "search.max_cost = nan: input should be a finite number"),
        (["run", "task", "--max-time", "-1"], "search.max_time_s = -1.0: input should be greater than 0"),
        (["run", "task", "--until", "-1"], "search.until = -1.0: input should be greater than 0"),
        (["bench", "task", "--compiler", "run", "--iters", "-1"], "iters = '-1': input should be greater"),
        (["run", "task", "--islands", "1001"], "search.islands = 1001: input should be less than"),
        (["run", "task", "--seed", 10**30], f"search.seed = {10**30}: input should be less than"),
        (["run", "task", "--set", "search.roles=[]"], "search.roles = []: list should have at least 1 item"),
        (["run", "task", "--config", "open.yaml"], "open.yaml, line 2: not valid YAML: expected"),
        (["run", "task", "--config", "bare.yaml"], "bare.yaml: search = None: must be a mapping of keys"),
        (["run", "task", "--device", "gpu"], "--device gpu: write cpu, cuda, cuda:N"),
        (["run", "task", "--dispatch", "quick"], "dispatch = 'quick': input should be 'direct', 'dynamo'"),
        (["run", "task", "--runs-dir", "file/runs"], "file/runs: cannot be written"),
        (["run"], "TASK"),
        (["rum"], "did you mean 'run'"),
        (["run", "task", "--max-tim", 3], "no option 'max_tim'; did you mean 'max_time'?"),
        (
            ["run", "task", "--config", "unknown.yaml"],
            "unknown.yaml: unknown key 'search.itres'; did you mean",
        ),
        (["run", "task", "--max-time", "3d"], "max_time = '3d': write a time, such as 90, 90s, 30m or 2h"),
        (["eval", "task"], "pass_dir: no such pass directory"),
        (["run", "task", "--seed-dir", "nowhere"], "nowhere: no such pass directory"),
        (["eval", "task", "--pass-dir", "empty"], "holds no .py file"),
        (["resume", "last"], "holds no runs"),
        (["show", "last", "--runs-dir", "nowhere"], "nowhere: holds no runs"),
        (["best", "last", "--out", "out"], "holds no runs"),
        (["best", "last"], "option 'out' has to be given"),
        (["runs"], "holds no runs"),
    ],
)
def test_usage_mistakes(call, task, tmp_path, words, told):
    (tmp_path / "open.yaml").write_text("search:\n  roles: [fusion")
    (tmp_path / "unknown.yaml").write_text("search:\n  itres: 3\n")
    (tmp_path / "bare.yaml").write_text("search:\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert told.lower() in one_line(err).lower()
    assert not (tmp_path / "runs" / "passagent.db").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda task: (task / "graph_list.txt").write_text("\n"), "lists no subgraph"),
        (lambda task: (task / "graph_list.txt").write_text("graphs/none\n"), "graph_list.txt:1: graphs/none"),
        (lambda task: (task / "graphs/g/model.py").write_text("def (:\n"), "model.py:1: does not parse"),
        (lambda task: (task / "graphs/g/weight_meta.py").unlink(), "forward's 'in_0' has no entry"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "eval"])
def test_broken_tasks(call, task, verb, change, told):
    change(task)
    code, out, err = call(verb, task)
    assert (code, out) == (1, "")
    assert told in one_line(err)


def test_no_command_shows_help(call):
    code, _, err = call()
    assert code == 2
    assert "start    optimize" in err


def test_json_is_one_object(tmp_path, task):
    words = [sys.executable, PROGRAM, "run", task, tmp_path / "runs", 4, 2, 1, 0]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True)
    data = json.loads(done.stdout)
    assert (data["state"], data["episodes"], data["nodes"], len(data["islands"])) == ("finished", 4, 8, 2)
    assert data["best"]["as_score"] == max(i["best_as"] for i in data["islands"] if i["best_as"])
    assert data["best"]["graphs"][0]["speedup"]["e2e"] > 0
    assert "island 0" in done.stderr


def test_show_takes_digits_that_are_no_node_for_the_beginning_of_a_run(call, stored):
    with Store.open(Path("runs")) as store:
        row = store.rows("SELECT * FROM runs")[0] | {"id": "98765432"}
        store.execute(f"INSERT INTO runs VALUES ({', '.join(f':{name}' for name in row)})", row)
    assert json.loads(call("show", "987654", "--json")[1])["run"] == "98765432"
    assert json.loads(call("show", "1", "--json")[1])["node"] == 1
    assert call("show", "987655")[0] == 2


def test_runs_show_and_best(call, stored, recorded, tmp_path):
    code, out, _ = call("runs")
    assert code == 0
    assert "finished" in out and "6/6" in out
    [run] = json.loads(call("runs", "--json")[1])["runs"]
    assert run["run"] in out

    code, out, _ = call("show", run["run"][:6])
    assert code == 0
    assert out.startswith("task\n") and "best pass: node" in out and "passagent resume" in out
    assert "None" not in out
    data = json.loads(call("show", "last", "--json")[1])
    assert len(data["tree"]) == 12
    assert {"node", "parent", "island", "status", "as_score", "files"} <= data["tree"][0].keys()
    code, _, err = call("show", "nosuch")
    assert code == 2
    assert "nosuch: no such run" in one_line(err)

    best = next(node for node in data["tree"] if node["node"] == data["best"]["node"])
    code, out, _ = call("best", "last", "--out", "won")
    assert code == 0
    shown = json.loads(call("show", best["node"], "--why", "--json")[1])["chain"][-1]["files"]
    written = {path.name: path.read_text() for path in Path("won").iterdir()}
    assert "as its author wrote it: no plan comes of it" in written.pop("README.md")
    assert shown == written


def test_best_overwrites_only_when_told(call, stored, recorded, monkeypatch):
    Path("out/package").mkdir(parents=True)
    Path("out/package/model.py").write_text("mine")
    code, _, err = call("best", "last", "--out", "out")
    assert code == 2
    assert "out: holds files" in one_line(err)
    code, _, err = call("best", "last", "--out", "out", "--force")
    assert code == 2
    assert "out: holds other files than a pass" in one_line(err)
    assert call("best", "last", "--out", "out/won")[0] == 0
    Path("out/won/Fused.py").write_text("from Old import old")
    Path("out/won/Old.py").write_text("old = 1")
    Path("out/won/notes.txt").write_text("mine")
    Path("out/won/mine.py").write_text("mine")
    assert call("best", "last", "--out", "out/won", "--force")[0] == 0
    assert sorted(path.name for path in Path("out/won").iterdir()) == [
        "Fused.py",
        "README.md",
        "mine.py",
        "notes.txt",
        MANIFEST,
    ]
    assert "Old" not in Path("out/won/Fused.py").read_text()
    assert Path("out/package/model.py").read_text() == "mine"
    assert call("best", "last", "--out", "out/won/notes.txt", "--force")[0] == 2
    helped = {HELPER: f"{HELPER_HEAD}\n"}
    monkeypatch.setattr("passagent.packages.delivery.standalone.standalone", lambda files: files | helped)
    assert call("best", "last", "--out", "alone", "--standalone")[0] == 0
    assert HELPER in {path.name for path in Path("alone").iterdir()}


def test_a_run_without_a_correct_pass(call, task, monkeypatch, capsys):
    from passagent.cli import running

    monkeypatch.setattr(tiny_search, "share", lambda *words: 0.0)
    running.run(
        str(task),
        {"settings": tiny_search.settings(2, 1, 1), "runs_dir": "runs"},
        False,
        parts=tiny_search.parts(),
    )
    assert "no candidate was correct" in capsys.readouterr().out
    code, out, _ = call("show", "last")
    assert code == 0
    assert "best pass: none" in out
    code, _, err = call("best", "last", "--out", "out")
    assert code == 2
    assert "has no correct pass yet" in one_line(err)
    assert not Path("out").exists()


def test_a_closed_pipe_is_no_error(tmp_path, stored):
    command = f"{sys.executable} -m passagent show last | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "Traceback" not in done.stderr


def test_output_that_cannot_be_written_is_told_in_a_line(tmp_path, stored):
    def told(command: str) -> tuple[int, str]:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=tmp_path, check=False)
        return done.returncode, done.stderr

    program = f"{sys.executable} -m passagent"
    for words in ("show last", "--help"):
        code, err = told(f"{program} {words} > /dev/full")
        assert (code, one_line(err)) == (1, "passagent: error: stdout: the disk is full; free some space")
    assert told(f"{program} runs >&-") == (0, "")
    code, err = told(f"PYTHONIOENCODING=ascii {program} show 1 --why")
    assert (code, err) == (0, "")


def test_a_log_that_cannot_be_written_is_told_once(tmp_path, capsys):
    from passagent.search.run_files import run_log

    (tmp_path / "run.log").symlink_to("/dev/full")
    with run_log(tmp_path):
        for word in ("one", "two"):
            logging.getLogger("passagent.test").error(word)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"passagent: {tmp_path}/run.log cannot be written: ")


def test_progress_that_cannot_be_written_ends_the_search_as_such(call, tmp_path, task):
    command = [sys.executable, PROGRAM, "run", task, "runs", "40", "2", "1", "0.02"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.readline()
    process.stderr.close()
    assert process.wait(600) == 1
    data = json.loads(call("status", "--json")[1])["runs"][0]
    assert (data["state"], data["reason"]) == ("failed", "<stderr>: broken pipe")


def test_numbers_that_no_row_has(call, stored):
    huge = 10**30
    for words in (
        ("show", huge),
        ("diff", 1, huge),
        ("show", "last", huge),
    ):
        code, _, err = call(*words)
        assert code == 2 and f"{huge}: is too large a number" in one_line(err)


def test_commands_that_are_told_can_be_typed(call, stored, recorded, tmp_path):
    place = tmp_path / "a place's"
    shutil.copytree("runs", place)
    out = call("show", "last", "--runs-dir", place)[1]
    [told] = [line.removeprefix("the tree: ") for line in out.splitlines() if line.startswith("the tree")]
    assert call(*shlex.split(told)[1:])[0] == 0
    out = call("best", "last", "--out", "its best")[1]
    assert "--pass-dir 'its best'" in out
    code, _, err = call("best", "last", "--out", "/proc/best")
    assert code == 2 and one_line(err).endswith("choose another place with --out")


def test_ctrl_c_at_any_moment_is_told(call, stored, monkeypatch):

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(setup, "work", interrupted)
    code, _, err = call("resume", "last", "--iters", "9")
    assert (code, err.splitlines()[-1][:44]) == (130, "passagent: interrupted; everything is stored")
    monkeypatch.setattr("passagent.store.runs.list_runs", interrupted)
    assert call("runs")[::2] == (130, "passagent: interrupted\n")


def test_eval_tells_people_and_programs(call, referee_inside, tmp_path):
    task = tiny.write_subgraph(tmp_path / "real", [4, 64])
    tiny.candidate().write(task / "pass_dir")
    few = ["--set", "evaluator.budget_s=1e-6"]
    code, out, _ = call("eval", task, "--json", *few)
    assert code == 0
    data = json.loads(out)
    assert {
        "task", "device", "dispatch", "status", "as_score", "es", "graphs", "violations", "evaluator_version"
    } <= data.keys()  # fmt: skip
    assert data["status"] == "ok"
    assert {
        "name",
        "dtype",
        "status",
        "speedup",
        "eager_ms",
        "compiled_ms",
        "max_abs_diff",
        "matches",
    } <= data["graphs"][0].keys()

    out = evaluation_text(Evaluation.model_validate(data))
    assert out.count(data["protocol"]["estimator"]) == 1
    shown = "ok, AS {as_score:.4f} [{as_low:.4f}, {as_high:.4f}]"
    assert shown.format_map(data) in out
    for graph in data["graphs"]:
        assert "{e2e:.3f} [{low:.3f}, {high:.3f}]".format_map(graph["speedup"]) in out
        assert graph["eager_ms"] / graph["compiled_ms"] == pytest.approx(graph["speedup"]["e2e"])

    tiny.candidate(body="    return torch.add(a, b)").write(tmp_path / "bad")
    code, out, err = call("eval", task, "--pass-dir", "bad", *few)
    assert code == 1 and one_line(err).endswith("real: the pass is judged refused, not ok")
    assert "real on cpu (direct): refused, AS 0.1000" in out
    assert "Fused.py:" in out and "[" in out
    code, out, err = call("eval", task, "--pass-dir", "bad", "--json", *few)  # from the store
    assert (code, json.loads(out)["status"]) == (1, "refused") and "judged refused" in one_line(err)


def test_tasks_check(call, tmp_path):
    task = tiny.write_task(tmp_path / "real")
    first, second, _ = (task / name / "model.py" for name in (task / "graph_list.txt").read_text().split())
    first.write_text(first.read_text().replace("tmp_0 * in_1", "tmp_0 * in_1.undefined()"))
    second.write_text("def forward(:")  # the others are looked at all the same
    code, out, err = call("tasks", "check", task, "--json")
    assert code == 1
    [checked] = json.loads(out)["tasks"]
    assert [graph["ok"] for graph in checked["graphs"]] == [False, False, True]
    assert f"{first}:" in out and "undefined" in out and f"{second}:1" in out
    assert "2 of 3 subgraphs are not in order: g0_float32" in one_line(err)
