"""Make a package of passes, importable and installable: plans, kernels, the passes' text, a manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from passagent import __version__
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.candidate import PLAN, PLANS, Candidate
from passagent.evaluator.matching.effects import Memory
from passagent.packages.loading import (
    FORMAT,
    MANIFEST,
    CompileSettings,
    Package,
    operator_name,
)
from passagent.packages.package_operators import (
    PlannedCall,
    Skeleton,
    layout_of,
    owned,
    pattern_module,
    planned_key,
    planned_layout,
    split,
)
from passagent.packages.rewrites import stand_in
from passagent.passes import Rewrite
from passagent.plan import artefact
from passagent.plan.arguments import ValueArg, leaves
from passagent.plan.calling import calls_operators_alone
from passagent.plan.check import PlanError
from passagent.plan.model import Call, Pass, Recording
from passagent.plan.record import check_fits, subgraphs_of
from passagent.plan.recorded_pattern import Bindings, pattern_graph, planned_passes, replace_calls
from passagent.search import finalists
from passagent.search.finalists import confirmed_evaluation
from passagent.search.setup import stored_task
from passagent.store import Store, nodes, runs
from passagent.store.nodes import author_of
from passagent.store.outputs import whole_directory
from passagent.tasks import load_task
from passagent.tasks.graphio import load_graph
from passagent.tasks.reader import Task


@dataclass(frozen=True)
class Source:
    """A candidate with its plans, and the task that they were recorded and measured on."""

    name: str
    files: dict[str, str]
    """The passes' text."""
    plans: dict[str, str]
    """Files in the form of plan/artefact.py."""
    task: Task
    facts: dict[str, Any] = field(default_factory=dict)
    """Where it comes from and what was measured, for the manifest."""


@dataclass(frozen=True)
class Packed:
    """A written package."""

    path: Path
    operators: dict[str, str]
    """Name of the operator to that of its pass."""
    left_out: list[tuple[str, str]]
    """Passes and plans that cannot be deployed, and why."""


def check_name(out: Path) -> None:
    """Raise UsageError if `out` cannot be the directory of a Python package."""
    if not out.name.isidentifier():
        raise UsageError(f"--out {out}: {out.name} is no name of a Python package; use letters, digits, _")


def pack(sources: Sequence[Source], out: Path, rewrites: Sequence[Rewrite] = ()) -> Packed:
    """Write the package `out`, which must not be there, with the passes of sources and with rewrites.

    Raises UsageError for `out` and for plans of another task, PassagentError if nothing can be deployed.
    """
    check_name(out)
    files: dict[str, str] = {}
    entries: list[dict[str, Any]] = []
    left_out: list[tuple[str, str]] = []
    for number, source in enumerate(sources):
        directory = f"passes/{number:02}_{source.name}"
        source_entries = _entries(source, directory, left_out)
        if not source_entries:
            continue
        entries += source_entries
        files |= {f"{directory}/{name}": text for name, text in source.files.items() if name.endswith(".py")}
        files |= {f"{directory}/{PLANS}/{name}": text for name, text in source.plans.items()}
    if not entries and not rewrites:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out) or "no pass matches"
        raise PassagentError(f"{out}: nothing can be deployed: {reasons}")
    _write(out, {"passes": entries, "left_out": left_out}, files, rewrites)
    operators = {described["name"]: entry["name"] for entry in entries for described in entry["operators"]}
    return Packed(out, operators, left_out)


def drop(
    package: Package, names: Sequence[str], out: Path, settings: CompileSettings = CompileSettings()
) -> Path:
    """Write the package again as `out`, without some of its passes, and how `deploy` compiles with it.

    Raises UsageError for `out`.
    """
    check_name(out)
    entries = [entry for entry in package.manifest["passes"] if entry["name"] not in names]
    directories = tuple(f"{entry['directory']}/" for entry in entries)
    names_of_files = [name for name in package.manifest.get("files", ()) if name.startswith(directories)]
    dropped = [(name, "the model is faster without it") for name in names]
    facts = {
        "mode": settings.mode,
        "frozen": settings.is_frozen,
        "static": settings.is_static,
        "passes": entries,
        "left_out": [*package.manifest.get("left_out", ()), *dropped],
    }
    texts = {name: (package.path / name).read_text(encoding="utf-8") for name in names_of_files}
    _write(out, facts, texts, [rewrite for rewrite in package.rewrites if rewrite.name not in names])
    return out


