"""The expert: a model without a model. It lowers a task's fusible regions to kernels and tunes them.

Like any model it answers messages with tool calls. What it answers is a function of the messages (and of the
task on disk that they name), so an episode can be resumed and replayed.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import itertools
import json
import threading
from dataclasses import dataclass, field, replace
from typing import Any

from passagent.config import ModelConfig
from passagent.errors import PassagentError
from passagent.expert.choices import Plan, neighbours, read_plans, safer, start
from passagent.models.types import END, TOOLS, Message, Reply, ToolSpec, Usage, assistant

_parsing = threading.Lock()
EVALUATIONS = 2
"""Candidates in an episode, at most: the second one repairs the first."""
GAINS = 1.1
"""AS from which on a pass keeps its regions: an operator left to eager costs more than a number gains."""
INEXACT = "inexact"
"""A correct evaluation, but what passes only at a looser tolerance than t = -5 costs much of the AS."""


@dataclass
class Episode:
    """The content of the messages so far."""

    task: str
    target: str
    seed: int
    role: str
    parent: Plan | None
    parent_status: str
    best_as: float
    """The best AS of parent and earlier attempts; 0 where there are none."""
    tried: set[Plan]
    """Plans of the parent, of earlier attempts and of this episode."""
    outcomes: list[tuple[Plan, str, float | None]] = field(default_factory=list)
    """This episode's evaluated plans: (plan, status, AS)."""


class ExpertModel:
    """The expert as a model. Raises PassagentError if the messages do not name a task."""

    def __init__(self, config: ModelConfig | None = None) -> None:
        self.name = "expert"
        parse_in_turn()

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        """Write a candidate and have it evaluated; mutate it by what came out; then say what was done."""
        message = await asyncio.to_thread(answer, messages)
        return Reply(message, Usage(), TOOLS if message["tool_calls"] else END)

    async def close(self) -> None:
        """Nothing is held."""


def parse_in_turn() -> None:
    """Have threads of this process parse Python one at a time: the expert, the search, torch and `inspect`.

    Before 3.11.8 two at a time may end with `SystemError: AST constructor recursion depth mismatch`.
    """

    @functools.wraps(ast.parse)
    def parse(*args: Any, **more: Any) -> Any:
        with _parsing:
            return parse.__wrapped__(*args, **more)

    if not hasattr(ast.parse, "__wrapped__"):
        ast.parse = parse


def answer(messages: list[Message]) -> Message:
    """The expert's next message."""
    episode = read(messages)
    if len(episode.outcomes) >= EVALUATIONS or (episode.outcomes and episode.outcomes[-1][1] == "ok"):
        return assistant(_summary(episode))
    while (plan := choose(episode)) is not None:
        files, authored = candidate(episode.task, episode.target, plan)
        if files:
            return _calls(authored, plan, episode.target, len(messages))
        episode.tried.add(plan)
    return assistant(_summary(episode, exhausted=True))


def read(messages: list[Message]) -> Episode:
    """The episode as the messages' data tell it. Raises PassagentError without a task directory."""
    data: dict[str, Any] = next((m["data"] for m in messages if m["role"] == "user" and "data" in m), {})
    if "task" not in data:
        raise PassagentError("expert: the message names no task (the key `task` of its data)")
    parent, attempts = data["parent"] or {}, data["attempts"]
    plans = read_plans(parent.get("note", ""))
    scores = [a["as_score"] for a in attempts if a["status"] == "ok"] + [parent.get("as_score")]
    episode = Episode(
        data["task"],
        data["target"].partition(":")[0],
        data["seed"],
        data["role"],
        plans[0] if plans else None,
        _exactness(parent) if parent else "",
        max(score or 0.0 for score in scores),
        {*plans, *(plan for attempt in attempts for plan in read_plans(attempt["note"]))},
    )
    written: Plan | None = None
    for message in messages:
        if message["role"] == "assistant":
            for call in message.get("tool_calls", []):
                in_file = read_plans(json.loads(call["arguments"]).get("file_text", ""))
                written = in_file[0] if in_file else written
        elif message["role"] == "tool" and message.get("name") == "pass_evaluator" and written is not None:
            evaluation = message["data"].get("evaluation", {"status": "error", "as_score": None})
            episode.outcomes.append((written, _exactness(evaluation), evaluation["as_score"]))
            episode.tried.add(written)
    return episode


def _exactness(evaluation: dict[str, Any]) -> str:
    """`ok` only if every graph passes at t = -5, or what fails there costs less than to repair it."""
    status: str = evaluation["status"]
    if status != "ok" or not evaluation["is_loose"]:
        return status
    score, mean = evaluation["as_score"], evaluation["gmean_speedup"]
    return INEXACT if score is None or mean is None or score * GAINS < mean else status


