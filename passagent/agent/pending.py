"""Evaluations that go on while the conversation does, and how the model is told their results.

A late result stands at the end of another message: the answer of a later tool call, or a message of its own
where the model calls no tool. That message names the call in its key `late`, and holds one result only, so
that its last lines are read as those of any other result (observe.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import NamedTuple

from passagent.agent.observe import used_evaluation
from passagent.agent.tool_specs import EVALUATOR
from passagent.models.types import Message

MOST = 2
"""Evaluations of an episode under way at once."""


class Late(NamedTuple):
    """The result of an evaluation that was not waited for."""

    call_id: str
    text: str


class PendingEvaluations:
    """Evaluations whose results the model has not been told yet, the oldest first.

    An async context: at its end what is under way is waited for, and cancelled if the episode is.
    """

    def __init__(self, word: Callable[[str, str], str] = lambda call_id, text: text) -> None:
        """`word(call_id, text)`: how the evaluator's text is told."""
        self._word = word
        self._tasks: dict[str, asyncio.Future[str]] = {}

    @property
    def used(self) -> int:
        """How many evaluations these use: what is found to give no plan uses none."""
        return sum(_uses_one(task) for task in self._tasks.values())

    def start(self, call_id: str, work: Awaitable[str]) -> None:
        """Evaluate from now on; `work` gives the evaluator's text."""
        self._tasks[call_id] = asyncio.ensure_future(work)

    async def room(self) -> None:
        """Wait until one more evaluation may be under way."""
        while len(running := self._running()) >= MOST:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)

    def take(self) -> Late | None:
        """The oldest result that is there, once. Raises what its evaluation raised."""
        call_id = next((name for name, task in self._tasks.items() if task.done()), None)
        if call_id is None:
            return None
        text = self._tasks.pop(call_id).result()
        return Late(call_id, f"{header(call_id)}\n{self._word(call_id, text)}")

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

    def _running(self) -> list[asyncio.Future[str]]:
        return [task for task in self._tasks.values() if not task.done()]


def _uses_one(task: asyncio.Future[str]) -> bool:
    is_known = task.done() and not task.cancelled() and task.exception() is None
    return not is_known or used_evaluation(task.result())


def header(call_id: str) -> str:
    """The line that a late result begins with."""
    return f"[result of {EVALUATOR}, call {call_id}]"


def told(messages: list[Message]) -> dict[str, str]:
    """What a conversation tells of each tool call, by its id: the late result, else the answer."""
    found: dict[str, str] = {}
    for message in messages:
        late = message.get("late")
        own, _, result = message["content"].partition(header(late)) if late else (message["content"], "", "")
        if message["role"] == "tool":
            found[message["tool_call_id"]] = own
        if late:
            found[late] = result
    return found
