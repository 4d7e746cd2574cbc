"""Evaluations that are not waited for: they overlap the conversation, and each result is told once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_search
from verdicts import EpisodeEnd, ended, evaluated, verdict

from passagent.agent.editor import file_editor
from passagent.agent.episode import evaluations, run_episode, untried
from passagent.agent.evaluator_tool import pass_evaluator
from passagent.agent.tokens import fold
from passagent.agent.tool_specs import ToolAnswer
from passagent.agent.workspace import Workspace
from passagent.cli import running
from passagent.config import AgentConfig
from passagent.data.export.example import steps
from passagent.data.export.selection import read_episodes
from passagent.errors import InfrastructureError
from passagent.evaluator.result import MANIFEST
from passagent.models.scripted import Scripted, ScriptedModel, calling
from passagent.models.types import REFUSAL, Message, Reply, Usage, assistant
from passagent.search.setup import Parts
from passagent.store import Store, nodes, runs
from passagent.store.trajectories import find_episode, trajectory

START: list[Message] = [{"role": "system", "content": "be exact"}, {"role": "user", "content": "go"}]
LATER, NOW = ("pass_evaluator", {"wait": False}), ("pass_evaluator", {})
LOOK = ("file_editor", {"command": "view", "path": "."})
Step = tuple[list[int], Scripted]
"""Candidates whose evaluation ends while the model thinks, and what it says then."""


def write(number: int) -> tuple[str, dict[str, Any]]:
    return ("file_editor", {"command": "create", "path": "A.py", "file_text": f"x = {number}\n"})


def number_of(files: dict[str, str]) -> int:
    return int(files["A.py"].removeprefix("x = "))


class Episode:
    """An episode whose candidates are numbers, each evaluated until a step of the script ends it.

    AS of candidate 3 is 1.3. A submit that is repeated is answered from `known`, as the store does.
    """

    def __init__(self, path: Path, script: list[Step], **limits: Any) -> None:
        self.path, self.script, self.limits = path, script, AgentConfig(**limits)
        self.events: list[str] = []
        self.known: dict[str, ToolAnswer] = {}
        self.handed: list[tuple[str, int]] = []
        self.fails, self.gives_no_plan = set[int](), set[int]()
        self.most = 0

    async def submit(self, files: dict[str, str], call_id: str) -> ToolAnswer:
        number = number_of(files)
        self.handed.append((call_id, number))
        if call_id in self.known:
            return self.known[call_id]
        self.events.append(f"begin {number}")
        running = [event.split()[1] for event in self.events if "reply" not in event]
        self.most = max(self.most, sum(running.count(name) == 1 for name in running))
        await self.gates.setdefault(number, asyncio.Event()).wait()
        self.events.append(f"end {number}")
        if number in self.fails:
            raise InfrastructureError("the GPU is gone")
        is_run = number not in self.gives_no_plan
        status, score = ("ok", 1 + number / 10) if is_run else ("refused", 0.1)
        self.known[call_id] = evaluated(status, score, f"about candidate {number}", is_run=is_run)
        return self.known[call_id]

    async def complete(self, messages: list[Message], tools: Any) -> Reply:
        step = sum(message["role"] == "assistant" for message in messages)
        ends, said = self.script[step]
        self.open(step)
        while any(f"begin {n}" in self.events and f"end {n}" not in self.events for n in ends):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.events.append(f"reply {step}")
        return await ScriptedModel([said]).complete(messages, tools)

    def open(self, step: int) -> None:
        for number in (n for now, _ in self.script[: step + 1] for n in now):
            self.gates.setdefault(number, asyncio.Event()).set()

    name = "paced"

    async def close(self) -> None:
        pass

    def save(self, message: Message, usage: Usage | None) -> None:
        self.stored.append(json.loads(json.dumps(message)))

    def run(self, messages: list[Message] | None = None, others: Any = ()) -> EpisodeEnd:
        """From the beginning, or on from `messages`; `others`: what runs beside it, `other(self)`."""
        self.messages = [*START] if messages is None else messages
        self.stored = [*self.messages]
        self.workspace = Workspace({}, {"A.py": "x = 0\n", MANIFEST: '["A"]'})
        tools = [file_editor(self.workspace), pass_evaluator(self.workspace, self.submit)]

        async def whole() -> EpisodeEnd:
            self.gates: dict[int, asyncio.Event] = {}
            self.open(sum(message["role"] == "assistant" for message in self.messages) - 1)
            beside = [asyncio.create_task(other(self)) for other in others]
            try:
                reason = await run_episode(self, self.messages, tools, self.save, self.limits)
                return ended(reason, self.messages)
            finally:
                for task in beside:
                    task.cancel()

        # a deadlock is an error, not a test that hangs
        end = asyncio.run(asyncio.wait_for(whole(), 300))
        assert self.stored == self.messages
        return end

    def told(self) -> list[tuple[str, int, float | None]]:
        """Every result in the conversation: the role of its message, the candidate, its AS."""
        found = []
        for message in self.messages[2:]:
            text, evaluation = message["content"], message.get("data", {}).get("evaluation")
            if evaluation:
                assert text.count("about candidate") == 1
                number = int(text.partition("about candidate ")[2][0])
                found.append((message["role"], number, evaluation["as_score"]))
        return found


def test_an_evaluation_goes_on_while_the_model_works(tmp_path: Path) -> None:
    script: list[Step] = [
        ([], calling(write(1), LATER)),
        ([], calling(write(2), LATER)),
        ([1], calling(write(3), LOOK)),
        ([2], calling(LOOK)),
        ([], calling(("file_editor", {"command": "restore", "path": ".", "version": 1}))),
        ([], "the second was best"),
    ]
    episode = Episode(tmp_path, script)
    assert episode.run() == EpisodeEnd("done", 6, "the second was best")
    assert episode.events == [
        "reply 0",
        "begin 1",
        "reply 1",
        "begin 2",
        "end 1",
        "reply 2",
        "end 2",
        "reply 3",
        "reply 4",
        "reply 5",
    ]
    assert episode.told() == [("user", 1, 1.1), ("user", 2, 1.2)]
    assert episode.workspace.files()["A.py"] == "x = 1\n"
    results = [message for message in episode.messages if message["role"] == "tool"]
    begun, (first, second) = results[1]["content"], [m for m in episode.messages if "late" in m]
    assert begun.startswith("version 1 is being evaluated; its result is shown when it is there\nleft: ")
    assert "evaluation" not in results[1]["data"]
    call_id = results[1]["tool_call_id"]
    assert first["late"] == call_id
    assert first["content"].startswith(f"[result of pass_evaluator, call {call_id}]\nversion 1 of this")
    assert "version 2 of this episode, its best so far" in second["content"]
    lefts = [result["content"].rpartition(", ")[2] for result in results]
    assert lefts == [f"{number} of 8 evaluations" for number in (8, 7, 7, 6, 6, 6, 6, 6)]


async def end_the_first_of_two(episode: Episode) -> None:
    """Once two are under way and a third has had its chance to begin."""
    while "begin 2" not in episode.events:
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    episode.gates[1].set()
    while "begin 3" not in episode.events:
        await asyncio.sleep(0)
    episode.gates[2].set()
    episode.gates.setdefault(3, asyncio.Event()).set()


@pytest.mark.parametrize("third", [LATER, NOW], ids=["later", "now"])
def test_two_are_under_way_at_most(tmp_path: Path, third: tuple[str, dict[str, Any]]) -> None:
    reply = calling(write(1), LATER, write(2), LATER, write(3), third)
    episode = Episode(tmp_path, [([], reply), ([], "done"), ([], "done")])
    assert episode.run(others=[end_the_first_of_two]).reason == "done"
    assert episode.events[:5] == ["reply 0", "begin 1", "begin 2", "end 1", "begin 3"]
    assert episode.most == 2
    assert sorted(number for _, number, _ in episode.told()) == [1, 2, 3]
    assert evaluations(episode.messages) == 3


def test_a_model_that_ends_its_turn_is_told_what_is_under_way(tmp_path: Path) -> None:
    async def end_both(episode: Episode) -> None:
        while "reply 1" not in episode.events:
            await asyncio.sleep(0)
        for number in (2, 1):
            episode.gates[number].set()

    script: list[Step] = [
        ([], calling(write(1), LATER, write(2), LATER)),
        ([], "done so far"),
        ([], "all done"),
    ]
    episode = Episode(tmp_path, script)
    assert episode.run(others=[end_both]) == EpisodeEnd("done", 3, "all done")
    assert episode.told() == [("user", 1, 1.1), ("user", 2, 1.2)]
    assert [message["role"] for message in episode.messages[-4:]] == [
        "assistant",
        "user",
        "user",
        "assistant",
    ]
    assert episode.messages[-2]["content"].endswith("left: 18 of 20 steps, 6 of 8 evaluations")
    assert not any("has not been evaluated" in message["content"] for message in episode.messages)


def test_what_is_written_while_a_version_is_evaluated_is_untried(tmp_path: Path) -> None:
    script: list[Step] = [
        ([], calling(write(1), LATER, write(2))),
        ([1], calling(LOOK)),
        ([], "1"),
        ([], "2"),
    ]
    episode = Episode(tmp_path, script)
    assert episode.run() == EpisodeEnd("done", 4, "2")
    assert untried(episode.messages)
    assert "has not been evaluated" in episode.messages[-2]["content"]
    assert not untried(episode.messages[:5])  # up to the answer that says that it is being evaluated


async def end_slowly(episode: Episode) -> None:
    """End each evaluation when the episode has had its chance to go on."""
    for _ in range(50):
        await asyncio.sleep(0)
    for gate in episode.gates.values():
        gate.set()


def test_evaluations_under_way_count(tmp_path: Path) -> None:
    script: list[Step] = [([], calling(write(1), LATER, write(2), LATER, write(3), LATER)), ([], "seen")]
    episode = Episode(tmp_path, script, max_evaluations=2)
    assert episode.run(others=[end_slowly]) == EpisodeEnd("max_evaluations", 2, "seen")
    assert episode.messages[-4]["content"].startswith("error: no evaluation is left")
    assert episode.told() == [("user", 1, 1.1), ("user", 2, 1.2)]
    assert evaluations(episode.messages) == 2


@pytest.mark.parametrize(
    ("last", "limits", "end"),
    [
        (calling(LOOK), {"max_steps": 2}, EpisodeEnd("max_steps", 2, "")),
        (Reply(assistant("no"), Usage(), REFUSAL), {}, EpisodeEnd("refusal", 2, "no")),
    ],
    ids=["max_steps", "refusal"],
)
def test_whatever_ends_an_episode_nothing_is_lost(
    tmp_path: Path, last: Scripted, limits: dict[str, int], end: EpisodeEnd
) -> None:
    async def end_it(episode: Episode) -> None:
        while "reply 1" not in episode.events:
            await asyncio.sleep(0)
        episode.gates[1].set()

    episode = Episode(tmp_path, [([], calling(write(1), LATER)), ([], last)], **limits)
    assert episode.run(others=[end_it]) == end
    assert episode.told() == [("user", 1, 1.1)]
    # what is stored says that it is over
    again = Episode(tmp_path, [], **limits)
    assert again.run(episode.stored) == end
    assert again.handed == []


def test_an_error_of_the_machine_is_raised_with_all_saved(tmp_path: Path) -> None:
    script: list[Step] = [
        ([], calling(write(1), LATER, write(2), LATER)),
        ([1, 2, 3], calling(write(3), NOW)),
        ([], "done"),
        ([], "done"),
    ]
    episode = Episode(tmp_path, script)
    episode.fails = {1}
    with pytest.raises(InfrastructureError, match="gone"):
        episode.run()
    assert [message["role"] for message in episode.stored[2:]] == [
        "assistant",
        *["tool"] * 4,
        "assistant",
        *["tool"] * 2,
    ]
    episode.fails, episode.events = set(), []
    assert episode.run(episode.stored).reason == "done"
    assert sorted(number for _, number, _ in episode.told()) == [1, 2, 3]
    assert sorted(event for event in episode.events if "begin" in event) == ["begin 1"]


CRASHING: list[Step] = [
    ([], calling(write(1), LATER, write(2))),
    ([], calling(write(3), LATER, write(4), LOOK)),
    ([1], calling(LOOK, NOW, LOOK)),
    ([3], calling(write(5), LATER)),
    ([5], "done"),
    ([], "done"),
]


def test_a_resume_evaluates_nothing_twice_and_loses_nothing(tmp_path: Path) -> None:
    def script() -> list[Step]:
        return [(ends + ([4] if place == 2 else []), said) for place, (ends, said) in enumerate(CRASHING)]

    whole = Episode(tmp_path, script())
    assert whole.run().reason == "done"
    handed = whole.handed
    assert [number for _, number in handed] == [1, 3, 4, 5]
    for kept in range(2, len(whole.messages) + 1):
        stored = json.loads(json.dumps(whole.messages[:kept]))
        answered = {message["tool_call_id"] for message in stored if message["role"] == "tool"}
        late = {message["late"] for message in stored if "late" in message}
        untold = [one for one in handed if one[0] in answered - late and one[1] != 4]
        told_now = [one for one in handed if one[0] in answered and one not in untold]
        for is_stored in (False, True):  # whether they had been evaluated when the process died
            episode = Episode(tmp_path, script())
            known = {call_id: whole.known[call_id] for call_id, _ in told_now + (untold if is_stored else [])}
            episode.known = dict(known)
            assert episode.run(json.loads(json.dumps(stored))).reason == "done"
            # what was told is not submitted again; what was not is, with the files as they were
            again = sorted(number for call_id, number in handed if (call_id, number) not in told_now)
            assert sorted(number for _, number in episode.handed) == again
            begun = [event for event in episode.events if event.startswith("begin")]
            assert len(begun) == len(handed) - len(known)
            assert sorted(number for _, number, _ in episode.told()) == [1, 3, 4, 5]
            assert episode.workspace.versions == whole.workspace.versions
            assert evaluations(episode.messages) == 4


def test_a_late_result_is_folded_as_any_other(tmp_path: Path) -> None:
    best = "[result of pass_evaluator, call e1]\nthe best\n\nstatus: ok\nAS: 2.0000\nleft: 1 of 9 steps"
    writer = calling(LATER, ids=["e1"])
    begun = {"role": "tool", "tool_call_id": "e1", "name": "pass_evaluator", "content": "is being evaluated"}
    late = {"role": "user", "content": best, "late": "e1", "data": verdict("ok", 2.0)}
    views = [
        one
        for i in range(9)
        for one in (
            calling(LOOK, ids=[f"l{i}"]),
            {"role": "tool", "tool_call_id": f"l{i}", "name": "file_editor", "content": "line\n" * 300},
        )
    ]
    messages = [*START, writer, begun, assistant("done"), late, *views]
    sent = fold(messages, 1900).messages
    assert late in sent and "[folded: 301 lines of file_editor" in json.dumps(sent)


def late_reply(messages: list[Message], tools: Any) -> Scripted:
    """`tiny_search.reply`, whose evaluations are not waited for."""
    message: Any = tiny_search.reply(messages, tools)
    if isinstance(message, dict):
        for call in message["tool_calls"]:
            call["arguments"] = '{"wait": false}' if call["name"] == "pass_evaluator" else call["arguments"]
    return message


class SlowEvaluator(tiny_search.FastEvaluator):
    """Judges each candidate once the model, which needs six replies an episode, has been asked once more."""

    def __init__(self, count: Callable[[], int]) -> None:
        super().__init__()
        self.count = count
        self.until = iter((3, 5, 9, 11))

    async def evaluate(self, task_path: Path, candidate: Any, bar: float | None = None) -> Any:
        until = next(self.until)
        while self.count() < until:
            await asyncio.sleep(0)
        return await super().evaluate(task_path, candidate, bar)


def test_a_search_stores_and_exports_what_came_late(tmp_path: Path) -> None:
    model = ScriptedModel(late_reply)
    parts = Parts(model, SlowEvaluator(lambda: len(model.calls)), tiny_search.diagnose)
    task, runs_dir = tiny_search.write_task(tmp_path / "task"), tmp_path / "runs"
    settings = tiny_search.settings(2, 1, 5) | {"search.reuse": False}
    running.run(str(task), {"settings": settings, "runs_dir": runs_dir}, True, parts)
    assert len(model.calls) == 12
    with Store.open(runs_dir) as store:
        run = runs.find_run(store, "last")
        assert nodes.unfinished(store, run.id) == []
        episodes = [trajectory(store, run, find_episode(store, run, number)) for number in (1, 2)]
        told = read_episodes([store])
    assert [told.columns["id"] for told in told] == [f"{run.id}/{number}" for number in (1, 2)]
    for episode, columns in zip(episodes, told, strict=True):
        files = [node.files for node in episode.nodes]
        assert len(files) == 2 and episode.end_reason == "done"
        messages = [turn.message for turn in episode.messages]
        late = {m["late"]: m["data"]["evaluation"] for m in messages if "late" in m}
        assert len(late) == 2
        for node, revision in zip(episode.nodes, columns.revisions, strict=True):
            assert (late[node.call_id]["status"], late[node.call_id]["as_score"]) == (
                node.status,
                node.as_score,
            )
            assert (revision.node, revision.as_score) == (node.node, node.as_score)
        # the step of a node ends with the call that proposed it, whose files are the node's
        for node, example in steps(episode).items():
            call_id = next(one.call_id for one in episode.nodes if one.node == node)
            assert example.turns[-1].message["tool_call_id"] == call_id
            trained = [turn for turn in example.turns if turn.is_trained]
            assert trained[-1].message["tool_calls"][-1]["id"] == call_id and len(trained) == 2


def test_a_result_that_is_there_comes_with_the_next_reply_whatever_that_reply_calls(tmp_path: Path) -> None:
    """Not only behind an answer that has no result of its own."""
    script: list[Step] = [([], calling(write(1), LATER, write(2))), ([1, 2], calling(NOW)), ([], "done")]
    episode = Episode(tmp_path, script)
    assert episode.run().reason == "done"
    assert [number for _, number, _ in episode.told()] == [2, 1]
    assert [message["role"] for message in episode.messages[-3:]] == ["tool", "user", "assistant"]
