"""Problems into tasks: each in a process of its own that is shut in, one row of a record for each.

The record (`import.jsonl` in the directory that is written) makes an import resumable: a problem that has a
row for the same text and the same question is not run again. A task's directory appears whole.
"""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from pydantic import ValidationError

from passagent.sandbox.child import ForkServer
from passagent.sandbox.sandbox import Limits
from passagent.system.faults import os_fault
from passagent.system.machine_memory import memory_bytes, memory_kills
from passagent.system.resumable import RowFile
from passagent.tasks.reader import FILES, GRAPH_LIST
from passagent.tasks.suites.problem_child import Request
from passagent.tasks.suites.problems import PROBLEM, Answer, How, Problem, Reason, Row

RECORD = "import.jsonl"
_CHILD = "passagent.tasks.suites.problem_child"
_MOST_ANSWER = 256 << 20
_LEAST = 1 << 16
"""Bytes of inputs below which none are cut for want of memory."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def open_record(out: Path) -> RowFile[Row]:
    """The record of an import into `out`, by the problems' names. Raises UsageError."""
    return RowFile(out / RECORD, Row, "a row of passagent tasks import")


def import_problems(problems: Sequence[Problem], out: Path, how: How) -> Iterator[Row]:
    """Make tasks of problems below `out`; a row for each problem, those that were known first.

    Raises UsageError where `out` cannot be written, MachineFault, InfrastructureError.
    """
    record, new = open_record(out), []
    for problem in problems:
        row = record.rows.get(problem.name)
        is_written = row is not None and all((out / task / GRAPH_LIST).is_file() for task in row.tasks)
        # memory that was short may be there now
        if row is not None and is_written and row.reason != "memory" and row.source == how.key(problem):
            yield row
        else:
            new.append(problem)
    if not new:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        for unfinished in out.glob(".*.part"):
            shutil.rmtree(unfinished)
    except OSError as error:
        raise os_fault(error, out, "--out") from error
    servers = SimpleQueue[ForkServer]()
    with ExitStack() as stack, ThreadPoolExecutor(how.jobs) as threads:
        for _ in range(min(how.jobs, len(new))):
            server = ForkServer(_CHILD, "the importing process", how.threads, how.device)
            servers.put(stack.enter_context(server))

        def run(problem: Problem) -> Row:
            server = servers.get()
            try:
                return _import(problem, out, how, server)
            finally:
                servers.put(server)

        for row in threads.map(run, new):
            record.add(row)
            yield row


def _import(problem: Problem, out: Path, how: How, server: ForkServer) -> Row:
    began = time.monotonic()
    answer = _ask(problem, how, server)
    row = Row(
        name=problem.name,
        group=problem.group,
        file=problem.origin.file,
        source=how.key(problem),
        seconds=round(time.monotonic() - began, 2),
        **answer.model_dump(exclude={"tasks", "source"}),
    )
    tasks = {f"{problem.name}{suffix}": subgraphs for suffix, subgraphs in answer.tasks.items()}
    try:
        for name, subgraphs in tasks.items():
            _write(out, name, subgraphs, answer.source)
    except OSError as error:
        raise os_fault(error, out, "--out") from error
    return row.model_copy(update={"tasks": list(tasks)})


def _ask(problem: Problem, how: How, server: ForkServer) -> Answer:
    """Return what a fork makes of the problem; its answer is data, and is checked as such."""
    most_bytes = how.most_bytes
    answer = _ask_once(problem, how, server, most_bytes)
    while answer.reason == "memory" and most_bytes is not None and most_bytes > _LEAST:
        most_bytes //= 8  # the inputs fit, what is computed of them does not
        answer = _ask_once(problem, how, server, most_bytes)
    return answer


def _ask_once(problem: Problem, how: How, server: ForkServer, most_bytes: int | None) -> Answer:
    kills = memory_kills()
    request = Request(problem=problem, how=how, most_bytes=most_bytes)
    memory = 0 if how.is_cuda else memory_bytes() * 3 // 4 // how.jobs
    limits = Limits(memory=memory, scratch=1 << 30, threads=256)
    raw, ended = server.run(
        request.model_dump_json().encode(), limits, how.timeout_s, _MOST_ANSWER, cuda=how.is_cuda
    )
    if raw is None:
        return _refused("timeout", f"takes more than {how.timeout_s:g} s")
    if not raw:
        if memory_kills() > kills:
            return _refused("memory", "needs more memory than there is")
        status = ended["status"]
        how_ended = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit code {status}"
        return _refused("fails", f"ends the process that runs it, {how_ended}")
    try:
        answer = Answer.model_validate_json(raw)
    except ValidationError:
        return _refused("fails", "its process gives no answer that can be read")
    names = [f"{problem.name}{suffix}" for suffix in answer.tasks]
    names += [name for subgraphs in answer.tasks.values() for name in subgraphs]
    files = {name for subgraphs in answer.tasks.values() for texts in subgraphs.values() for name in texts}
    if not all(map(_NAME.fullmatch, names)) or not files <= set(FILES):
        return _refused("fails", "its process names files that a task does not have")
    return answer


def _refused(reason: Reason, message: str) -> Answer:
    return Answer(reason=reason, message=message)


def _write(out: Path, name: str, subgraphs: dict[str, dict[str, str]], source: str) -> None:
    """A task's directory, whole or not at all."""
    part, place = out / f".{name}.part", out / name
    for subgraph, files in subgraphs.items():
        (part / subgraph).mkdir(parents=True)
        for file, text in files.items():
            (part / subgraph / file).write_text(text, encoding="utf-8")
    (part / GRAPH_LIST).write_text("".join(f"{subgraph}\n" for subgraph in subgraphs), encoding="utf-8")
    if source:
        (part / PROBLEM).write_text(source, encoding="utf-8")
    if place.exists():
        shutil.rmtree(place)
    part.rename(place)
