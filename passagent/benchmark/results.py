"""What a benchmark has measured: one JSON line for each task and compiler, appended and synced as it comes.

A line says all that it depends on (`identity`), so that results of two machines, evaluators or protocols are
never mixed silently; a process killed at any moment leaves at most one torn line, which the next one drops.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from passagent.cluster.opening import LOCAL, environment_key
from passagent.config import EvaluatorConfig
from passagent.confine.environment import describe, evaluator_version, worker_threads
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.hardware.devices import first_device
from passagent.evaluator.result import Evaluation
from passagent.faults import os_fault

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
        self.rows = {row.key: row for row in _read(self.path, same)}

    def add(self, row: Row) -> None:
        """Append a row, on the disk when this returns. Raises PassagentError (a full disk)."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                # json.dumps keeps nan and inf (a wrong candidate's values), model_dump_json makes them null
                file.write(json.dumps(row.model_dump(mode="json")) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _fault(error, self.path) from error
        self.rows[row.key] = row


@contextmanager
def open_results(directory: Path, same: dict[str, Any], fresh: bool = False) -> Iterator[Results]:
    """The results in `directory`, which is made, for this process alone; `fresh`: old ones are put aside.

    Raises UsageError if they are not of `same` identity, saying what differs, or if another process has them.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / ".lock").open("w")
    except OSError as error:
        raise _fault(error, directory) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{directory}: another passagent bench works here; give another --out") from None
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
    path = directory / FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _fault(error, path) from error
    rows = _rows(path, content[: content.rfind(b"\n") + 1], None)
    return list({row.key: row for row in rows}.values())


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


def _read(path: Path, same: dict[str, Any]) -> Iterator[Row]:
    if not path.exists():
        return
    try:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # a process was killed while it wrote
            os.truncate(path, len(whole))
    except OSError as error:
        raise _fault(error, path) from error
    yield from _rows(path, whole, same)


def _rows(path: Path, whole: bytes, same: dict[str, Any] | None) -> Iterator[Row]:
    """The rows of whole lines. `same`: what they must have been measured under."""
    for number, line in enumerate(whole.splitlines(), start=1):
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


def _fault(error: OSError, path: Path) -> PassagentError:
    return os_fault(error, path, "--out")
