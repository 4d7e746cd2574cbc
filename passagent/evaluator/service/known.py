"""Reuse evaluations: an equal subject on an equal task under equal conditions.

Equal task: by the content of all its files. Equal conditions: the evaluator's own version and all that
`environment_key` (fleet/opening.py) names. A measurement that the machine failed is not known, nor is a
refusal that rests on a measurement (result.Violation). One that was unstable is known to a search only, which
measures its best again side by side anyway.
"""

from __future__ import annotations

import functools
import math
import os
import platform
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from passagent.evaluator.hardware import nvml
from passagent.evaluator.hardware.devices import find_devices
from passagent.evaluator.result import Candidate, Evaluation, Subject
from passagent.sandbox import tools
from passagent.sandbox.environment import device_name, evaluator_version, package_version
from passagent.store import Store, evaluations
from passagent.store.database import now
from passagent.tasks import Task


@dataclass(frozen=True)
class Known:
    """An evaluation in the store."""

    id: int
    evaluation: Evaluation
    measured_at: str
    """ISO 8601, UTC."""
    from_store: bool = True


@dataclass(frozen=True)
class Case:
    """A subject on a task, and the conditions of its measurement."""

    task: Task
    subject: Subject
    environment: str
    """The words of fleet.opening.environment_key."""


Judge = Callable[[Path, Subject], Awaitable[Evaluation]]
"""EvaluatorPool.evaluate."""


async def evaluate(judge: Judge, store: Store, case: Case, fresh: bool = False) -> Known:
    """The evaluation, from the store (unless `fresh`) or measured and stored. Raises what `judge` raises."""
    stored = None if fresh else recall(store, case)
    if stored is not None:
        return stored
    evaluation = await judge(case.task.path, case.subject)
    return Known(keep(store, case, evaluation), evaluation, now(), from_store=False)


def recall(store: Store, case: Case, unstable: bool = False, bar: float | None = None) -> Known | None:
    """The newest evaluation of an equal case, if there is one that stands.

    `unstable`: its timing may have been so. Under a `bar`, an AS, one will do that was measured under
    another, if it was not cut short or is below.
    """

    def is_precise(evaluation: Evaluation) -> bool:
        if evaluation.bar is None:
            return True
        high = math.inf if evaluation.as_high is None else evaluation.as_high
        return bar is not None and (not evaluation.stopped_early or high < bar)

    rows = evaluations.find_evaluations(
        store,
        candidate_key=_key(case.subject),
        task_key=case.task.key,
        evaluator_version=evaluator_version(),
        environment=case.environment,
    )
    for evaluation_id, result, measured_at in rows:
        # the equal task may have had another name
        evaluation = Evaluation.model_validate(result | {"task": case.task.name})
        is_stable = unstable or not any(graph.unstable for graph in evaluation.graphs)
        is_repeatable = is_stable and not evaluation.rests_on_measurement
        if is_repeatable and is_precise(evaluation):
            return Known(evaluation_id, evaluation, measured_at)
    return None


def keep(store: Store, case: Case, evaluation: Evaluation, run_id: str | None = None) -> int:
    """Store the evaluation of `case`, charged to a run if there is one; its id."""
    if evaluation.plan_files:
        store.keep_files(evaluation.plan_files)
    return evaluations.add_evaluation(
        store,
        run_id,
        task_key=case.task.key,
        environment=case.environment,
        candidate_key=_key(case.subject),
        whole=evaluation.model_dump(mode="json"),
    )


@functools.cache
def this_machine(device: str) -> str:
    """The words for a device of this machine, with the machine's name. Raises UsageError."""
    return f"{platform.node()}; {machine_words(device)}"


def machine_words(device: str) -> str:
    """Describe what measurements on a device of this machine depend on, whatever the machine is called."""
    parts = [device_name("cpu")]
    if device != "cpu":
        parts += [find_devices(device)[0].model, f"driver {nvml.driver_version()}"]
    parts += [
        f"python {platform.python_version()}",
        *(f"{name} {package_version(name) or 'none'}" for name in ("torch", "triton")),
    ]
    return "; ".join([*parts, f"compiler {_compiler()}"])


def _compiler() -> str:
    """The C++ compiler and its version; its flags are part of the evaluator's version."""
    for name in (os.environ.get("CXX"), "g++", "c++"):
        if name and shutil.which(name):
            return next(iter(tools.ask(name, "--version").output.splitlines()), name)
    return "none"


def _key(subject: Subject) -> str:
    return subject.key if isinstance(subject, Candidate) else subject
