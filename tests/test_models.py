"""Names of models, recordings played back, scripted replies."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from passagent.config import ModelConfig
from passagent.errors import PassagentError, UsageError
from passagent.models import open_model
from passagent.models.scripted import ReplayModel, ScriptedModel, calling
from passagent.models.types import Message, Reply, Usage, assistant


def conversation(seed: int, *replies: Message) -> list[Message]:
    return [
        {"role": "system", "content": "be exact"},
        {"role": "user", "content": f"a task {seed}", "data": {"seed": seed}},
        *replies,
    ]


def ask(model: Any, messages: list[Message]) -> Reply:
    return asyncio.run(model.complete(messages, []))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exprt", "did you mean 'expert'?"),
        ("opnai/gpt-9", "unknown provider 'opnai'; did you mean 'openai'?"),
        ("ollama/llama", "give --base-url"),
        ("gpt-9", "did you mean 'openai/gpt-9'?"),
        ("claude-x", "did you mean 'anthropic/claude-x'?"),
        ("openai/", "openai/NAME"),
        ("replay:", "replay:FILE"),
        ("replay:/nowhere/r.jsonl", "cannot be read"),
    ],
)
def test_unknown_names_are_told_with_the_nearest(name: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_model(ModelConfig(name=name))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sdks_are_imported_only_when_used() -> None:
    code = "import passagent.models, sys; print({'openai', 'anthropic', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def record(path: Path, *lines: dict[str, Any]) -> ReplayModel:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ReplayModel(path)


def test_replay_follows_each_episode_in_order_and_resumes(tmp_path: Path) -> None:
    call = {"id": "t", "name": "pass_evaluator", "arguments": "{}"}
    model = record(
        tmp_path / "r.jsonl",
        {"episode": 5, "message": {"content": "", "tool_calls": [call]}, "usage": {"input_tokens": 3}},
        {"episode": 6, "message": {"content": "six"}},
        {"episode": 5, "message": {"content": "five, done"}},
    )
    first = ask(model, conversation(5))
    assert first.message["tool_calls"] == [call]
    assert (first.usage, first.stop_reason) == (Usage(input_tokens=3), "tools")
    assert ask(model, conversation(6)).message["content"] == "six"
    # a fresh process goes on by what the conversation holds already
    resumed = ReplayModel(tmp_path / "r.jsonl")
    assert ask(resumed, conversation(5, first.message)).message["content"] == "five, done"
    with pytest.raises(UsageError, match="episode 6 has 1 replies, not 2"):
        ask(model, conversation(6, assistant("six")))


def test_replay_gives_other_labels_in_the_order_of_the_file(tmp_path: Path) -> None:
    model = record(
        tmp_path / "r.jsonl",
        {"episode": "a", "message": {"content": "first"}},
        {"episode": "b", "message": {"content": "second"}},
    )
    assert ask(model, conversation(1)).message["content"] == "first"
    assert ask(model, conversation(2)).message["content"] == "second"
    assert ask(model, conversation(1)).message["content"] == "first"
    with pytest.raises(UsageError, match="only 2 episodes"):
        ask(model, conversation(3))


@pytest.mark.parametrize(
    "line", ['{"episode": 1}', "not json", "[]", '{"episode": 1, "message": {"tool_calls": [{}]}}']
)
def test_replay_names_the_broken_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"episode": 1, "message": {"content": "fine"}}\n\n' + line + "\n")
    with pytest.raises(UsageError, match="line 3"):
        ReplayModel(path)


def test_the_recording_in_the_documentation_plays(tmp_path: Path) -> None:
    docs = (Path(__file__).parent.parent / "docs" / "models.md").read_text()
    (tmp_path / "r.jsonl").write_text(docs.partition('title="replies.jsonl"\n')[2].partition("```")[0])
    model = ReplayModel(tmp_path / "r.jsonl")
    first = ask(model, conversation(7101))
    assert json.loads(first.message["tool_calls"][0]["arguments"]) == {"command": "view", "path": "task"}
    assert ask(model, conversation(7101, first.message)).stop_reason == "end"


def test_scripted_replies() -> None:
    model = ScriptedModel([calling(("pass_evaluator", {})), "done"])
    assert ask(model, conversation(1)).stop_reason == "tools"
    assert ask(model, conversation(1)).message == assistant("done")
    assert len(model.calls) == 2
    with pytest.raises(PassagentError, match="used up"):
        ask(model, conversation(1))
    echo = ScriptedModel(lambda messages, tools: messages[-1]["content"][:6])
    assert ask(echo, conversation(1)).message["content"] == "a task"
