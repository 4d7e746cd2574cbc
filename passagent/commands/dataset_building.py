"""`passagent dataset build`, and `check`, `stats`, `leak-check` and `show`: one file for the five."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from passagent.errors import PassagentError, UsageError
from passagent.pipeline import inspection
from passagent.pipeline.assembling import Request
from passagent.pipeline.assembling import build as built
from passagent.report.text import counted, table


def build(request: Request, most_refused: float, as_json: bool) -> None:
    """Build, and print the funnel. Raises PassagentError if a larger share of the samples is refused."""
    record = built(request, lambda line: print(line, file=sys.stderr))
    if as_json:
        print(json.dumps({"out": request.out, **record}))
    else:
        print(funnel_text(record["funnel"]))
        told = ", ".join(f"{count} {name}" for name, count in record["tasks"].items())
        print(f"wrote {told} to {request.out}")
    first = record["funnel"][0]
    if first["in"] - first["out"] > most_refused * first["in"]:
        raise PassagentError(
            f"{request.out}: {first['in'] - first['out']} of {first['in']} samples are refused"
        )


def funnel_text(steps: list[dict[str, Any]]) -> str:
    """The funnel as a table."""
    rows = []
    for step in steps:
        lost = ", ".join(f"{count} {reason}" for reason, count in step["lost"].items())
        numbers = [str(step["in"]), str(step["out"])]
        used = [f"{step['seconds']:.0f}", str(step["peak_mib"])] if step["seconds"] else ["", ""]
        rows.append([step["step"], *numbers, lost, *used])
    return table(["step", ">in", ">out", "lost", ">s", ">MiB"], rows, drop=["MiB", "s"], wrap=["lost"])


def check(directory: str, as_json: bool) -> None:
    """Print what is wrong with a data set. Raises PassagentError if anything is."""
    problems = inspection.check(Path(directory))
    _told({"directory": directory, "ok": not problems, "problems": problems}, problems, as_json)
    if problems:
        raise PassagentError(f"{directory}: {counted(len(problems), 'problem')}: {problems[0]}")
    if not as_json:
        print(f"{directory}: in order; training and evaluation share nothing")


def leak_check(one: str, other: str, as_json: bool) -> None:
    """Print what two sets of tasks share. Raises PassagentError if they share anything."""
    found = inspection.leaks(one, other)
    _told({"ok": not found, "shared": found}, found, as_json)
    if found:
        raise PassagentError(f"{counted(len(found), 'task')} of {one} in {other}: {found[0]}")
    if not as_json:
        print(f"{one} and {other} share nothing")


def stats(directory: str, plots: str | None, as_json: bool) -> None:
    """Print what a data set holds."""
    from passagent.report.dataset_pictures import draw_dataset

    found = inspection.stats(Path(directory))
    if plots:
        draw_dataset(Path(plots), found)
    if as_json:
        print(json.dumps({"directory": directory, **found}))
        return
    rows = []
    for one in found["lists"]:
        operators = one["operators"]
        span = f"{operators[0]}-{operators[-1]}, median {operators[len(operators) // 2]}"
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in one["dtypes"].items())
        rows.append([one["list"], str(one["tasks"]), str(one["subgraphs"]), span, dtypes])
    print(funnel_text(found["funnel"]))
    print(table(["list", ">tasks", ">subgraphs", "operators", "dtypes"], rows, drop=["dtypes"]))


def show(directory: str, name: str, as_json: bool) -> None:
    """Print a task as a person reads it. Raises UsageError."""
    from passagent.tasks import load_task

    out = Path(directory)
    inspection.record_of(out)
    names = sorted(str(path.relative_to(out)) for path in out.glob("tasks/*/*"))
    found = [one for one in names if name.removeprefix("../") in one]
    if len(found) != 1:
        told = ", ".join(found[:3]) or "none"
        raise UsageError(
            f"{directory}: {counted(len(found), 'task')} named {name} ({told}); give more of the name"
        )
    task = load_task(out / found[0])
    graphs = list[dict[str, Any]]()
    for one in task.subgraphs:
        facts = json.loads((one.path / "graph_net.json").read_text(encoding="utf-8"))
        inputs = [f"{meta.name} {meta.dtype}{list(meta.shape)}" for meta in one.inputs]
        graphs.append(
            {"name": one.name, "inputs": inputs, "origin": facts["origin"], "sizes": facts["sizes"]}
        )
    if as_json:
        print(json.dumps({"task": found[0], "operators": task.operators, "subgraphs": graphs}))
        return
    print(f"{found[0]}\n{task.subgraphs[0].source}")
    for graph in graphs:
        start, end = graph["origin"]["range"]
        place = f"operators {start} to {end} of {graph['origin']['sample']}"
        print(f"{graph['name']}, {place}: {', '.join(graph['inputs'])}")


def _told(data: dict[str, Any], lines: list[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(data))
    else:
        for line in lines:
            print(line)
