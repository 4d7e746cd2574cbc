"""`passagent models`: what is configured, what works, what it cost; and the Python of docs/models.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import paid_run
import pytest
from wire_server import WireServer

pytestmark = pytest.mark.usefixtures("quick_retries")
KEY = "sk-planted-0123456789abcdef"
DOCS = (Path(__file__).parents[1] / "docs" / "models.md").read_text()
Call = Callable[..., tuple[int, str, str]]


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
    code, out, err = call("models", *words, "--set", 'roles.hint_distiller={"name": "anthropic/other"}')
    assert (code, err) == (0, "")
    assert KEY not in out
    own, haiku, distiller = out.splitlines()[1:4]
    assert re.search(r"agent +openai/own +0\.7 +the provider's own +OPENAI_API_KEY is set +1 / 2", own)
    assert re.search(r"0\.3 +.*ANTHROPIC_API_KEY is not set +1 / 5", haiku)
    assert distiller.startswith("hint_distiller") and distiller.endswith("unknown")
    [only] = json.loads(call("models", "--json")[1])["models"]
    assert (only["model"], only["key"], only["price"]) == ("expert", None, {"input": 0.0, "output": 0.0})


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


def test_the_documentation_s_python_runs(tmp_path: Path) -> None:
    for code in re.findall(r"```python\n(.*?)```", DOCS, re.S):
        subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
