"""Every export format is loaded by the tool that it is for, from the episodes of real runs.

The tools run in environments of their own (environments.py), by the scripts in exports/. What each has in the
loss is decoded and compared with what the trained replies say.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "checks")]

import episodes  # noqa: E402
from environments import python_of  # noqa: E402

from passagent.cli.data_verbs import export  # noqa: E402
from passagent.cli.groups import ExportOptions  # noqa: E402
from passagent.data.export.example import Example, Turn, steps, whole  # noqa: E402
from passagent.data.export.formats import FORMATS  # noqa: E402
from passagent.option_groups import checked  # noqa: E402
from passagent.store import Store, runs  # noqa: E402
from passagent.store.trajectories import find_episode, trajectory  # noqa: E402

KINDS = ("whole", "steps")
Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def runs_dir(once: Once) -> Path:
    """A database with the episodes of real runs, none of which starts from what another one found."""

    def make(place: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PASSAGENT_LIBRARY", "off")
            assert episodes.build(place) == place / "runs"

    return once("database", make) / "runs"


@pytest.fixture(scope="session")
def examples(runs_dir: Path) -> dict[str, list[Example]]:
    """Whole episodes, and the steps that led to their nodes."""
    found: dict[str, list[Example]] = {kind: [] for kind in KINDS}
    with Store.open(runs_dir) as store:
        for row in store.rows("SELECT run_id, number FROM episodes ORDER BY id"):
            run = runs.get_run(store, row["run_id"])
            told = trajectory(store, run, find_episode(store, run, row["number"]))
            found["whole"].append(whole(told))
            found["steps"] += steps(told).values()
    assert len(found["whole"]) == episodes.EPISODES >= 40
    return found


@pytest.fixture(scope="session")
def exported(runs_dir: Path, examples: dict[str, list[Example]], once: Once) -> Path:
    """A directory `KIND/FORMAT` for each kind of example and each format."""
    return once("exported", lambda place: export_all(runs_dir, examples["steps"], place))


def export_all(runs_dir: Path, examples: list[Example], place: Path) -> None:
    """Write whole episodes by `passagent export`, and these steps, of which it would choose the best."""
    for made in FORMATS.values():
        options = {"format": made.name, "out": str(place / "whole" / made.name)}
        export([str(runs_dir)], **checked(ExportOptions, options))
        directory = place / "steps" / made.name
        directory.mkdir(parents=True)
        names: dict[str, None] = {}
        for example in examples:
            for file_name, row in made.rows(example):
                names[file_name] = None
                with (directory / file_name).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        for name, text in made.extra_files(list(names)).items():
            (directory / name).write_text(text)


def told_by(python: Path, script: str, *words: object) -> list[dict[str, Any]]:
    """What a script of exports/ tells, result by result."""
    command = [str(python), str(ROOT / "checks/exports" / script), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    lines = [line.removeprefix("TOLD ") for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    results: list[dict[str, Any]] = [json.loads(line) for line in lines]
    print(script, results[0]["versions"])
    return results


def optional(name: str, least: tuple[int, int] | None = None) -> Path:
    """The environment of a tool that may not be there."""
    try:
        return python_of(name, least)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"{name} cannot be installed here: {error}")


def said(turn: Turn) -> str:
    """A reply as Qwen3's template writes it."""
    functions = [call["function"] for call in turn.message.get("tool_calls", ())]
    written = [(f["name"], json.dumps(plain(f["arguments"]), ensure_ascii=False)) for f in functions]
    calls = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>' for name, text in written
    ]
    content = turn.message["content"]
    text = "\n".join([plain(content), *calls] if content else calls)
    return f"<think>\n{plain(turn.message.get('reasoning_content', ''))}\n</think>\n\n{text}<|im_end|>\n"


def plain(value: Any) -> Any:
    """Without lone surrogates."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return json.loads(text)


def rows_of(directory: Path, name: str) -> list[dict[str, Any]]:
    path = directory / f"{name}.jsonl"
    return [json.loads(line) for line in path.open(encoding="utf-8")] if path.exists() else []


def check_trained(
    chosen: list[Example], directory: Path, trained: dict[str, list[list[str]]], files: tuple[str, ...]
) -> None:
    """Over all rows of an example each trained reply is in the loss once, and nothing else is."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for name in files:
        rows = rows_of(directory, name)
        assert len(rows) == len(trained.get(name, []))
        for row, texts in zip(rows, trained.get(name, []), strict=True):
            found[row["id"]].update(texts)
    for example in chosen:
        expected = Counter(said(turn) for turn in example.turns if turn.is_trained)
        assert found.pop(example.id, Counter()) == expected, example.id
    assert not found


def by_kind(
    exported: Path, name: str, python: Path, script: str, *words: object
) -> Iterator[tuple[Any, ...]]:
    """Of each kind of example: the kind, its directory of the format `name`, and what the tool tells."""
    directories = [exported / kind / name for kind in KINDS]
    yield from zip(KINDS, directories, told_by(python, script, *words, *directories), strict=True)


def test_trl_trains_what_is_trained(examples: dict[str, list[Example]], exported: Path) -> None:
    for kind, directory, told in by_kind(exported, "trl", python_of("trl"), "trl_loads.py"):
        trained = told["trained"]
        check_trained(examples[kind], directory, trained, ("messages", "prompt_completion"))
        assert trained["both"] == [*trained["messages"], *trained["prompt_completion"]]


