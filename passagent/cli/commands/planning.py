"""`passagent plan`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from passagent.errors import PassagentError, UsageError
from passagent.evaluator.candidate import Candidate
from passagent.evaluator.target import uses_triton
from passagent.plan.recorder_process import recording_process

if TYPE_CHECKING:
    from passagent.plan.messages import Recorded, Refusal


def plan(pass_dir: str, task_path: str, device: str | None, ir: str | None, as_json: bool) -> None:
    """Record the candidate in `pass_dir` on a task and print its plans.

    `device`: `cpu` or `cuda`; None: what its kernels are for. Raises PassagentError where the
    candidate is refused, or a pass or a subgraph is left without a match.
    """
    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"--device {device}: a plan is for cpu or cuda")
    candidate = Candidate.from_dir(pass_dir)
    with recording_process() as process:  # it imports torch while this process does
        from passagent.plan.facts import device_facts
        from passagent.plan.messages import Recorded
        from passagent.plan.record import record, subgraphs_of
        from passagent.plan.show import recording_text
        from passagent.tasks import load_task

        task = load_task(task_path)
        target = device or _device_of(candidate)
        subgraphs = subgraphs_of(task, target)
        answer = record(process, candidate, subgraphs, target, device_facts())
    if as_json:
        print(answer.model_dump_json())
    if not isinstance(answer, Recorded):
        raise PassagentError(_place(answer) + answer.message)
    if not as_json:
        print(recording_text(answer.recording, ir == "ttir"))
    _check_matches(candidate, answer)


def _device_of(candidate: Candidate) -> str:
    named = any("cuda_kernel" in text for text in candidate.files.values())
    return "cuda" if named or uses_triton(candidate) else "cpu"


def _check_matches(candidate: Candidate, answer: Recorded) -> None:
    """Raise PassagentError for passes that match nowhere, and for subgraphs in which none does."""
    recording = answer.recording
    problems = [f"{one.subgraph}: {_place(one.why)}{one.why.message}" for one in answer.failed]
    for one in recording.passes:
        if not one.plans and not answer.failed:
            reason = next((m.words for m in answer.missed if m.name == one.name), "no reason was given")
            place = f"{one.file}:{_pattern_line(candidate, one.file)}"
            problems.append(f"{place}: matches nothing: {reason}")
    if not problems:
        bare = [subgraph.name for subgraph in recording.subgraphs if not subgraph.calls]
        problems += [f"no pass matches in {', '.join(bare)}"] if bare else []
    if problems:
        raise PassagentError("; ".join(problems))


def _place(refusal: Refusal) -> str:
    return f"{refusal.file}:{refusal.line}: " if refusal.file else ""


def _pattern_line(candidate: Candidate, file: str) -> int:
    """Where the file defines `pattern`; 1 where it imports it."""
    for node in ast.parse(candidate.files[file]).body:
        if isinstance(node, ast.FunctionDef) and node.name == "pattern":
            return node.lineno
    return 1
