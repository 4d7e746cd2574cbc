"""The agent's tools: what the model is told of each, and what a call does. Errors are observations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from passagent import extend
from passagent.agent.editor import edit
from passagent.agent.observe import read_as, read_status, why_unrecorded
from passagent.agent.pending import PendingEvaluations
from passagent.agent.source import parsed
from passagent.agent.taskfiles import ToolError
from passagent.agent.tool_specs import CHECK, CODE, EDITOR, EVALUATOR, KNOWLEDGE, PROFILE, SPECS
from passagent.agent.workspace import Workspace
from passagent.errors import UsageError, nearest
from passagent.evaluator.result import MANIFEST, Evaluation
from passagent.experience import code_search, knowledge
from passagent.experience.knowledge import Passage
from passagent.extend import Target
from passagent.models.types import ToolSpec

MAX_PASSAGES, MAX_PASSAGE = 2, 700
"""Passages that a search shows, and characters of each; its document can be read whole."""
MAX_DOCUMENT = 30_000
"""Characters of a document shown."""
MAX_CODE = 6000
"""Characters of an answer of search_code; its cursor goes on."""
MAX_PLANS = 4000
"""Characters of the plans that a check shows."""
MOST_PROFILES = 3
"""Of an episode: each has the device for itself for seconds."""
SOUND = "nothing is found wrong; nothing was run"
"""How the answer of a check begins that found nothing."""

Submit = Callable[[dict[str, str], str], Awaitable[str]]
"""`await submit(files, call_id)`: evaluate and store a candidate, once for a call_id; the observation."""
Outline = Callable[[dict[str, str]], Awaitable[Evaluation | list[str]]]
"""`await outline(files)`: a candidate's plans, each in a few lines; its evaluation if there are none."""

Limits = Callable[[dict[str, str], bool], Awaitable[str]]
"""`await limits(files, deep)`: what limits a candidate that was evaluated. Raises ToolError for others."""


@dataclass(frozen=True)
class Tool:
    """A tool: its schema, and `await run(arguments, call_id)`, which may raise ToolError."""

    spec: ToolSpec
    run: Callable[[dict[str, Any], str], Awaitable[str]]
    replay: Callable[[dict[str, Any], str, str], None] | None = None
    """`replay(arguments, result, call_id)`: do to the workspace what an answered call did; a resume begins
    with it."""
    pending: PendingEvaluations | None = None
    """What its calls began and did not wait for."""


def file_editor(workspace: Workspace) -> Tool:
    """View and edit the candidate's files, confined to the workspace."""

    async def run(arguments: dict[str, Any], call_id: str) -> str:
        return edit(workspace, arguments)

    def replay(arguments: dict[str, Any], result: str, call_id: str) -> None:
        edit(workspace, arguments)

    return Tool(SPECS[EDITOR], run, replay)


def check(workspace: Workspace, outline: Outline) -> Tool:
    """Recording alone: nothing is stored, and no evaluation is used."""

    async def run(arguments: dict[str, Any], call_id: str) -> str:
        return await checked(candidate_files(workspace, "check"), outline)

    return Tool(SPECS[CHECK], run)


async def checked(files: dict[str, str], outline: Outline) -> str:
    """What recording a candidate tells: what is wrong with it, else its plans."""
    problems = {name: parsed(text).problem for name, text in files.items() if name.endswith(".py")}
    lines = [f"{name}: {problem}" for name, problem in problems.items() if problem]
    if lines:
        return "\n".join(lines)
    found = await outline(files)
    if isinstance(found, list):
        plans = ["what your pass does, in each call:", *found] if found else []
        return "\n".join([SOUND, *plans])[:MAX_PLANS]
    return why_unrecorded(found, files)


def candidate_files(workspace: Workspace, verb: str) -> dict[str, str]:
    """The workspace's files. Raises ToolError if they are no candidate yet."""
    files = workspace.files()
    if MANIFEST not in files:
        raise ToolError(f'nothing to {verb} yet: create your pass and {MANIFEST}, such as ["FusedAddRelu"]')
    if not any(name.endswith(".py") for name in files):
        raise ToolError(f"nothing to {verb} yet: there is no .py file; create your pass with file_editor")
    return files


def pass_evaluator(workspace: Workspace, submit: Submit, start_as: float | None = None) -> Tool:
    """Evaluate the workspace's files; `start_as`: AS of what the episode began with, None if not correct.

    Each evaluated version is kept in the workspace, and the model is told which is best.
    """
    scores: list[float | None] = [start_as]
    versions: dict[str, int] = {}

    def keep(call_id: str) -> int:
        versions[call_id] = workspace.keep()
        scores.append(None)
        return versions[call_id]

    def word(call_id: str, text: str) -> str:
        number = versions[call_id]
        scores[number] = read_as(text) if read_status(text) == "ok" else None
        return f"{_standing(scores, number)}\n{text}"

    pending = PendingEvaluations(word)

    async def run(arguments: dict[str, Any], call_id: str) -> str:
        files = candidate_files(workspace, "evaluate")
        await pending.room()
        if arguments.get("wait", True):
            text = await submit(files, call_id)
            keep(call_id)
            return word(call_id, text)
        number = keep(call_id)
        pending.start(call_id, submit(files, call_id))
        await asyncio.sleep(0)  # it is stored as proposed, before the reply's next call
        return f"version {number} is being evaluated; its result is shown when it is there"

    def replay(arguments: dict[str, Any], result: str, call_id: str) -> None:
        if result.startswith("error:"):
            return
        keep(call_id)
        if read_status(result) is not None:
            word(call_id, result)
        else:  # its result was not told: the files are as they were at the call
            pending.start(call_id, submit(workspace.files(), call_id))

    return Tool(SPECS[EVALUATOR], run, replay, pending)


