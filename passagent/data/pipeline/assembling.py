"""From samples to a data set: each step's units, and what came of them (`passagent tasks build`)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from passagent.data.pipeline import folding
from passagent.data.pipeline.backward import KINDS as BACKWARD
from passagent.data.pipeline.buckets import Bucketed, Group, bucketed, groups
from passagent.data.pipeline.generalisation import DTYPES, SHAPES
from passagent.data.pipeline.partition import Member, Partition, partition
from passagent.data.pipeline.task_directories import LISTS, RECORD, remove_others, task_name, written_task
from passagent.data.pipeline.units import Done, Unit, Units, computing
from passagent.errors import UsageError
from passagent.system.cache import write_whole
from passagent.system.resumable import locked
from passagent.tasks.reader import FILES

KINDS = ("fusible", "classical", "single")
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What is to be built."""

    samples: list[str]
    out: str
    device: str = "cpu"
    shapes: int = SHAPES
    evaluation: int = 200
    """Operator sequences of each kind that are for evaluation."""
    parallel: int = 1
    backward: bool = False
    limit_s: int = 600
    """Of a unit."""


def find_samples(places: list[str]) -> dict[str, Path]:
    """Name and directory of each sample in or below the directories, sorted. Raises UsageError."""
    found: dict[str, Path] = {}
    for place in map(Path, places):
        if not place.is_dir():
            raise UsageError(f"{place}: no such directory; give GraphNet's samples or a directory of them")
        paths = sorted(file.parent for file in place.rglob("model.py"))
        if not paths:
            raise UsageError(f"{place}: holds no sample, which is a directory with model.py")
        for path in paths:
            found[str(path.resolve())] = path
    return {"/".join(path.resolve().parts[-2:]): path for path in found.values()}


def validation(name: str, path: Path, device: str) -> Unit:
    """The unit that validates a sample."""
    digest = hashlib.sha256()
    for file in FILES:
        content = (path / file).read_bytes() if (path / file).is_file() else b""
        digest.update(f"{file} {len(content)}\n".encode() + content)
    payload = {"path": str(path.resolve()), "files": digest.hexdigest(), "device": device}
    return Unit("validated", name, "passagent.data.pipeline.sample_validation:validate_sample", payload)


@dataclass
class Funnel:
    """How much went into each step, how much came out, and why not the rest."""

    steps: list[dict[str, Any]] = field(default_factory=list)

    def add(self, step: str, given: int, kept: int, lost: Counter[str], done: Sequence[Done] = ()) -> None:
        """One step; `done`: its units."""
        seconds = round(sum(one.seconds for one in done), 1)
        peak = max((one.peak_mib for one in done), default=0)
        row = {"step": step, "in": given, "out": kept, "lost": dict(lost.most_common())}
        self.steps.append(row | {"seconds": seconds, "peak_mib": peak})


