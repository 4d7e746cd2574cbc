"""The tool `pass_evaluator`, and evaluations that go on while the conversation does.

A late result stands at the end of another message: the answer of a later tool call, or a message of its own
where the model calls no tool. That message names the call in its key `late`, and its data holds one
`evaluation`: the late one, if there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, NamedTuple

from passagent.agent.tool_specs import EVALUATOR, JUDGES, TELLS, Answer, Tool, schema
from passagent.agent.workspace import Workspace, candidate_files
from passagent.models.types import Message, ToolSpec

MOST = 2
"""Evaluations of an episode under way at once."""
SPEC = ToolSpec(
    EVALUATOR,
    f"Evaluate your pass directory as it is now {JUDGES} Returns {TELLS} "
    "Evaluations are limited; what matches nothing or gives no plan uses none. With wait false you go on "
    "at once, such as with the next version, and a later answer ends with the result.",
    schema(
        {
            "wait": {
                "type": "boolean",
                "description": "default true; false: the result comes later; 2 under way at most",
            }
        },
        [],
    ),
)

Submit = Callable[[dict[str, str], str], Awaitable[Answer]]
"""`await submit(files, call_id)`: evaluate and store a candidate, once for a call_id; the observation, whose
data holds the `evaluation` (observe.verdict)."""


class Late(NamedTuple):
    """The result of an evaluation that was not waited for."""

    call_id: str
    answer: Answer


class PendingEvaluations:
    """Evaluations whose results the model has not been told yet, the oldest first.

    An async context: at its end what is under way is waited for, and cancelled if the episode is.
    """

    def __init__(self, compare: Callable[[str, Answer], Answer] = lambda call_id, answer: answer) -> None:
        """`compare(call_id, answer)` puts a version's standing before the evaluator's answer."""
        self._compare = compare
        self._tasks: dict[str, asyncio.Future[Answer]] = {}

    @property
    def used(self) -> int:
        """Count the evaluations that these use: a candidate that gives no plan uses none."""
        return sum(_uses_one(task) for task in self._tasks.values())

    def start(self, call_id: str, work: Awaitable[Answer]) -> None:
        """Evaluate from now on; `work` gives the evaluator's answer."""
        self._tasks[call_id] = asyncio.ensure_future(work)

    async def room(self) -> None:
        """Wait until one more evaluation may be under way."""
        while len(running := [task for task in self._tasks.values() if not task.done()]) >= MOST:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)

    def take(self) -> Late | None:
        """Return the oldest result that is there, once. Raises what its evaluation raised."""
        call_id = next((name for name, task in self._tasks.items() if task.done()), None)
        if call_id is None:
            return None
        answer = self._compare(call_id, self._tasks.pop(call_id).result())
        return Late(call_id, Answer(f"[result of {EVALUATOR}, call {call_id}]\n{answer.text}", answer.data))

    async def settle(self) -> None:
        """Wait until all results are there."""
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def __aenter__(self) -> PendingEvaluations:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind and not issubclass(kind, Exception):
            for task in self._tasks.values():
                task.cancel()
        # what one of them raises is either being raised, or is raised again on resume
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def _uses_one(task: asyncio.Future[Answer]) -> bool:
    has_result = task.done() and not task.cancelled() and task.exception() is None
    return not has_result or task.result().data["evaluation"]["is_run"]


def answers_data(messages: list[Message]) -> dict[str, dict[str, Any]]:
    """Return the data of each tool call's answer by the call's id; an evaluation counts for its own call."""
    answers: dict[str, dict[str, Any]] = {}
    for message in messages:
        data = dict(message.get("data", {}))
        if "late" in message:
            answers[message["late"]] = {"evaluation": data.pop("evaluation")}
        if message["role"] == "tool":
            answers[message["tool_call_id"]] = data
    return answers


def pass_evaluator(workspace: Workspace, submit: Submit, start_as: float | None = None) -> Tool:
    """Evaluate the workspace's files; `start_as`: AS of what the episode began with, None if not correct.

    Each evaluated version is kept in the workspace, and the model is told which is best.
    """
    scores: list[float | None] = [start_as]
    versions: dict[str, int] = {}

    def keep(call_id: str) -> int:
        versions[call_id] = workspace.keep()
        scores.append(None)
        return versions[call_id]

    def compare(call_id: str, answer: Answer) -> Answer:
        number, evaluation = versions[call_id], answer.data["evaluation"]
        scores[number] = evaluation["as_score"] if evaluation["status"] == "ok" else None
        return Answer(f"{_standing(scores, number)}\n{answer.text}", answer.data)

    pending = PendingEvaluations(compare)

    async def run(arguments: dict[str, Any], call_id: str) -> Answer:
        files = candidate_files(workspace, "evaluate")
        await pending.room()
        if arguments.get("wait", True):
            answer = await submit(files, call_id)
            keep(call_id)
            return compare(call_id, answer)
        number = keep(call_id)
        pending.start(call_id, submit(files, call_id))
        await asyncio.sleep(0)  # it is stored as proposed, before the reply's next call
        return Answer(f"version {number} is being evaluated; its result is shown when it is there")

    def replay(arguments: dict[str, Any], data: dict[str, Any], call_id: str) -> None:
        if data.get("error"):
            return
        keep(call_id)
        if "evaluation" in data:
            compare(call_id, Answer("", data))
        else:  # its result was not told: the files are as they were at the call
            pending.start(call_id, submit(workspace.files(), call_id))

    return Tool(SPEC, run, replay, pending)


def _standing(scores: list[float | None], last: int) -> str:
    """Compare the version `last` with the episode's others, as far as their scores are known."""
    ranks = [(score, -number) for number, score in enumerate(scores) if score is not None]
    if not ranks:
        return f"version {last} of this episode; none is correct on every graph yet"
    score, best = max(ranks)[0], -max(ranks)[1]
    if best == last:
        return f"version {last} of this episode, its best so far"
    begun = ", what you began with" if best == 0 else ""
    return (
        f"version {last} of this episode; the best is version {best}{begun} (AS {score:.4f}): "
        f"file_editor's restore takes you back to it"
    )
