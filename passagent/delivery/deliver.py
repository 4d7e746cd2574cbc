"""From a node's files to a directory that a person reviews: choose, lay out, record, measure, describe."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import torch

from passagent.confine.fork_server import ForkServer
from passagent.delivery import choice, oracle, telling
from passagent.delivery.editing import edited
from passagent.delivery.idle_options import without_options
from passagent.delivery.seen_values import samples
from passagent.delivery.standalone import standalone
from passagent.delivery.telling import Origin, Story
from passagent.delivery.trimming import trimmed
from passagent.evaluator.candidate import HELPER, MANIFEST, PLANS, Candidate
from passagent.evaluator.result import Evaluation
from passagent.evaluator.target import uses_triton
from passagent.plan import artefact
from passagent.plan.facts import device_facts
from passagent.plan.messages import Recorded, Subgraph
from passagent.plan.model import Recording
from passagent.plan.record import record, subgraphs_of
from passagent.plan.show import recording_text
from passagent.tasks.reader import Task

Measure = Callable[[Candidate], Awaitable[Evaluation]]
"""Evaluates a candidate as the run did. Raises PassagentError."""

MOST_TRIED = 4
"""Passes that are each measured without, at most: every one takes an evaluation."""


@dataclass(frozen=True)
class Found:
    """A candidate that was measured."""

    files: dict[str, str]
    plans: dict[str, str]
    """What was recorded and measured (plan/artefact.py); empty where it ran as Python."""
    evaluation: Evaluation


@dataclass(frozen=True)
class Delivered:
    """A directory: relative file names to texts, and what was done for it."""

    files: dict[str, str]
    story: Story


@dataclass(frozen=True)
class _Text:
    """A candidate's text and what was recorded of it."""

    files: dict[str, str]
    recording: Recording

    @property
    def programs(self) -> choice.Programs:
        return choice.programs(self.recording)


async def deliver(
    found: Found,
    task: Task,
    origin: Origin,
    process: ForkServer,
    device: str,
    measure: Measure | None,
    single_replacement_func: bool = True,
    stands_alone: bool = False,
) -> Delivered:
    """The directory for a candidate that was measured on `task` and `device`.

    `measure`: None measures nothing; the README then says what its figures are of. Where the text that was
    laid out is not recorded, not right, or slower than the interval of the old one, the old text is written
    and the README says why. `stands_alone`: without `passagent.kernels`. Raises PassagentError.
    """
    given = standalone(found.files) if stands_alone else found.files
    recorder = _Recorder(process, task, device, single_replacement_func, Candidate(given))
    whole = recorder.record(given)
    if isinstance(whole, str):
        story = Story(found.evaluation, is_own=True, notes=[f"It is as its author wrote it: {whole}."])
        return Delivered(given | {"README.md": _readme(origin, story, given)}, story)
    story = Story(found.evaluation, is_own=True, recording=whole.recording)
    measured = choice.programs(artefact.read(found.plans).recording) if found.plans else None
    text = _serving(whole, recorder, story)
    if measure is not None:
        text = await _needed(text, recorder, story, measure, text.programs == measured)
        if story.evaluation is not found.evaluation:
            measured = text.programs
    text = _trimmed(text, given, recorder)
    text = await _laid_out(text, recorder, story, measured, measure)
    story.recording = text.recording
    if telling.figures(story.evaluation) != telling.figures(found.evaluation):
        confirmed = telling.measurement(found.evaluation)
        story.notes.append(
            f"The run's figure for the text as its author wrote it is {confirmed}. "
            "The figures here are of one measurement of what is written."
        )
    files = text.files | {
        "plan.txt": recording_text(text.recording) + "\n",
        **{f"{PLANS}/{name}": body for name, body in artefact.write(text.recording).items()},
    }
    try:
        files[oracle.NAME] = recorder.test(text.recording, story.evaluation)
    except ValueError as error:
        story.notes.append(f"There is no `{oracle.NAME}`: {error}.")
    return Delivered(files | {"README.md": _readme(origin, story, files)}, story)


def _readme(origin: Origin, story: Story, files: dict[str, str]) -> str:
    return telling.readme(origin, story, choice.passes_of(files), HELPER in files)


class _Recorder:
    """Records texts of one candidate on one task."""

    def __init__(
        self, process: ForkServer, task: Task, device: str, single: bool, candidate: Candidate
    ) -> None:
        self.process, self.task, self.device, self.single = process, task, device, single
        self.target = "cpu" if device == "cpu" and not uses_triton(candidate) else "cuda"
        self.subgraphs: list[Subgraph] = subgraphs_of(task, self.target)
        self.facts = device_facts(device)

    def record(self, files: dict[str, str]) -> _Text | str:
        """The text with its plans, or why there are none."""
        answer = record(self.process, Candidate(files), self.subgraphs, self.target, self.facts, self.single)
        if not isinstance(answer, Recorded):
            return f"no plan comes of it ({answer.message.splitlines()[0]})"
        if answer.failed:
            why = answer.failed[0]
            return f"no plan comes of it for {why.subgraph} ({why.why.message.splitlines()[0]})"
        return _Text(files, answer.recording)

    def test(self, recording: Recording, evaluation: Evaluation) -> str:
        """The text of the test beside the passes. Raises ValueError for what cannot be written as Python."""
        on = self.device if self.device == "cpu" or torch.cuda.is_available() else "cpu"
        cases = samples(recording, self.subgraphs, self.task.subgraphs, on)
        needs = telling.listed(["pytest", "torch", *telling.needed(recording)])
        levels = (graph.passes_from_t for graph in evaluation.graphs)
        return oracle.test_text(cases, self.device, needs, levels)


