"""Ten passes that `passagent best` writes: five for the CPU, five for a GPU; of each one is a model's."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from cases import cases_of, write_task

from passagent.config import EvaluatorConfig
from passagent.deploy.delivery.deliver import Delivered, MeasuredCandidate, deliver
from passagent.deploy.delivery.readme import Origin
from passagent.deploy.delivery.standalone import standalone
from passagent.evaluator.candidate import MANIFEST, Candidate
from passagent.evaluator.result import Evaluation, GraphResult, Speedup
from passagent.expert.author import author
from passagent.expert.choices import default
from passagent.expert.reading import graphs
from passagent.tasks import load_task
from passagent.tasks.examples import examples
from passagent.tasks.reader import Task

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


@dataclass
class Judge:
    """Stands for the evaluator: every candidate is right, with the AS that its passes have together."""

    task: Task
    device: str = "cpu"
    worth: dict[str, float] = field(default_factory=dict)
    """What a pass adds to an AS of 1; 0.5 where nothing is said."""
    status: str = "ok"
    seen: list[Candidate] = field(default_factory=list)

    async def measure(self, candidate: Candidate) -> Evaluation:
        self.seen.append(candidate)
        return self.of(candidate.files)

    def of(self, files: dict[str, str]) -> Evaluation:
        score = 1 + sum(self.worth.get(name, 0.5) for name in json.loads(files[MANIFEST]))
        speedup = Speedup(e2e=score, low=score - 0.01, high=score + 0.01)
        right = {"status": "ok", "passes_from_t": -5, "speedup": speedup, "eager_ms": 1.0, "compiled_ms": 0.5}
        return Evaluation(
            task=self.task.name,
            candidate="",
            device=self.device,
            dispatch="direct",
            timing="wall",
            status=self.status,
            as_score=score if self.status == "ok" else None,
            as_low=score - 0.01,
            as_high=score + 0.01,
            es=None,
            graphs=[GraphResult(name=one.name, dtype="float32", **right) for one in self.task.subgraphs],
            environment={"cpu": "a CPU", "threads": 2, "torch": torch.__version__},
            evaluator_version="0",
        )


def delivered(
    files: dict[str, str],
    judge: Judge,
    recorder,
    measures: bool = True,
    before: Evaluation | None = None,
    stands_alone: bool = False,
) -> Delivered:
    origin = Origin("abc", 7, "some/model", judge.task.name, "2026-01-02")
    given = standalone(files) if stands_alone else files
    winner = MeasuredCandidate(given, {}, before or judge.of(files))
    config = EvaluatorConfig(device=judge.device)
    measure = judge.measure if measures else None
    return asyncio.run(deliver(winner, judge.task, origin, recorder, config, measure))


def written(delivered: Delivered, path: Path) -> Path:
    Candidate(delivered.files).write(path)
    return path


def ran(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)


def is_clean(path: Path) -> None:
    """ruff finds nothing with its own settings, but for the order of imports."""
    for words in (["check", "--isolated", "--ignore", "I001", "."], ["format", "--isolated", "--check", "."]):
        done = ran(*RUFF, *words, cwd=path)
        assert done.returncode == 0, done.stdout + done.stderr
