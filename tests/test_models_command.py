"""`passagent models`: what is configured, what works, what it cost; and the examples of docs/models.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import paid_run
import pytest
import tiny_search
from wire_server import WireServer

from passagent import cli
from passagent.commands import beginning

pytestmark = pytest.mark.usefixtures("quick_retries")
KEY = "sk-planted-0123456789abcdef"
DOCS = (Path(__file__).parents[1] / "docs" / "models.md").read_text()
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """`call("models", ...)`: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("PASSAGENT_", "OPENAI_", "ANTHROPIC_")):
            monkeypatch.delenv(name)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["passagent", *map(str, words)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return run


def test_what_is_configured(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("COLUMNS", "160")
    words = [
        "--model",
        "openai/own=0.7",
        "--model",
        "anthropic/claude-haiku-4-5=0.3",
        "--price",
        "openai/own=1,2",
    ]
    code, out, err = call("models", *words, "--set", "validator.model=anthropic/other")
    assert (code, err) == (0, "")
    assert KEY not in out
    own, haiku, validator = out.splitlines()[1:4]
    assert re.search(r"agent +openai/own +0\.7 +the provider's own +OPENAI_API_KEY is set +1 / 2", own)
    assert re.search(r"0\.3 +.*ANTHROPIC_API_KEY is not set +1 / 5", haiku)
    assert validator.startswith("validator") and validator.endswith("unknown")
    [only] = json.loads(call("models", "--json")[1])["models"]
    assert (only["model"], only["key"], only["price"]) == ("expert", None, {"input": 0.0, "output": 0.0})


def test_a_name_of_no_known_form_is_no_model(call: Call) -> None:
    code, out, err = call("models", "--model", "opnai/x")
    assert (code, out) == (2, "")
    assert "unknown provider 'opnai'; did you mean 'openai'?" in err


@pytest.mark.parametrize("name", ["openai/m-1", "anthropic/m-1"])
def test_a_check_tells_what_works_and_what_it_cost(
    call: Call, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with WireServer(paid_run.brain) as there:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{there.url}/v1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", there.url)
        words = ["--model", name, "--check", "--json", "--price", f"{name}=10,100"]
        code, out, err = call("models", *words)
        assert len(there.requests) == 1
    assert code == 0, err
    check = json.loads(out)["models"][0]["check"]
    assert all(check[what] for what in ("ok", "tools", "streaming", "caching"))
    assert (check["input_tokens"], check["output_tokens"]) == there.billed
    assert check["cost_usd"] == pytest.approx(there.billed[0] * 1e-5 + there.billed[1] * 1e-4)


def test_a_model_that_fails_its_check(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with WireServer() as there:  # answers, and calls no tool
        words = ["models", "--model", "openai/m", "--base-url", f"{there.url}/v1", "--check"]
        code, out, err = call(*words)
    assert code == 1
    assert "answered without calling the tool" in out
    assert "1 of 1 models failed the check: openai/m" in err
    code, out, err = call("models", "--model", "anthropic/x", "--check")
    assert code == 1
    assert "ANTHROPIC_API_KEY is not set" in err
    assert KEY not in out + err


def test_the_expert_needs_no_check(call: Call) -> None:
    code, out, _ = call("models", "--check")
    assert code == 0
    assert "expert" in out


def blocks(kind: str) -> list[str]:
    """The commands of the documentation, a section's together."""
    return [block for block in re.findall(rf"```{kind}\n(.*?)```", DOCS, re.S) if "passagent run" in block]


@pytest.mark.parametrize("block", blocks("console"))
def test_the_documentation_s_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each as it is printed, but for the server: that is one on 127.0.0.1 that speaks the same format."""
    tiny_search.write_task(tmp_path / "task")
    monkeypatch.chdir(tmp_path)
    recorded = re.findall(r"```jsonl\n(.*?)```", DOCS, re.S)[0]
    (tmp_path / "replies.jsonl").write_text(recorded)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with WireServer(paid_run.brain) as there:
        for line in (line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")):
            words = shlex.split(line)
            if words[0] == "export":
                name, _, value = words[1].partition("=")
                monkeypatch.setenv(name, KEY if name.endswith("_KEY") else value)
            elif words[:2] == ["passagent", "run"]:
                _run(words[2:], there, monkeypatch)
            else:
                assert words[0] in ("vllm", "ollama", "python"), line
    out = capsys.readouterr().out
    assert ("finished" in out and "2/2" in out) or "1/1" in out


def _run(words: list[str], there: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, with a fast evaluator in the place of the real one."""
    if "--base-url" in words:
        at = words.index("--base-url") + 1
        path = "/v1" if "/v1" in words[at] else ""
        words[at] = there.url + path
    else:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{there.url}/v1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", there.url)
    whole = beginning.run

    def fast(*arguments: object) -> None:
        parts = paid_run.parts()
        preset, runs_dir = arguments[1], arguments[3]
        whole(str(arguments[0]), preset, arguments[2], runs_dir, False, True, parts)  # type: ignore[arg-type]

    monkeypatch.setattr(beginning, "run", fast)
    words = ["task" if word == "TASK" else word for word in words]
    more = [] if "--iters" in words else ["--iters", "2", "--islands", "1"]
    monkeypatch.setattr(sys, "argv", ["passagent", "run", *words, *more])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert not exit_.value.code
    monkeypatch.setattr(beginning, "run", whole)


def test_the_documentation_s_python_runs(tmp_path: Path) -> None:
    for code in re.findall(r"```python\n(.*?)```", DOCS, re.S):
        subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