def _serving(text: _Text, recorder: _Recorder, story: Story) -> _Text:
    """Without the passes that match nothing."""
    served = choice.served(text.recording)
    story.dropped |= {name: "it matches nothing in the task" for name, places in served.items() if not places}
    if not story.dropped:
        return text
    fewer = recorder.record(choice.only(text.files, [name for name, places in served.items() if places]))
    if isinstance(fewer, str) or fewer.programs != text.programs:
        story.dropped.clear()
        return text
    return fewer


async def _needed(
    text: _Text, recorder: _Recorder, story: Story, measure: Measure, is_measured: bool
) -> _Text:
    """Without the passes that AS is no lower without; each is measured, those that serve least first.

    `is_measured`: the story's figures are of the plans of `text`; they stay if nothing is left out.
    """
    names = choice.passes_of(text.files)
    if len(names) < 2:
        return text
    if len(names) > MOST_TRIED:
        story.notes.append(f"All {len(names)} passes serve; AS was not measured without each of them.")
        return text
    served = choice.served(text.recording)
    now = await measure(Candidate(text.files))
    if now.status != "ok" or now.as_score is None:
        return text
    if not is_measured:
        story.evaluation = now
    for name in sorted(names, key=lambda name: len(served[name])):
        left = [one for one in choice.passes_of(text.files) if one != name]
        fewer = recorder.record(choice.only(text.files, left)) if left else "nothing is left"
        if isinstance(fewer, str):
            continue
        without = await measure(Candidate(fewer.files))
        if without.status != "ok" or without.as_score is None or without.as_score < (now.as_score or 0.0):
            continue
        story.dropped[name] = f"{telling.figures(without)} without it, {now.as_score:.3f} with it"
        story.evaluation = now = without
        text = fewer
    return text


def _trimmed(text: _Text, whole: dict[str, str], recorder: _Recorder) -> _Text:
    """Without the branches and kernels that only passes of `whole` that are left out needed."""
    try:
        fewer = trimmed(text.files, whole)
    except (SyntaxError, ValueError):
        return text
    if fewer == text.files:
        return text
    shorter = recorder.record(fewer)
    if isinstance(shorter, str) or choice.launches(shorter.recording) != choice.launches(text.recording):
        return text
    return shorter  # another plan where it is given its route no more: it is measured again


async def _laid_out(
    text: _Text,
    recorder: _Recorder,
    story: Story,
    measured: choice.Programs | None,
    measure: Measure | None,
) -> _Text:
    """The text as a project takes it, with figures of its own; or as it was, with a note that says why."""
    before = story.evaluation
    better = _edited(text, recorder, story)
    if isinstance(better, str):
        return _kept(text, story, measured, better)
    if better.programs != measured:
        if measure is None:
            story.is_own = False
        else:
            own = await measure(Candidate(better.files))
            if own.status != "ok" or own.as_score is None:
                return _kept(text, story, measured, f"laid out anew it is {own.status}")
            if before.as_low is not None and (own.as_high or own.as_score) < before.as_low:
                return _kept(text, story, measured, f"laid out anew it is slower ({telling.figures(own)})")
            story.evaluation = own
    final = _edited(text, recorder, story)
    if isinstance(final, str) or final.programs != better.programs:
        story.evaluation, story.is_own = before, True
        return _kept(text, story, measured, "its plans depend on its docstring")
    return final


def _kept(text: _Text, story: Story, measured: choice.Programs | None, why: str) -> _Text:
    story.notes.append(f"The text is as its author wrote it: {why}.")
    story.is_own = measured is None or text.programs == measured
    return text


def _edited(text: _Text, recorder: _Recorder, story: Story) -> _Text | str:
    """Every Python file laid out, the passes' docstrings with what `story` knows; or why that cannot be."""
    whole = standalone(text.files) if HELPER in text.files else text.files
    modules = {name.split("/")[0].removesuffix(".py") for name in whole if name.endswith(".py")}
    told = replace(story, recording=text.recording)
    passes = {one.file: telling.about(one, told) for one in text.recording.passes}
    files = dict(whole)
    for name, body in whole.items():
        if name.endswith(".py") and name != HELPER:
            try:
                files[name] = edited(without_options(body), passes.get(name, ""), modules)
            except SyntaxError as error:
                return f"{name} is no Python: {error.msg} (line {error.lineno})"
            except ValueError as error:
                return f"{name} {error}"
    return recorder.record({**files, MANIFEST: text.files[MANIFEST]})