def choose(episode: Episode) -> Plan | None:
    """The next plan that was not tried: a shrunk region after a failure, else a neighbour of the best."""
    if not episode.outcomes and episode.parent is None:
        first = start(episode.target, episode.role)
        if first not in episode.tried:
            return first
    base, base_as = episode.parent or start(episode.target, episode.role), episode.best_as
    good = [
        (score, k, plan)
        for k, (plan, status, score) in enumerate(episode.outcomes)
        if status in {"ok", INEXACT} and score
    ]
    if good:
        base_as, _, base = max(good, key=lambda g: g[:2])
    operators = candidate(episode.task, episode.target, base)[1].operators
    role, status = episode.role, episode.outcomes[-1][1] if episode.outcomes else episode.parent_status
    cost = functools.partial(estimate, episode.task, episode.target)
    near = neighbours(base, episode.target, role, operators, episode.seed, cost)
    if status in {"ok", ""} and base_as >= GAINS:
        near = (p for p in near if set(p.without) <= set(base.without))
    if status not in {"ok", INEXACT, "infrastructure", ""}:
        near = neighbours(base, episode.target, "fusion", operators, episode.seed, cost)
    if status in {"wrong_result", INEXACT}:
        failed = episode.outcomes[-1][0] if episode.outcomes else base
        fused = candidate(episode.task, episode.target, failed)[1].operators
        near = itertools.chain(safer(failed, fused), near)
    launches = [_launches(episode, p) for p in episode.tried]
    return next((p for p in near if p not in episode.tried and _launches(episode, p) not in launches), None)


def estimate(task: str, target: str, plan: Plan) -> float:
    """Microseconds on the device for a plan, as far as its numbers decide; operators count alike."""
    from passagent.expert.write.cuda_grid import microseconds

    if target != "cuda" or plan.without:
        return 0.0
    return microseconds(candidate(task, target, replace(plan, block=1024, warps=0))[1].parts, plan)


def _launches(episode: Episode, plan: Plan) -> Any:
    """The launches that distinguish a plan from others: different numbers often give equal launches."""
    if episode.target != "cuda":
        files, _ = candidate(episode.task, episode.target, plan)
        return {name: text.partition("\n")[2] for name, text in files.items()}  # the first line is the plan
    from passagent.expert.write.cuda_grid import launches

    parts = candidate(episode.task, episode.target, replace(plan, block=1024, warps=0))[1].parts
    return plan.without, launches(parts, plan)


@functools.lru_cache(maxsize=256)
def candidate(task: str, target: str, plan: Plan) -> tuple[dict[str, str], Any]:
    """The files of a plan (empty: it leaves nothing to fuse), and what the author says of them."""
    from passagent.expert.author import author
    from passagent.expert.read import graphs

    authored = author(list(graphs(task)), target, plan)
    return authored.files, authored


def _calls(authored: Any, plan: Plan, target: str, step: int) -> Message:
    calls = []
    for k, (name, text) in enumerate(authored.files.items()):
        arguments = json.dumps({"command": "create", "path": name, "file_text": text})
        calls.append({"id": f"expert_{step}_{k}", "name": "file_editor", "arguments": arguments})
    calls.append({"id": f"expert_{step}_{len(calls)}", "name": "pass_evaluator", "arguments": "{}"})
    outside = "".join(f"\nNot lowered: {op} ({why})." for op, why in authored.refused.items())
    fused = f"Fused: {'; '.join(authored.fused)}."
    return assistant(f"{fused} Plan: {plan.note(target)}.{outside}", calls)


def _summary(episode: Episode, exhausted: bool = False) -> str:
    """Summarise what was fused, what came of it, and what could not be lowered and why."""
    lines, last = [], episode.parent or start(episode.target, episode.role)
    for last, status, score in episode.outcomes:
        measured = f", AS {score:.4f}" if score is not None else ""
        lines.append(f"{last.note(episode.target)}: {status}{measured}")
    authored = candidate(episode.task, episode.target, last)[1]
    fused = f"Fused: {'; '.join(authored.fused)}."
    lines.append(fused if authored.fused else "Found no region that I can lower.")
    lines += [f"Not lowered: {op}: {why}." for op, why in authored.refused.items()]
    if authored.uncovered:
        lines.append(f"Graphs without a region: {len(authored.uncovered)}.")
    if exhausted:
        lines.append("Every plan that may gain for this task has been tried.")
    return "\n".join(lines)
