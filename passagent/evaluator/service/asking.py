"""Requests to a referee, as plain data, and its answers; whoever carries them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.result import Candidate
from passagent.tasks.reader import load_task


def foresee(referee: Referee, request: dict[str, Any]) -> None:
    """Tell the referee of a candidate that it may be asked for next. Raises TaskError."""
    referee.foresee(load_task(request["task"]), Candidate(request["files"]))


def answer(referee: Referee, request: dict[str, Any]) -> Any:
    """The evaluation of `files` or a `compiler` on `task`; an `outline`; what eager does, in `describe_s`.

    Raises as the referee does.
    """
    task = load_task(request["task"])
    if "describe_s" in request:
        return [asdict(graph) for graph in referee.describe(task, request["describe_s"])]
    subject = Candidate(request["files"]) if "files" in request else request["compiler"]
    if request.get("outline"):
        outline = referee.outline(task, subject)
        return outline if isinstance(outline, list) else outline.model_dump()
    evaluation = referee.evaluate(task, subject, request.get("bar"))
    return evaluation.model_dump() | {"plan_files": evaluation.plan_files}