def _standing(scores: list[float | None], last: int) -> str:
    """How the version `last` compares with the episode's others, as far as they are known."""
    known = [(score, -number) for number, score in enumerate(scores) if score is not None]
    if not known:
        return f"version {last} of this episode; none is correct on every graph yet"
    score, best = max(known)[0], -max(known)[1]
    if best == last:
        return f"version {last} of this episode, its best so far"
    begun = ", what you began with" if best == 0 else ""
    return (
        f"version {last} of this episode; the best is version {best}{begun} (AS {score:.4f}): "
        f"file_editor's restore takes you back to it"
    )


def profile(workspace: Workspace, limits: Limits) -> Tool:
    """Say what limits the workspace's files, MOST_PROFILES times."""
    used = [0]

    async def run(arguments: dict[str, Any], call_id: str) -> str:
        files = candidate_files(workspace, "profile")
        if used[0] >= MOST_PROFILES:
            raise ToolError(f"the {MOST_PROFILES} profiles of this episode are used")
        text = await limits(files, arguments.get("deep", False))
        used[0] += 1
        return text

    def replay(arguments: dict[str, Any], result: str, call_id: str) -> None:
        used[0] += 1

    return Tool(SPECS[PROFILE], run, replay)


def search_knowledge(
    search: Callable[..., list[Passage]] = knowledge.search, read: Callable[[str], str] = knowledge.read
) -> Tool:
    """Search and read the knowledge documents: `search(query, limit=MAX_PASSAGES)` and `read(path)`."""

    async def run(arguments: dict[str, Any], call_id: str) -> str:
        query, path = arguments.get("query"), arguments.get("path")
        if (query is None) == (path is None):
            raise ToolError("give either query (to search) or path (to read one of the documents found)")
        if path is not None:
            try:
                return _cut(read(path), MAX_DOCUMENT)
            except UsageError as error:
                raise ToolError(str(error)) from error
        return passages(search(query, limit=MAX_PASSAGES))

    return Tool(SPECS[KNOWLEDGE], run)


def search_code(target: Target | None = None) -> Tool:
    """Search the code that a pass can learn from, as far as a target admits it."""

    async def run(arguments: dict[str, Any], call_id: str) -> str:
        start = start_of(arguments.get("cursor"))
        rest = (await found_code(target, arguments["query"], arguments.get("kind")))[start:]
        shown = _cut(rest, MAX_CODE).removesuffix("...")
        more = f"... cursor: {start + len(shown)}" if len(shown) < len(rest) else ""
        return shown + more

    return Tool(SPECS[CODE], run)


async def found_code(target: Target | None, query: str, kind: Any = None) -> str:
    """All that a search of the code finds. Raises ToolError for what cannot be looked for."""
    try:
        return await code_search.search(query, kind or "string", target)
    except UsageError as error:
        raise ToolError(f"{CODE}: {error}") from error


def start_of(cursor: str | None) -> int:
    """Where an answer goes on. Raises ToolError."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
        raise ToolError(f"cursor '{cursor[:40]}': give back the cursor of an answer as it is")
    return int(cursor)


def passages(found: list[Passage]) -> str:
    """What a search of the knowledge found."""
    lines = [f"[{p.path}] {p.heading}\n{_cut(p.text, MAX_PASSAGE)}" for p in found]
    return "\n\n".join(lines) or "nothing found; try other words, or read index.md, the map of all documents"


def spec_of(name: str) -> ToolSpec:
    """What a model is told of the tool that `agent.tools` names. Raises UsageError, see extend.load."""
    if name in SPECS:
        return SPECS[name]
    spec: ToolSpec = extend.load(name, "agent.tools").spec  # type: ignore[attr-defined]
    return spec


def own_tool(path: str, workspace: Workspace) -> Tool:
    """A tool of the user's own. Raises UsageError, see extend.make."""
    made = extend.make(path, "agent.tools", workspace)
    return Tool(made.spec, made.run)


def check_arguments(spec: ToolSpec, arguments: Any) -> dict[str, Any]:
    """The arguments of a call, nulls left out, held against the tool's schema. Raises ToolError."""
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments of {spec.name} must be a JSON object")
    given = {key: value for key, value in arguments.items() if value is not None}
    properties = spec.parameters["properties"]
    for key, value in given.items():
        if key not in properties:
            known = nearest(key, list(properties)) if properties else "; it takes none"
            raise ToolError(f"{spec.name} has no argument '{key[:80]}'{known}")
        _check_value(spec.name, key, value, properties[key])
    missing = [key for key in spec.parameters["required"] if key not in given]
    if missing:
        raise ToolError(f"{spec.name}: missing argument {', '.join(missing)}")
    return given


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
