"""Intents: written before code, kept with the episode, measured by what follows, offered while untried."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_search

from passagent import api as pa
from passagent import cli
from passagent.agent.taskfiles import ToolError
from passagent.commands import running, showing
from passagent.config import load_config
from passagent.models.scripted import ScriptedModel, calling
from passagent.models.types import Message
from passagent.search.beginning import Parts
from passagent.search.intending import noter, offered_lines
from passagent.store import Store, episodes, intents, nodes, runs

IDEA = {"what": "Split the rows", "why": "the grid is small", "expected": 40}
PLAN = {"what": "Fuse all of it", "why": "three launches", "expected": 15}


def author(messages: list[Message], tools: Any) -> Message | str:
    """An idea for later and a plan, then tiny_search's candidates; takes up what it is offered."""
    steps = sum(message["role"] == "assistant" for message in messages)
    if steps:
        return tiny_search.reply(shifted(messages), tools)
    offered = re.search(r"^- intent (\d+): Split the rows", messages[1]["content"], re.M)
    if offered:
        return calling(("plan_intent", IDEA | {"offered": int(offered.group(1))}))
    return calling(("plan_intent", IDEA), ("plan_intent", PLAN))


def shifted(messages: list[Message]) -> list[Message]:
    """The conversation without the first reply, for an author that counts replies."""
    first = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
    return messages[:first] + messages[first + 1 :]


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    """A run of four episodes on one island."""
    parts = Parts(ScriptedModel(author), tiny_search.FastEvaluator(), tiny_search.diagnose)
    task = tiny_search.write_task(tmp_path / "task")
    running.run(str(task), None, tiny_search.settings(4, 1, 1), str(tmp_path / "runs"), True, False, parts)
    return tmp_path / "runs"


def test_intents_are_kept_measured_and_offered(searched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(searched) as store:
        run = runs.find_run(store, "last")
        found = intents.of_run(store, run.id)
        made = {node.id: node for node in nodes.of_run(store, run.id)}
        tried = intents.of_nodes(store, run.id)
        first = episodes.conversation(store, 1)
    idea, plan, again = found[:3]
    assert "plan_intent` first" in first[0]["content"] and "nobody has tried" not in first[1]["content"]
    assert (idea.what, plan.what) == (IDEA["what"], PLAN["what"])
    assert (idea.nodes, idea.taken_by, again.taken_from, again.episode) == (0, again.id, idea.id, 2)
    assert tried.keys() == made.keys()
    own = [made[node] for node, intent in tried.items() if intent == plan.id]
    assert plan.nodes == len(own) == 2
    right = [node.as_score for node in own if node.status == "ok" and node.as_score is not None]
    expected = 100 * (max(right) - 1) if right else None  # its first candidate was made from the task
    assert plan.measured == (pytest.approx(expected) if right else None)

    capsys.readouterr()
    showing.show_intents("last", str(searched), False)
    text = capsys.readouterr().out
    assert f"{idea.id} island 0 episode 1: expected +40%, taken up by {again.id}: Split the rows" in text
    assert "why: three launches" in text
    showing.show_intents("last", str(searched), True)
    rows = json.loads(capsys.readouterr().out)
    assert rows == pa.Run.find("last", searched).intents()
    showing.show("last", str(searched), False)
    tree = capsys.readouterr().out
    assert f"intent {plan.id}, expected +15%, " in tree
    assert f"intent {plan.id}, expected +15%, " in str(pa.Run.find("last", searched).tree())


def test_a_call_that_is_repeated_after_a_crash_is_one_intent(searched: Path) -> None:
    with Store.open(searched) as store:
        episode = episodes.get_episode(store, 1)
        session: Any = type("S", (), {"store": store, "events": type("E", (), {"look": lambda self: 0})()})()
        note = noter(session, episode)
        number = note("call", "a", "b", 3, None)
        assert note("call", "a", "b", 3, None) == number
        assert offered_lines(store, episode, ["plan_intent"])[-1].startswith(f"intent {number}: a; why: b")
        taken = note("other", "a", "b", 3, number)
        assert note("other", "a", "b", 3, number) == taken, "though it is taken up by now"
        with pytest.raises(ToolError, match="none of those that nobody has tried"):
            note("third", "a", "b", 3, number)
        assert offered_lines(store, episode, ["pass_evaluator"]) == []
        for count in range(12 - len(intents.of_episode(store, episode.id))):
            note(f"more {count}", "a", "b", 3, None)
        with pytest.raises(ToolError, match="at most 12 intents"):
            note("one more", "a", "b", 3, None)


def test_a_line_is_a_line() -> None:
    from passagent.agent.toolbox import plan_intent

    kept: list[Any] = []

    def note(*given: Any) -> int:
        kept.append(given)
        return 7

    tool = plan_intent(note)
    ask = lambda **more: asyncio.run(tool.run(IDEA | more, "call"))  # noqa: E731
    assert ask(what="a\n  b") == "intent 7 stands for what you evaluate from now on"
    assert kept == [("call", "a b", IDEA["why"], 40, None)]
    for wrong in ({"what": " "}, {"why": "x" * 201}, {"expected": 10**6}):
        with pytest.raises(ToolError):
            ask(**wrong)


def test_presets_with_tools_of_their_own_have_no_intents() -> None:
    assert "plan_intent" not in load_config("passnet").agent.tools
    assert "plan_intent" in load_config().agent.tools


def test_the_command_line_shows_them(
    searched: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["passagent", "show", "last", "--runs-dir", str(searched), *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out + told.err

    capsys.readouterr()
    code, text = said("--intents", "--json")
    assert code == 0 and json.loads(text) == pa.Run.find("last", searched).intents()
    assert said("--memory", "--json") == (0, "[]\n")
    code, text = said("1", "--intents")
    assert code == 2 and "give one of EPISODE, --intents and --memory" in text
