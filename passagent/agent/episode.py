"""One episode: query the model, save, run its tool calls, save each result, until done or a limit ends it.

The state is the message list. Whatever the model gets wrong (unknown tools, broken JSON, wrong types, empty
or cut-off replies) is answered by an observation; what the machine gets wrong is raised.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from passagent.agent.fold import fold
from passagent.agent.observe import read_status
from passagent.agent.tools import EVALUATOR, Tool, check_arguments
from passagent.agent.workspace import ToolError
from passagent.config import AgentConfig
from passagent.errors import nearest
from passagent.models.retry import ContextOverflow
from passagent.models.types import LENGTH, REFUSAL, Message, Model, Reply, Usage
from passagent.models.wire import clean

Save = Callable[[Message, Usage | None], None]
"""Stores a message of the conversation, with the call's usage if it is a model's; returns when it is safe."""

EMPTY = "Your reply was empty. Call a tool, or end the episode with a sentence on what you found."
CUT_TEXT = "Your reply was cut off at the limit of output tokens. Call a tool now; keep texts short."
CUT_CALL = (
    "your reply was cut off at the limit of output tokens inside this call, so it was not run; write less"
)
MIN_CONTEXT = 2000
"""Tokens under which folding further is pointless."""


@dataclass(frozen=True)
class EpisodeEnd:
    """Why an episode ended: `done`, `refusal`, `max_steps`, `max_evaluations` or `context`."""

    reason: str
    steps: int
    """Model calls, those before a resume included."""
    text: str
    """What the model said last."""


async def run_episode(
    model: Model, messages: list[Message], tools: list[Tool], save: Save, limits: AgentConfig
) -> EpisodeEnd:
    """Run the conversation `messages` (system and task message, and on resume all that was saved) to its end.

    New messages are saved, then appended to `messages`. On resume no model call is repeated: edits of the
    workspace (which must hold what the episode began with) are replayed and missing tool calls are run.
    Raises what the model and `submit` raise: UsageError, InfrastructureError, PassagentError.
    """
    by_name = {tool.spec.name: tool for tool in tools}
    specs = [tool.spec for tool in tools]
    budget = limits.context_tokens

    def add(message: Message, usage: Usage | None = None) -> None:
        save(message, usage)
        messages.append(message)

    await _replay_edits(messages, by_name)
    while True:
        for call, is_cut in unanswered(messages):
            spent = evaluations(messages) >= limits.max_evaluations and call["name"] == EVALUATOR
            text = "error: no evaluation is left" if spent else await _answer(call, by_name, is_cut)
            add({"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": text})
        end = _end(messages, limits)
        if end:
            return end
        remark = _remark(messages[-1])
        if remark:
            add({"role": "user", "content": remark})
        try:
            reply = await model.complete(fold(messages, budget), specs)
        except ContextOverflow as error:
            budget //= 2
            if budget < MIN_CONTEXT:
                return EpisodeEnd("context", steps(messages), str(error))
            continue
        add(_to_save(reply, messages), reply.usage)


def steps(messages: list[Message]) -> int:
    """Model calls made so far."""
    return sum(message["role"] == "assistant" for message in messages)


def evaluations(messages: list[Message]) -> int:
    """Candidates evaluated so far: results of the evaluator that carry a status."""
    return sum(
        message["role"] == "tool"
        and message["name"] == EVALUATOR
        and read_status(message["content"]) is not None
        for message in messages
    )


def unanswered(messages: list[Message]) -> list[tuple[dict[str, str], bool]]:
    """Tool calls of the last reply that have no result yet; whether each was cut off at the token limit."""
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=None)
    if last is None:
        return []
    reply, answered = messages[last], {m.get("tool_call_id") for m in messages[last + 1 :]}
    cut = reply["tool_calls"][-1:] if reply.get("stop_reason") == LENGTH else []
    return [(call, call in cut) for call in reply["tool_calls"] if call["id"] not in answered]


async def _answer(call: dict[str, str], tools: dict[str, Tool], is_cut: bool) -> str:
    """The observation that a tool call leads to; every mistake in the call is one too."""
    tool = tools.get(call["name"])
    if tool is None:
        return f"error: there is no tool '{call['name']}'{nearest(call['name'], list(tools))}"
    if is_cut:
        return f"error: {CUT_CALL}"
    try:
        arguments = json.loads(call["arguments"].strip() or "{}")
    except (ValueError, RecursionError) as error:
        return f"error: the arguments of {call['name']} are not valid JSON ({error}); send the call again"
    try:
        return await tool.run(check_arguments(tool.spec, clean(arguments)), call["id"])
    except ToolError as error:
        return f"error: {error}"


def _end(messages: list[Message], limits: AgentConfig) -> EpisodeEnd | None:
    """The end of the episode, if it has come."""
    last, text = (
        messages[-1],
        next((m["content"] for m in reversed(messages) if m["role"] == "assistant"), ""),
    )
    if last["role"] == "assistant" and last.get("stop_reason") == REFUSAL:
        return EpisodeEnd("refusal", steps(messages), text)
    if last["role"] == "assistant" and not _remark(last):
        return EpisodeEnd("done", steps(messages), text)
    if evaluations(messages) >= limits.max_evaluations:
        return EpisodeEnd("max_evaluations", steps(messages), text)
    if steps(messages) >= limits.max_steps:
        return EpisodeEnd("max_steps", steps(messages), text)
    return None


def _remark(message: Message) -> str | None:
    """What to say to a reply without tool calls that is no proper end."""
    if message["role"] != "assistant" or message["tool_calls"]:
        return None
    if message.get("stop_reason") == LENGTH:
        return CUT_TEXT
    return None if message["content"].strip() else EMPTY


def _to_save(reply: Reply, messages: list[Message]) -> Message:
    """The reply's message as stored: with its stop reason, and tool call ids unique in the episode."""
    used = {call["id"] for m in messages if m["role"] == "assistant" for call in m["tool_calls"]}
    calls = []
    for position, call in enumerate(reply.message["tool_calls"]):
        name = call["id"] if call["id"] and call["id"] not in used else f"call_{len(messages)}_{position}"
        used.add(name)
        calls.append({**call, "id": name})
    return {**reply.message, "tool_calls": calls, "stop_reason": reply.stop_reason}


async def _replay_edits(messages: list[Message], tools: dict[str, Tool]) -> None:
    """Bring the workspace to where an interrupted episode left it: run its answered edits again."""
    answered = {message["tool_call_id"] for message in messages if message["role"] == "tool"}
    for message in messages:
        for call in message.get("tool_calls", ()) if message["role"] == "assistant" else ():
            tool = tools.get(call["name"])
            is_cut = message.get("stop_reason") == LENGTH and call == message["tool_calls"][-1]
            if tool is not None and tool.local and call["id"] in answered:
                await _answer(call, tools, is_cut)
