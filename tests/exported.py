"""Ten passes that `passagent best` writes: five for the CPU, five for a GPU; of each one is a model's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from cases import cases_of, write_task

from passagent.config import EvaluatorConfig
from passagent.evaluator.candidate import PLANS, Candidate
from passagent.evaluator.result import Evaluation, GraphResult, Speedup
from passagent.expert.author import author
from passagent.expert.choices import default
from passagent.expert.read import graphs
from passagent.packages.delivery.deliver import Delivery, deliver
from passagent.packages.delivery.standalone import standalone
from passagent.tasks import load_task
from passagent.tasks.reader import Task, examples

RUFF = [str(Path(sys.executable).parent / "ruff")]

TEN = {
    "cpu": (
        "add_layer_norm",
        "window_roll_layer_norm",
        "scale_mask_softmax",
        "masked_mean_pool",
        "cpp_lambdas_and_templates",
    ),
    "cuda": (
        "add_layer_norm",
        "window_roll_layer_norm",
        "masked_mean_pool",
        "conv2d_sigmoid_mul_hardtanh",
        "planned_kernel",
    ),
}
"""The expert's for an example task; or a design of tests/honest, as a language model writes it."""


def candidate(name: str, target: str, root: Path) -> tuple[Task, dict[str, str]]:
    """A task and a candidate for it; a task that is not an example is written to `root`."""
    if name not in examples():
        return as_a_model_writes(name, root)
    task = load_task(examples()[name])
    return task, by_the_expert(task, target)


def by_the_expert(task: Task, target: str) -> dict[str, str]:
    return author(list(graphs(str(task.path))), target, default(target)).files


def as_a_model_writes(name: str, root: Path) -> tuple[Task, dict[str, str]]:
    """A design of tests/honest without its header of comments, and its task."""
    case = cases_of("honest")[name]
    files = {file: re.sub(r"\A(#[^\n]*\n)+", "", text) for file, text in case.candidate.files.items()}
    return write_task(root, case.task), files


def evaluation_of(task: Task, device: str, **others: Any) -> Evaluation:
    """An evaluation in which every subgraph is right and 1.5 times as fast as eager."""
    right = {"status": "ok", "passes_from_t": -5, "eager_ms": 1.0, "compiled_ms": 0.5}
    right["speedup"] = Speedup(e2e=1.5, low=1.49, high=1.51)
    return Evaluation(
        task=task.name, candidate="", device=device, dispatch="direct", timing="wall", status="ok",
        as_score=1.5, as_low=1.49, as_high=1.51, es=None, evaluator_version="0",
        graphs=[GraphResult(name=one.name, dtype="float32", **right) for one in task.subgraphs],
        environment={"cpu": "a CPU", "threads": 2, "torch": torch.__version__}, **others,
    )  # fmt: skip


def delivered(
    files: dict[str, str],
    task: Task,
    recorder,
    device: str = "cpu",
    stands_alone: bool = False,
    **others: Any,
) -> Delivery:
    """What is written of a candidate; `others`: of its evaluation."""
    given = standalone(files) if stands_alone else files
    evaluation = evaluation_of(task, device, **others)
    delivery = Delivery("abc", 7, "some/model", task.name, evaluation, given)
    deliver(delivery, task, recorder, EvaluatorConfig(device=device))
    return delivery


def written(delivered: Delivery, path: Path) -> Path:
    Candidate(delivered.files).write(path)
    return path


def ran(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)


def is_clean(path: Path) -> None:
    """ruff finds nothing with its own settings in the passes, but for the order of imports."""
    isolated = ["--isolated", "--exclude", PLANS]
    for words in (["check", *isolated, "--ignore", "I001", "."], ["format", *isolated, "--check", "."]):
        done = ran(*RUFF, *words, cwd=path)
        assert done.returncode == 0, done.stdout + done.stderr
