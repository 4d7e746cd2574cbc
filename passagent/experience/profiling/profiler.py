"""A candidate's profile, tier by tier, on a device that is leased meanwhile: nothing is timed then."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from passagent.errors import InfrastructureError
from passagent.evaluator.candidate import Candidate
from passagent.evaluator.hardware.devices import find_device
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.hardware.machine import measure_machine
from passagent.evaluator.result import Evaluation
from passagent.experience.profiling import nsight
from passagent.experience.profiling.evidence import examine
from passagent.experience.profiling.profile_record import (
    GraphProfile,
    KernelProfile,
    Profile,
    add_vector_reports,
    free_profile,
)
from passagent.plan import artefact
from passagent.plan.facts import device_facts
from passagent.plan.messages import Recorded
from passagent.plan.model import Recording
from passagent.plan.record import record, subgraphs_of
from passagent.plan.recorder_process import recording_process
from passagent.sandbox.environment import ask_module, import_path
from passagent.tasks import Task

TRACED = 2
"""Subgraphs that are traced, those with the most headroom; the first of them is also counted (deep)."""
TRACE_S = 60.0
"""For tracing one subgraph, s."""


def profile_evaluated(
    task: Task, candidate: Candidate, evaluation: Evaluation, device: str, deep: bool
) -> Profile:
    """The profile of a candidate that was judged on this machine's `device`; `deep`: with hardware counters.

    What cannot be measured is a note in the profile, in one line. Raises PassagentError for another device.
    """
    begun = time.monotonic()
    leased = find_device(device)
    profile = free_profile(evaluation, measure_machine(leased.name), leased.model)
    if evaluation.status == "ok":
        recording = _recording(task, candidate, evaluation)
        if recording is None:
            profile.notes.append("no plan was recorded: launches and kernels are not known")
        elif leased.name == "cpu":
            add_vector_reports(profile, [plan for kind in recording.passes for plan in kind.plans])
            profile.notes.append("no hardware counters are read on a CPU")
        else:
            _measure(profile, task, recording, DeviceLease(leased), leased.name, deep)
    else:
        profile.notes.append(f"the candidate is {evaluation.status}: only a correct one is traced")
    profile.seconds = round(time.monotonic() - begun, 3)
    return examine(profile)


def _recording(task: Task, candidate: Candidate, evaluation: Evaluation) -> Recording | None:
    """The candidate's plans: those that were evaluated just now, or recorded again; None where none come."""
    files = candidate.files if candidate.is_plans else evaluation.plan_files
    if files:
        return artefact.read(files).recording
    target = "cuda" if evaluation.device.startswith("cuda") else "cpu"
    with recording_process() as process:
        answer = record(
            process, candidate, subgraphs_of(task, target), target, device_facts(evaluation.device)
        )
    return answer.recording if isinstance(answer, Recorded) else None


def _measure(
    profile: Profile, task: Task, recording: Recording, lease: DeviceLease, device: str, deep: bool
) -> None:
    """Trace the subgraphs with the most headroom; count the first one's kernels, if `deep`."""
    import torch

    profile.tier = "cheap"
    profile.multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    called = {subgraph.name for subgraph in recording.subgraphs if subgraph.calls}
    order = sorted(profile.graphs, key=lambda graph: -(graph.headroom or 0.0))
    chosen = [graph for graph in order if graph.name in called][:TRACED]
    with tempfile.TemporaryDirectory() as scratch:
        request = Path(scratch) / "request.json"
        common = {"plans": artefact.write(recording), "task": str(task.path.resolve()), "device": device}

        def asked(graph: GraphProfile, mode: str) -> tuple[str, str]:  # the module and its argument
            request.write_text(json.dumps(common | {"subgraph": graph.name, "mode": mode}))
            return "passagent.experience.profiling.plan_process", str(request)

        for graph in chosen:
            with lease.exclusive():
                try:
                    figures = ask_module(*asked(graph, "trace"), timeout_s=TRACE_S)
                except InfrastructureError as error:
                    profile.notes.append(f"{graph.name} was not traced: {error}")
                    continue
            graph.wall_us, graph.busy_us = figures["wall_us"], figures["busy_us"]
            graph.kernels = _merged(graph.kernels, [KernelProfile(**kernel) for kernel in figures["kernels"]])
        for graph in chosen[:1] if deep else ():
            report = Path(scratch) / "counters.ncu-rep"
            try:
                nsight.reader()
                with lease.exclusive():
                    command = [sys.executable, "-m", *asked(graph, "mark")]
                    nsight.collect(command, report, environment=os.environ | import_path())
                counted = nsight.read_report(report)
            except nsight.ProfilerUnavailable as error:
                profile.notes.append(str(error))
            else:
                profile.tier, graph.kernels = "deep", _merged(graph.kernels, counted)


def _merged(earlier: Sequence[KernelProfile], measured: Sequence[KernelProfile]) -> list[KernelProfile]:
    """The measured kernels, completed by earlier figures of the same names."""
    by_name = {kernel.name: kernel for kernel in earlier}
    merged = []
    for kernel in measured:
        figures = by_name.pop(kernel.name, None)
        if figures is not None:
            fields = kernel.model_dump(exclude_defaults=True)
            kernel = KernelProfile(**figures.model_dump(exclude={"metrics"}) | fields)  # noqa: PLW2901
        merged.append(kernel)
    return [*merged, *by_name.values()]
