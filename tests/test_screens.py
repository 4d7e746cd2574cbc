"""What people see: tables that fit, no escape codes on request, near names, completion, read-only runs."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pytest
import typer
from test_cli import one_line, stored, task  # noqa: F401 (fixtures)

import passagent as pa
from passagent.cli import GROUPS, app
from passagent.config import load_config
from passagent.data.bench.summary import summarise
from passagent.data.collect.trials import Summary as Collected
from passagent.errors import UsageError
from passagent.evaluator.result import Evaluation, GraphResult, Speedup
from passagent.option_groups import options_of
from passagent.options import RunOptions
from passagent.store import Store, runs
from passagent.view import bench_table, collect_table
from passagent.view.text import table

RUN = {"task_path": "", "task_key": "", "model": "expert", "device": "cpu", "seed": 0, "iters": 1}
RUN |= {"config": load_config().model_dump_json(), "version": ""}
BETWEEN = "---- the next command ----"
PROGRAM = f"""
import sys
from passagent.cli import main
for words in sys.argv[1:]:
    sys.argv = ["passagent", *words.split()]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    print({BETWEEN!r}, flush=True)
"""
"""Commands one after the other in one process, up to the first that fails."""
PASSAGENT = [sys.executable, "-c", PROGRAM]


def on_a_terminal(commands: list[str], **environment: str) -> str:
    """What `passagent` shows of these commands on a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*PASSAGENT, *commands], stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | environment
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # how a terminal ends
            pass
    os.close(ours)
    assert process.returncode == 0
    return shown.decode()


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_tables_drop_columns_and_break_sentences_at_spaces(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    names = ["name", "note", ">count", ">share", "kind"]
    rows = [
        ["a_name_of_some_length", "several words that may be broken at spaces", "7", "1.0", "of some kind"]
    ]
    shown = table(names, rows, drop=["kind", "share"], wrap=["note"])
    assert max(map(len, shown.splitlines())) <= columns
    words = {word for cell in [*(name.lstrip(">") for name in names), *rows[0]] for word in cell.split()}
    assert set(shown.split()) <= words
    assert set(shown.split()) >= {"a_name_of_some_length", "7", *rows[0][1].split()}
    assert ("1.0" in shown.split()) == (columns == 200)
    assert ("kind" in shown.split()) == (columns == 200)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_table_leaves_out_what_names_share_and_has_one_line_a_row(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    tasks = [f"hf_transformers/encoder_layers/{name}_with_a_long_name" for name in ("gelu", "softmax")]
    rows = [[name, "ok", "two words", f"{1 / 3:.10f}"] for name in tasks]
    lines = table(["task", "status", "kind", ">speedup"], rows, indent="").splitlines()
    assert len(lines) == 3 and max(map(len, lines)) <= columns
    assert all(line.endswith("0.3333333333") for line in lines[1:])
    beginning = {40: "..", 80: "..gelu_with_a_long_name ", 200: tasks[0]}[columns]
    assert lines[1].startswith(beginning)


def test_tables_of_compilers_and_models_have_one_line_a_row_at_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    compilers = ["inductor", "torch:inductor:reduce-overhead"]
    graphs = [GraphResult(name="g", dtype="f", status="ok", passes_from_t=-10, speedup=Speedup(e2e=1.5))]
    judged = [Evaluation.model_construct(dispatch="direct", graphs=graphs, es={})] * 3
    lines = str(bench_table.bench_table([summarise(name, judged, 3) for name in compilers])).splitlines()
    assert [line.split()[0] for line in lines] == ["compiler", *compilers]
    assert all("1.500 [1.500-1.500]" in line for line in lines[1:])
    models = [Collected("openai/gpt-6.2-sol"), Collected("anthropic/claude-haiku-5-5")]
    for rows in (lines, str(collect_table.figures_table(models)).splitlines()):
        assert max(map(len, rows)) <= 80


def test_pictures_of_a_run_without_candidates_are_left_out_with_a_reason(call, tmp_path):
    with Store.open(tmp_path / "runs") as store:
        runs.create_run(store, roles=["general"], operators=[], task="x", **RUN)
    code, out, _ = call("report", "last", "--pictures", "pictures")
    assert code == 0 and len(out.splitlines()) == 3 and not (tmp_path / "pictures").exists()
    assert "not drawn: tree: run " in out and "has no candidate yet" in out


def test_every_table_of_a_run_fits_80_columns(call, stored, monkeypatch):  # noqa: F811
    monkeypatch.setenv("COLUMNS", "80")
    whole = ("runs", "doctor", "models")  # the others have sentences, too, which the terminal folds
    for words in ("runs", "status last", "show last", "doctor last", "models", "diff 1 2"):
        lines = call(*words.split())[1].splitlines()
        of_tables = [line for line in lines if words.startswith(whole) or line.startswith("  ")]
        assert of_tables and max(map(len, of_tables)) <= 80, words


def test_no_color_leaves_no_escape_codes(stored, tmp_path):  # noqa: F811
    """Rich takes NO_COLOR for colours alone: bold and dim stayed."""
    every = ["show 1 --why", "diff 1 2", "show last 1"]
    for shown in on_a_terminal(every, TERM="xterm", NO_COLOR="").split(BETWEEN)[:-1]:
        assert "\x1b[1m" in shown
    assert "\x1b" not in on_a_terminal(every, TERM="xterm", NO_COLOR="1")


def test_a_mistyped_name_is_answered_with_the_nearest(call, stored, task):  # noqa: F811
    [run] = json.loads(call("runs", "--json")[1])["runs"]
    name = run["run"]
    typed = name[:-1] + "g"  # whatever the id, this is neither a node's number nor the beginning of a run's
    for words, told in (
        (["show", typed], f"did you mean '{name}'?"),
        (["show", "lsat"], "did you mean 'last'?"),
        (["show", 10**9], "no such node"),
        (["show", 10**9, "--why"], "passagent show RUN"),
        (["diff", 1, 0], "passagent show RUN"),
        (["run", "tsak"], "did you mean 'task'?"),
        (["run", "quick_gleu"], "did you mean 'example:quick_gelu'?"),
        (["run", name], f"passagent show {name}, or resume {name}"),
        (["eval", "last"], "passagent show last, or resume last"),
        (["bench", "last"], "passagent show last, or resume last"),
        (["rnu"], "Did you mean 'run'?"),
        (["frobnicate"], "passagent --help names the commands"),
        (["run", "x" * 300], "the path is too long"),
        (["collect", "x" * 300], "the path is too long"),
        (["eval", f"{task.parent}/tasc"], "did you mean 'task'?"),
    ):
        code, _, err = call(*words)
        assert code == 2 and told in one_line(err)


def test_help_all_shows_every_option_with_the_default_of_its_setting(call):
    config, shown = load_config(), " ".join(call("run", "--help-all")[1].split())
    for name, option in options_of(RunOptions).items():
        flag = option.flags[0].partition("/")[0] if option.flags else f"--{name.replace('_', '-')}"
        rest, *_ = re.findall(rf" {flag} (.*?)(?= --|$)", shown)
        if option.key is not None and not option.shown:
            section, _, field = option.key.partition(".")
            default = getattr(getattr(config, section), field)
            if default is not False and default not in (None, [], {}):
                assert f"default: {default}]" in rest, name


def test_help_shows_at_most_fifteen_options_of_a_command_and_what_each_is_for(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    root = typer.main.get_command(app)
    for name, command in root.commands.items():
        for words in [[name, sub] for sub in getattr(command, "commands", {})] or [[name]]:
            texts = [call(*words, flag)[1] for flag in ("--help", "--help-all")]
            short, whole = (
                [line.split()[0] for line in text.splitlines() if line.startswith("  --")] for text in texts
            )
            assert len({*short} - {"--help", "--help-all"}) <= 15, words
            assert {*short} - {"--help-all"} <= {*whole}
            assert ("--help-all" in short) == (len(whole) > len(short)), words
            for row in re.split(r"\n(?=  -)", texts[1].partition("\nOptions:\n")[2]):
                assert re.search(r"(  +|\n +)[^\s\[.]", row[2:]), (words, row)  # it says what it is for


def test_an_option_has_one_error_at_every_door(call, task):  # noqa: F811
    for words, options in (
        (["--itres", "3"], {"itres": 3}),
        (["--iters", "many"], {"iters": "many"}),
        (["--iters", "0"], {"iters": 0}),
        (["--set", "search.itres=3"], {"settings": {"search.itres": 3}}),
        (["--until", "soon"], {"until": "soon"}),
    ):
        with pytest.raises(UsageError) as raised:
            pa.run(task, **options)
        assert one_line(call("run", task, *words)[2]) == f"passagent: error: {raised.value}"


def test_help_lists_every_command_on_one_screen(call, monkeypatch):
    """Each in one line, whose sentence is whole; the three commands of a first day first."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = call("--help")[1].splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80 and not any("..." in line for line in lines[1:])
    listed = [name for names in GROUPS.values() for name in names]
    root = typer.main.get_command(app)
    assert listed[:3] == ["optimize", "run", "eval"] and sorted(listed) == sorted(root.commands)
    leaves = [sub for command in root.commands.values() for sub in getattr(command, "commands", {"": None})]
    assert len(leaves) + 1 <= 40  # `runs` is a command and a group
    shown = [line[9:20].strip() for line in lines if line[9:20].strip() in listed]
    assert shown == listed


def test_cpu_build_of_torch_is_said_where_a_gpu_is_asked_for(call, task, monkeypatch):  # noqa: F811
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr("torch.version.hip", None)
    for words in (["run", task], ["bench", task]):
        code, _, err = call(*words, "--device", "cuda")
        assert code == 2 and "is built for the CPU alone" in one_line(err)


def test_the_shell_completes_commands_and_options():
    def completed(typed: str, count: int) -> list[str]:
        asked = {"_PASSAGENT_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(count)}
        program = "import sys; sys.argv = ['passagent']; from passagent.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | asked,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    assert completed("passagent res", 1) == ["resume"]
    assert "--max-cost" in completed("passagent run --max", 2)
    assert completed("passagent runs r", 2) == ["rm"]


def test_a_directory_that_cannot_be_written_can_be_looked_at(stored, tmp_path):  # noqa: F811
    """On a file system that is mounted read-only, which binds root as well; with a live log and without."""
    ways = {
        "no log": ["runs", "show last", "best last --out out"],
        "a log": ["show last"],
    }
    for log, commands in ways.items():
        script = """
            mount --bind runs runs && mount -o remount,ro,bind runs || exit 99
            touch runs/x 2>/dev/null && exit 98
            exec "$@"
        """
        words = ["sh", "-c", script, "-", *PASSAGENT, *commands, "resume last --iters 20"]
        if log == "a log":
            program = (
                "import os\nfrom passagent.store import Store\nstore = Store.open('runs')\n"
                "store.execute(\"UPDATE runs SET stop_reason = 'it is in the log'\", {})\nos._exit(0)"
            )
            subprocess.run([sys.executable, "-c", program], check=True)
            assert (tmp_path / "runs" / "passagent.db-wal").stat().st_size
        done = subprocess.run(
            ["unshare", "-Urm", *words], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        if "unshare" in done.stderr or done.returncode == 99:
            pytest.skip("no user namespaces or bind mounts here")
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        assert "cannot be written" in one_line(done.stderr)
        assert "best pass: node" in done.stdout and done.stdout.count(BETWEEN) == len(commands)
        assert ("it is in the log" in done.stdout) == (log == "a log")
    assert (tmp_path / "out").is_dir()
