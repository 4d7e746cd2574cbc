"""Problems into tasks: each in a process of its own that is shut in, one row of a record for each.

The record (`import.jsonl` in the directory that is written) makes an import resumable: a problem that has a
row for the same text and the same question is not run again. A task's directory appears whole.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from passagent.sandbox.faults import writing
from passagent.sandbox.machine_memory import memory_bytes
from passagent.store.outputs import RowFile, whole_directory
from passagent.tasks.reader import FILES, GRAPH_LIST, write_list
from passagent.tasks.suites.forked_jobs import Jobs, Refused, lacks_memory
from passagent.tasks.suites.problems import PROBLEM, Converted, How, Problem, Row

RECORD = "import.jsonl"
_LEAST = 1 << 16
"""Bytes of inputs below which none are cut for want of memory."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TOLERANCE = 1e-5
"""Between the model's call and what was captured of it; times the dtype's precision over float32's."""


def open_record(out: Path) -> RowFile[Row]:
    """Open the record of an import into `out`, by the problems' names. Raises UsageError."""
    return RowFile(out / RECORD, Row, "a row of passagent tasks import")


def import_problems(problems: Sequence[Problem], out: Path, how: How) -> Iterator[Row]:
    """Make tasks of problems below `out`; a row for each problem, those that were known first.

    Raises UsageError where `out` cannot be written, MachineFault, InfrastructureError.
    """
    record, new = open_record(out), []
    for problem in problems:
        row = record.rows.get(problem.name)
        is_same = row is not None and record.stands(row.key) and row.source == how.key(problem)
        if row is not None and is_same and all((out / task / GRAPH_LIST).is_file() for task in row.tasks):
            yield row
        else:
            new.append(problem)
    with writing(out, "--out"):
        out.mkdir(parents=True, exist_ok=True)
        for unfinished in out.glob(".*/"):
            shutil.rmtree(unfinished)
    memory = 0 if how.device.startswith("cuda") else memory_bytes() * 3 // 4 // how.jobs
    with Jobs(how.jobs, how.device, how.timeout_s, memory) as jobs:
        for row in jobs.map(lambda problem: _import(problem, out, how, jobs), new):
            record.add(row)
            yield row


def _import(problem: Problem, out: Path, how: How, jobs: Jobs) -> Row:
    """Run a problem and write its tasks; smaller ones where what is computed finds no memory."""
    began, most_bytes = time.monotonic(), how.most_bytes
    while True:
        payload = {"problem": problem.model_dump(), "device": how.device, "most_bytes": most_bytes}
        answer = jobs.run(make_tasks, payload | {"compute_ops": how.compute_ops})
        if answer.reason != "memory" or most_bytes is None or most_bytes <= _LEAST:
            break
        most_bytes //= 8
    row = Row(
        name=problem.name,
        group=problem.group,
        file=problem.origin.file,
        source=how.key(problem),
        seconds=round(time.monotonic() - began, 2),
        reason=answer.reason,
        message=answer.message,
    )
    if answer.reason:
        return row
    try:
        converted = Converted.model_validate(answer.value)
    except ValidationError:
        return row.model_copy(update={"reason": "fails", "message": "its process gives no task"})
    tasks = {f"{problem.name}{suffix}": subgraphs for suffix, subgraphs in converted.tasks.items()}
    names = [*tasks, *(name for subgraphs in tasks.values() for name in subgraphs)]
    files = {name for subgraphs in tasks.values() for texts in subgraphs.values() for name in texts}
    if not all(map(_NAME.fullmatch, names)) or not files <= set(FILES):
        message = "its process names files that a task does not have"
        return row.model_copy(update={"reason": "fails", "message": message})
    for task, subgraphs in tasks.items():
        shutil.rmtree(out / task, ignore_errors=True)
        with whole_directory(out / task) as place:
            for subgraph, texts in subgraphs.items():
                (place / subgraph).mkdir()
                for file, text in texts.items():
                    (place / subgraph / file).write_text(text, encoding="utf-8")
            write_list(place, subgraphs)
            if converted.source:
                (place / PROBLEM).write_text(converted.source, encoding="utf-8")
    return row.model_copy(update=dict(converted) | {"source": row.source, "tasks": [*tasks]})


def make_tasks(payload: dict[str, Any]) -> dict[str, Any]:
    """Make the tasks of a problem, by one capture of its call, as a Converted in plain data.

    It runs in the working directory of a throw-away process. Raises Refused, and what the problem's code
    raises.
    """
    import torch.utils._pytree as pytree

    from passagent.tasks.constraints import find_difference, spread
    from passagent.tasks.extract.extracting import extract_model
    from passagent.tasks.suites.loading_problems import called_twice, load_problem

    problem, scratch = Problem.model_validate(payload["problem"]), Path.cwd()
    loaded = load_problem(problem, scratch, payload["device"], payload["most_bytes"])
    model, out = loaded.model, scratch / "written"
    expected = called_twice(model.module, model.args, model.kwargs)
    extracted = extract_model(model, out)
    differing, _ = find_difference(pytree.tree_leaves(extracted.result), expected, _TOLERANCE, _TOLERANCE)
    if differing:
        raise Refused("differs", f"the captured graph: {differing}")
    if not extracted.graphs or any(graph.problems for graph in extracted.graphs):
        fault = next(iter(extracted.problems), "")
        is_other = "differs from that of the model" in fault
        raise Refused("memory" if lacks_memory(fault) else "differs" if is_other else "not_captured", fault)
    facts = {
        "origin": problem.origin.model_dump(),
        "cut": loaded.cut,
        "group": problem.name,
        "compute_ops": payload["compute_ops"],
        "returns": type(extracted.result).__name__,
    }
    converted = Converted(
        is_exact=True, cut=loaded.cut, weak=list(dict.fromkeys(spread(expected))), source=loaded.source
    )
    for graph in extracted.graphs:
        files = {file.name: file.read_text(encoding="utf-8") for file in (out / graph.name).iterdir()}
        recorded = json.loads(files["graph_net.json"])
        files["graph_net.json"] = json.dumps(recorded | facts, indent=4) + "\n"
        converted.tasks[graph.name.removeprefix(model.name)] = {graph.name: files}
        converted.operators += graph.operators
        converted.is_exact &= graph.is_exact
    return converted.model_dump()