def build(request: Request, tell: Tell = lambda line: None) -> dict[str, Any]:
    """Build a data set, or go on with it. Raises UsageError, InfrastructureError."""
    samples = find_samples(request.samples)
    out = Path(request.out)
    work, device = out / "work", request.device
    with _alone(out), computing(work, request.parallel, request.limit_s, device) as units:
        funnel = Funnel()
        graphs = _validated(units, samples, request, funnel, tell)
        records = _cut(units, graphs, request, funnel, tell)
        subgraphs = _generalised(units, records, request, funnel, tell)
        tasks, subgraphs_of = _grouped(subgraphs, funnel)
        parts = partition(tasks, dict.fromkeys(KINDS[:2], request.evaluation))
        lost = Counter({"shares with evaluation": len(parts.left_out)})
        funnel.add("split", len(tasks), len(parts.train) + len(parts.evaluation), +lost)
        tell(f"{len(parts.train)} tasks to train on, {len(parts.evaluation)} to evaluate with")
        kept = set(parts.train) | set(parts.evaluation)
        for name in sorted(kept):
            written_task(out, name, subgraphs_of[name])
        remove_others(out, kept)
        return _listed(out, request, funnel, tasks, parts)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Have the directory for this process. Raises UsageError."""
    if out.is_dir() and any(out.iterdir()) and not (out / "work").is_dir():
        raise UsageError(f"--out {out}: holds other files; name another directory")
    with locked(out / "work", "lock", "--out"):
        yield


def _validated(
    units: Units, samples: dict[str, Path], request: Request, funnel: Funnel, tell: Tell
) -> dict[str, dict[str, Any]]:
    """The samples' graphs by their names, equal ones once."""
    done = list(units.results([validation(name, path, request.device) for name, path in samples.items()]))
    graphs = {one.name: one.value for one in done if one.value}
    refused = Counter(one.reason for one in done if not one.value)
    funnel.add("validate", len(done), len(graphs), refused, done)
    for one in done:
        if not one.value:
            tell(f"{one.name}: {one.reason}: {one.detail}")
    first = {graph["hash"]["instance"]: name for name, graph in reversed(graphs.items())}
    unique = {name: graph for name, graph in graphs.items() if first[graph["hash"]["instance"]] == name}
    funnel.add("unique graphs", len(graphs), len(unique), _equal(len(graphs) - len(unique)))
    tell(f"{len(unique)} graphs of {len(samples)} samples")
    return unique


def _equal(count: int) -> Counter[str]:
    return +Counter({"equal": count})


def _cut(
    units: Units, graphs: dict[str, dict[str, Any]], request: Request, funnel: Funnel, tell: Tell
) -> list[dict[str, Any]]:
    """The subgraphs of all kinds, each once."""
    folded = folding.fold([graph["operators"] for graph in graphs.values()])
    jobs = []
    for (name, graph), found in zip(graphs.items(), folding.ranges(folded), strict=True):
        single = [["single", i, i + 1] for i in range(len(graph["operators"]))]
        payload = {key: graph[key] for key in ("nodes", "inputs")}
        payload["ranges"] = [*(["classical", *one] for one in found), *single]
        jobs.append(Unit("cut", name, "passagent.data.pipeline.cutting:cut_ranges", payload))
    done = list(units.results(jobs))
    records = _collected(funnel, "cut", done, ("classical", "single"))
    classical = [one for one in records if one["kind"] == "classical"]
    tell(f"{len(classical)} classical subgraphs, {len(records) - len(classical)} single operators")
    jobs = [
        Unit("fusible", one["origin"], "passagent.data.pipeline.plateaus:cut_fusible", _material(one))
        for one in classical
    ]
    done = list(units.results(jobs))
    fusible = _collected(funnel, "prefixes", done, ("fusible",))
    tell(f"{len(fusible)} fusible subgraphs")
    records += fusible
    if request.backward:
        jobs = [
            Unit("backward", one["origin"], "passagent.data.pipeline.backward:with_gradients", _material(one))
            for one in records
            if one["kind"] != "single"
        ]
        records += _collected(funnel, "gradients", list(units.results(jobs)), BACKWARD)
    return records


def _material(record: dict[str, Any]) -> dict[str, Any]:
    return {key: record[key] for key in ("nodes", "inputs", "kind", "range")}


def _collected(funnel: Funnel, step: str, done: list[Done], kinds: Sequence[str]) -> list[dict[str, Any]]:
    """The records of units, equal ones once, and the funnel's rows of them."""
    lost = Counter(one.reason for one in done if not one.value)
    funnel.add(step, len(done), len(done) - lost.total(), lost, done)
    found: list[dict[str, Any]] = []
    for kind in kinds:
        first: dict[str, dict[str, Any]] = {}
        count, why = 0, Counter[str]()
        for one in done:
            if not one.value:
                continue
            for reason, times in one.value["refused"].items():
                if reason.startswith(f"{kind} "):
                    why[reason.partition(" ")[2]] += times
            for record in one.value["records"]:
                if record["kind"] == kind:
                    count += record["count"]
                    first.setdefault(record["hash"]["instance"], {**record, "origin": one.name})
        why.update(_equal(count - len(first)))
        funnel.add(f"{kind} subgraphs", count + why.total() - why["equal"], len(first), why)
        found += first.values()
    return found