def _write(out: Path, facts: dict[str, Any], files: dict[str, str], rewrites: Sequence[Rewrite]) -> None:
    """Write the files of a package, all or none. Raises UsageError for `out`."""
    texts = {f"rewrites/{rewrite.file.name}": rewrite.file.read_text("utf-8") for rewrite in rewrites}
    files = files | texts
    manifest = {
        "format": FORMAT,
        "passagent": __version__,
        "torch": str(torch.__version__),
        "rewrites": list(texts),
        **facts,
        "files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(files.items())},
    }
    places = sorted({name.partition("/")[0] for name in files} | {"__init__.py", MANIFEST})
    included = "\n".join(f'"{place}" = "{out.name}/{place}"' for place in places)
    files |= {
        MANIFEST: json.dumps(manifest, indent=1) + "\n",
        "__init__.py": _INIT,
        "pyproject.toml": _PROJECT.format(name=out.name, version=__version__, included=included),
    }
    with whole_directory(out) as place:
        for name, text in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text, encoding="utf-8")


def _entries(source: Source, directory: str, left_out: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """The passes of a source, for the manifest."""
    recording = artefact.read(source.plans).recording
    bound = _bound(recording, source)
    entries = []
    for number, recorded in enumerate(recording.passes):
        graph = pattern_graph(recorded.pattern)
        memory = Memory(graph)
        if any(root.op == "placeholder" for root in memory.writes(graph.nodes)):
            left_out.append((recorded.name, "its pattern writes into an input"))
            continue
        groups: dict[str, tuple[Skeleton, list[PlannedCall]]] = {}
        for call, skeleton in bound:
            if call.number == number:
                planned = PlannedCall(recorded.plans[call.plan], call.arguments)
                group = groups.setdefault(json.dumps(skeleton, sort_keys=True), (skeleton, []))[1]
                if planned not in group:
                    group.append(planned)
        operators, is_rewrite = [], calls_operators_alone(recorded)
        for skeleton, calls in groups.values():
            deployable = []
            for planned_call in calls:
                if why := _undeployable(graph, skeleton, planned_call, recording.device, is_rewrite):
                    left_out.append((recorded.name, why))
                else:
                    deployable.append(planned_call)
            if deployable:
                operators.append(_operator(recorded, graph, skeleton, deployable))
        if operators:
            facts = {"name": recorded.name, "file": recorded.file, "directory": directory, "number": number}
            entries.append({**facts, "device": recording.device, "operators": operators, **source.facts})
    return entries


def _operator(
    recorded: Pass, graph: fx.Graph, skeleton: Skeleton, calls: list[PlannedCall]
) -> dict[str, Any]:
    returned = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    return {
        "name": operator_name(recorded, skeleton, calls),
        "bindings": skeleton,
        "outputs": len(returned) if isinstance(returned, tuple | list) else 1,
        "calls": [
            {
                "plan": recorded.plans.index(call.plan),
                "arguments": [argument.model_dump(mode="json") for argument in call.arguments],
            }
            for call in calls
        ],
    }


def _bound(recording: Recording, source: Source) -> list[tuple[Call, Skeleton]]:
    """Return what each recorded call's pattern is bound to, in the task's own graphs."""
    subgraphs = subgraphs_of(source.task, recording.device)
    try:
        check_fits(recording, subgraphs, recording.device)
    except PlanError as error:
        raise UsageError(f"{source.name}: its plans are not of task {source.task.path}: {error}") from error
    passes = planned_passes(recording)
    bound: list[tuple[Call, Skeleton]] = []
    for subgraph, recorded in zip(subgraphs, recording.subgraphs, strict=True):

        def replacement(position: int, bindings: Bindings, calls: Any = recorded.calls) -> Any:
            skeleton, tensors = split(bindings)
            bound.append((calls[position], skeleton))
            return stand_in, tuple(tensors)

        replace_calls(load_graph(subgraph.nodes).graph, passes, recorded.calls, replacement)
    return bound


def _undeployable(
    graph: fx.Graph, skeleton: Skeleton, call: PlannedCall, device: str, is_rewrite: bool
) -> str:
    """Why a plan cannot be an operator's; empty if it can. Those of rewrites may return other strides."""
    layouts = planned_key(call, skeleton)
    if layouts is None:
        return "it does not look at an input that the pattern takes, so its shape is not known"
    try:
        with FakeTensorMode():
            examples = [
                torch.empty_strided(shape, stride, dtype=getattr(torch, dtype), device=device)
                for shape, stride, dtype in layouts
            ]
            outputs = owned(pattern_module(graph, skeleton).forward(*examples), examples)
    except Exception as error:
        return f"its pattern does not run on shapes alone: {type(error).__name__}: {error}"
    results = [leaf.value for leaf in leaves(call.plan.result) if isinstance(leaf, ValueArg)]
    for number, (value, result) in enumerate(zip(outputs, results, strict=True)):
        planned, eager = planned_layout(call.plan, result), layout_of(value)
        if planned != eager and not (is_rewrite and planned[::2] == eager[::2]):
            return f"output {number} has other strides, shape or dtype than the pattern's"
    return ""


_INIT = '''"""Passes, written by `passagent package`. Importing it registers their operators."""

from pathlib import Path

from passagent.packages.loading import load_package

PACKAGE = load_package(Path(__file__).parent)
'''
_PROJECT = """[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0"
dependencies = ["passagent>={version}"]

[tool.hatch.build.targets.wheel]
bypass-selection = true

[tool.hatch.build.targets.wheel.force-include]
{included}
"""


_MEASURED = {"as_score", "as_low", "as_high", "device", "dispatch", "reference", "environment"}
"""Facts of an evaluation that the manifest has, beside the speedups."""


def read_sources(sources: Sequence[str], tasks: Sequence[str], runs_dir: str) -> Iterator[Source]:
    """The candidates that the words name: a run's best, or a directory with its task among `tasks`.

    Raises UsageError, PassagentError.
    """
    directories = [word for word in sources if Path(word).is_dir()]
    if len(directories) != len(tasks):
        raise UsageError(
            f"{len(directories)} directories, {len(tasks)} tasks: give --task TASK for each directory"
        )
    remaining_tasks = iter(tasks)
    for word in sources:
        yield _directory(word, next(remaining_tasks)) if word in directories else _run(word, runs_dir)


def _directory(word: str, task: str) -> Source:
    files = Candidate.from_dir(word).files
    plans = files if PLAN in files else Candidate.from_dir(Path(word) / PLANS).files
    name = Path(word).resolve().name
    return Source(name, {} if plans is files else files, plans, load_task(task))


def _run(word: str, runs_dir: str) -> Source:
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, word)
        node = finalists.winner(store, run.id)
        if node is None or node.evaluation_id is None:
            raise UsageError(f"run {run.id} has no correct pass yet; nothing to package")
        plans = nodes.get_plans(store, node)
        if not plans:
            raise UsageError(f"run {run.id}: its best pass has no plan; run it again")
        evaluation = confirmed_evaluation(store, node)
        speedups = {g.name: g.speedup.model_dump() for g in evaluation.graphs if g.speedup is not None}
        facts = {
            "source": {"run": run.id, "node": node.id, "model": author_of(store, run, node)},
            "measured": evaluation.model_dump(include=_MEASURED) | {"speedups": speedups},
        }
        return Source(run.id, nodes.get_files(store, node), plans, stored_task(run), facts)
