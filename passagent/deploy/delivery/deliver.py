"""From a run's winning node to a directory that a person reviews: format, record, measure, describe."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import black
import torch

from passagent.config import EvaluatorConfig
from passagent.deploy.delivery import oracle
from passagent.deploy.delivery.oracle import samples
from passagent.deploy.delivery.readme import Origin, Story, figures, listed, measurement, needs, readme
from passagent.evaluator.candidate import HELPER, PLANS, Candidate
from passagent.evaluator.result import Evaluation
from passagent.evaluator.target import uses_triton
from passagent.plan import artefact
from passagent.plan.facts import device_facts
from passagent.plan.messages import Recorded
from passagent.plan.model import Recording
from passagent.plan.record import record, subgraphs_of
from passagent.plan.show import recording_text
from passagent.sandbox.fork_server import ForkServer
from passagent.tasks.reader import Task

Measure = Callable[[Candidate], Awaitable[Evaluation]]
"""Evaluates a candidate as the run did. Raises PassagentError."""
Programs = dict[str, tuple[str, ...]]
"""The program of each subgraph: the plans of its calls, by their digests."""


@dataclass(frozen=True)
class MeasuredCandidate:
    """A candidate as a run measured it."""

    files: dict[str, str]
    plans: dict[str, str]
    """Files of the plans that were measured (plan/artefact.py); empty where it ran as Python."""
    evaluation: Evaluation


@dataclass(frozen=True)
class Delivered:
    """A directory: relative file names to texts, and what was done for it."""

    files: dict[str, str]
    story: Story


async def deliver(
    winner: MeasuredCandidate,
    task: Task,
    origin: Origin,
    process: ForkServer,
    config: EvaluatorConfig,
    measure: Measure | None,
) -> Delivered:
    """Format the files of `winner`, and write plans, a test and a README beside them.

    `measure`: None measures nothing; the README then says what its figures are of. If the formatted files are
    not recorded, not correct, or slower than the interval of `winner`, the files stay as they are and the
    README says why. Raises PassagentError.
    """
    story = Story(winner.evaluation, is_own=True)
    recorder = _Recorder(process, task, config, Candidate(winner.files))
    recording = recorder.record(winner.files)
    if isinstance(recording, str):
        story.notes.append(f"It is as its author wrote it: {recording}.")
        return Delivered(winner.files | {"README.md": readme(origin, story, winner.files)}, story)
    story.recording = recording
    measured = programs(artefact.read(winner.plans).recording if winner.plans else recording)
    files = await _format(winner, recorder, story, measured, measure)
    story.is_own = story.evaluation is not winner.evaluation or programs(story.recording) == measured
    if figures(story.evaluation) != figures(winner.evaluation):
        story.notes.append(
            "The run's figure for the text as its author wrote it is "
            f"{measurement(winner.evaluation)}. The figures here are of one measurement of what is written."
        )
    files = files | {
        "plan.txt": recording_text(story.recording) + "\n",
        **{f"{PLANS}/{name}": text for name, text in artefact.write(story.recording).items()},
    }
    try:
        files[oracle.NAME] = recorder.write_test(story.recording, story.evaluation)
    except ValueError as error:
        story.notes.append(f"There is no `{oracle.NAME}`: {error}.")
    return Delivered(files | {"README.md": readme(origin, story, files)}, story)


def programs(recording: Recording) -> Programs:
    """Return what runs; equal for candidates that do the same in every subgraph, however their text reads."""
    return {
        subgraph.name: tuple(
            recording.passes[call.number].plans[call.plan].digest() for call in subgraph.calls
        )
        for subgraph in recording.subgraphs
    }


class _Recorder:
    """Records texts of one candidate on one task."""

    def __init__(
        self, process: ForkServer, task: Task, config: EvaluatorConfig, candidate: Candidate
    ) -> None:
        self.process, self.task, self.config = process, task, config
        self.target = "cpu" if config.device == "cpu" and not uses_triton(candidate) else "cuda"
        self.subgraphs = subgraphs_of(task, self.target)
        self.facts = device_facts(config.device)

    def record(self, files: dict[str, str]) -> Recording | str:
        """Return what is recorded of the files, or why there are no plans."""
        answer = record(
            self.process,
            Candidate(files),
            self.subgraphs,
            self.target,
            self.facts,
            self.config.single_replacement_func,
        )
        if not isinstance(answer, Recorded):
            return f"no plan comes of it ({answer.message.splitlines()[0]})"
        if answer.failed:
            failure = answer.failed[0]
            return f"no plan comes of it for {failure.subgraph} ({failure.why.message.splitlines()[0]})"
        return answer.recording

    def write_test(self, recording: Recording, evaluation: Evaluation) -> str:
        """Return the test beside the passes. Raises ValueError for what cannot be written as Python."""
        device = self.config.device
        cases = samples(
            recording,
            self.subgraphs,
            self.task.subgraphs,
            device if device == "cpu" or torch.cuda.is_available() else "cpu",
        )
        levels = (graph.passes_from_t for graph in evaluation.graphs)
        return oracle.test_text(cases, device, listed(["pytest", "torch", *needs(recording)]), levels)


async def _format(
    winner: MeasuredCandidate,
    recorder: _Recorder,
    story: Story,
    measured: Programs,
    measure: Measure | None,
) -> dict[str, str]:
    """Return the files to write, formatted if they then do as well as before; update `story`."""
    try:
        files = {
            name: black.format_str(text, mode=black.Mode())
            if name.endswith(".py") and name != HELPER
            else text
            for name, text in winner.files.items()
        }
    except black.InvalidInput as error:
        return _keep(winner, story, str(error))
    recording = recorder.record(files)
    if isinstance(recording, str):
        return _keep(winner, story, recording)
    if programs(recording) != measured and measure is not None:
        evaluation = await measure(Candidate(files))
        if evaluation.status != "ok" or evaluation.as_score is None:
            return _keep(winner, story, f"formatted it is {evaluation.status}")
        low = winner.evaluation.as_low
        if low is not None and (evaluation.as_high or evaluation.as_score) < low:
            return _keep(winner, story, f"formatted it is slower ({figures(evaluation)})")
        story.evaluation = evaluation
    story.recording = recording
    return files


def _keep(winner: MeasuredCandidate, story: Story, reason: str) -> dict[str, str]:
    story.notes.append(f"The text is as its author wrote it: {reason}.")
    return winner.files
