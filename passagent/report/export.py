"""An export for people: what was written, and what one holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from passagent.dataset.lengths import percentiles
from passagent.dataset.writing import Summary
from passagent.report.text import counted, number, table


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
