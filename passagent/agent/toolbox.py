"""The agent's tools: what the model sees of each, and what a call does. Errors are observations."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from passagent import extend
from passagent.agent import editor, tool_specs
from passagent.agent.observe import why_unrecorded
from passagent.agent.tool_specs import Tool, ToolAnswer, schema
from passagent.agent.workspace import ToolError, Workspace, candidate_files, parsed, read_task_files
from passagent.errors import UsageError, nearest
from passagent.evaluator.result import Evaluation
from passagent.experience import knowledge
from passagent.experience.knowledge import Passage
from passagent.extend import Target
from passagent.models.types import ToolSpec
from passagent.tasks import Task

MAX_PASSAGES, MAX_PASSAGE = 2, 700
"""Passages that a search shows, and characters of each; its document can be read whole."""
MAX_DOCUMENT = 30_000
"""Characters of a document shown."""
MAX_PLANS = 4000
"""Characters of the plans that a check shows."""
MOST_PROFILES = 3
"""Profiles in an episode: each has the device for itself for seconds."""

Submit = Callable[[dict[str, str], str], Awaitable[ToolAnswer]]
"""`await submit(files, call_id)`: evaluate and store a candidate, once for a call_id; the observation, whose
data holds the `evaluation` (observe.verdict)."""

Outline = Callable[[dict[str, str]], Awaitable[Evaluation | list[str]]]
"""`await outline(files)`: a candidate's plans, each in a few lines; its evaluation if there are none."""

Limits = Callable[[dict[str, str], bool], Awaitable[str]]
"""`await limits(files, deep)`: what limits a candidate that was evaluated. Raises ToolError for others."""


CHECK_SPEC = ToolSpec(
    tool_specs.CHECK,
    f"Record your pass directory as it is now {tool_specs.RECORDS} Takes no "
    "arguments and costs no evaluation. pass_evaluator begins with the same.",
    schema({}, []),
)


