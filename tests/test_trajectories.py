"""Episodes as data and as text: exact, replayable, without secrets; prompts as they were and would be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_search
from typer.testing import CliRunner

from passagent.cli import app, running
from passagent.cli.look_verbs import show
from passagent.errors import UsageError
from passagent.models.scripted import ReplayModel, ScriptedModel, calling
from passagent.models.types import LENGTH, Message, Reply, Usage, assistant
from passagent.search.setup import Parts
from passagent.store import Store, nodes, runs
from passagent.store.redaction import redact, redacted
from passagent.store.trajectories import (
    FORMAT,
    Call,
    Candidate,
    Trajectory,
    Turn,
    find_episode,
    trajectory,
)

SETTINGS = tiny_search.settings(4, 2, 3)
TOOLS = ["file_editor", "check", "pass_evaluator", "search_knowledge", "profile"]


def searched(tmp_path: Path, model: Any = None, settings: dict[str, Any] = SETTINGS) -> Path:
    """A runs directory with a finished run."""
    task = tmp_path / "task"
    if not task.exists():
        tiny_search.write_task(task)
    runs_dir = tmp_path / f"runs{len(list(tmp_path.glob('runs*')))}"
    parts = Parts(model or tiny_search.PacedModel(), tiny_search.FastEvaluator(), tiny_search.diagnose)
    running.run(str(task), {"settings": settings, "runs_dir": runs_dir}, True, parts)
    return runs_dir


def shown(runs_dir: Path, number: int, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    show("last", number, runs_dir=runs_dir, json=True)
    return capsys.readouterr().out


def test_an_episode_is_shown_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs_dir = searched(tmp_path)
    text = shown(runs_dir, 3, capsys)
    assert text.count("\n") == 1
    found = Trajectory.model_validate_json(text)
    assert (found.format, found.episode, found.state, found.end_reason) == (FORMAT, 3, "done", "done")
    roles = [turn.message["role"] for turn in found.messages]
    assert roles[:5] == ["system", "user", "assistant", "tool", "tool"]
    assert [tool["name"] for tool in found.messages[0].message["tools"]] == TOOLS
    replies = [turn for turn in found.messages if turn.message["role"] == "assistant"]
    assert len(replies) == found.steps == 5
    usages = [(turn.usage.input_tokens, turn.usage.output_tokens) for turn in replies if turn.usage]
    assert usages == [(1, 1)] * 5
    assert all(turn.usage is None for turn in found.messages if turn not in replies)
    calls = {turn.message["tool_call_id"] for turn in found.messages if turn.message["role"] == "tool"}
    assert len(found.nodes) == 2 and {node.call_id for node in found.nodes} < calls
    with Store.open(runs_dir) as store:
        run = runs.find_run(store, "last")
        made = nodes.of_episode(store, find_episode(store, run, 3).id)
        assert [(n.node, n.status, n.as_score) for n in found.nodes] == [
            (n.id, n.status, n.as_score) for n in made
        ]
        assert store.get_files(found.nodes[0].files) == nodes.get_files(store, made[0])
        with pytest.raises(UsageError, match="has no episode 9; it has 1 to 4"):
            find_episode(store, run, 9)

    show("last", 3, runs_dir=runs_dir, json=False)
    text = capsys.readouterr().out
    assert "-> file_editor command=create path=Fused.py" in text
    assert f"=> node {found.nodes[0].node}: {found.nodes[0].status}, AS" in text
    assert "more lines" in text
    assert "Nothing more to gain." in text


def test_what_a_model_writes_cannot_command_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b[2J[bold red]not markup[/] \x9b31m"
    runs_dir = searched(tmp_path, ScriptedModel(lambda messages, tools: evil), tiny_search.settings(1, 1, 0))
    capsys.readouterr()
    show("last", 1, runs_dir=runs_dir, json=False)
    text = capsys.readouterr().out
    assert "\x1b" not in text and "\x9b" not in text
    assert "[bold red]not markup[/]" in text


def test_a_trajectory_can_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = searched(tmp_path)
    recording = tmp_path / "episodes.jsonl"
    recording.write_text("".join(shown(first, number, capsys) for number in (2, 1, 4, 3)))
    second = searched(tmp_path, ReplayModel(recording))

    def told(runs_dir: Path) -> list[Any]:
        with Store.open(runs_dir) as store:
            run = runs.find_run(store, "last")
            found = [trajectory(store, run, find_episode(store, run, number)) for number in range(1, 5)]
        return [
            [(n.status, n.as_score, n.note) for n in t.nodes] + [turn.message for turn in t.messages[2:]]
            for t in found
        ]

    assert told(second) == told(first)
    recording.write_text(shown(first, 1, capsys) * 2)
    with pytest.raises(UsageError, match=r"line 2: .*a second episode with seed"):
        ReplayModel(recording)
    recording.write_text('{"format": "passagent.trajectory/2"}\n')
    with pytest.raises(UsageError, match="line 1: not a recorded reply"):
        ReplayModel(recording)


def test_a_cut_off_reply_is_replayed_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = ("file_editor", {"command": "create", "path": "A.py", "file_text": "x"})
    script = [Reply(calling(half), Usage(9, 9), LENGTH), "no", "no"]
    runs_dir = searched(tmp_path, ScriptedModel(script), tiny_search.settings(1, 1, 0))
    recording = tmp_path / "episode.jsonl"
    recording.write_text(shown(runs_dir, 1, capsys))
    again = searched(tmp_path, ReplayModel(recording), tiny_search.settings(1, 1, 0))
    first, second = (json.loads(shown(path, 1, capsys)) for path in (runs_dir, again))
    assert [t["message"] for t in first["messages"]] == [t["message"] for t in second["messages"]]
    assert "cut off" in first["messages"][3]["message"]["content"]


def test_no_secret_is_in_a_trajectory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = ["planted-1-sk", 'plan"ted-2\\x', "planted3"]
    for name, value in zip(("OPENAI_API_KEY", "DB_PASSWORD", "MY_TOKEN_2"), planted, strict=True):
        monkeypatch.setenv(name, value)

    def gossip(messages: list[Message], tools: Any) -> Message | str:
        step = sum(message["role"] == "assistant" for message in messages)
        if step == 0:
            files = tiny_search.candidate_files(f"{planted[0]} {planted[2]}")
            edits = [
                ("file_editor", {"command": "create", "path": name, "file_text": text})
                for name, text in files.items()
            ]
            return calling(*edits, ("pass_evaluator", {}), content=f"keys: {' '.join(planted)}")
        if step == 1:
            return calling(("file_editor", {"command": "view", "path": planted[0]}))
        return assistant(
            "x-api-key: abcdef123456, Authorization: Basic dXNlcjpwYXNz, sk-abcdefghij0123456789"
        )

    runs_dir = searched(tmp_path, ScriptedModel(gossip), tiny_search.settings(1, 1, 0))
    text = shown(runs_dir, 1, capsys)
    show("last", 1, runs_dir=runs_dir, json=False)
    text += capsys.readouterr().out
    kept = [path.read_bytes() for path in runs_dir.rglob("*") if path.is_file()]
    wire = ("abcdef123456", "dXNlcjpwYXNz", "sk-abcdefghij0123456789")
    for secret in (planted[0], "ted-2", planted[2], *wire):
        assert secret not in text
        assert not any(secret.encode() in data for data in kept), secret
    assert "<OPENAI_API_KEY>" in text
    with Store.open(runs_dir) as store:
        (node,) = nodes.of_run(store, runs.find_run(store, "last").id)
        assert "<OPENAI_API_KEY> <MY_TOKEN_2>" in nodes.get_files(store, node)["Fused.py"]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer abcdefghijkl", "Authorization: [redacted]"),
        ('{"authorization": "Bearer abcdefghijkl", "x": 1}', '{"authorization": "[redacted]", "x": 1}'),
        ("{'X-Api-Key': 'abcdefgh', 'a': 'b'}", "{'X-Api-Key': '[redacted]', 'a': 'b'}"),
        *[(said, said) for said in ("OPENAI_API_KEY: Incorrect API key", "invalid x-api-key: wrong.")],
        ("X_API_KEY: abcdefgh1", "X_API_KEY: [redacted]"),
        ("api_key: abcdefgh-ijkl", "api_key: [redacted]"),
        ("X_API_KEY=abcdefgh", "X_API_KEY=[redacted]"),
        ('{"api_key": "abcdefgh"}', '{"api_key": "[redacted]"}'),
        ("key sk-ant-api03-abcdefghijkl_mno.", "key [redacted]."),
        ("https://me:pass-word@host/v1", "https://me:[redacted]@host/v1"),
        ("x = task - skill; bearer = a + b", "x = task - skill; bearer = a + b"),
        ("def f(key, token):\n    return d[key]", "def f(key, token):\n    return d[key]"),
    ],
)  # fmt: skip
def test_shapes_of_secrets(text: str, clean: str) -> None:
    assert redact(text) == clean
    assert redact(clean) == clean
    assert redacted({"a": [text, 1, None]}) == {"a": [clean, 1, None]}


def test_a_prompt_is_printed_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_search.PacedModel()
    runs_dir = searched(tmp_path, model)
    with Store.open(runs_dir) as store:
        node = nodes.of_run(store, runs.find_run(store, "last").id)[-1]
        seen = next(
            call[:2] for call in model.calls if f"Episode seed: {_seed(store, node)}" in call[1]["content"]
        )
    capsys.readouterr()
    show(str(node.id), None, prompt=True, runs_dir=runs_dir, json=True)
    assert json.loads(capsys.readouterr().out)["messages"] == seen
    show(str(node.id), None, prompt=True, runs_dir=runs_dir, json=False)
    text = capsys.readouterr().out
    assert seen[0]["content"] in text and seen[1]["content"] in text
    with pytest.raises(UsageError, match="99: no such node"):
        show("99", None, prompt=True, runs_dir=runs_dir, json=False)


def _seed(store: Store, node: nodes.Node) -> int:
    return store.rows("SELECT seed FROM episodes WHERE id = :id", {"id": node.episode_id})[0]["seed"]


def test_the_commands(tmp_path: Path) -> None:
    runs_dir = searched(tmp_path)

    def said(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--runs-dir", str(runs_dir)])
        assert done.exit_code == 0, done
        return done.output

    assert Trajectory.model_validate_json(said("show", "last", "2", "--json")).episode == 2
    assert "episode 2: " in said("show", "last", "2")
    node = json.loads(said("show", "last", "--json"))["tree"][0]["node"]
    shown = json.loads(said("show", str(node), "--json"))
    assert (shown["node"], shown["evaluation"]["status"]) == (node, shown["status"])
    assert set(shown["files"]) == {"Fused.py", "sorted_output_pass_rule_names.json"}
    assert f"node {node} of run " in said("show", str(node)) and "--- Fused.py" in said("show", str(node))
    episode = said("show", str(node), "--conversation", "--json")
    assert episode == said("show", "last", str(shown["episode"]), "--json")
    prompt = said("show", str(node), "--prompt")
    assert "===== user =====\n# Task task" in prompt
    assert prompt == said("show", "last", str(shown["episode"]), "--prompt")
    best = json.loads(said("show", "last", "--json"))["best"]["node"]
    assert said("show", "last", "--why", "--json") == said("show", str(best), "--why", "--json")


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["1", "--why", "--prompt"], "exclude each other"),
        (["example:quick_gelu", "--why"], "is of a node, an episode or a run"),
        (["example:quick_gelu", "1"], "has no rows"),
    ],
)
def test_show_refuses_a_part_that_is_not_there(tmp_path: Path, words: list[str], refusal: str) -> None:
    done = CliRunner().invoke(app, ["show", *words, "--runs-dir", str(tmp_path)], standalone_mode=False)
    assert done.exception is not None and refusal in str(done.exception)


def test_the_documentation_names_every_field() -> None:
    text = (Path(__file__).parents[1] / "docs" / "formats.md").read_text()
    for model in (Trajectory, Turn, Candidate, Call):
        for name in model.model_fields:
            assert f"`{name}`" in text, f"{model.__name__}.{name}"
