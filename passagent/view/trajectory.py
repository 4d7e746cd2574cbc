"""Conversations for people: an episode's, what an export of them wrote, and one row of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from passagent.data.export.writing import Summary
from passagent.store.trajectories import Trajectory, Turn
from passagent.view.text import counted, number, printable

HEAD = 12
"""Lines shown of the system and the task message."""
MAX_LINES = 60
"""Lines shown of any other text."""


def print_trajectory(trajectory: Trajectory, console: Console) -> None:
    """Print the episode; long texts are cut, `--json` has them whole."""
    begun = "the task itself" if trajectory.parent is None else f"node {trajectory.parent}"
    score = f" (AS {number(trajectory.parent_as, 4)})" if trajectory.parent_as is not None else ""
    end = "still running" if trajectory.state == "running" else f"ended: {trajectory.end_reason}"
    best = "no correct node"
    if trajectory.best_node is not None:
        best = f"best node {trajectory.best_node}, AS {number(trajectory.best_as, 4)}"
    for line in (
        f"run {trajectory.run}, episode {trajectory.episode}: {trajectory.task}, {trajectory.model}, "
        f"{trajectory.device}",
        f"island {trajectory.island} ({trajectory.role}), seed {trajectory.seed}, from {begun}{score}",
        f"{trajectory.steps} steps, {trajectory.input_tokens} tokens in, {trajectory.output_tokens} out; "
        f"{len(trajectory.nodes)} nodes, {best}; {end}",
    ):
        console.print(plain(line))
    nodes_by_call = {node.call_id: node for node in trajectory.nodes}
    for position, turn in enumerate(trajectory.messages, 1):
        message = turn.message
        is_opening = position <= 2 and message["role"] != "assistant"
        style = "dim" if message["role"] == "tool" else ""
        _rule(console, f"{position} {_title(turn)}")
        _cut_text(console, message["content"], HEAD if is_opening else MAX_LINES, style)
        for call in message.get("tool_calls", ()):
            console.print(_call(call))
        if node := nodes_by_call.get(message.get("tool_call_id", "")):
            score = "" if node.as_score is None else f", AS {number(node.as_score, 4)}"
            best = " (the episode's best)" if node.node == trajectory.best_node else ""
            verdict = f"=> node {node.node}: {node.status or node.state}{score}{best}"
            console.print(plain(verdict, "bold"))


def _rule(console: Console, title: str) -> None:
    console.print(Rule(plain(title, "bold"), align="left", style="dim"))


def _cut_text(console: Console, text: str, limit: int, style: str = "") -> None:
    if text.strip():
        console.print(cut(text.strip(), limit), style=style)


def _title(turn: Turn) -> str:
    message, usage = turn.message, turn.usage
    if message["role"] == "tool":
        return f"result of {message['name']}"
    if usage is None:
        return str(message["role"])
    counted = [
        f"{value} {name}"
        for value, name in (
            (usage.input_tokens, "in"),
            (usage.cached_tokens, "cached"),
            (usage.output_tokens, "out"),
        )
        if value
    ]
    counted += [f"${usage.cost:.4f}"] if usage.cost is not None else []
    counted += [f"{usage.latency_s:.1f} s"] if usage.latency_s is not None else []
    stop = ", cut off" if message.get("stop_reason") == "length" else ""
    return "reply" + (f" ({', '.join(counted)})" if counted else "") + stop


def arguments_of(call: dict[str, str]) -> dict[str, Any] | None:
    """Return the arguments of a tool call; None where they are no JSON object."""
    try:
        arguments = json.loads(call["arguments"] or "{}")
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _call(call: dict[str, str]) -> Text:
    """Write a call's name and arguments, long ones below it as they are."""
    arguments = arguments_of(call)
    if arguments is None:
        return plain(f"-> {call['name']}: {call['arguments'][:400]}")
    short = {key: value for key, value in arguments.items() if "\n" not in str(value)}
    text = plain(f"-> {call['name']} " + " ".join(f"{key}={_value(value)}" for key, value in short.items()))
    for key in arguments.keys() - short.keys():
        text.append("\n").append(plain(f"   {key}:\n", "dim"))
        text.append(cut("\n".join(f"   | {line}" for line in str(arguments[key]).split("\n")), MAX_LINES))
    return text


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."


def cut(text: str, limit: int) -> Text:
    """The first `limit` lines, and how many more there are."""
    lines = text.split("\n")
    more = f"\n... {len(lines) - limit} more lines" if len(lines) > limit else ""
    return plain("\n".join(lines[:limit]) + more)


def plain(text: str, style: str = "") -> Text:
    """Text as it is: no markup, and nothing that a terminal would obey."""
    return Text(printable(text), style)


def summary_text(out: str, summary: Summary) -> str:
    """Sum up what an export wrote."""
    files = ", ".join(f"{name} ({rows})" for name, rows in sorted(summary.files.items()))
    return (
        f"{out}: {counted(summary.examples, 'example')}, {counted(summary.rows, 'row')} of "
        f"{counted(len(summary.counts['task']), 'task')}: {files}\n"
        f"trained: {summary.trained} of {counted(summary.replies, 'reply')}; more in {out}/README.md"
    )


def print_row(origin: dict[str, Any], row: dict[str, Any], console: Console) -> None:
    """Print where the row comes from, and all that it holds; long texts are cut, `--json` has them whole."""
    score = number(origin["as_score"], 4)
    console.print(
        plain(f"{origin['id']}: {origin['task']}, {origin['model']}, {origin['device']}, AS {score}")
    )
    console.print(plain(f"{origin['file']}:{origin['line']}, {origin['tokens']} tokens"))
    for path, value in _leaves(row, ""):
        if isinstance(value, str) and ("\n" in value or len(value) > 80):
            _rule(console, path)
            _cut_text(console, value, MAX_LINES)
        else:
            console.print(plain(f"{path}: {json.dumps(value, ensure_ascii=False)}"))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield what the row holds, each with where it is, such as `messages.0.content`."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not pairs:
        yield path, value
    for key, item in pairs:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))
