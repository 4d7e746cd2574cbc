"""The expert's advice to itself: what gained, written as a hint, and what a hint says to try first.

So what the expert learns on one task moves its priors on the next.
"""

from __future__ import annotations

import json
import re
from typing import Any

from passagent.expert.choices import CHOICES, Plan, default, read_plans
from passagent.models.types import END, TOOLS, Message, Reply, ToolSpec, Usage, assistant

CONFIDENCE = 0.5


def advised(text: str, target: str) -> dict[str, int]:
    """The numbers that hints in a prompt say to take, of those that the target has: `grain=4096`."""
    part = text.partition("# Hints from earlier work")[2].partition("\n# ")[0]
    return _numbers(part, target)


def _numbers(text: str, target: str) -> dict[str, int]:
    found = {name: int(value) for name, value in re.findall(r"\b(\w+)=(\d+)\b", text)}
    return {name: value for name, value in found.items() if value in CHOICES[target].get(name, ())}


class ExpertTeacher:
    """A hint distiller without a model: it notes the numbers by which the better of two plans differs."""

    name = "expert"

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        """A hint, a vote for a hint that says the same, or nothing."""
        calls = _calls(str(messages[0]["content"]))
        message = assistant("", calls) if calls else assistant("It teaches nothing.")
        return Reply(message, Usage(), TOOLS if message["tool_calls"] else END)

    async def close(self) -> None:
        """Nothing is held."""


def _calls(prompt: str) -> list[dict[str, Any]]:
    said = dict(re.findall(r"^(Target|Operators): (.*)$", prompt, re.M))
    label = re.search(r"^Diagnosis \((\w+)\)", prompt, re.M)
    target = said.get("Target", "cpu")
    diff = prompt.partition("```diff\n")[2].partition("\n```")[0]
    numbers = _changed(_plan(diff, "-"), _plan(diff, "+"), target)
    if not numbers or label is None or "nothing but errors" in prompt:
        return []
    for name, text in re.findall(r"^- \[([\w-]+)\] > (.*)$", prompt, re.M):
        if _numbers(text, target) == numbers:
            return [_call("judge_hint", {"id": name, "verdict": "helps"})]
    words = ", ".join(f"{name}={value}" for name, value in numbers.items())
    fields = {
        "trigger": sorted({label.group(1), "start"}),
        "context": {"operators": sorted({*said.get("Operators", "").split(", ")}), "targets": [target]},
        "advice": f"Of the numbers of a plan take {words}: that was faster on such operators.",
        "confidence": CONFIDENCE,
    }
    return [_call("write_hint", fields)]


def _plan(diff: str, sign: str) -> Plan | None:
    """The plan that lines of one side of a difference carry."""
    lines = [line for line in diff.splitlines() if line.startswith(sign) and "[plan: " in line]
    return next(iter(read_plans("\n".join(lines))), None)


def _changed(before: Plan | None, after: Plan | None, target: str) -> dict[str, int]:
    """The numbers of `after` that are others than before; at first, others than where the expert starts."""
    if after is None:
        return {}
    old = before or default(target)
    return {n: getattr(after, n) for n in CHOICES[target] if getattr(after, n) != getattr(old, n)}


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"expert_{name}", "name": name, "arguments": json.dumps(arguments)}
