"""The hint distiller: a model says what a gain taught, as a hint for later episodes (Kernel Foundry 3.4).

It sees what was changed and what followed; its reply counts only as far as it is a valid Hint that applies
to the very task it comes from.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from passagent.agent.context import JudgedNode, diagnosis_of, unified
from passagent.agent.prompt import render
from passagent.agent.tokens import cut_end
from passagent.config import Config
from passagent.evaluator.result import GraphResult
from passagent.experience.diagnosis import LABELS, Diagnosis
from passagent.experience.hints import MAX_ADVICE, LearnedHint, Situation, fitness
from passagent.extend import Model
from passagent.models import open_model, role_config
from passagent.models.types import Message, Reply, ToolSpec
from passagent.tasks import Task

AGAIN = "That was no answer: {reason}. Call `{name}` once."
Save = Callable[[Reply, LearnedHint | None], None]
"""Called with each reply, and the hint once there is one; returns when both are safe."""
ROLE = "hint_distiller"
"""The role of its calls in the ledger."""
MAX_DIFF = 8_000
"""Tokens of the difference that are shown; and of the subgraphs' speedups: MAX_SPEEDUPS."""
MAX_SPEEDUPS = 1_000
AROUND = 20
"""Unchanged lines shown around a change."""
_WRITTEN, _SCHEMA = ("trigger", "context", "advice", "confidence"), LearnedHint.model_json_schema()
"""The fields of a hint that the model writes, and the hint's schema."""
TOOL = ToolSpec(
    "write_hint",
    "Write down what the episode taught.",
    _SCHEMA
    | {"properties": {name: _SCHEMA["properties"][name] for name in _WRITTEN}, "required": [*_WRITTEN]},
)


@dataclass(frozen=True)
class Improvement:
    """An episode that ended with progress."""

    task: Task
    target: str
    """`cpu` or `cuda`."""
    before: JudgedNode | None
    """Its parent; None: the task itself."""
    after: JudgedNode
    """Its best candidate."""

    @property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis of its start."""
        return diagnosis_of(self.before.node if self.before else None)

    @property
    def dtypes(self) -> list[str]:
        """The dtypes of the task's subgraphs, each once."""
        return sorted({subgraph.dtype for subgraph in self.task.subgraphs})


def open_distiller(config: Config) -> Model | None:
    """Return the model to ask, None if `roles.hint_distiller` names none. Raises UsageError."""
    return open_model(role_config(config, ROLE)) if config.roles.hint_distiller else None


async def ask(
    model: Model, improvement: Improvement, save: Save = lambda reply, hint: None
) -> LearnedHint | None:
    """Return the model's hint; None after a second malformed reply. Raises what the model raises."""
    messages: list[Message] = [{"role": "user", "content": prompt(improvement)}]
    reply = await model.complete(messages, [TOOL])
    hint = None
    try:
        hint = read(improvement, reply.message)
    except ValueError as error:
        save(reply, None)
        text = AGAIN.format(reason=error, name=TOOL.name)
        results = [
            {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": text}
            for call in reply.message["tool_calls"]
        ]
        messages += [reply.message, *(results or [{"role": "user", "content": text}])]
        reply = await model.complete(messages, [TOOL])
        with suppress(ValueError):
            hint = read(improvement, reply.message)
    save(reply, hint)
    return hint


def prompt(improvement: Improvement) -> str:
    """Compose what the model is shown."""
    before = improvement.before.evaluation if improvement.before else None
    files, after = improvement.before.files if improvement.before else {}, improvement.after
    difference = "\n".join(unified(files, after.files, ("before", "after"), AROUND))
    was = {graph.name: _outcome(graph) for graph in before.graphs} if before else {}
    missing = before.status if before else "1.00x"  # what eager itself is against eager
    speedups = "\n".join(
        f"- {graph.name} ({graph.dtype}): {was.get(graph.name, missing)} -> {_outcome(graph)}"
        for graph in after.evaluation.graphs
    )
    return render(
        "distiller.j2",
        improvement=improvement,
        before=before,
        after=after.evaluation,
        difference=cut_end(difference, MAX_DIFF, ""),
        speedups=cut_end(speedups, MAX_SPEEDUPS, ""),
        labels=LABELS,
        tool=TOOL.name,
        max_advice=MAX_ADVICE,
    )


def read(improvement: Improvement, message: Message) -> LearnedHint:
    """Read the hint of a reply, from its tool call or else its text. Raises ValueError with what is wrong."""
    run_id, number = improvement.after.node.run_id, improvement.after.node.number
    origin = {"id": f"run-{run_id}-episode-{number}", "source": f"run {run_id}, episode {number}"}
    hint = _hint(_arguments(message) | origin)
    operators, dtypes = frozenset(improvement.task.operators), frozenset(improvement.dtypes)
    if not fitness(hint, Situation(hint.trigger[0], operators, improvement.target, dtypes)):
        raise ValueError("context: it leaves out the very task that the hint comes from")
    return hint


def _arguments(message: Message) -> dict[str, Any]:
    """The arguments of the first call of TOOL, else the JSON in the text. Raises ValueError."""
    content = message["content"]  # a model may wrap its JSON
    braced = content[content.find("{") : content.rfind("}") + 1]
    calls = [call["arguments"] for call in message["tool_calls"] if call["name"] == TOOL.name]
    try:
        arguments = json.loads(calls[0] if calls else braced)
    except ValueError:
        raise ValueError("it holds no valid JSON object") from None
    if not isinstance(arguments, dict):
        raise ValueError("it holds no JSON object")
    return arguments


def _hint(values: dict[str, Any]) -> LearnedHint:
    try:
        return LearnedHint.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        text = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {text}") from None


def _outcome(graph: GraphResult) -> str:
    return f"{graph.speedup.e2e:.2f}x" if graph.speedup else graph.status
