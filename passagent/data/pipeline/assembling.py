"""From samples to a data set: each step's units, and their results (`passagent tasks build`).

The steps: validate the samples, cut subgraphs out of their graphs, find other sizes and dtypes of these,
group them into tasks, divide the tasks into training and evaluation.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from passagent.data.pipeline import folding
from passagent.data.pipeline.cutting import BACKWARD
from passagent.data.pipeline.generalisation import DTYPES, SHAPES, instance
from passagent.data.pipeline.grouping import Bucketed, Group, Member, Partition, bucketed, groups, partition
from passagent.data.pipeline.inspection import LISTS, RECORD, TASKS
from passagent.data.pipeline.units import Done, Unit, Units
from passagent.errors import UsageError
from passagent.system.cache import write_whole
from passagent.system.resumable import locked
from passagent.tasks.extract.sample import whole_directory, write_list, write_sample
from passagent.tasks.reader import FILES

_KINDS = ("fusible", "classical")
"""The kinds of subgraphs of which some are for evaluation."""
_NAMED = 40
"""Letters of operators in a task's name."""

Tell = Callable[[str], None]
Data = dict[str, Any]
"""A graph or a subgraph as plain data."""


@dataclass(frozen=True)
class Request:
    """The data set that is to be built."""

    samples: Sequence[str]
    out: str
    device: str | None = None
    """Default: cpu."""
    shapes: int = SHAPES
    evaluation: int = 200
    """Operator sequences of each kind that are for evaluation."""
    parallel: int | None = None
    """Units at a time; default: one a core."""
    backward: bool = False
    limit_s: int = 600
    """CPU time of a unit."""


def find_samples(places: Iterable[str]) -> dict[str, Path]:
    """Return name and directory of each sample in or below the directories, sorted. Raises UsageError."""
    samples: dict[str, Path] = {}
    for place in map(Path, places):
        if not place.is_dir():
            raise UsageError(f"{place}: no such directory; give GraphNet's samples or a directory of them")
        paths = sorted(file.parent for file in place.rglob("model.py"))
        if not paths:
            raise UsageError(f"{place}: holds no sample, which is a directory with model.py")
        for path in paths:
            samples[str(path.resolve())] = path
    return {"/".join(path.resolve().parts[-2:]): path for path in samples.values()}


def validation(name: str, path: Path, device: str) -> Unit:
    """Return the unit that validates a sample."""
    digest = hashlib.sha256()
    for file in FILES:
        content = (path / file).read_bytes() if (path / file).is_file() else b""
        digest.update(f"{file} {len(content)}\n".encode() + content)
    payload = {"path": str(path.resolve()), "files": digest.hexdigest(), "device": device}
    return Unit("validated", name, "passagent.data.pipeline.sample_validation:validate_sample", payload)


def build(request: Request, tell: Tell = lambda line: None) -> Data:
    """Build a data set, or go on with it; return its record. Raises UsageError, InfrastructureError."""
    samples, out = find_samples(request.samples), Path(request.out)
    work, device = out / "work", request.device or "cpu"
    parallel = request.parallel or len(os.sched_getaffinity(0))
    if out.is_dir() and any(out.iterdir()) and not work.is_dir():
        raise UsageError(f"--out {out}: holds other files; name another directory")
    with locked(work, "lock", "--out"), Units(work, parallel, request.limit_s, device) as units:
        steps = _Steps(request, units, tell)
        graphs = steps.validate([validation(name, path, device) for name, path in samples.items()])
        subgraphs = steps.generalise(steps.cut(graphs))
        tasks, subgraphs_of = steps.group(subgraphs)
        parts = steps.divide(tasks)
        placed = {*parts.train, *parts.evaluation}
        for name in sorted(placed):
            _write_task(out / name, subgraphs_of[name])
        for place in (out / TASKS).glob("*/*"):  # of an earlier build of other samples, or of a killed one
            if str(place.relative_to(out)) not in placed:
                shutil.rmtree(place, ignore_errors=True)
        record = {
            "samples": list(request.samples),
            "device": device,
            "shapes": request.shapes,
            "backward": request.backward,
            "tasks": _write_lists(out / LISTS, {task.name: task.kind for task in tasks}, parts),
            "funnel": steps.funnel,
        }
        write_whole(out / RECORD, json.dumps(record, indent=1) + "\n")
    return record


