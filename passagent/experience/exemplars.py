"""Exemplars: passes that worked, and which of them serve a task (Kernel Foundry 3.2, KernelEvolve 3.2.2).

The same instance: a seed, which is evaluated. The same structure: a worked example. Many of the same
operators on inputs of the same class of shapes: an excerpt. Each says why it was taken.
"""

from __future__ import annotations

import functools
import gzip
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from passagent.store.pass_library import KeptPass
from passagent.tasks import resources
from passagent.tasks.meta import TensorMeta
from passagent.tasks.reader import Task

SHIPPED = "knowledge/exemplars/*.jsonl.gz"
LIKENESS = 0.5
"""The least likeness of two multisets of operators for which an exemplar is shown."""
SIZES = ((1 << 14, "small"), (1 << 20, "medium"))
"""Elements of the largest input below which a region is so called; above: large."""
Relation = Literal["instance", "structure", "operators"]


@dataclass(frozen=True)
class Fingerprint:
    """The keys by which a task is found."""

    instances: frozenset[str]
    structures: frozenset[str]
    operators: tuple[str, ...]
    shapes: frozenset[str]


@dataclass(frozen=True)
class Exemplar(Fingerprint):
    """A pass, and the regions that it was found for."""

    task: str
    """Its name, or the run that it comes from."""
    files: dict[str, str]
    target: str
    """`cpu` or `cuda`."""
    device: str
    as_score: float | None
    """None: not measured."""
    as_low: float | None
    as_high: float | None
    author: str
    licence: str
    source: str
    """`library` or `shipped`."""


@dataclass(frozen=True)
class Match:
    """An exemplar that serves a task, and why."""

    exemplar: Exemplar
    relation: Relation
    likeness: float
    """1 for the same structure; else of the operators, 0 to 1."""
    why: str


@dataclass(frozen=True)
class Found:
    """The exemplars that serve a task."""

    seed: Match | None = None
    examples: list[Match] = field(default_factory=list)


def shape_class(inputs: Iterable[TensorMeta]) -> str:
    """Rank and size of the largest input, such as `3d medium`; `scalar` without tensors."""
    shapes = [meta.shape for meta in inputs if not meta.is_python_scalar]
    if not shapes:
        return "scalar"
    largest = max(shapes, key=math.prod)
    size = next((name for bound, name in SIZES if math.prod(largest) < bound), "large")
    return f"{len(largest)}d {size}"


def fingerprint(task: Task, structures: Collection[str], instances: Collection[str]) -> Fingerprint:
    """Make the fingerprint of a task whose hashes are known."""
    shapes = frozenset(shape_class(subgraph.inputs) for subgraph in task.subgraphs)
    return Fingerprint(frozenset(instances), frozenset(structures), tuple(task.operators), shapes)


def likeness(first_operators: Sequence[str], other: Sequence[str]) -> float:
    """Jaccard's index of two multisets of operators, 0 to 1."""
    first, second = Counter(first_operators), Counter(other)
    either = (first | second).total()
    return (first & second).total() / either if either else 0.0


def retrieve(
    task: Fingerprint, exemplars: Iterable[Exemplar], target: str, limit: int, without: Collection[str] = ()
) -> Found:
    """The seed and the `limit` examples for a task on `target`; `without` those with one of these hashes.

    Worked examples come first, then the more alike, then the faster. A structure is shown once.
    """
    barred = frozenset(without)
    matches = [
        match
        for exemplar in exemplars
        if exemplar.target == target and not barred & (exemplar.instances | exemplar.structures)
        if (match := _match(task, exemplar)) is not None
    ]
    order = ("instance", "structure", "operators")
    matches.sort(
        key=lambda match: (
            order.index(match.relation),
            -len(task.instances & match.exemplar.instances),
            -match.likeness,
            -(match.exemplar.as_score or 0.0),
            match.exemplar.task,
        )
    )
    seed = matches[0] if matches and matches[0].relation == "instance" else None
    examples: list[Match] = []
    shown_structures = seed.exemplar.structures if seed else frozenset[str]()
    for match in matches:
        if len(examples) < limit and not match.exemplar.structures & shown_structures:
            examples.append(match)
            shown_structures |= match.exemplar.structures
    return Found(seed, examples)


def _match(task: Fingerprint, exemplar: Exemplar) -> Match | None:
    if same := task.instances & exemplar.instances:
        why = f"the same operators, sizes and dtypes in {len(same)} of {len(task.instances)} graphs"
        return Match(exemplar, "instance", 1.0, why)
    if same := task.structures & exemplar.structures:
        why = f"the same structure in {len(same)} of {len(task.structures)} graphs, of other sizes or dtypes"
        return Match(exemplar, "structure", 1.0, why)
    alike = likeness(task.operators, exemplar.operators)
    if alike < LIKENESS or not (classes := task.shapes & exemplar.shapes):
        return None
    why = f"{alike:.0%} of the operators, inputs of the same class ({', '.join(sorted(classes))})"
    return Match(exemplar, "operators", alike, why)


def kept(passes: Iterable[KeptPass]) -> list[Exemplar]:
    """The exemplars of a library's passes that hold: a pass that serves several regions is one."""
    groups: dict[tuple[str, str], list[KeptPass]] = {}
    for kept_pass in passes:
        if kept_pass.status == "ok" and kept_pass.as_score > 1:
            groups.setdefault((kept_pass.device, kept_pass.files), []).append(kept_pass)
    return [
        Exemplar(
            task=first.run,
            instances=frozenset(kept_pass.instance for kept_pass in group),
            structures=frozenset(kept_pass.structure for kept_pass in group),
            operators=tuple(first.operators.split(", ")),
            shapes=frozenset(kept_pass.shapes for kept_pass in group),
            files=first.sources,
            target=target_of_files(first.sources),
            author=first.model,
            source="library",
            **{name: getattr(first, name) for name in ("device", "as_score", "as_low", "as_high", "licence")},
        )
        for group in groups.values()
        for first in group[:1]
    ]


def target_of_files(files: dict[str, str]) -> str:
    """`cuda` for kernels in Triton and CUDA C++, else `cpu`."""
    text = "\n".join(files.values())
    return "cuda" if "triton" in text or "cuda_kernel" in text else "cpu"


def shipped() -> list[Exemplar]:
    """The exemplars that come with passagent, and those of the user's own directory."""
    return _read(tuple(path for _, path in resources.glob(SHIPPED)))


@functools.lru_cache(maxsize=4)
def _read(paths: tuple[Path, ...]) -> list[Exemplar]:
    exemplars = []
    for path in paths:
        for line in gzip.decompress(path.read_bytes()).decode("utf-8").splitlines():
            fields = json.loads(line)
            for name in ("instances", "structures", "shapes"):
                fields[name] = frozenset(fields[name])
            exemplars.append(
                Exemplar(**fields | {"operators": tuple(fields["operators"]), "source": "shipped"})
            )
    return exemplars
