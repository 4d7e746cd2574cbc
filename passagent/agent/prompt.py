"""The two messages an episode begins with, composed from `prompts/*.j2` (a user's directory overrides)."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from passagent.agent.context import Attempt, EpisodeContext, diagnosis_of
from passagent.agent.observe import observation, verdict
from passagent.agent.taskview import figures, view_task
from passagent.agent.tokens import cut_end, cut_middle, fit, tokens
from passagent.agent.toolbox import spec_of
from passagent.agent.workspace import parsed
from passagent.errors import UsageError, nearest
from passagent.evaluator.result import MANIFEST
from passagent.models.types import Message, ToolSpec
from passagent.store import SEEDS
from passagent.tasks import resources

TOKENS = {
    "task": 12_000, "parent": 8_000, "evaluation": 2_000, "attempts": 1_000, "hints": 1_500,
    "knowledge": 1_500, "past": 2_000,
}  # fmt: skip
"""Estimated tokens that each part of the first message may take; of `past` each file of a similar task."""


def compose(
    context: EpisodeContext, served: Sequence[ToolSpec] = (), most: Mapping[str, int] = TOKENS
) -> list[Message]:
    """`[system message, user message]` of an episode; the system message names the `tools` offered.

    `served`: the tools of a client that keeps its files itself, in place of the episode's own.

    The user message ends with three lines that any model may read: `Task directory: `, `Target: ` and
    `Episode seed: `. Each part takes at most so many tokens, and says what it leaves out.
    Raises UsageError for a role without a prompt.
    """
    check_role(context.role)
    parent = context.parent
    observed = observation(parent.evaluation, files=parent.files) if parent else ""
    newest = fit(context.attempts[::-1], attempt_line, most["attempts"])
    hints = context.hints[: fit(context.hints, lambda hint: hint.id + hint.advice, most["hints"])]
    passages = context.knowledge[: fit(context.knowledge, lambda passage: passage.text, most["knowledge"])]
    specs = served or [spec_of(name) for name in context.limits.tools]
    values = {
        **_task_values(context, bool(served), most["task"]),
        "context": context,
        "target": context.target.name,
        "works": context.target,
        "tools": [spec.name for spec in specs],
        "is_seed": parent is not None and parent.node.island == SEEDS,
        "parent_files": shown_files(parent.files, most["parent"]) if parent else {},
        "parent_diagnosis": diagnosis_of(parent.node).text if parent else "",
        "parent_observation": cut_middle(observed, most["evaluation"]),
        "attempts": [attempt_line(attempt) for attempt in context.attempts[len(context.attempts) - newest :]],
        "more_attempts": context.more_attempts + len(context.attempts) - newest,
        "hints": hints,
        "more_hints": len(context.hints) - len(hints),
        "passages": passages,
        "more_passages": len(context.knowledge) - len(passages),
        "past": [(match, shown_files(match.exemplar.files, most["past"])) for match in context.past],
        "manifest": MANIFEST,
    }
    offered = [asdict(spec) for spec in specs]
    return [
        {"role": "system", "content": render("system.j2", **values), "tools": offered},
        {"role": "user", "content": render("task.j2", **values), "data": task_data(context)},
    ]


def task_data(context: EpisodeContext) -> dict[str, Any]:
    """Return what a program reads of a task message, such as the expert, which needs no words.

    `task`: the task's directory; `parent` and each of `attempts`: its verdict (observe.verdict, of an attempt
    `status` and `as_score` alone) and its `note`.
    """
    parent = context.parent
    return {
        "task": str(context.task.path),
        "target": context.target.name,
        "seed": context.seed,
        "role": context.role,
        "parent": verdict(parent.evaluation) | {"note": note_of(parent.files)} if parent else None,
        "attempts": [
            {"status": node.status or "", "as_score": node.as_score, "note": node.note}
            for node, _, _ in context.attempts
        ],
    }


def task_text(context: EpisodeContext) -> str:
    """The task alone, for a client that is served: hardware, graphs, shapes, eager's times."""
    return render("task_view.j2", **_task_values(context, True, TOKENS["task"]))


def _task_values(context: EpisodeContext, is_served: bool, most: int) -> dict[str, Any]:
    """Return what task_view.j2 shows."""
    device = context.target.name, context.device_name, context.machine, context.threads
    return {
        "is_served": is_served,
        "task": context.task,
        "view": view_task(context.task, most, context.eager),
        "hardware": figures(*device) if context.device_name else (),
    }


def roles() -> list[str]:
    """Roles that have a prompt."""
    return [Path(name).stem for name, _ in resources.glob("prompts/roles/*.j2")]


def check_role(role: str) -> None:
    """Raise UsageError for a role that has no prompt."""
    if role not in roles():
        raise UsageError(f"search.roles: no prompt for role '{role}'{nearest(role, roles())}")


def prompts_hash() -> str:
    """sha256 over every prompt file, overrides applied: which wording a node was made with."""
    texts = [(name, path.read_text(encoding="utf-8")) for name, path in resources.glob("prompts/**/*")]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def note_of(files: dict[str, str]) -> str:
    """A candidate's note: the first line of its first listed pass's docstring; empty where there is none."""
    try:
        names = json.loads(files.get(MANIFEST, "[]"))
        text = files.get(f"{names[0]}.py", "")
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        return ""
    return parsed(text).docstring.strip().partition("\n")[0]


def plain_note(note: str) -> str:
    """A note without a program's plan (`[plan: {...}]`)."""
    return re.sub(r"\s*\[plan:.*", "", note)


@functools.lru_cache(maxsize=1024)
def short_note(note: str, limit: int = 140) -> str:
    """A plain note, cut to `limit` characters."""
    text = plain_note(note)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def attempt_line(attempt: Attempt) -> str:
    """`node 7 (from node 3: Fused.py +12 -3): ok, AS 1.2000: Tiles the rows.`, or with why it failed."""
    node = attempt.node
    made_from = "the task" if node.parent_id is None else f"node {node.parent_id}"
    changed = f": {attempt.changed}" if attempt.changed else ""
    score = "none" if node.as_score is None else f"{node.as_score:.4f}"
    note = f": {short_note(node.note)}" if short_note(node.note) else ""
    failure = f"; failed: {attempt.failure}" if attempt.failure else ""
    return f"node {node.id} (from {made_from}{changed}): {node.status or ''}, AS {score}{note}{failure}"


def shown_files(files: dict[str, str], budget: int) -> dict[str, str]:
    """Cut the files to `budget` tokens, the manifest and short ones first."""
    cut_files = {}
    for name in sorted(files, key=lambda name: (name != MANIFEST, len(files[name]), name)):
        cut_files[name] = cut_end(files[name], max(0, budget), "; view the file for the rest")
        budget -= tokens(cut_files[name])
    return dict(sorted(cut_files.items()))


def render(name: str, **values: Any) -> str:
    """Fill in the template `prompts/NAME`."""
    return _environment(resources.roots()).get_template(name).render(values).strip()


@functools.lru_cache(maxsize=4)
def _environment(roots: tuple[Path, ...]) -> Environment:
    """The templates under `roots`, each compiled once and again when its file has changed."""
    return Environment(
        loader=FileSystemLoader([root / "prompts" for root in roots]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
