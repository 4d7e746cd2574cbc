"""What a benchmark has measured: one JSON line for each task and compiler, appended and synced as it comes.

A line says all that it depends on (`identity`), so that results of two machines, evaluators or protocols are
never mixed silently.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from passagent.config import EvaluatorConfig
from passagent.errors import UsageError
from passagent.evaluator.fleet.opening import LOCAL, environment_key
from passagent.evaluator.hardware.devices import first_device
from passagent.evaluator.result import Evaluation
from passagent.sandbox.environment import describe, evaluator_version, worker_threads
from passagent.system.faults import os_fault
from passagent.system.resumable import append_row, locked, read_rows

FILE = "results.jsonl"
SEARCHES = "searches"
"""Beside it: the runs directory of the searches of `--compiler run`."""

_MACHINE = ("machine", "cpu", "cores", "python", "torch", "triton", "gpu", "cuda", "driver", "capability")
"""Of what the evaluator tells of a machine, all that stays as it is from one minute to the next."""

Key = tuple[str, str, str, str]
"""Task's name, task's content, compiler, what exactly was measured."""


class Row(BaseModel):
    """One task measured with one compiler, or why it could not be."""

    task: str
    task_key: str
    compiler: str
    subject: str
    """`eager`, `inductor`, the candidate's key, or a hash of the settings of the search."""
    identity: dict[str, Any]
    at: str
    """When it was stored, ISO 8601, UTC."""
    run: str | None = None
    """The search behind it: its id in the runs directory `searches`."""
    evaluation: Evaluation | None = None
    error: str | None = None
    """Why there is no evaluation that counts: the task's fault or the machine's, never the compiler's."""
    left: bool = False
    """The author writes no pass for it: eager was measured in its place, and its speedup counts as 1."""

    @property
    def stands(self) -> bool:
        """Whether it need not be measured again; a refusal that rests on a measurement must be."""
        refused = self.evaluation is not None and self.evaluation.rests_on_measurement
        return self.error is None and not refused

    @property
    def key(self) -> Key:
        """Of equal keys the last line counts."""
        return self.task, self.task_key, self.compiler, self.subject


def identity(config: EvaluatorConfig) -> dict[str, Any]:
    """What a result depends on beside task and subject: evaluator, machine, versions, protocol."""
    protocol = config.model_dump(mode="json", exclude={"pool", "token_file"})
    if config.pool != LOCAL:
        return {"evaluator": evaluator_version(), "host": environment_key(config)} | protocol
    threads = worker_threads(config.threads)
    found = describe(first_device(config.device), threads)
    machine = {name: found[name] for name in _MACHINE if name in found}
    return (
        {"evaluator": evaluator_version(), "host": platform.node()}
        | machine
        | protocol
        | {"threads": threads}
    )


class Results:
    """The rows of a benchmark's directory, by key."""

    def __init__(self, directory: Path, same: dict[str, Any]) -> None:
        self.path = directory / FILE
        self.identity = same
        rows = _rows(self.path, same) if self.path.exists() else ()
        self.rows = {row.key: row for row in rows}

    def add(self, row: Row) -> None:
        """Append a row, on the disk when this returns. Raises PassagentError (a full disk)."""
        try:
            # json.dumps keeps nan and inf (a wrong candidate's values), model_dump_json makes them null
            append_row(self.path, json.dumps(row.model_dump(mode="json")))
        except OSError as error:
            raise os_fault(error, self.path, "--out") from error
        self.rows[row.key] = row


@contextmanager
def open_results(directory: Path, same: dict[str, Any], fresh: bool = False) -> Iterator[Results]:
    """The results in `directory`, which is made, for this process alone; `fresh`: old ones are put aside.

    Raises UsageError if they are not of `same` identity, saying what differs, or if another process has them.
    """
    with locked(directory, ".lock", "--out"):
        if fresh:
            _put_aside(directory)
        yield Results(directory, same)


def _put_aside(directory: Path) -> None:
    """Rename what was measured to `*.old`, over what was put aside before."""
    import shutil

    for name in (FILE, SEARCHES):
        path = directory / name
        old = path.with_name(f"{name}.old")
        if path.is_dir():
            shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            path.replace(old)


def look(directory: Path) -> list[Row]:
    """The rows in `directory` as they are now, to be looked at, of equal keys the last. Raises UsageError."""
    return list({row.key: row for row in _rows(directory / FILE, None)}.values())


def read_directories(places: Sequence[Path]) -> list[Row]:
    """Return the rows of several directories, of equal keys the last: alike hosts share a benchmark.

    Raises UsageError where they differ in more than the host's name.
    """
    rows: dict[Key, Row] = {}
    same: dict[str, Any] = {}
    for place in places:
        for row in look(place):
            same = same or row.identity
            _check_same(place / FILE, row.identity, same | {"host": row.identity.get("host")})
            rows[row.key] = row
    return list(rows.values())


def _rows(path: Path, same: dict[str, Any] | None) -> Iterator[Row]:
    """The rows of a file. `same`: what they must have been measured under. Raises UsageError."""
    try:
        lines = read_rows(path)
    except OSError as error:
        raise os_fault(error, path, "--out") from error
    for number, line in enumerate(lines, start=1):
        try:
            data = json.loads(line)
            if same is not None:
                _check_same(path, data["identity"], same)
            yield Row.model_validate(data)
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise UsageError(
                f"{path}:{number}: not a result of passagent bench; give another --out, or --fresh"
            ) from error


def _check_same(path: Path, then: dict[str, Any], now: dict[str, Any]) -> None:
    differs = [name for name in now | then if then.get(name) != now.get(name)]
    if differs:
        told = ", ".join(f"{name} {then.get(name)} (now {now.get(name)})" for name in differs)
        raise UsageError(
            f"{path} was measured under other conditions: {told}; "
            "give another --out, or --fresh to measure everything again"
        )
