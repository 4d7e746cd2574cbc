"""Eager: inputs from a fresh seed, its outputs on them, and a worker to time beside a candidate's."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from typing import Any

import torch

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError, TaskError
from passagent.evaluator.channel import Arena
from passagent.evaluator.process import Answer, Worker, WorkerDied, WorkerTimeout, Zygote, last_line
from passagent.evaluator.timing import run_request
from passagent.tasks.inputs import make_inputs
from passagent.tasks.reader import Subgraph

SETS = 3
"""Input sets that outputs are compared on: the recorded statistics and own draws."""
_SPARSE = 16 << 30
"""Room for eager's outputs, bytes: address space only, memory is taken as it is written."""


@dataclass
class Reference:
    """Inputs of one subgraph, in shared memory, and eager's outputs on them."""

    arena: Arena
    described: list[list[dict[str, Any]]]
    """SETS sets that outputs are compared on and one more, for capturing only."""
    outputs: list[list[torch.Tensor]]
    mutated: list[int]
    """Inputs that eager writes into."""

    def close(self) -> None:
        """Free the shared memory."""
        self.arena.close()


class Baseline:
    """The trusted worker of a referee; started at first use, started again if it is lost."""

    def __init__(self, zygote: Zygote, config: EvaluatorConfig) -> None:
        self._zygote, self._config = zygote, config
        self._worker: Worker | None = None

    def reference(self, subgraph: Subgraph) -> Reference:
        """Draw inputs, run eager on each set, and leave the worker ready to be timed on this subgraph.

        Raises TaskError if eager fails, takes longer than the time-out or is not one graph for Dynamo.
        """
        seed = secrets.randbits(62)
        sets = [make_inputs(subgraph, "cpu", seed, variant) for variant in range(SETS + 1)]
        tensors = [value for one in sets for value in one if isinstance(value, torch.Tensor)]
        arena = Arena.create(Arena.room(tensors))
        host = [subgraph.home == "cuda" and meta.device.startswith("cpu") for meta in subgraph.inputs]
        described = [[_describe(*item, arena) for item in zip(one, host, strict=True)] for one in sets]
        outputs = Arena.create(_SPARSE)
        try:
            request = graph_request(subgraph, described, arena, outputs)
            self._run(request, subgraph, (arena.fd, outputs.fd))
            results: list[list[torch.Tensor]] = []
            mutated: set[int] = set()
            for chosen in range(SETS):
                reply = self._run(run_request(chosen, 1, [], outputs=True, inputs_after=True), subgraph)
                results.append([outputs.read(item) for item in reply["outputs"]])
                mutated |= set(reply["mutated"])
        except BaseException:
            arena.close()
            raise
        finally:
            outputs.close()
        return Reference(arena, described, results, sorted(mutated))

    def ask(self, message: dict[str, Any], timeout_s: float) -> Answer:
        """A request about the subgraph at hand. Raises InfrastructureError: eager did answer before."""
        assert self._worker is not None
        try:
            return self._worker.ask(message, timeout_s)
        except (WorkerDied, WorkerTimeout) as error:
            self._worker = None
            raise InfrastructureError(f"the baseline's worker was lost: {error}") from error

    def _run(self, request: dict[str, Any], subgraph: Subgraph, fds: tuple[int, ...] = ()) -> dict[str, Any]:
        if self._worker is None:
            self._worker = self._start()
        try:
            reply = self._worker.ask(request, self._config.timeout_s, fds).message
        except WorkerTimeout as error:
            self._worker = None
            message = f"{subgraph.path}: eager takes more than {self._config.timeout_s:.0f} s"
            raise TaskError(message) from error
        except WorkerDied as death:
            self._worker = None
            if death.killed_from_outside:
                raise InfrastructureError(f"the baseline's worker {death.describe()}") from death
            raise TaskError(f"{subgraph.path}: eager {death.describe()}{last_line(death.log)}") from death
        if "error" in reply:
            raise TaskError(f"{subgraph.path}: eager fails: {reply['error']['message']}")
        return reply

    def _start(self) -> Worker:
        worker = self._zygote.fork(None)
        request = {
            "op": "load",
            "files": None,
            "device": self._config.device,
            "dispatch": self._config.dispatch,
        }
        try:
            worker.ask(request, self._config.timeout_s)
        except (WorkerDied, WorkerTimeout) as error:
            raise InfrastructureError(f"the baseline's worker did not start: {error}") from error
        return worker


def graph_request(
    subgraph: Subgraph, described: list[list[dict[str, Any]]], arena: Arena, outputs: Arena
) -> dict[str, Any]:
    """The worker's `graph` request; the arenas' descriptors go beside it."""
    return {
        "op": "graph",
        "subgraph": asdict(subgraph) | {"path": str(subgraph.path)},
        "sets": described,
        "input_bytes": arena.size,
        "output_bytes": outputs.size,
    }


def _describe(value: Any, host: bool, arena: Arena) -> dict[str, Any]:
    """An input for the worker; `host`: it stays on the CPU, as it was recorded beside inputs on a GPU."""
    if isinstance(value, torch.Tensor):
        return {"tensor": arena.write(value), "host": host}
    return {"value": value}
