"""A package of the expert's passes for a model: its regions as tasks, a first pass for each, recorded."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config

import passagent as pa
from passagent.data.bench.measure import first_pass
from passagent.errors import PassagentError
from passagent.evaluator.candidate import Candidate
from passagent.packages import model_timing
from passagent.packages.package_writing import Packed, Source, pack
from passagent.plan import artefact
from passagent.plan.facts import device_facts
from passagent.plan.messages import Recorded
from passagent.plan.record import record, subgraphs_of
from passagent.tasks import load_task


@contextmanager
def no_cached_graphs() -> Iterator[None]:
    """In a cache that was used before Inductor finds compiled graphs, and runs no pass."""
    with inductor_config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        yield


def time_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a model be timed by a few calls, however far apart their times are."""
    monkeypatch.setattr(model_timing, "_BLOCKS", 4)
    monkeypatch.setattr(model_timing, "_MOST_S", 0.0)


def source_of(process, path: Path, files: dict[str, str] | None = None, device: str = "cpu") -> Source:
    """A candidate for a task, recorded."""
    task = load_task(path)
    candidate = Candidate(files) if files is not None else first_pass(task, device)
    answer = record(process, candidate, subgraphs_of(task, device), device, device_facts(device))
    if not isinstance(answer, Recorded):
        raise PassagentError(answer.message)
    return Source(path.name, candidate.files, artefact.write(answer.recording), task)


def package_for(process, model, inputs, out: Path, device: str = "cpu", other: Path | None = None) -> Packed:
    """A package for the regions of a model that the expert covers; to `other` one with other kernels."""
    with tempfile.TemporaryDirectory() as place:
        regions = pa.extract_regions(model, *inputs, name="model", out=Path(place) / "regions")
        sources = []
        for task in regions.tasks:
            try:
                sources.append(source_of(process, regions.path / task.name, device=device))
            except PassagentError as error:
                print(f"{task.name}: {error}")
        if other is not None:
            pack(
                [replace(source, plans=dict(map(_with_comment, source.plans.items()))) for source in sources],
                other,
            )
        return pack(sources, out)


def _with_comment(plan_file: tuple[str, str]) -> tuple[str, str]:
    name, text = plan_file
    return name, f"{text}\n// another kernel\n" if name.endswith(".cpp") else text
