"""The episode's loop: what a model gets wrong is an observation, limits end it, a resume repeats nothing."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from verdicts import EpisodeEnd, ended, evaluated

from passagent.agent.editor import file_editor
from passagent.agent.episode import evaluations, run_episode
from passagent.agent.tool_specs import Tool, ToolAnswer
from passagent.agent.toolbox import check, pass_evaluator, search_knowledge
from passagent.agent.workspace import Workspace
from passagent.config import AgentConfig
from passagent.errors import InfrastructureError
from passagent.evaluator.result import MANIFEST
from passagent.experience.knowledge import Passage
from passagent.models.retry import ContextOverflow
from passagent.models.scripted import ScriptedModel, calling
from passagent.models.types import LENGTH, REFUSAL, Message, Reply, Usage, assistant

START: list[Message] = [{"role": "system", "content": "be exact"}, {"role": "user", "content": "go"}]
CREATE = ("file_editor", {"command": "create", "path": "A.py", "file_text": "x = 1\n"})
LIST = ("file_editor", {"command": "create", "path": MANIFEST, "file_text": '["A"]'})
EVALUATE = ("pass_evaluator", {})
DONE = ["done", "done"]
"""The first of it is answered by a nudge where nothing was evaluated."""


def replies(messages: list[Message]) -> int:
    """How many replies a conversation has, those that a note stands for included."""
    return sum(message["role"] == "assistant" or message.get("replies", 0) for message in messages)


class Episode:
    """An episode in a fresh workspace; keeps what was saved and submitted."""

    def __init__(self, path: Path, model: Any, files: dict[str, str] | None = None, **limits: Any) -> None:
        self.workspace = Workspace({}, files or {})
        self.model, self.limits = model, AgentConfig(**limits)
        self.submitted: list[tuple[dict[str, str], str]] = []
        self.saved: list[tuple[Message, Usage | None]] = []
        self.tools: list[Tool] = [
            file_editor(self.workspace),
            pass_evaluator(self.workspace, self.submit),
            search_knowledge(),
        ]

    async def submit(self, files: dict[str, str], call_id: str) -> ToolAnswer:
        self.submitted.append((files, call_id))
        return evaluated("mismatch", 0.1 + len(self.submitted) / 100)

    def save(self, message: Message, usage: Usage | None) -> None:
        # nothing happens before it is safe
        assert message not in self.messages[len(self.saved) + self.begun :]
        self.saved.append((json.loads(json.dumps(message)), usage))

    def run(self, messages: list[Message] | None = None) -> EpisodeEnd:
        self.messages = [*START] if messages is None else messages
        self.begun = len(self.messages)
        run = run_episode(self.model, self.messages, self.tools, self.save, self.limits)
        return ended(asyncio.run(run), self.messages)

    def results(self) -> list[str]:
        """Of the tool calls, without the last line of each, which says what is left."""
        texts = [message["content"] for message in self.messages if message["role"] == "tool"]
        assert all(re.search(r"\nleft: \d+ of \d+ steps, \d+ of \d+ evaluations\Z", text) for text in texts)
        return [text.rpartition("\n")[0] for text in texts]


def restore(version: int) -> tuple[str, dict[str, Any]]:
    return ("file_editor", {"command": "restore", "path": ".", "version": version})


def test_an_episode_edits_evaluates_and_ends(tmp_path: Path) -> None:
    model = ScriptedModel([calling(CREATE, LIST), calling(EVALUATE), "found nothing better"])
    episode = Episode(tmp_path, model)
    assert episode.run() == EpisodeEnd("done", 3, "found nothing better")
    assert [files for files, _ in episode.submitted] == [{"A.py": "x = 1\n", MANIFEST: '["A"]'}]
    assert [message for message, _ in episode.saved] == episode.messages[2:]
    usages = [usage for message, usage in episode.saved if message["role"] == "assistant"]
    assert usages == [Usage(1, 1)] * 3
    assert all(usage is None for message, usage in episode.saved if message["role"] != "assistant")
    # each call saw all that was saved before it
    assert [len(seen) for seen in model.calls] == [2, 5, 7]


def test_call_ids_are_made_unique(tmp_path: Path) -> None:
    repeated = calling(CREATE, LIST, ids=["call_0", "call_0"])
    nameless = calling(EVALUATE, ids=[""])
    episode = Episode(tmp_path, ScriptedModel([repeated, nameless, calling(EVALUATE), "done"]))
    episode.run()
    ids = [call["id"] for m in episode.messages if m["role"] == "assistant" for call in m["tool_calls"]]
    assert len(set(ids)) == len(ids) == 4
    assert "" not in ids
    assert [m["tool_call_id"] for m in episode.messages if m["role"] == "tool"] == ids
    assert [call_id for _, call_id in episode.submitted] == ids[2:]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("file_edtor", {}), "did you mean 'file_editor'"),
        (("file_editor", '{"command": "view", "path": "A'), "not valid JSON"),
        (("file_editor", "[1]"), "must be a JSON object"),
        (("file_editor", {"command": "view", "path": 7}), "must be of type string"),
        (("file_editor", {"command": "view", "path": "../x.py"}), "leads out"),
        (("pass_evaluator", {"path": "A.py"}), "has no argument 'path'"),
        (("pass_evaluator", ""), "nothing to evaluate yet"),
        (("search_knowledge", {}), "either query"),
        (("search_knowledge", {"path": "no/such.md"}), "no document"),
        (("file_editor", "[" * 100_000), "not valid JSON"),
    ],
)
def test_mistakes_are_observations(tmp_path: Path, call: tuple[str, Any], said: str) -> None:
    episode = Episode(tmp_path, ScriptedModel([calling(call), *DONE]))
    assert episode.run().reason == "done"
    (result,) = episode.results()
    assert result.startswith("error: ")
    assert said in result
    assert episode.submitted == []


def test_lone_surrogates_in_arguments_reach_no_file(tmp_path: Path) -> None:
    call = ("file_editor", '{"command": "create", "path": "A.py", "file_text": "x = \'\\ud800\'\\n"}')
    episode = Episode(tmp_path, ScriptedModel([calling(call), *DONE]))
    episode.run()
    assert episode.workspace.read("A.py") == "x = '\ufffd'\n"


def test_empty_and_cut_off_replies_are_remarked(tmp_path: Path) -> None:
    cut_text = Reply(assistant("so I thi"), Usage(1, 1), LENGTH)
    cut_call = Reply(calling(CREATE, LIST), Usage(1, 1), LENGTH)
    episode = Episode(tmp_path, ScriptedModel(["", cut_text, cut_call, *DONE]))
    assert episode.run() == EpisodeEnd("done", 5, "done")
    remarks = [m["content"] for m in episode.messages[2:] if m["role"] == "user"]
    assert "empty" in remarks[0]
    assert "cut off" in remarks[1]
    assert "has not been evaluated" in remarks[2]
    first, second = episode.results()
    assert "written" in first
    assert second.startswith("error: ")
    assert "cut off" in second
    assert list(episode.workspace.files()) == ["A.py"]


def test_a_refusal_ends_the_episode(tmp_path: Path) -> None:
    episode = Episode(tmp_path, ScriptedModel([Reply(assistant("I will not"), Usage(), REFUSAL)]))
    assert episode.run() == EpisodeEnd("refusal", 1, "I will not")


def test_limits_of_steps_and_evaluations(tmp_path: Path) -> None:
    always = ScriptedModel(lambda messages, tools: calling(CREATE))
    episode = Episode(tmp_path, always, max_steps=3)
    assert episode.run().reason == "max_steps"
    assert len(always.calls) == 3
    assert len(episode.results()) == 3

    greedy = ScriptedModel(lambda messages, tools: calling(CREATE, LIST, EVALUATE, EVALUATE, EVALUATE))
    episode = Episode(tmp_path, greedy, max_evaluations=2)
    assert episode.run() == EpisodeEnd("max_evaluations", 2, "")
    assert len(episode.submitted) == evaluations(episode.messages) == 2
    assert episode.results()[-1] == "error: no evaluation is left"


def test_author_replies_to_its_last_evaluation_before_the_episode_ends(tmp_path: Path) -> None:
    model = ScriptedModel([calling(CREATE, LIST, EVALUATE), "it was memory-bound"])
    episode = Episode(tmp_path, model, max_evaluations=1)
    assert episode.run() == EpisodeEnd("done", 2, "it was memory-bound")
    assert "status: " in model.calls[-1][-1]["content"]


def test_each_tool_result_ends_with_what_is_left(tmp_path: Path) -> None:
    model = ScriptedModel([calling(CREATE, LIST, EVALUATE), calling(EVALUATE, ("no_tool", {})), "done"])
    episode = Episode(tmp_path, model, max_steps=5, max_evaluations=3)
    episode.run()
    said = [m["content"].rpartition("\n")[2] for m in episode.messages if m["role"] == "tool"]
    evaluations_left = [3, 3, 2, 1, 1]
    assert said == [
        f"left: {4 if place < 3 else 3} of 5 steps, {number} of 3 evaluations"
        for place, number in enumerate(evaluations_left)
    ]
    assert evaluations(episode.messages) == 2


def test_what_static_checks_refuse_uses_no_evaluation(tmp_path: Path) -> None:
    class Refusing(Episode):
        async def submit(self, files: dict[str, str], call_id: str) -> ToolAnswer:
            self.submitted.append((files, call_id))
            is_static = len(self.submitted) < 4
            return evaluated("refused", 0.1, is_run=not is_static)

    greedy = ScriptedModel(lambda messages, tools: calling(CREATE, LIST, EVALUATE, EVALUATE))
    episode = Refusing(tmp_path, greedy, max_evaluations=2)
    assert episode.run() == EpisodeEnd("max_evaluations", 4, "")
    assert (len(episode.submitted), evaluations(episode.messages)) == (5, 2)


def test_check_tells_what_its_text_shows_of_every_file(tmp_path: Path) -> None:
    async def outline(files: dict[str, str]) -> list[str]:
        return ["A.py on g0\nlaunch"] if "B.py" not in files else []

    files = {"A.py": "import os\n", "B.py": "def f(:\n", MANIFEST: '["A"]'}
    for given in (files, {name: files[name] for name in ("A.py", MANIFEST)}):
        episode = Episode(tmp_path, ScriptedModel([calling(("check", {})), *DONE]), given)
        episode.tools.append(check(episode.workspace, outline))
        assert episode.run().reason == "done"
        text = episode.results()[0]
        if "B.py" in given:
            assert "B.py: it does not parse: line 1" in text
        else:
            assert text.splitlines()[:2] == [
                "nothing is found wrong; nothing was run",
                "what your pass does, in each call:",
            ]
        assert (episode.submitted, evaluations(episode.messages)) == ([], 0)


def test_what_the_machine_gets_wrong_is_raised(tmp_path: Path) -> None:
    class Lost(Episode):
        async def submit(self, files: dict[str, str], call_id: str) -> ToolAnswer:
            raise InfrastructureError("the GPU is gone")

    episode = Lost(tmp_path, ScriptedModel([calling(CREATE, LIST, EVALUATE)]))
    with pytest.raises(InfrastructureError, match="gone"):
        episode.run()
    assert [message["role"] for message, _ in episode.saved] == ["assistant", "tool", "tool"]


def test_resume_at_every_point_gives_the_same_conversation(tmp_path: Path) -> None:
    replace = {"command": "str_replace", "path": "A.py", "old_str": "1", "new_str": "2"}
    script = [
        calling(CREATE, LIST, EVALUATE),
        "",
        calling(("file_editor", replace), EVALUATE),
        calling(("file_editor", {"command": "undo_edit", "path": "A.py"}), restore(2)),
        calling(EVALUATE, restore(1)),
        "done",
    ]

    def by_position(messages: list[Message], tools: Any) -> Any:
        return script[sum(message["role"] == "assistant" for message in messages)]

    whole = Episode(tmp_path / "whole", ScriptedModel(by_position))
    end = whole.run()
    assert len(whole.submitted) == 3
    for kept in range(2, len(whole.messages) + 1):
        model = ScriptedModel(by_position)
        episode = Episode(tmp_path / str(kept), model)
        stored = json.loads(json.dumps(whole.messages[:kept]))
        episode.submitted = whole.submitted[: evaluations(stored)]
        assert episode.run(stored) == end
        assert episode.messages == whole.messages
        assert episode.workspace.versions == whole.workspace.versions
        assert episode.workspace.files() == whole.workspace.files()
        assert episode.submitted == whole.submitted
        assert len(model.calls) == sum(m["role"] == "assistant" for m in whole.messages[kept:])
        assert [message for message, _ in episode.saved] == whole.messages[kept:]


def test_context_overflow_folds_and_goes_on(tmp_path: Path) -> None:
    seen: list[int] = []

    def small_window(messages: list[Message], tools: Any) -> Any:
        size = sum(len(message["content"]) for message in messages)
        seen.append(size)
        if size > 30_000:
            raise ContextOverflow("too long")
        steps = sum(message["role"] == "assistant" for message in messages)
        return "done" if steps >= 6 else calling(("file_editor", {"command": "view", "path": "A.py"}))

    files = {"A.py": "x = 1  # " + "long " * 1500 + "\n"}
    episode = Episode(tmp_path, ScriptedModel(small_window), files)
    assert episode.run().reason == "done"
    assert max(seen) > 30_000 >= seen[-1]
    assert all("long long" in result for result in episode.results())

    def no_window(messages: list[Message], tools: Any) -> Any:
        raise ContextOverflow("never fits")

    assert Episode(tmp_path, ScriptedModel(no_window)).run() == EpisodeEnd("context", 0, "")


def test_knowledge_is_searched_and_read(tmp_path: Path) -> None:
    calls = [("search_knowledge", {"query": "row softmax"}), ("search_knowledge", {"path": "index.md"})]
    episode = Episode(tmp_path, ScriptedModel([calling(*calls), *DONE]))
    episode.tools[2] = search_knowledge(
        search=lambda query, limit: [Passage("guide/rows.md", "Rows", f"about {query}, {limit}")],
        read=lambda path: f"text of {path}",
    )
    episode.run()
    assert episode.results() == ["[guide/rows.md] Rows\nabout row softmax, 2", "text of index.md"]


class Scored(Episode):
    """An episode whose evaluations are as told, in turn: `ok 1.2`."""

    def __init__(self, path: Path, model: Any, verdicts: list[str], **limits: Any) -> None:
        super().__init__(path, model, {"A.py": "x = 0\n", MANIFEST: '["A"]'}, **limits)
        self.verdicts = [evaluated(status, float(score)) for status, score in map(str.split, verdicts)]
        self.tools[1] = pass_evaluator(self.workspace, self.submit, start_as=1.1)

    async def submit(self, files: dict[str, str], call_id: str) -> ToolAnswer:
        self.submitted.append((files, call_id))
        return self.verdicts[len(self.submitted) - 1]


def write(text: str) -> tuple[str, dict[str, Any]]:
    return ("file_editor", {"command": "create", "path": "A.py", "file_text": text})


RESTORING = [
    calling(write("x = 1\n"), EVALUATE),
    calling(write("x = 2\n"), EVALUATE),
    calling(write("x = 3\n"), EVALUATE),
    calling(restore(2)),
    calling(("file_editor", {"command": "undo_edit", "path": "A.py"}), restore(0), restore(9), restore(2)),
    "the second was best",
]
VERDICTS = ["mismatch 0.1", "ok 1.4", "ok 1.3"]


def test_the_best_version_is_named_and_can_be_gone_back_to(tmp_path: Path) -> None:
    episode = Scored(tmp_path, ScriptedModel(RESTORING), VERDICTS)
    assert episode.run() == EpisodeEnd("done", 6, "the second was best")
    told = [text.split("\n")[0] for text in episode.results() if "status:" in text]
    assert told[0].startswith("version 1 of this episode; the best is version 0, what you began with (AS 1.1")
    assert told[1] == "version 2 of this episode, its best so far"
    assert told[2].startswith("version 3 of this episode; the best is version 2 (AS 1.4000)")
    back, undone, start, unknown, again = episode.results()[-5:]
    assert "as in version 2; changed: A.py" in back
    assert "x = 3" in undone
    assert "as in version 0" in start
    assert unknown == "error: version 9: there are versions 0 to 3"
    assert "as in version 2" in again
    assert episode.workspace.read("A.py") == "x = 2\n"


def test_texts_are_nudged_once_where_work_would_be_lost(tmp_path: Path) -> None:
    at_once = Episode(tmp_path / "a", ScriptedModel(["I think so", "I am sure"]))
    assert at_once.run() == EpisodeEnd("done", 2, "I am sure")
    edited = [calling(CREATE, LIST), calling(EVALUATE), calling(CREATE), "ready", calling(EVALUATE), "ready"]
    episode = Episode(tmp_path / "b", ScriptedModel(edited))
    assert episode.run() == EpisodeEnd("done", 6, "ready")
    assert len(episode.submitted) == 2
    empty = Episode(tmp_path / "c", ScriptedModel(["", " ", "\n", "never asked for"]))
    assert empty.run() == EpisodeEnd("empty", 3, "\n")


def test_a_used_up_budget_leaves_an_episode_that_goes_on(tmp_path: Path) -> None:
    class BudgetExceeded(Exception):
        pass

    def poor(messages: list[Message], tools: Any) -> Any:
        if replies(messages) == 1:
            raise BudgetExceeded
        return calling(CREATE, LIST)

    episode = Episode(tmp_path, ScriptedModel(poor))
    with pytest.raises(BudgetExceeded):
        episode.run()
    episode.model = ScriptedModel([calling(EVALUATE), "done"])
    stored = [*episode.messages]
    assert episode.run(stored).reason == "done"
    assert len(episode.model.calls) == 2
    assert len(episode.submitted) == 1
