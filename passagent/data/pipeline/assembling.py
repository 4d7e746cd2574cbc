"""From samples to a data set: each step's jobs, and their results (`passagent tasks build`).

The steps: validate the samples, cut subgraphs out of their graphs, find other sizes and dtypes of these,
group them into tasks, divide the tasks into training and evaluation. The rows of each step's jobs are kept:
the same command goes on with them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from passagent.data.pipeline import folding
from passagent.data.pipeline.cutting import BACKWARD, cut_fusible, cut_ranges, validate_sample, with_gradients
from passagent.data.pipeline.generalisation import DTYPES, fixed, generalise, instance
from passagent.data.pipeline.grouping import (
    LISTS,
    RECORD,
    TASKS,
    Bucketed,
    Member,
    Partition,
    dimension_bucket,
    groups,
    partition,
)
from passagent.errors import UsageError
from passagent.sandbox.cache import write_whole
from passagent.store.locks import locked
from passagent.store.outputs import RowFile, whole_directory
from passagent.tasks.extract.sample import write_sample
from passagent.tasks.reader import FILES, write_list
from passagent.tasks.suites.forked_jobs import Function, JobResult, Jobs

_KINDS = ("fusible", "classical")
"""The kinds of subgraphs of which some are for evaluation."""
_NAMED = 40
"""Letters of operators in a task's name."""

Report = Callable[[str], None]
Data = dict[str, Any]
"""A graph or a subgraph as plain data."""


class Done(JobResult):
    """The kept result of a job."""

    key: str
    """A hash of the job."""
    name: str
    """The sample that it is of."""


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


def validation(path: Path, device: str) -> Data:
    """Return the payload of validate_sample for the sample at `path`."""
    present = [path / name for name in FILES if (path / name).is_file()]
    texts = {file.name: file.read_text(encoding="utf-8", errors="replace") for file in present}
    return {"files": texts, "device": device}


def key_of(function: Function, payload: Data) -> str:
    """Hash a job."""
    text = json.dumps([f"{function.__module__}:{function.__name__}", payload], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def build(samples: Sequence[str], options: Mapping[str, Any], report: Report = lambda line: None) -> Data:
    """Build the data set that the complete options of `passagent tasks build` ask for, or go on with it.

    samples: directories of them. Return its record. Raises UsageError, InfrastructureError.
    """
    places, out, device = find_samples(samples), Path(options["out"]), options["device"] or "cpu"
    work = out / "work"
    parallel = options["parallel"] or len(os.sched_getaffinity(0))
    if out.is_dir() and any(out.iterdir()) and not work.is_dir():
        raise UsageError(f"--out {out}: holds other files; name another directory")
    with locked(work, "lock", "--out"), Jobs(parallel, device, options["limit"]) as jobs:
        steps = _Steps(options, jobs, work, report)
        graphs = steps.validate([(name, validation(path, device)) for name, path in places.items()])
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
            "samples": list(samples),
            "device": device,
            "shapes": options["shapes"],
            "backward": options["backward"],
            "tasks": _write_lists(out / LISTS, {task.name: task.kind for task in tasks}, parts),
            "funnel": steps.funnel,
        }
        write_whole(out / RECORD, json.dumps(record, indent=1) + "\n")
    return record


