"""A candidate in its worker as plans: matches are replaced by replays. None of its Python is here."""

from __future__ import annotations

import base64
import functools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx

from passagent.evaluator.integrity.blocks import Blocks
from passagent.plan import extension
from passagent.plan.choosing import fastest_choices
from passagent.plan.compile import Built
from passagent.plan.convert import bound_argument
from passagent.plan.model import Call, Plan, Recording
from passagent.plan.recorded_pattern import Bindings, planned_passes, replace_calls
from passagent.plan.replay import Replay
from passagent.plan.show import brief, folded
from passagent.plan.table import Mode

_OF_DTYPE = re.compile(r"\bb?u?(?:float|int)\d+\b|[\d.]+ [KMG]?B\b")
"""The differences of the texts of plans that differ in dtypes only: these and sizes in bytes."""


@dataclass(frozen=True)
class Plans:
    """The plans of a candidate, and its built kernels, by the plans' digests."""

    recording: Recording
    built: dict[str, Built]

    def data(self) -> dict[str, Any]:
        """Return JSON with the kernels' bytes and those of replay.c: a worker opens no file of the cache."""
        return {
            "recording": self.recording.model_dump_json(),
            "built": {key: _packed(built.path) | _facts(built) for key, built in self.built.items()},
            "extension": _packed(extension.build()),
        }

    def outline(self) -> list[str]:
        """Each plan in a few lines, under its pass and subgraphs; once where only dtypes differ."""
        alike: dict[tuple[str, str], tuple[str, list[str]]] = {}
        for plan in folded(self.recording):
            text = brief(plan.plan)
            _, names = alike.setdefault((plan.file, _OF_DTYPE.sub("", text)), (text, []))
            names += [f"{name} x {n}" if n > 1 else name for name, n in Counter(plan.subgraphs).items()]
        plans = [(file, text, names) for (file, _), (text, names) in alike.items() if names]
        return [f"{file} on {', '.join(names)}\n{text}" for file, text, names in plans]

    @staticmethod
    def read(data: dict[str, Any], folder: Path, builds: bool = False) -> Plans:
        """Read the result of `data`, with the files written into `folder`; replay.c, too, unless this process
        `builds` what it needs.
        """
        folder.mkdir(exist_ok=True)
        if not builds:
            replay_c = _unpacked(data["extension"], folder)
            extension._builder[0] = lambda: replay_c
        built = {}
        for key, entry in data["built"].items():
            path = _unpacked(entry, folder)
            built[key] = Built.of(path, **entry)
        return Plans(Recording.model_validate_json(data["recording"]), built)


class Planned:
    """The plans of a candidate in a worker, and the memory of its audited calls."""

    def __init__(self, plans: Plans, device: str, blocks: Blocks) -> None:
        self.device, self.blocks = device, blocks
        self.recording, self._built = plans.recording, plans.built
        self.passes = planned_passes(self.recording)

    def calls(self, subgraph: str) -> list[PlannedCall]:
        """The calls of one subgraph, by its name, in the order in which they take their places."""
        return [PlannedCall(self, call) for call in self.recording.calls_of(subgraph)]

    def apply(
        self, graph_module: fx.GraphModule, calls: list[PlannedCall], is_audited: bool
    ) -> fx.GraphModule:
        """Put calls, timed or audited ones, in their places in a graph, which is changed and returned.

        Raises PlanError for a graph that is not the recorded one.
        """

        def replacement(position: int, bindings: Bindings) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            planned = calls[position]
            args = tuple(bound_argument(argument, bindings) for argument in planned.call.arguments)
            return planned.audit if is_audited else planned.run, args

        recorded = [planned.call for planned in calls]
        replace_calls(graph_module.graph, self.passes, recorded, replacement, check=is_audited)
        graph_module.recompile()
        return graph_module

    def plan(self, call: Call) -> Plan:
        """The plan of a call."""
        return self.recording.passes[call.number].plans[call.plan]

    def replay(self, plan: Plan, choices: list[int], audited: bool = False) -> Replay:
        """A plan ready to run; `audited`: every allocation is a block."""
        mode = Mode(choices, fresh=audited, empty=self._empty if audited else None)
        return Replay(plan, self._built, self.device, mode)

    def _empty(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        like = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        return self.blocks.block(like, self.device)


@dataclass
class PlannedCall:
    """One match's replacement."""

    planned: Planned
    call: Call
    choices: list[int] = field(default_factory=list)
    """The alternative of each Choice that runs; empty before the first call."""
    timed: Replay | None = None

    def run(self, *args: Any) -> Any:
        """Replay the plan. The first call finds out which alternatives of a kernel are fastest here."""
        if self.timed is None:
            self.choices = self._fastest(args)
            self.timed = self.planned.replay(self.planned.plan(self.call), self.choices)
        return self.timed.call(*args)

    def audit(self, *args: Any) -> Any:
        """Run the call, audited."""
        return self._audited(*args)

    @functools.cached_property
    def _audited(self) -> Callable[..., Any]:
        """The call with every allocation between guard zones; what breaks a rule is reported."""
        planned, plan = self.planned, self.planned.plan(self.call)
        replay = planned.replay(plan, self.choices, audited=True)
        file = planned.passes[self.call.number].file

        def call(*args: Any) -> Any:
            result = replay.call(*args)
            if planned.device.startswith("cuda"):
                torch.cuda.synchronize()
            if not replay.is_intact():
                planned.blocks.report("changed_constant", "a kernel changes a constant of the pass", file)
            return result

        return call

    def _fastest(self, args: tuple[Any, ...]) -> list[int]:
        plan = self.planned.plan(self.call)
        return fastest_choices(plan, args, lambda choices: self.planned.replay(plan, choices))


def _packed(path: Path) -> dict[str, Any]:
    return {"name": path.name, "bytes": base64.b64encode(path.read_bytes()).decode()}


def _unpacked(packed: dict[str, Any], folder: Path) -> Path:
    """Write the file; what described it is taken out of `packed`."""
    path = folder / packed.pop("name")
    path.write_bytes(base64.b64decode(packed.pop("bytes")))
    return path


def _facts(built: Built) -> dict[str, Any]:
    return {name: value for name, value in vars(built).items() if name != "path"}