@dataclass
class _Steps:
    """The steps of a build, and a funnel: how much went into each and came out, and why not the rest."""

    request: Request
    units: Units
    tell: Tell
    funnel: list[Data] = field(default_factory=list)

    def _count(
        self, step: str, before: int, after: int, lost: Counter[str], done: Sequence[Done] = ()
    ) -> None:
        seconds = round(sum(unit.seconds for unit in done), 1)
        peak = max((unit.peak_mib for unit in done), default=0)
        row = {"step": step, "in": before, "out": after, "lost": dict((+lost).most_common())}
        self.funnel.append(row | {"seconds": seconds, "peak_mib": peak})

    def _run(self, step: str, jobs: Sequence[Unit]) -> list[Done]:
        """Compute units, and count those that were refused."""
        done = self.units.results(jobs)
        lost = Counter(unit.reason for unit in done if not unit.value)
        self._count(step, len(done), len(done) - lost.total(), lost, done)
        return done

    def validate(self, jobs: Sequence[Unit]) -> dict[str, Data]:
        """Return the samples' graphs by their names, equal ones once."""
        done = self._run("validate", jobs)
        unique: dict[str, tuple[str, Data]] = {}
        for result in done:
            if result.value:
                unique.setdefault(result.value["hash"]["instance"], (result.name, result.value))
            else:
                self.tell(f"{result.name}: {result.reason}: {result.detail}")
        count = sum(bool(result.value) for result in done)
        self._count("unique graphs", count, len(unique), Counter({"equal": count - len(unique)}))
        self.tell(f"{len(unique)} graphs of {len(done)} samples")
        return dict(unique.values())

    def cut(self, graphs: dict[str, Data]) -> list[Data]:
        """Return the subgraphs of all kinds, each once."""
        ranges = folding.ranges(folding.fold([graph["operators"] for graph in graphs.values()]))
        jobs = []
        for (name, graph), classical_ranges in zip(graphs.items(), ranges, strict=True):
            payload = {key: graph[key] for key in ("nodes", "inputs")}
            payload["ranges"] = [
                *(["classical", *span] for span in classical_ranges),
                *(["single", i, i + 1] for i in range(len(graph["operators"]))),
            ]
            jobs.append(Unit("cut", name, "passagent.data.pipeline.cutting:cut_ranges", payload))
        records = self._cut_by("cut", jobs, ("classical", "single"))
        classical = [record for record in records if record["kind"] == "classical"]
        self.tell(f"{len(classical)} classical subgraphs, {len(records) - len(classical)} single operators")
        function = "passagent.data.pipeline.cutting:cut_fusible"
        jobs = [Unit("fusible", record["origin"], function, _material(record)) for record in classical]
        fusible = self._cut_by("prefixes", jobs, ("fusible",))
        self.tell(f"{len(fusible)} fusible subgraphs")
        records += fusible
        if self.request.backward:
            function = "passagent.data.pipeline.cutting:with_gradients"
            several = [record for record in records if record["kind"] != "single"]
            jobs = [Unit("backward", record["origin"], function, _material(record)) for record in several]
            records += self._cut_by("gradients", jobs, BACKWARD)
        return records

    def _cut_by(self, step: str, jobs: Sequence[Unit], kinds: Sequence[str]) -> list[Data]:
        """Return the records that units cut, equal ones once."""
        done = [result for result in self._run(step, jobs) if result.value]
        records: list[Data] = []
        for kind in kinds:
            first: dict[str, Data] = {}
            count, lost = 0, Counter[str]()
            for result in done:
                for reason, times in result.value["refused"].items():
                    if reason.startswith(f"{kind} "):
                        lost[reason.partition(" ")[2]] += times
                for record in result.value["records"]:
                    if record["kind"] == kind:
                        count += record["count"]
                        first.setdefault(record["hash"]["instance"], {**record, "origin": result.name})
            before = count + lost.total()
            lost["equal"] += count - len(first)
            self._count(f"{kind} subgraphs", before, len(first), lost)
            records += first.values()
        return records

    def generalise(self, records: Sequence[Data]) -> list[Data]:
        """Return the records in other sizes and dtypes, those of each structure from its first record."""
        structures: set[tuple[str, str]] = set()
        jobs = []
        for record in records:
            structure = record["kind"], record["hash"]["structure"]
            shapes = 1 if structure in structures else self.request.shapes
            structures.add(structure)
            payload = {**_material(record), "shapes": shapes, "dtypes": list(DTYPES)}
            function = "passagent.data.pipeline.generalisation:generalise"
            jobs.append(Unit("generalised", record["origin"], function, payload))
        unique: dict[tuple[str, str], Data] = {}
        count = 0
        for record, result in zip(records, self._run("shapes and dtypes", jobs), strict=True):
            for sized in result.value["instances"] if result.value else ():
                count += 1
                subgraph = {**record, **sized, "template": result.value["template"]}
                unique.setdefault((record["kind"], sized["hash"]["instance"]), subgraph)
        self._count("instances", count, len(unique), Counter({"equal": count - len(unique)}))
        self.tell(f"{len(unique)} subgraphs in all sizes and dtypes")
        return list(unique.values())

    def group(self, subgraphs: Sequence[Data]) -> tuple[list[Member], dict[str, list[Data]]]:
        """Return the tasks, and the subgraphs of each by its name."""
        by_uid = {f"{number:07}": subgraph for number, subgraph in enumerate(subgraphs)}
        in_buckets: list[Bucketed] = []
        for uid, subgraph in by_uid.items():
            inputs = [
                ([subgraph["sizes"].get(size, size) for size in meta["shape"]], dtype)
                for meta, dtype in zip(subgraph["template"]["inputs"], subgraph["input_dtypes"], strict=True)
            ]
            in_buckets.append(bucketed(uid, subgraph["kind"], subgraph["operators"], inputs))
        members, subgraphs_of, chosen = [], {}, set[str]()
        for group in groups(in_buckets):
            members_of_group = [by_uid[uid] for uid in group.uids]
            name = _task_name(group, members_of_group)
            hashes = frozenset(
                subgraph["hash"][level]
                for subgraph in members_of_group
                for level in ("structure", "instance")
            )
            members.append(Member(name, group.kind, group.operators, hashes, len(members_of_group)))
            subgraphs_of[name] = members_of_group
            chosen.update(group.uids)
        lost = Counter({"not sampled": len(by_uid) - len(chosen)})
        self._count("in groups", len(by_uid), len(chosen), lost)
        self._count("groups", len(chosen), len(members), Counter())
        return members, subgraphs_of

    def divide(self, tasks: Sequence[Member]) -> Partition:
        """Divide the tasks into training and evaluation."""
        parts = partition(tasks, dict.fromkeys(_KINDS, self.request.evaluation))
        lost = Counter({"shares with evaluation": len(parts.left_out)})
        self._count("split", len(tasks), len(parts.train) + len(parts.evaluation), lost)
        self.tell(f"{len(parts.train)} tasks to train on, {len(parts.evaluation)} to evaluate with")
        return parts


