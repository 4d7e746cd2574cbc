"""Read a package of passes: verify its files, register its operators."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from torch import fx

from passagent.errors import PassagentError, UsageError
from passagent.evaluator.candidate import PLANS
from passagent.evaluator.matching.loaded_passes import PlannedPass
from passagent.evaluator.matching.unify import same_literal
from passagent.packages.package_operators import (
    PlannedCall,
    PlannedOperator,
    Skeleton,
    register,
    split,
)
from passagent.passes import Rewrite, load, load_directory
from passagent.plan import artefact
from passagent.plan.arguments import Argument
from passagent.plan.calling import calls_operators_alone
from passagent.plan.model import Pass
from passagent.plan.recorded_pattern import pattern_graph

MANIFEST = "manifest.json"
FORMAT = 1
_ARGUMENTS: TypeAdapter[tuple[Argument, ...]] = TypeAdapter(tuple[Argument, ...])


@dataclass(frozen=True)
class DeployedPass:
    """A pass of a package: what it matches, and its operators for what may be bound to its parameters."""

    planned: PlannedPass
    operators: dict[str, PlannedOperator]
    """By name."""
    skeletons: list[tuple[Skeleton, str]]
    """Bindings without their tensors, and the operator for them."""
    rewrite: Rewrite | None
    """Puts in the operators of torch that its plans call, where they call nothing else."""

    @property
    def name(self) -> str:
        """The name that its author gave."""
        return self.planned.name

    @property
    def pattern(self) -> fx.Graph:
        """The pattern that it matches."""
        return self.planned.pattern_graph


@dataclass(frozen=True)
class Package:
    """A package of passes, ready to be used."""

    path: Path
    digest: str
    """sha256 of its manifest, which has the digest of each file."""
    passes: list[DeployedPass]
    manifest: dict[str, Any]
    rewrites: list[Rewrite] = field(default_factory=list)
    """Passes of library operators, which are put in before the others."""

    @property
    def names(self) -> list[str]:
        """The names of all its passes."""
        return [*(deployed.name for deployed in self.passes), *(rewrite.name for rewrite in self.rewrites)]

    @property
    def graph_rewrites(self) -> list[Rewrite]:
        """All that is put in as operators of torch, those of passes included."""
        return [*self.rewrites, *(each.rewrite for each in self.passes if each.rewrite)]


class CompileSettings(NamedTuple):
    """How a model is compiled with a package; its manifest has them."""

    mode: str = "default"
    """One of Inductor's, or `cuda-graph`."""
    is_frozen: bool = False
    """Parameters become constants wherever no gradients are recorded."""
    is_static: bool = False
    """Sizes are constants, in code of its own for each layout of inputs."""


SHIPPED = "passagent.passes"
"""The module of the passes that come with passagent, in the place of a package's name."""
Passes = str | Path | Package | Sequence[str | Path | Package]
"""Packages: directories, names of modules, or loaded ones."""


def load_packages(passes: Passes) -> list[Package]:
    """The packages that `passes` names. Raises UsageError, PassagentError."""
    several = [passes] if isinstance(passes, str | Path | Package) else list(passes)
    return [
        package if isinstance(package, Package) else load_package(_directory(package)) for package in several
    ]


def load_package(path: str | Path) -> Package:
    """The package in a directory, its operators registered; once in a process for each content.

    A directory without a manifest holds files of rewrites (passagent/passes), a user's own or those that come
    with passagent. Raises UsageError where there is neither, PassagentError where a file is not the one that
    was packed.
    """
    place = Path(path).resolve()
    try:
        text = (place / MANIFEST).read_text(encoding="utf-8")
    except OSError as error:
        if not any(place.glob("*.py")):
            raise UsageError(
                f"{path}: is no package of passes: it has no {MANIFEST} and no NAME.py"
            ) from error
        return package_of(place, load_directory(place))
    return _load(place, text)