@dataclass
class _Steps:
    """The steps of a build, and a funnel: how much went into each and came out, and why not the rest."""

    options: Mapping[str, Any]
    jobs: Jobs
    work: Path
    """The directory of the rows, a file for each function."""
    report: Report
    funnel: list[Data] = field(default_factory=list)

    def _count(self, step: str, before: int, after: int, lost: Counter[str], seconds: float = 0.0) -> None:
        row = {"step": step, "in": before, "out": after, "lost": dict((+lost).most_common())}
        self.funnel.append(row | {"seconds": round(seconds, 1)})
        self.report(f"{step}: {after} of {before}")

    def _run(self, step: str, function: Function, payloads: Sequence[tuple[str, Data]]) -> list[Done]:
        """Compute what is not kept yet, each payload for the sample before it; count what was refused."""
        path = self.work / f"{function.__name__}.jsonl"
        rows = RowFile(path, Done, "a result of passagent tasks build")
        keys = [key_of(function, payload) for _, payload in payloads]
        named = dict(zip(keys, payloads, strict=True))
        todo = {key: named[key] for key in named if not rows.stands(key)}

        def work(key: str) -> Done:
            name, payload = todo[key]
            return Done(key=key, name=name, **vars(self.jobs.run(function, payload)))

        for row in self.jobs.map(work, todo):
            rows.add(row)
        done = [
            rows.rows[key].model_copy(update={"name": name})
            for key, (name, _) in zip(keys, payloads, strict=True)
        ]
        lost = Counter(row.reason for row in done if row.reason)
        self._count(step, len(done), len(done) - lost.total(), lost, sum(row.seconds for row in done))
        return done

    def _unique(self, step: str, keyed: Sequence[tuple[Hashable, Any]]) -> list[Any]:
        """Return the first value of each key."""
        unique: dict[Hashable, Any] = {}
        for key, value in keyed:
            unique.setdefault(key, value)
        self._count(step, len(keyed), len(unique), Counter({"equal": len(keyed) - len(unique)}))
        return list(unique.values())

    def validate(self, payloads: Sequence[tuple[str, Data]]) -> dict[str, Data]:
        """Return the samples' graphs by their names, equal ones once."""
        done = self._run("validate", validate_sample, payloads)
        for result in done:
            if not result.value:
                self.report(f"{result.name}: {result.reason}: {result.message}")
        graphs = [(r.value["hash"]["instance"], (r.name, r.value)) for r in done if r.value]
        return dict(self._unique("unique graphs", graphs))

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
            jobs.append((name, payload))
        records = self._cut_by("cut", cut_ranges, jobs, ("classical", "single"))
        jobs = [(record["origin"], _material(record)) for record in records if record["kind"] == "classical"]
        records += self._cut_by("prefixes", cut_fusible, jobs, ("fusible",))
        if self.options["backward"]:
            jobs = [(record["origin"], _material(record)) for record in records if record["kind"] != "single"]
            records += self._cut_by("gradients", with_gradients, jobs, BACKWARD)
        return records

    def _cut_by(
        self, step: str, function: Function, payloads: Sequence[tuple[str, Data]], kinds: Sequence[str]
    ) -> list[Data]:
        """Return the records that jobs cut, equal ones once."""
        done = [result for result in self._run(step, function, payloads) if result.value]
        unique: dict[tuple[str, str], Data] = {}
        counts, lost = Counter[str](), {kind: Counter[str]() for kind in kinds}
        for result in done:
            for words, times in result.value["refused"].items():
                kind, _, reason = words.partition(" ")
                lost[kind][reason] += times
            for record in result.value["records"]:
                counts[record["kind"]] += record["count"]
                key = record["kind"], record["hash"]["instance"]
                unique.setdefault(key, {**record, "origin": result.name})
        records = []
        for kind in kinds:
            of_kind = [record for record in unique.values() if record["kind"] == kind]
            before = counts[kind] + lost[kind].total()
            lost[kind]["equal"] = counts[kind] - len(of_kind)
            self._count(f"{kind} subgraphs", before, len(of_kind), lost[kind])
            records += of_kind
        return records

    def generalise(self, records: Sequence[Data]) -> list[Data]:
        """Return the records in other sizes and dtypes, those of each structure from its first record."""
        structures: set[tuple[str, str]] = set()
        jobs = []
        for record in records:
            structure = record["kind"], record["hash"]["structure"]
            shapes = 1 if structure in structures else self.options["shapes"]
            structures.add(structure)
            jobs.append((record["origin"], {**_material(record), "shapes": shapes, "dtypes": list(DTYPES)}))
        instances = [
            (
                (record["kind"], sized["hash"]["instance"]),
                {**record, **sized, "template": result.value["template"]},
            )
            for record, result in zip(records, self._run("shapes and dtypes", generalise, jobs), strict=True)
            for sized in (result.value["instances"] if result.value else ())
        ]
        return self._unique("instances", instances)

    def group(self, subgraphs: Sequence[Data]) -> tuple[list[Member], dict[str, list[Data]]]:
        """Return the tasks, and the subgraphs of each by its name."""
        in_buckets = []
        for uid, subgraph in enumerate(subgraphs):
            inputs = fixed(subgraph["template"]["inputs"], subgraph["sizes"])
            shapes = tuple(tuple(map(dimension_bucket, meta["shape"])) for meta in inputs)
            operators, dtypes = tuple(subgraph["operators"]), tuple(subgraph["input_dtypes"])
            in_buckets.append(Bucketed(uid, subgraph["kind"], operators, shapes, dtypes))
        members, subgraphs_of = [], {}
        for group in groups(in_buckets):
            kind, operators = group.members[0].kind, group.members[0].operators
            of_group = [subgraphs[member.uid] for member in group.members]
            hashes = [subgraph["hash"] for subgraph in of_group]
            digest = hashlib.sha256(" ".join([str(group.rule), *(h["instance"] for h in hashes)]).encode())
            words = "_".join(re.sub(r"\W", "", operator.removeprefix("Tensor.")) for operator in operators)
            name = f"{TASKS}/{kind}/{words[:_NAMED].rstrip('_')}_{digest.hexdigest()[:10]}"
            keys = frozenset(h[level] for h in hashes for level in ("structure", "instance"))
            members.append(Member(name, kind, operators, keys, len(of_group)))
            subgraphs_of[name] = of_group
        count = sum(map(len, subgraphs_of.values()))
        lost = Counter({"not sampled": len(subgraphs) - count})
        self._count("in groups", len(subgraphs), count, lost)
        self._count("groups", count, len(members), Counter())
        return members, subgraphs_of

    def divide(self, tasks: Sequence[Member]) -> Partition:
        """Divide the tasks into training and evaluation."""
        parts = partition(tasks, dict.fromkeys(_KINDS, self.options["evaluation"]))
        lost = Counter({"shares with evaluation": len(parts.left_out)})
        self._count("split", len(tasks), len(parts.train) + len(parts.evaluation), lost)
        return parts


def _material(record: Data) -> Data:
    return {key: record[key] for key in ("nodes", "inputs", "kind", "range")}


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
