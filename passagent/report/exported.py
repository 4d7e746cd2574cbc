"""A row of an export for people, whichever format it has: its messages as they lie there."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.rule import Rule

from passagent.report.text import number, printable
from passagent.report.trajectory import HEAD, MAX_LINES, cut, plain

_LISTS = ("messages", "prompt", "completion", "chosen", "rejected", "conversations", "steps")
"""Where the formats have their messages."""
_ROLES = ("role", "from", "source")
_TEXTS = ("content", "value", "message")


def print_row(origin: dict[str, Any], row: dict[str, Any], console: Console) -> None:
    """Print where the row comes from, and its messages; long texts are cut, `--json` has them whole."""
    score = number(origin["as_score"], 4)
    console.print(
        plain(f"{origin['id']}: {origin['task']}, {origin['model']}, {origin['device']}, AS {score}")
    )
    console.print(plain(f"{origin['file']}:{origin['line']}, {origin['tokens']} tokens"))
    for name in _LISTS:
        found = row.get(name)
        for place, message in enumerate(found if isinstance(found, list) else [], 1):
            _print_message(
                name, place, message.get("message", message) if name == "messages" else message, console
            )


def _print_message(name: str, place: int, message: dict[str, Any], console: Console) -> None:
    role = next((str(message[key]) for key in _ROLES if key in message), "?")
    is_trained = message.get("weight", message.get("train", 1))
    trained = "" if is_trained else ", not trained"
    console.print(Rule(plain(f"{name} {place}: {role}{trained}", "bold"), align="left", style="dim"))
    text = next((message[key] for key in _TEXTS if isinstance(message.get(key), str)), "")
    if thought := message.get("reasoning_content"):
        console.print(cut(f"(thinks) {thought}", MAX_LINES), style="dim")
    if text.strip():
        console.print(cut(printable(text), HEAD if role in ("system", "user") else MAX_LINES))
    for call in message.get("tool_calls") or []:
        console.print(plain("-> " + json.dumps(call, ensure_ascii=False)))
