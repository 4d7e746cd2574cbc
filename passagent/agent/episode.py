"""One episode: query the model, save, run its tool calls, save each result, until done or a limit ends it.

The state is the message list. What the model gets wrong (unknown tools, broken JSON, wrong types, empty or
cut-off replies) becomes a message to it. What the machine gets wrong is raised, and so is a used-up budget:
all that came before is saved, so the conversation can be gone on with.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import takewhile

from passagent.agent.tokens import CHARACTERS, Sent, fold
from passagent.agent.tool_specs import EVALUATOR, Tool, ToolAnswer
from passagent.agent.toolbox import check_arguments
from passagent.agent.workspace import ToolError
from passagent.config import AgentConfig
from passagent.errors import nearest
from passagent.extend import Model
from passagent.models.retry import ContextOverflow
from passagent.models.types import LENGTH, REFUSAL, Message, Reply, Usage, clean, meant_tool
from passagent.store.redaction import redacted

Save = Callable[[Message, Usage | None], None]
"""Takes a message of the conversation, with the call's usage if it is a model's; it is stored before anything
is waited for."""

EMPTY = "Your reply was empty. Call a tool, or end the episode with a sentence on what you found."
CUT_TEXT = "Your reply was cut off at the limit of output tokens. Call a tool now; keep texts short."
CUT_CALL = (
    "your reply was cut off at the limit of output tokens inside this call, so it was not run; write less"
)
UNTRIED = (
    "Your reply calls no tool, and what is in your directory has not been evaluated: it counts for "
    "nothing. Go on with a tool call; or end the episode by a text without one."
)
MAX_REMARKS = 3
"""Replies without a tool call in a row; then the episode ends."""
MIN_CONTEXT = 2000
"""Tokens under which folding further is pointless."""
SHRINK = 0.75
"""The next try's budget, as a share of the estimate of what was too long for the model."""


class Remark(Exception):
    """The reply cannot be worked with; the text goes to the model."""


class Over(Exception):
    """The episode ends here; the text is the reason."""


async def run_episode(
    model: Model,
    messages: list[Message],
    tools: list[Tool],
    save: Save,
    limits: AgentConfig,
    more_left: Callable[[], list[str]] = list,
) -> str:
    """Run the conversation `messages` (system and task message, and on resume all that was saved) to its end.

    Returns why it ended: `done`, `refusal`, `empty`, `max_steps`, `max_evaluations` or `context`.

    New messages are saved, then appended to `messages`. Each tool result ends with what is left of the
    episode's limits, and of others, such as the run's, as `more_left` says. On resume no model call is
    repeated: what answered calls did to the workspace (which must hold what the episode began with) is done
    again, missing tool calls are run, evaluations without a stored result are submitted again. Raises what
    the model and `submit` raise, such as InfrastructureError or a used-up budget.
    """
    by_name, specs = {tool.spec.name: tool for tool in tools}, [tool.spec for tool in tools]
    overhead = sum(spec.size for spec in specs) // CHARACTERS
    budget = limits.context_tokens

    def add(message: Message, usage: Usage | None = None) -> None:
        message = redacted(message)
        save(message, usage)
        messages.append(message)

    def add_result(message: Message, result: ToolAnswer) -> None:
        used = evaluations(messages) + result.data.get("evaluation", {}).get("is_run", False)
        parts = [
            f"{limits.max_steps - steps(messages)} of {limits.max_steps} steps",
            f"{max(0, limits.max_evaluations - used)} of {limits.max_evaluations} evaluations",
            *more_left(),
        ]
        text = f"{result.text}\nleft: {', '.join(parts)}"
        add(message | {"content": text, "data": result.data})

    replay(messages, by_name)
    while True:
        try:
            for call, is_cut in unanswered(messages):
                result = await answer(call, by_name, is_cut, evaluations(messages) < limits.max_evaluations)
                name = meant_tool(call["name"], list(by_name)) or call["name"]
                add_result({"role": "tool", "tool_call_id": call["id"], "name": name}, result)
            check(messages, limits)
            sent = fold(messages, budget, overhead)
            reply = await model.complete(sent.messages, specs)
            add(to_save(reply, messages), reply.usage)
        except Remark as remark:
            add({"role": "user", "content": str(remark)})
        except ContextOverflow:
            budget = next_budget(messages, sent, budget, overhead)
            if budget < MIN_CONTEXT:
                return "context"
        except Over as over:
            return str(over)


def next_budget(messages: list[Message], sent: Sent, budget: int, overhead: int) -> int:
    """The largest budget, in steps, under which less is sent than `sent`, which was too long."""
    budget = int(min(budget, sent.tokens) * SHRINK)
    while budget >= MIN_CONTEXT and fold(messages, budget, overhead).messages == sent.messages:
        budget = int(budget * SHRINK)
    return budget