def check(workspace: Workspace, outline: Outline) -> Tool:
    """Recording alone: nothing is stored, and no evaluation is used."""

    async def run(arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        return await checked(candidate_files(workspace, "check"), outline)

    return Tool(CHECK_SPEC, run)


async def checked(files: dict[str, str], outline: Outline) -> ToolAnswer:
    """Record a candidate: its plans, else what is wrong with it. The data's `is_sound` says which."""
    problems = {name: parsed(text).problem for name, text in files.items() if name.endswith(".py")}
    lines = [f"{name}: {problem}" for name, problem in problems.items() if problem]
    if lines:
        return ToolAnswer("\n".join(lines), {"is_sound": False})
    plans = await outline(files)
    if isinstance(plans, Evaluation):
        return ToolAnswer(why_unrecorded(plans, files), {"is_sound": False})
    outline_lines = ["what your pass does, in each call:", *plans] if plans else []
    text = "\n".join(["nothing is found wrong; nothing was run", *outline_lines])
    return ToolAnswer(text[:MAX_PLANS], {"is_sound": True})


EVALUATOR_SPEC = ToolSpec(
    tool_specs.EVALUATOR,
    f"Evaluate your pass directory as it is now {tool_specs.JUDGES} Takes no arguments. Returns "
    f"{tool_specs.TELLS} Evaluations are limited; what matches nothing or gives no plan uses none.",
    schema({}, []),
)


def pass_evaluator(workspace: Workspace, submit: Submit, start_as: float | None = None) -> Tool:
    """Evaluate the workspace's files; `start_as`: AS of what the episode began with, None if not correct.

    Each evaluated version is kept in the workspace, and the model learns which is best.
    """
    scores: list[float | None] = [start_as]

    def keep(answer: ToolAnswer) -> ToolAnswer:
        number, evaluation = workspace.keep(), answer.data["evaluation"]
        scores.append(evaluation["as_score"] if evaluation["status"] == "ok" else None)
        return ToolAnswer(f"{_standing(scores, number)}\n{answer.text}", answer.data)

    async def run(arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        return keep(await submit(candidate_files(workspace, "evaluate"), call_id))

    def replay(arguments: dict[str, Any], data: dict[str, Any], call_id: str) -> None:
        if not data.get("error"):
            keep(ToolAnswer("", data))

    return Tool(EVALUATOR_SPEC, run, replay)


def _standing(scores: list[float | None], last: int) -> str:
    """Compare the version `last` with the episode's others, as far as their scores are known."""
    ranks = [(score, -number) for number, score in enumerate(scores) if score is not None]
    if not ranks:
        return f"version {last} of this episode; none is correct on every graph yet"
    score, best = max(ranks)[0], -max(ranks)[1]
    if best == last:
        return f"version {last} of this episode, its best so far"
    begun = ", what you began with" if best == 0 else ""
    return (
        f"version {last} of this episode; the best is version {best}{begun} (AS {score:.4f}): "
        f"file_editor's restore takes you back to it"
    )


PROFILE_SPEC = ToolSpec(
    tool_specs.PROFILE,
    f"What limits your pass directory as it is now, which must have been evaluated: {tool_specs.LIMITS} "
    "It uses no evaluation; an episode has 3 of them.",
    schema({"deep": tool_specs.DEEP}, []),
)


def profile(workspace: Workspace, limits: Limits) -> Tool:
    """Say what limits the workspace's files, MOST_PROFILES times."""
    used = [0]

    async def run(arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        files = candidate_files(workspace, "profile")
        if used[0] >= MOST_PROFILES:
            raise ToolError(f"the {MOST_PROFILES} profiles of this episode are used")
        text = await limits(files, arguments.get("deep", False))
        used[0] += 1
        return ToolAnswer(text)

    def replay(arguments: dict[str, Any], data: dict[str, Any], call_id: str) -> None:
        used[0] += not data.get("error")

    return Tool(PROFILE_SPEC, run, replay)


KNOWLEDGE_SPEC = ToolSpec(
    tool_specs.KNOWLEDGE,
    f"Search {tool_specs.KNOWS} by keywords, or read a document by the path that a search named.",
    schema({"query": tool_specs.QUERY, "path": tool_specs.DOCUMENT}, []),
)


def search_knowledge(
    search: Callable[..., list[Passage]] = knowledge.search, read: Callable[[str], str] = knowledge.read
) -> Tool:
    """Search and read the knowledge documents: `search(query, limit=MAX_PASSAGES)` and `read(path)`."""

    async def run(arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        query, path = arguments.get("query"), arguments.get("path")
        if (query is None) == (path is None):
            raise ToolError("give either query (to search) or path (to read one of the documents found)")
        if path is not None:
            try:
                return ToolAnswer(_cut(read(path), MAX_DOCUMENT))
            except UsageError as error:
                raise ToolError(str(error)) from error
        return ToolAnswer(passages(search(query, limit=MAX_PASSAGES)))

    return Tool(KNOWLEDGE_SPEC, run)


def start_of(cursor: str | None) -> int:
    """Where an answer goes on. Raises ToolError."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
        raise ToolError(f"cursor '{cursor[:40]}': give back the cursor of an answer as it is")
    return int(cursor)


def passages(sections: list[Passage]) -> str:
    """Return what a search of the knowledge found."""
    lines = [f"[{p.path}] {p.heading}\n{_cut(p.text, MAX_PASSAGE)}" for p in sections]
    return "\n\n".join(lines) or "nothing found; try other words, or read index.md, the map of all documents"


_OURS = (editor.SPEC, CHECK_SPEC, EVALUATOR_SPEC, KNOWLEDGE_SPEC, PROFILE_SPEC)
SPECS = {spec.name: spec for spec in _OURS}
"""Our agent's tools, as a model sees them; `agent.tools` chooses."""


def spec_of(name: str) -> ToolSpec:
    """Return the schema of the tool that `agent.tools` names. Raises UsageError, see extend.load."""
    if name in SPECS:
        return SPECS[name]
    spec: ToolSpec = extend.load(name, "agent.tools").spec  # type: ignore[attr-defined]
    return spec


class Services(NamedTuple):
    """Functions of whoever runs the episode, which the tools call."""

    submit: Submit
    outline: Outline
    limits: Limits


def open_tools(
    names: Sequence[str],
    task: Task,
    files: Mapping[str, str],
    target: Target,
    services: Services,
    start_as: float | None = None,
) -> list[Tool]:
    """The tools of an episode, ours and the user's own, on a workspace that holds `files`.

    `start_as`: their AS; None if they are not correct. Raises UsageError, see extend.make.
    """
    workspace = Workspace(read_task_files(task.path), files)
    makers: dict[str, Callable[[], Tool]] = {
        tool_specs.EDITOR: partial(editor.file_editor, workspace),
        tool_specs.CHECK: partial(check, workspace, services.outline),
        tool_specs.EVALUATOR: partial(pass_evaluator, workspace, services.submit, start_as),
        tool_specs.KNOWLEDGE: partial(
            search_knowledge,
            partial(knowledge.search, operators=task.operators, target=target),
            partial(knowledge.read, target=target),
        ),
        tool_specs.PROFILE: partial(profile, workspace, services.limits),
    }
    return [makers[name]() if name in makers else _own_tool(name, workspace) for name in names]


def _own_tool(path: str, workspace: Workspace) -> Tool:
    tool = extend.make(path, "agent.tools", workspace)

    async def run(arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        return ToolAnswer(await tool.run(arguments, call_id))

    return Tool(tool.spec, run)


def check_arguments(spec: ToolSpec, arguments: Any) -> dict[str, Any]:
    """The arguments of a call, nulls left out, held against the tool's schema. Raises ToolError."""
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments of {spec.name} must be a JSON object")
    values = {key: value for key, value in arguments.items() if value is not None}
    properties = spec.parameters["properties"]
    for key, value in values.items():
        if key not in properties:
            hint = nearest(key, list(properties)) if properties else "; it takes none"
            raise ToolError(f"{spec.name} has no argument '{key[:80]}'{hint}")
        _check_value(spec.name, key, value, properties[key])
    missing = [key for key in spec.parameters["required"] if key not in values]
    if missing:
        raise ToolError(f"{spec.name}: missing argument {', '.join(missing)}")
    return values


_KINDS: dict[str, Any] = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}


def _check_value(tool: str, key: str, value: Any, schema: dict[str, Any]) -> None:
    kind = schema["type"]
    if type(value) is not _KINDS[kind]:
        raise ToolError(f"{tool}: '{key}' must be of type {kind}, not {json.dumps(value)[:60]}")
    if "enum" in schema and value not in schema["enum"]:
        raise ToolError(f"{tool}: {key} '{value[:80]}' is unknown{nearest(value[:80], schema['enum'])}")
    for item in value if kind == "array" else ():
        _check_value(tool, f"{key}[]", item, schema["items"])
    for name, item in value.items() if kind == "object" else ():
        _check_value(tool, f"{key}[{name[:80]!r}]", item, schema["additionalProperties"])


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit].rsplit("\n", 1)[0] + "\n..."
