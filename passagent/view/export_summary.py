"""An export for people: what was written, what one holds, and one row of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.rule import Rule

from passagent.data.export.writing import Summary, percentiles
from passagent.view.text import counted, number, printable, table
from passagent.view.trajectory import HEAD, MAX_LINES, cut, plain

_LISTS = ("messages", "prompt", "completion", "chosen", "rejected", "conversations", "steps")
"""Where the formats have their messages."""
_ROLES = ("role", "from", "source")
_TEXTS = ("content", "value", "message")


def summary_text(out: str, summary: Summary) -> str:
    """What an export wrote."""
    files = ", ".join(f"{name} ({rows})" for name, rows in sorted(summary.files.items()))
    lines = [
        f"{out}: {counted(summary.examples, 'example')}, {counted(summary.rows, 'row')} of "
        f"{counted(summary.tasks, 'task')}: {files}",
        f"trained: {summary.trained} of {counted(summary.replies, 'reply')}",
    ]
    if summary.without_reasoning:
        lines.append(
            f"no reasoning text is known for {summary.without_reasoning} of these: "
            "choose a chat template that does not write an empty thought for them"
        )
    cut = [f"{count} at {int(most):,}" for most, count in summary.cut.items() if count]
    lines.append(
        f"tokens ({summary.counted_by}): "
        + ", ".join(f"{name} {count}" for name, count in summary.tokens.items())
        + (f"; longer than a context: {', '.join(cut)}" if cut else "")
    )
    return "\n".join(lines)


def stats_text(directory: str, manifest: dict[str, Any], rows: Iterable[dict[str, Any]]) -> str:
    """What an export holds: by model, and by task."""
    known = {row["id"]: row for row in rows}
    lines = [
        f"{directory}: {counted(manifest['examples'], 'example')}, {counted(manifest['rows'], 'row')}, "
        f"format {manifest['format']}",
        f"made with: {manifest['command']}",
        "",
    ]
    for name in ("model", "task"):
        groups = dict[str, list[dict[str, Any]]]()
        for row in known.values():
            groups.setdefault(row[name], []).append(row)
        shown = [[key, *_figures(group)] for key, group in sorted(groups.items())]
        lines += [
            table([name, ">examples", ">best AS", ">median AS", ">median steps", ">median tokens"], shown),
            "",
        ]
    ends = Counter(row["status"] or "without a candidate" for row in known.values())
    lines.append("status: " + ", ".join(f"{count} {name}" for name, count in ends.most_common()))
    return "\n".join(lines)


def _figures(group: list[dict[str, Any]]) -> list[str]:
    scores = sorted(row["as_score"] for row in group if row["as_score"] is not None)
    tokens = [row["tokens"] for row in group if row["tokens"] is not None]
    return [
        str(len(group)),
        number(scores[-1] if scores else None),
        number(scores[len(scores) // 2] if scores else None),
        str(percentiles([row["steps"] for row in group])["50%"]),
        str(percentiles(tokens)["50%"]) if tokens else "-",
    ]


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
