"""The results of a benchmark: a row for each task and compiler.

A row has all that it depends on (`identity`), so that results of two machines, evaluators or protocols are
never mixed silently.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from passagent.config import EvaluatorConfig
from passagent.errors import UsageError
from passagent.evaluator.fleet.opening import LOCAL, environment_key
from passagent.evaluator.hardware.devices import first_device
from passagent.evaluator.result import Evaluation
from passagent.sandbox.environment import describe, evaluator_version, worker_threads
from passagent.store.locks import locked
from passagent.store.outputs import RowFile

FILE = "results.jsonl"
SEARCHES = "searches"
"""Beside it: the runs directory of the searches of `--compiler run`."""
_MACHINE = ("machine", "cpu", "cores", "python", "torch", "triton", "gpu", "cuda", "driver", "capability")
"""The facts of a machine that stay as they are from one minute to the next."""


class Row(BaseModel):
    """One task measured with one compiler, or why it could not be."""

    task: str
    task_key: str
    compiler: str
    subject: str
    """`eager`, `inductor`, the candidate's key, or a hash of the settings of the search."""
    identity: dict[str, Any] = {}
    at: str = ""
    """The time at which it was stored, ISO 8601, UTC."""
    run: str | None = None
    """The search behind it: its id in the runs directory `searches`."""
    evaluation: Evaluation | None = None
    error: str | None = None
    """Why there is no evaluation that counts: the task's fault or the machine's, never the compiler's."""
    hidden: list[str] = []
    """Names of the subgraphs that the author did not see."""
    left: bool = False
    """The author writes no pass for it: eager was measured in its place, and its speedup counts as 1."""

    @property
    def stands(self) -> bool:
        """The row need not be measured again; a refusal that rests on a measurement must be."""
        refused = self.evaluation is not None and self.evaluation.rests_on_measurement
        return self.error is None and not refused

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Task's name, task's content, compiler, and what exactly was measured."""
        return self.task, self.task_key, self.compiler, self.subject


def identity(config: EvaluatorConfig) -> dict[str, Any]:
    """Return all that a result depends on beside task and subject: evaluator, machine, versions, protocol."""
    protocol = config.model_dump(mode="json", exclude={"pool"})
    if config.pool != LOCAL:
        return {"evaluator": evaluator_version(), "host": environment_key(config)} | protocol
    threads = worker_threads(config.threads)
    facts = describe(first_device(config.device), threads)
    machine = {name: facts[name] for name in _MACHINE if name in facts}
    start = {"evaluator": evaluator_version(), "host": platform.node()}
    return start | machine | protocol | {"threads": threads}


class Results(RowFile[Row]):
    """The rows of a benchmark's directory, by key."""

    def __init__(self, directory: Path, same: dict[str, Any] | None = None) -> None:
        """`same`: the identity that each row must have. Raises UsageError if one has another."""
        super().__init__(directory / FILE, Row, "a result of passagent bench")
        self.identity = same or {}
        for row in self.rows.values():
            if same is not None:
                _check_same(self.path, row.identity, same)

    @property
    def go_on(self) -> str:
        """The way to go on after the benchmark was stopped, in words."""
        return f"what was measured is in {self.path}; the same command (without --fresh) goes on"


@contextmanager
def open_results(directory: Path, same: dict[str, Any], fresh: bool = False) -> Iterator[Results]:
    """Open the results in `directory`, which is made, for this process alone.

    fresh: what was measured before is renamed to `*.old`, over an older one. Raises UsageError for results of
    another identity than `same`, saying what differs, or if another process has them.
    """
    with locked(directory, ".lock", "--out"):
        for path in (directory / FILE, directory / SEARCHES) if fresh else ():
            old = path.with_name(f"{path.name}.old")
            if path.is_dir():
                shutil.rmtree(old, ignore_errors=True)
            if path.exists():
                path.replace(old)
        yield Results(directory, same)


def read_directories(places: Sequence[Path]) -> list[Row]:
    """Return the rows of several directories, of equal keys the last: alike hosts share a benchmark.

    Raises UsageError where they differ in more than the host's name.
    """
    rows: dict[Any, Row] = {}
    same: dict[str, Any] = {}
    for place in places:
        for key, row in Results(place).rows.items():
            same = same or row.identity
            _check_same(place / FILE, row.identity, same | {"host": row.identity.get("host")})
            rows[key] = row
    return list(rows.values())


def _check_same(path: Path, then: dict[str, Any], now: dict[str, Any]) -> None:
    differs = [name for name in now | then if then.get(name) != now.get(name)]
    if differs:
        changes = ", ".join(f"{name} {then.get(name)} (now {now.get(name)})" for name in differs)
        raise UsageError(
            f"{path} was measured under other conditions: {changes}; "
            "give another --out, or --fresh to measure everything again"
        )