def package_of(place: Path, rewrites: Sequence[Rewrite]) -> Package:
    """A package of these rewrites alone, which is written nowhere."""
    texts = [rewrite.file.read_bytes() for rewrite in rewrites]
    return Package(place, hashlib.sha256(b"\0".join(texts)).hexdigest(), [], {"passes": []}, list(rewrites))


@cache
def _load(place: Path, text: str) -> Package:
    try:
        manifest = json.loads(text)
        if manifest["format"] != FORMAT:
            raise UsageError(f"{place}: is of format {manifest['format']}; this passagent reads {FORMAT}")
        files = {name: _verified(place, name, digest) for name, digest in manifest["files"].items()}
        passes = [_pass(entry, files) for entry in manifest["passes"]]
        rewrites = [load(place / name) for name in manifest["rewrites"] if files[name]]
    except (ValueError, KeyError, TypeError) as error:
        raise PassagentError(f"{place / MANIFEST}: is damaged: {error}; package the passes again") from error
    return Package(place, hashlib.sha256(text.encode()).hexdigest(), passes, manifest, rewrites)


def _verified(place: Path, name: str, digest: str) -> str:
    file = place / name
    if not file.resolve().is_relative_to(place):
        raise PassagentError(f"{place / MANIFEST}: names {name}, which is outside of the package")
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise PassagentError(f"{file}: is missing; package the passes again") from error
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise PassagentError(f"{file}: is not what was packaged: its hash differs; package the passes again")
    return text


def _pass(entry: dict[str, Any], files: dict[str, str]) -> DeployedPass:
    root = f"{entry['directory']}/{PLANS}/"
    plan_files = {name.removeprefix(root): text for name, text in files.items() if name.startswith(root)}
    recording = artefact.read(plan_files).recording
    recorded = recording.passes[entry["number"]]
    graph = pattern_graph(recorded.pattern)
    planned = PlannedPass(recorded.name, recorded.file, graph)
    operators, skeletons = {}, []
    for described in entry["operators"]:
        calls = [
            PlannedCall(recorded.plans[call["plan"]], _ARGUMENTS.validate_python(call["arguments"]))
            for call in described["calls"]
        ]
        name = operator_name(recorded, described["bindings"], calls)
        operator = PlannedOperator(graph, described["bindings"], calls, recording.device)
        operators[name] = register(name, operator, described["outputs"])
        skeletons.append((described["bindings"], name))
    rewrite = _rewrite(planned, skeletons, operators) if calls_operators_alone(recorded) else None
    return DeployedPass(planned, operators, skeletons, rewrite)


def _rewrite(
    planned: PlannedPass, skeletons: list[tuple[Skeleton, str]], operators: dict[str, PlannedOperator]
) -> Rewrite:
    """A pass that calls operators alone, as these in a graph."""

    def applies(**bound: Any) -> bool | dict[str, Any]:
        skeleton, tensors = split(bound)
        named = (operators[name] for bindings, name in skeletons if same_literal(bindings, skeleton))
        fitting = (operator for operator in named if operator.has_plan(tensors))
        return next(({"_operator": operator} for operator in fitting), False)

    def replacement(_operator: PlannedOperator, **bound: Any) -> Any:
        return _operator.computed(split(bound)[1])

    return Rewrite(planned.name, (planned.pattern_graph,), applies, replacement, Path(planned.file))


def operator_name(recorded: Pass, skeleton: Skeleton, calls: Sequence[PlannedCall]) -> str:
    """The name of an operator of a recorded pass, by its content."""
    pattern = [node.model_dump(mode="json", exclude_none=True) for node in recorded.pattern]
    plans = [[call.plan.digest(), _ARGUMENTS.dump_python(call.arguments, mode="json")] for call in calls]
    content = json.dumps([pattern, skeleton, plans], sort_keys=True)
    return f"p_{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def _directory(name: str | Path) -> Path:
    """A directory if there is one of that name, else where the module of that name is."""
    if Path(name).is_dir():
        return Path(name)
    try:
        spec = importlib.util.find_spec(str(name)) if isinstance(name, str) else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise UsageError(f"passes {name!s}: no such directory, and no module of that name")
    return Path(spec.origin).parent
