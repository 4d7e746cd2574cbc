"""Plans as people read them: `passagent plan`, and a few lines for an agent."""

from __future__ import annotations

import contextlib
import json
import shutil

import cases
import pytest
from test_plan_record import PASS

from passagent import cli
from passagent.cli import pass_verbs
from passagent.errors import UsageError
from passagent.evaluator.result import MANIFEST
from passagent.plan import recorder_process
from passagent.plan.arguments import IntArg, ValueArg
from passagent.plan.messages import Recorded
from passagent.plan.model import Alloc, Alternative, Choice, Copy, Fill, Launch, NativeKernel, Parameter, Plan
from passagent.plan.refusal import COMPUTES
from passagent.plan.show import Moved, brief, moved
from passagent.plan.values import InputValue, MadeValue, ViewValue

BODY = """def fused(x, y):
    out = torch.empty_like(x)
    return launch(x, y, out, x.numel())
"""


def tensor(*shape: int, stride: tuple[int, ...] = ()) -> dict:
    made, step = list(stride), 1
    for n in reversed(shape if not stride else ()):
        made.insert(0, step)
        step *= n
    return {"shape": shape, "stride": tuple(made), "dtype": "float32", "device": "cuda"}


KERNEL = NativeKernel(
    kind="cuda",
    text="",
    entry="rows<256>",
    signature=tuple(Parameter(type=t) for t in ("float*", "float*", "int64_t")),
)


def launch(*values: int, grid: int = 8) -> Launch:
    args = (*(ValueArg(value=n) for n in values), IntArg(value=7))
    return Launch(kernel=KERNEL.digest(), grid=(grid, 2, 1), block=(256, 1, 1), shared=2048, args=args)


def plan(*steps, result: int = 1) -> Plan:
    return Plan(
        inputs=(ValueArg(value=0),),
        values=(
            InputValue(**tensor(16, 16), alignment=4),
            MadeValue(**tensor(16, 16)),
            MadeValue(**tensor(16, 16)),
            ViewValue(of=0, offset=0, **tensor(16, 16, stride=(1, 16))),
            ViewValue(of=1, offset=16, **tensor(1024, 16, stride=(0, 1))),
        ),
        steps=steps,
        result=ValueArg(value=result),
        kernels={KERNEL.digest(): KERNEL},
    )


def test_a_plan_in_a_few_lines():
    one = plan(
        Alloc(value=1),
        Fill(value=1, number=IntArg(value=0)),
        Alloc(value=2),
        Copy(value=2, source=3),
        launch(2, 1),
    )
    assert brief(one).split("\n") == [
        "v1 = allocate float32 [16, 16], 1.0 KB",
        "fill v1 with 0",
        "v2 = allocate float32 [16, 16], 1.0 KB",
        "v3 = view of v0: float32 [16, 16] stride [1, 16]",
        "copy v3 to v2",
        "launch rows<256> (cuda), grid 8 x 2, block 256, shared 2.0 KB",
        "  v2, v1, 7",
        "moves at most 7.0 KB: reads 3.0 KB, writes 4.0 KB",
    ]


def test_bytes_are_counted_by_what_holds_something_when_a_step_runs():
    assert moved(plan(Alloc(value=1), launch(0, 1))) == Moved(1024, 1024)
    assert moved(plan(Alloc(value=1), launch(0, 1), launch(1, 1))) == Moved(2048, 2048)  # in place
    assert moved(plan(Alloc(value=1), launch(0, 4))) == Moved(1024, 64)  # an expanded row is one row
    one, both = Alternative(name="a", steps=(launch(0, 1),)), Alternative(name="b", steps=(launch(0, 1),) * 2)
    assert moved(plan(Alloc(value=1), Choice(of=(one, both)))) == moved(plan(Alloc(value=1), *both.steps))


@pytest.fixture
def task(tmp_path):
    cases.write_task(tmp_path / "task", "add_relu")
    return tmp_path / "task"


@pytest.fixture
def passagent(recorder, monkeypatch, capsys):
    """`passagent plan ...`, whose recording process is there already: exit code, stdout, stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(recorder_process, "recording_process", lambda: contextlib.nullcontext(recorder))
        monkeypatch.setattr("sys.argv", ["passagent", "plan", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


def write_pass(path, body: str) -> None:
    path.mkdir()
    (path / "p.py").write_text(PASS.replace("@BODY@", body))
    (path / MANIFEST).write_text('["p"]')


def test_the_command_shows_each_distinct_plan_once(task, tmp_path, passagent):
    names = (task / "graph_list.txt").read_text().split()
    (task / "graph_list.txt").write_text("\n".join([names[0], names[1], "graphs/again"]) + "\n")
    shutil.copytree(task / names[0], task / "graphs/again")
    write_pass(tmp_path / "pass", BODY)
    code, out, err = passagent(tmp_path / "pass", task, "--device", "cpu")
    assert (code, err) == (0, "")
    assert all(len(line) <= 80 for line in out.split("\n"))
    first, second = out.rstrip().split("\n\n")
    assert "subgraphs g0_float32, again" in first and "subgraphs g1_bfloat16" in second
    assert "v2 = allocate float32 [4, 64], 1.0 KB" in first and "launch add_relu (cpp)" in first
    assert "v0, v1, v2, 256" in first and "moves at most 3.0 KB: reads 2.0 KB, writes 1.0 KB" in first
    assert "result v2" in first
    code, out, _ = passagent(tmp_path / "pass", task, "--device", "cpu", "--json")
    assert code == 0
    assert len(Recorded.model_validate_json(out).recording.passes[0].plans) == 2


def test_the_command_says_where_a_pass_is_refused(task, tmp_path, passagent):
    write_pass(tmp_path / "pass", BODY.replace("return", "x = x.relu(); return"))
    code, out, err = passagent(tmp_path / "pass", task, "--device", "cpu", "--json")
    assert code == 1 and json.loads(out)["kind"] == "refused"
    line = PASS.replace("@BODY@", "@").split("\n").index("@") + 3
    assert err == f"passagent: error: p.py:{line}: {COMPUTES.format(operator='aten.relu')}\n"


def test_the_command_says_where_a_pattern_matches_nothing(task, tmp_path, passagent):
    write_pass(tmp_path / "pass", BODY)
    text = (tmp_path / "pass/p.py").read_text().replace("relu(x + y)", "gelu(x + y)")
    (tmp_path / "pass/p.py").write_text(text)
    code, _, err = passagent(tmp_path / "pass", task, "--device", "cpu")
    line = next(n for n, one in enumerate(text.split("\n"), 1) if one.startswith("def pattern"))
    told = f"passagent: error: p.py:{line}: matches nothing: matches 1 of 2 operators, then not"
    assert code == 1 and err.startswith(told)


def test_the_command_prints_triton_ir(tmp_path, passagent):
    case = cases.cases_of("honest")["annotated_everywhere"]
    case.candidate.write(tmp_path / "pass")
    task = cases.write_task(tmp_path / "its_task", case.task)
    code, out, err = passagent(tmp_path / "pass", task.path, "--ir", "ttir")
    assert code == 0, err
    assert "tt.func public @" in out and "ttir of" in out and "cuda:90" in out


def test_a_mistake_in_the_command_is_a_usage_error(task, tmp_path):
    with pytest.raises(UsageError, match="no such pass directory"):
        pass_verbs.plan(str(tmp_path / "none"), str(task), "cpu", None)
    with pytest.raises(UsageError, match="--device tpu: a plan is for cpu or cuda"):
        pass_verbs.plan(str(tmp_path), str(task), "tpu", None)