def _material(record: Data) -> Data:
    return {key: record[key] for key in ("nodes", "inputs", "kind", "range")}


def _task_name(group: Group, subgraphs: Sequence[Data]) -> str:
    """Name a group's task, `tasks/KIND/NAME`, by its operators and its subgraphs' hashes."""
    instances = [subgraph["hash"]["instance"] for subgraph in subgraphs]
    digest = hashlib.sha256(" ".join([str(group.rule), *instances]).encode()).hexdigest()[:10]
    words = "_".join(re.sub(r"\W", "", operator.removeprefix("Tensor.")) for operator in group.operators)
    return f"{TASKS}/{group.kind}/{words[:_NAMED].rstrip('_')}_{digest}"


def _write_task(path: Path, subgraphs: Sequence[Data]) -> None:
    """Write a task that is not there yet, whole or not at all."""
    if path.is_dir():
        return
    with whole_directory(path) as place:
        names = []
        for number, subgraph in enumerate(subgraphs):
            graph, metas = instance(subgraph["template"], subgraph["sizes"], subgraph["dtype"])
            names.append(f"{number:03}_{subgraph['dtype']}")
            origin = {"sample": subgraph["origin"], "range": subgraph["range"]}
            facts = {"kind": subgraph["kind"], "origin": origin, "sizes": subgraph["sizes"]}
            write_sample(place / names[-1], graph, metas, subgraph["origin"], facts)
        write_list(place, names)


def _write_lists(directory: Path, kind_of: dict[str, str], parts: Partition) -> dict[str, int]:
    """Write a list of tasks for each side and kind; return the number of tasks in each."""
    counts: dict[str, int] = {}
    for side, names in (("train", parts.train), ("evaluation", parts.evaluation)):
        for kind in dict.fromkeys(kind_of.values()):
            listed = [name for name in names if kind_of[name] == kind]
            if listed:
                counts[f"{side}_{kind}"] = len(listed)
                write_whole(directory / f"{side}_{kind}.txt", "".join(f"../{name}\n" for name in listed))
    return counts
