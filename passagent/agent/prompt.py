"""The two messages an episode begins with, composed from `prompts/*.j2` (a user's directory overrides)."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined

from passagent import resources
from passagent.agent.context import EpisodeContext
from passagent.agent.hardware import figures
from passagent.agent.taskview import view_task
from passagent.errors import UsageError, nearest
from passagent.evaluator.result import MANIFEST
from passagent.models.types import Message

MAX_FILES = 24_000
"""Characters of the parent's files shown; the rest is in the workspace."""
MAX_OBSERVATION = 6_000


def compose(context: EpisodeContext) -> list[Message]:
    """`[system message, user message]` of an episode.

    The user message ends with three lines that any model may read: `Task directory: `, `Target: ` and
    `Episode seed: `. Raises UsageError for a role without a prompt.
    """
    if context.role not in roles():
        raise UsageError(f"search.roles: no prompt for role '{context.role}'{nearest(context.role, roles())}")
    environment = Environment(
        loader=FunctionLoader(_template),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    values = {
        "context": context,
        "task": context.task,
        "target": context.target,
        "view": view_task(context.task),
        "hardware": figures(context.target, context.device_name),
        "parent_files": shown_files(context.parent.files) if context.parent else {},
        "parent_observation": _cut(context.parent.observation) if context.parent else "",
        "manifest": MANIFEST,
        "short_note": short_note,
    }
    return [
        {"role": "system", "content": environment.get_template("system.j2").render(values).strip()},
        {"role": "user", "content": environment.get_template("task.j2").render(values).strip()},
    ]


def roles() -> list[str]:
    """Roles that have a prompt."""
    return [Path(name).stem for name, _ in resources.glob("prompts/roles/*.j2")]


def prompts_hash() -> str:
    """sha256 over every prompt file, overrides applied: which wording a node was made with."""
    texts = [(name, path.read_text(encoding="utf-8")) for name, path in resources.glob("prompts/**/*")]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def note_of(files: dict[str, str]) -> str:
    """A candidate's note: the first line of its first listed pass's docstring; empty where there is none."""
    try:
        names = json.loads(files.get(MANIFEST, "[]"))
        tree = ast.parse(files.get(f"{names[0]}.py", ""))
    except (ValueError, SyntaxError, IndexError, KeyError, TypeError, RecursionError, MemoryError):
        return ""
    return (ast.get_docstring(tree) or "").strip().partition("\n")[0]


def short_note(note: str, limit: int = 140) -> str:
    """A note without a program's plan (`[plan: {...}]`), cut to `limit` characters."""
    text = re.sub(r"\s*\[plan:.*", "", note)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def shown_files(files: dict[str, str]) -> dict[str, str]:
    """The files that fit into MAX_FILES characters, the manifest and short ones first, the others cut."""
    shown, left = {}, MAX_FILES
    for name in sorted(files, key=lambda name: (name != MANIFEST, len(files[name]), name)):
        text = files[name]
        if len(text) > left:
            text = text[: max(0, left)] + "\n... cut; view the file for the rest"
        left -= len(text)
        shown[name] = text
    return dict(sorted(shown.items()))


def _template(name: str) -> str:
    return resources.find(f"prompts/{name}").read_text(encoding="utf-8")


def _cut(text: str) -> str:
    half = MAX_OBSERVATION // 2
    return text if len(text) <= MAX_OBSERVATION else f"{text[:half]}\n... cut ...\n{text[-half:]}"
