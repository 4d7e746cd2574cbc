"""The tool `pass_evaluator`, and evaluations that go on while the conversation does.

A late result is a message of its own, which names the call in its key `late`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from passagent.agent.tool_specs import EVALUATOR, JUDGES, TELLS, PendingEvaluations, Tool, ToolAnswer, schema
from passagent.agent.workspace import Workspace, candidate_files
from passagent.models.types import Message, ToolSpec

SPEC = ToolSpec(
    EVALUATOR,
    f"Evaluate your pass directory as it is now {JUDGES} Returns {TELLS} "
    "Evaluations are limited; what matches nothing or gives no plan uses none. With wait false you go on "
    "at once, such as with the next version, and the result comes in a message of its own.",
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

Submit = Callable[[dict[str, str], str], Awaitable[ToolAnswer]]
"""`await submit(files, call_id)`: evaluate and store a candidate, once for a call_id; the observation, whose
data holds the `evaluation` (observe.verdict)."""


def answers_data(messages: list[Message]) -> dict[str, dict[str, Any]]:
    """Return the data of each tool call's answer by the call's id; a late one takes its place."""
    answers: dict[str, dict[str, Any]] = {}
    for message in messages:
        if "late" in message or message["role"] == "tool":
            answers[message.get("late") or message["tool_call_id"]] = message.get("data", {})
    return answers


def pass_evaluator(workspace: Workspace, submit: Submit, start_as: float | None = None) -> Tool:
    """Evaluate the workspace's files; `start_as`: AS of what the episode began with, None if not correct.

    Each evaluated version is kept in the workspace, and the model learns which is best.
    """
    scores: list[float | None] = [start_as]
    versions: dict[str, int] = {}

    def keep(call_id: str) -> int:
        versions[call_id] = workspace.keep()
        scores.append(None)
        return versions[call_id]

    def compare(call_id: str, answer: ToolAnswer) -> ToolAnswer:
        number, evaluation = versions[call_id], answer.data["evaluation"]
        scores[number] = evaluation["as_score"] if evaluation["status"] == "ok" else None
        return ToolAnswer(f"{_standing(scores, number)}\n{answer.text}", answer.data)

    async def evaluate(files: dict[str, str], call_id: str) -> ToolAnswer:
        return compare(call_id, await submit(files, call_id))

    pending = PendingEvaluations()

    async def run(arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        files = candidate_files(workspace, "evaluate")
        await pending.room()
        if arguments.get("wait", True):
            answer = await submit(files, call_id)
            keep(call_id)
            return compare(call_id, answer)
        number = keep(call_id)
        pending.start(call_id, evaluate(files, call_id))
        await asyncio.sleep(0)  # it is stored as proposed, before the reply's next call
        return ToolAnswer(f"version {number} is being evaluated; its result is shown when it is there")

    def replay(arguments: dict[str, Any], data: dict[str, Any], call_id: str) -> None:
        if data.get("error"):
            return
        keep(call_id)
        if "evaluation" in data:
            compare(call_id, ToolAnswer("", data))
        else:  # its result was not told: the files are as they were at the call
            pending.start(call_id, evaluate(workspace.files(), call_id))

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