def _generalised(
    units: Units, records: list[dict[str, Any]], request: Request, funnel: Funnel, tell: Tell
) -> list[dict[str, Any]]:
    """Instances of the records in other sizes and dtypes, those of each structure from its first record."""
    seen: set[tuple[str, str]] = set()
    jobs, sources = [], []
    for record in records:
        key = record["kind"], record["hash"]["structure"]
        shapes = 1 if key in seen else request.shapes
        seen.add(key)
        payload = {**_material(record), "shapes": shapes, "dtypes": list(DTYPES)}
        task = "passagent.data.pipeline.generalisation:generalise"
        jobs.append(Unit("generalised", record["origin"], task, payload))
        sources.append(record)
    done = list(units.results(jobs))
    lost = Counter(one.reason for one in done if not one.value)
    funnel.add("shapes and dtypes", len(done), len(done) - lost.total(), lost, done)
    found, known, count = [], set[tuple[str, str]](), 0
    for record, one in zip(sources, done, strict=True):
        for instance in one.value["instances"] if one.value else ():
            count += 1
            key = record["kind"], instance["hash"]["instance"]
            if key not in known:
                known.add(key)
                found.append({**record, **instance, "template": one.value["template"]})
    funnel.add("instances", count, len(found), _equal(count - len(found)))
    tell(f"{len(found)} subgraphs in all sizes and dtypes")
    return found


def _grouped(
    subgraphs: list[dict[str, Any]], funnel: Funnel
) -> tuple[list[Member], dict[str, list[dict[str, Any]]]]:
    """The tasks, and the subgraphs of each by its name."""
    by_uid = {f"{number:07}": one for number, one in enumerate(subgraphs)}
    given: list[Bucketed] = []
    for uid, one in by_uid.items():
        inputs = [
            ([one["sizes"].get(size, size) for size in meta["shape"]], dtype)
            for meta, dtype in zip(one["template"]["inputs"], one["input_dtypes"], strict=True)
        ]
        given.append(bucketed(uid, one["kind"], one["operators"], inputs))
    found: list[Group] = groups(given)
    members, subgraphs_of = [], {}
    for group in found:
        own = [by_uid[uid] for uid in group.uids]
        name = task_name(group, [one["hash"]["instance"] for one in own])
        hashes = frozenset(one["hash"][level] for one in own for level in ("structure", "instance"))
        members.append(Member(name, group.kind, group.operators, hashes, len(own)))
        subgraphs_of[name] = own
    chosen = {uid for group in found for uid in group.uids}
    funnel.add("in groups", len(given), len(chosen), +Counter({"not sampled": len(given) - len(chosen)}))
    funnel.add("groups", len(chosen), len(members), Counter())
    return members, subgraphs_of


def _listed(
    out: Path, request: Request, funnel: Funnel, tasks: list[Member], parts: Partition
) -> dict[str, Any]:
    """Write the lists, and last the record of the data set."""
    kind_of = {task.name: task.kind for task in tasks}
    counts: dict[str, int] = {}
    for side, names in (("train", parts.train), ("evaluation", parts.evaluation)):
        for kind in dict.fromkeys(kind_of.values()):
            own = [name for name in names if kind_of[name] == kind]
            if own:
                counts[f"{side}_{kind}"] = len(own)
                (out / LISTS).mkdir(exist_ok=True)
                write_whole(out / LISTS / f"{side}_{kind}.txt", "".join(f"../{name}\n" for name in own))
    record = {
        "samples": request.samples,
        "device": request.device,
        "shapes": request.shapes,
        "backward": request.backward,
        "tasks": counts,
        "funnel": funnel.steps,
    }
    write_whole(out / RECORD, json.dumps(record, indent=1) + "\n")
    return record