def check(messages: list[Message], limits: AgentConfig) -> None:
    """Raise Over if the episode has come to its end, Remark if the last reply needs one."""
    last, is_cut = messages[-1], messages[-1].get("stop_reason") == LENGTH
    replies = [message for message in reversed(messages) if message["role"] == "assistant"]
    if replies and replies[0].get("stop_reason") == REFUSAL:
        raise Over("refusal")
    is_text = last["role"] == "assistant" and not last["tool_calls"]
    if is_text:
        row = len(list(takewhile(lambda reply: not reply["tool_calls"], replies)))
        if last["content"].strip() and not is_cut and (row > 1 or not untried(messages)):
            raise Over("done")
        if row >= MAX_REMARKS:
            raise Over("empty")
    since = takewhile(lambda message: "evaluation" not in message.get("data", {}), reversed(messages))
    is_last_seen = any(message["role"] == "assistant" for message in since)
    if evaluations(messages) >= limits.max_evaluations and is_last_seen:
        raise Over("max_evaluations")
    if len(replies) >= limits.max_steps:
        raise Over("max_steps")
    if is_text:
        raise Remark(CUT_TEXT if is_cut else UNTRIED if last["content"].strip() else EMPTY)


async def answer(
    call: dict[str, str], tools: dict[str, Tool], is_cut: bool, may_evaluate: bool
) -> ToolAnswer:
    """Run a tool call; every mistake in the call is an answer, too."""
    try:
        tool, arguments = understand(call, tools, is_cut)
        if tool.spec.name == EVALUATOR and not may_evaluate:
            raise ToolError("no evaluation is left")
        return await tool.run(arguments, call["id"])
    except ToolError as error:
        return ToolAnswer(f"error: {error}", {"error": True})


def understand(call: dict[str, str], tools: dict[str, Tool], is_cut: bool) -> tuple[Tool, dict[str, object]]:
    """The tool that a call means and its arguments. Raises ToolError."""
    tool = tools.get(meant_tool(call["name"], list(tools)) or "")
    if tool is None:
        raise ToolError(f"there is no tool '{call['name'][:80]}'{nearest(call['name'][:80], list(tools))}")
    if is_cut:
        raise ToolError(CUT_CALL)
    try:
        arguments = json.loads(call["arguments"].strip() or "{}")
    except (ValueError, RecursionError) as error:
        message = f"the arguments of {call['name']} are not valid JSON ({error}); send the call again"
        raise ToolError(message) from error
    return tool, check_arguments(tool.spec, clean(arguments))


def replay(messages: list[Message], tools: dict[str, Tool]) -> None:
    """Bring the workspace to where an interrupted episode left it: do again what answered calls did to it."""
    results = {m["tool_call_id"]: m.get("data", {}) for m in messages if m["role"] == "tool"}
    for message in messages:
        for call in message["tool_calls"] if message["role"] == "assistant" else ():
            is_cut = message.get("stop_reason") == LENGTH and call == message["tool_calls"][-1]
            try:
                tool, arguments = understand(call, tools, is_cut)
                if tool.replay and call["id"] in results:
                    tool.replay(arguments, results[call["id"]], call["id"])
            except ToolError:
                pass  # it was one then, too, and did nothing


def steps(messages: list[Message]) -> int:
    """Model calls made so far."""
    return sum(message["role"] == "assistant" for message in messages)


def evaluations(messages: list[Message]) -> int:
    """Candidates evaluated so far, those not counted that gave no plan."""
    results = [message.get("data", {}).get("evaluation") for message in messages]
    return sum(result is not None and result["is_run"] for result in results)


def untried(messages: list[Message]) -> bool:
    """Return whether nothing was handed to the evaluator yet, or something was written since."""

    def is_handed(message: Message) -> bool:  # it answers a call that handed the evaluator a candidate
        is_answer = message["role"] == "tool" and message["name"] == EVALUATOR
        return is_answer and not message["data"].get("error")

    since = list(takewhile(lambda message: not is_handed(message), reversed(messages)))
    edits = [message.get("data", {}).get("edit") for message in since]
    return len(since) == len(messages) or "wrote" in takewhile(lambda edit: edit != "restored", edits)


def unanswered(messages: list[Message]) -> list[tuple[dict[str, str], bool]]:
    """Tool calls of the last reply that have no result yet; whether each was cut off at the token limit."""
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=None)
    if last is None:
        return []
    reply, answered = messages[last], {m.get("tool_call_id") for m in messages[last + 1 :]}
    cut = reply["tool_calls"][-1:] if reply.get("stop_reason") == LENGTH else []
    return [(call, call in cut) for call in reply["tool_calls"] if call["id"] not in answered]


def to_save(reply: Reply, messages: list[Message]) -> Message:
    """The reply's message as stored: with its stop reason, the server's count, and call ids of its own."""
    used = {call["id"] for m in messages if m["role"] == "assistant" for call in m["tool_calls"]}
    calls = []
    for position, call in enumerate(reply.message["tool_calls"]):
        name = call["id"] if call["id"] and call["id"] not in used else f"call_{len(messages)}_{position}"
        used.add(name)
        calls.append({**call, "id": name})
    counted = {"stop_reason": reply.stop_reason, "input_tokens": reply.usage.input_tokens}
    return {**reply.message, "tool_calls": calls} | counted
