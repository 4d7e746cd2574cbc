"""The Agent Trajectory Interchange Format, ATIF v1.8: a JSON document for each example, as harbor reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from passagent.data.export.example import Example, FileRow, Row, ToolCall, Turn, functions, provenance

VERSION = "ATIF-v1.8"
_SOURCES = {"system": "system", "user": "user", "assistant": "agent"}


def rows(example: Example) -> Iterator[FileRow]:
    """Make a document of the whole conversation; `extra.is_trained` of a step says whether it is trained."""
    trajectory = example.trajectory
    yield (
        f"{example.id.replace('/', '-')}.json",
        {
            "schema_version": VERSION,
            "session_id": trajectory.run,
            "trajectory_id": example.id,
            "agent": {
                "name": "passagent",
                "version": trajectory.passagent,
                "model_name": trajectory.model,
                "tool_definitions": functions(example),
            },
            "steps": _steps(example),
            "final_metrics": _totals(example),
            "extra": provenance(example),
        },
    )


def _steps(example: Example) -> list[Row]:
    trajectory = example.trajectory
    is_part = example.id != f"{trajectory.run}/{trajectory.episode}"
    begin = next((place for place, turn in enumerate(example.turns) if turn.is_trained), 0)
    steps: list[Row] = []
    for place, turn in enumerate(example.turns):
        if turn.role == "tool":
            results = steps[-1].setdefault("observation", {"results": []})["results"]
            results.append({"source_call_id": turn.answers, "content": turn.content})
            continue
        step: Row = {"step_id": len(steps) + 1, "source": _SOURCES[turn.role], "message": turn.content}
        if turn.at:
            step["timestamp"] = turn.at
        if is_part and place < begin:
            step["is_copied_context"] = True  # another example has it
        if turn.role == "assistant":
            step |= _reply(turn, trajectory.model)
        steps.append(step)
    return steps


def _reply(turn: Turn, model: str) -> Row:
    step: Row = {"llm_call_count": 1, "extra": {"is_trained": turn.is_trained}}
    if turn.usage and turn.usage.model and turn.usage.model != model:
        step["model_name"] = turn.usage.model
    if turn.reasoning is not None:
        step["reasoning_content"] = turn.reasoning
    if turn.calls:
        step["tool_calls"] = [_call(call) for call in turn.calls]
    if turn.usage:
        step["metrics"] = _without_none(
            prompt_tokens=turn.usage.input_tokens,
            completion_tokens=turn.usage.output_tokens,
            cached_tokens=turn.usage.cached_tokens,
            cost_usd=turn.usage.cost,
            extra=_without_none(
                cache_write_tokens=turn.usage.cache_write_tokens,
                reasoning_tokens=turn.usage.reasoning_tokens,
                latency_s=turn.usage.latency_s,
            ),
        )
    return step


def _call(call: ToolCall) -> Row:
    data: Row = {"tool_call_id": call.id, "function_name": call.name, "arguments": call.arguments}
    return data if call.raw is None else {**data, "extra": {"raw_arguments": call.raw}}


def _totals(example: Example) -> Row:
    """Sum up the replies, leaving out figures that are not known of each reply."""
    used = [turn.usage for turn in example.replies]

    def total(name: str) -> Any:
        values = [getattr(usage, name, None) for usage in used]
        return None if None in values else sum(values)

    return _without_none(
        total_prompt_tokens=total("input_tokens"),
        total_completion_tokens=total("output_tokens"),
        total_cached_tokens=total("cached_tokens"),
        total_cost_usd=total("cost"),
        total_steps=sum(turn.role != "tool" for turn in example.turns),
    )


def _without_none(**values: Any) -> Row:
    return {name: value for name, value in values.items() if value is not None}