def test_llamafactory_skips_nothing(examples: dict[str, list[Example]], exported: Path) -> None:
    python = optional("llamafactory")
    for kind, directory, told in by_kind(exported, "llamafactory", python, "llamafactory_loads.py"):
        assert told["skipped"] == 0
        trained = {name: [row["trained"] for row in rows] for name, rows in told["rows"].items()}
        check_trained(examples[kind], directory, trained, ("train", "train_last"))
        check_texts(examples[kind], directory, told["rows"])


def check_texts(chosen: list[Example], directory: Path, made: dict[str, list[dict[str, Any]]]) -> None:
    """No text is lost: all of each conversation is there, up to the last trained reply."""
    longest: dict[str, str] = defaultdict(str)
    for name, rows in made.items():
        for row, read in zip(rows_of(directory, name), rows, strict=True):
            longest[row["id"]] = max(longest[row["id"]], read["all"], key=len)
    for example in chosen:
        last = max((place for place, turn in enumerate(example.turns) if turn.is_trained), default=-1)
        text = longest[example.id]
        for turn in example.turns[: last + 1]:
            place = text.find(said(turn) if turn.role == "assistant" else plain(turn.message["content"]))
            assert place >= 0, (example.id, turn)
            text = text[place:]


def test_axolotl_trains_what_is_trained(
    examples: dict[str, list[Example]], exported: Path, template: Path
) -> None:
    python = optional("axolotl")
    for kind, directory, told in by_kind(exported, "axolotl", python, "axolotl_loads.py", template):
        known = {example.id: example for example in examples[kind]}
        is_trained = [any(turn.is_trained for turn in example.turns) for example in known.values()]
        rows = rows_of(directory, "train")
        assert len(rows) == len(told["trained"]) == sum(is_trained)
        for row, texts in zip(rows, told["trained"], strict=True):
            replies = [turn for turn in known[row["id"]].turns if turn.is_trained]
            for text, turn in zip(texts, replies, strict=True):
                # axolotl looks for where a turn differs from a placeholder: an empty thought is not trained
                full = said(turn).removesuffix("\n")
                least = full.removeprefix(
                    "<think>\n" if "reasoning_content" in turn.message else "<think>\n\n</think>\n\n"
                )
                assert full.endswith(text) and text.endswith(least), (text, full)


@pytest.fixture
def template() -> Path:
    """TRL's template of Qwen3, which writes a prefix of a conversation as it writes the whole."""
    (found,) = python_of("trl").parents[1].glob("lib/*/site-packages/trl/chat_templates/qwen3_training.jinja")
    return found


def test_harbor_accepts_the_documents(examples: dict[str, list[Example]], exported: Path) -> None:
    python = optional("harbor", (3, 12))
    for kind, _, told in by_kind(exported, "atif", python, "atif_validates.py"):
        assert told["errors"] == {}
        assert told["count"] == len(examples[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_the_openai_sdk_knows_the_messages(
    kind: str, examples: dict[str, list[Example]], exported: Path
) -> None:
    import openai
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
    from pydantic import TypeAdapter

    print("openai", openai.__version__)
    messages_of = TypeAdapter(list[ChatCompletionMessageParam])
    tools_of = TypeAdapter(list[ChatCompletionToolUnionParam])
    rows = rows_of(exported / kind / "openai", "train")
    chosen = [e for e in examples[kind] if any(turn.is_trained for turn in e.turns)]
    for row, example in zip(rows, chosen, strict=True):
        assert row.keys() == {"messages", "tools", "parallel_tool_calls"}
        exhaust(tools_of.validate_python(row["tools"], strict=True))
        known = exhaust(messages_of.validate_python(row["messages"], strict=True))
        without = [{k: v for k, v in message.items() if k != "weight"} for message in row["messages"]]
        assert known == without  # the SDK drops what it does not know: `weight` alone
        check_ids(row["messages"])
        weighed = [message for message in row["messages"] if "weight" in message]
        assert weighed == [message for message in row["messages"] if message["role"] == "assistant"]
        assert weighed[-1] is row["messages"][-1] and weighed[-1]["weight"] == 1
        trained = [turn for turn in example.turns if turn.is_trained]
        assert [spoken(message) for message in weighed if message["weight"]] == [
            (
                plain(turn.message["content"]),
                [
                    (call["id"], call["function"]["name"], plain(call["function"]["arguments"]))
                    for call in turn.message.get("tool_calls", ())
                ],
            )
            for turn in trained
        ]


def exhaust(value: Any) -> Any:
    """The value with pydantic's lazy iterators gone through: they check their items only then."""
    if isinstance(value, dict):
        return {key: exhaust(item) for key, item in value.items()}
    if isinstance(value, list | tuple | Iterator) or type(value).__name__ == "ValidatorIterator":
        return [exhaust(item) for item in value]
    return value


def spoken(message: dict[str, Any]) -> tuple[str, list[tuple[str, str, Any]]]:
    """What a message says: its text, and its calls with the arguments as values."""
    calls = [(call["id"], call["function"]) for call in message.get("tool_calls", [])]
    return message.get("content", ""), [(i, f["name"], json.loads(f["arguments"])) for i, f in calls]


def check_ids(messages: list[dict[str, Any]]) -> None:
    """Each result answers a call of the reply before it, and each call but the last reply's has one."""
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            open_calls.remove(message["tool_call_id"])
            continue
        assert not open_calls
        open_calls = [call["id"] for call in message.get("tool_calls", [])]
        assert len(open_calls) == len(set(open_calls))
