"""`passagent tasks list`, `check`, `import`, `build` and `export`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passagent.cli.groups import BuildOptions, ImportOptions
from passagent.errors import MachineFault, PassagentError, TaskError
from passagent.sandbox.environment import import_path
from passagent.system.machine_memory import memory_kills
from passagent.tasks import load_task
from passagent.tasks.examples import PREFIX, examples
from passagent.tasks.reader import subgraph_places
from passagent.tasks.tasklist import find_tasks
from passagent.view.text import counted, table

if TYPE_CHECKING:
    from passagent.expert.coverage import TaskCoverage
    from passagent.tasks.suites.problems import Row


def list_tasks(as_json: bool) -> None:
    """Print the example tasks: name, operators, subgraphs and their dtypes."""
    tasks = {f"{PREFIX}{name}": load_task(path) for name, path in examples().items()}
    if as_json:
        data = [
            {
                "task": name,
                "path": str(task.path),
                "operators": task.operators,
                "subgraphs": len(task.subgraphs),
            }
            for name, task in tasks.items()
        ]
        print(json.dumps({"tasks": data}))
        return
    rows = [[name, str(len(task.subgraphs)), ", ".join(task.operators)] for name, task in tasks.items()]
    print(table(["task", ">subgraphs", "operators"], rows, indent=""))
    print(f"run one with: passagent run {PREFIX}NAME")


def check_tasks(words: list[str], device: str, as_json: bool) -> None:
    """Print what is wrong with the subgraphs of tasks. Raises PassagentError if any is not in order."""
    checked, problem = list[dict[str, Any]](), None
    for path in find_tasks(words):
        results = _check_beside(path, device)
        bad = [result for result in results if not result["ok"]]
        checked.append({"task": str(path), "ok": not bad, "graphs": results})
        if bad and problem is None:
            problem = f"{path}: {len(bad)} of {len(results)} subgraphs are not in order: {bad[0]['name']}"
        if as_json:
            continue
        columns = ["runnable", "analysable"]
        rows = [[r["name"], *("yes" if r[column] else "no" for column in columns)] for r in results]
        print(table(["graph", *columns], rows))
        for result in bad:
            print("\n".join(result["problems"]))
        for result in results:
            for weakness in result["weak"]:
                print(f"{result['name']}: a result on it says little: {weakness}")
    if as_json:
        print(json.dumps({"ok": problem is None, "tasks": checked}))
    if problem is not None:
        raise PassagentError(problem)


def _check_beside(root: Path, device: str) -> list[dict[str, Any]]:
    """The CheckResult of each subgraph as plain data, and `ok`, from a process beside this one.

    Raises TaskError for a subgraph that ends that process, as one does that takes all memory.
    """
    kills = memory_kills()
    places = subgraph_places(root)
    command = [sys.executable, "-m", "passagent.tasks.constraints", str(root), device]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ | import_path(), check=False)
    checked = [json.loads(line) for line in done.stdout.splitlines()]
    if checked and "fault" in checked[-1]:
        raise MachineFault(checked[-1]["fault"])
    if len(checked) < len(places):
        too_large = "needs more memory than there is; use a smaller task"
        ended = too_large if memory_kills() > kills else "ends the process that runs it"
        raise TaskError(f"{places[len(checked)][0]}: {ended}")
    return checked


def check_leaks(words: list[str], against: list[str], as_json: bool) -> None:
    """Print which tasks share an operator sequence or a subgraph with one of `against`.

    Raises PassagentError if any does, UsageError, and TaskError for one that cannot be read.
    """
    from passagent.data.pipeline.inspection import leaks

    shared = leaks(words, against)
    if as_json:
        print(json.dumps({"ok": not shared, "shared": shared}))
    else:
        print("\n".join(shared) or "nothing is shared")
    if shared:
        raise PassagentError(f"{counted(len(shared), 'task')} in {', '.join(against)}: {shared[0]}")


def check_coverage(words: list[str], target: str, as_json: bool) -> None:
    """Print what the expert lowers of each task. Raises PassagentError if one cannot be read."""
    from passagent.expert.coverage import cover, totals

    paths = find_tasks(words)
    coverages = []
    for number, path in enumerate(paths, start=1):
        result = cover(path, target)
        coverages.append(result)
        if not as_json:
            _print_coverage(result, number, len(paths))
    if as_json:
        data = {
            "target": target,
            "tasks": [asdict(t) | {"covered": t.covered} for t in coverages],
            "operators_left": [asdict(t) for t in totals(coverages)],
            "share_covered": sum(t.covered for t in coverages) / len(coverages),
        }
        print(json.dumps(data))
    else:
        _print_left(coverages)
    broken = [t for t in coverages if t.error]
    if broken:
        first = broken[0]
        raise PassagentError(f"{len(broken)} of {len(paths)} tasks could not be read, such as {first.error}")


def _print_coverage(task: TaskCoverage, number: int, count: int) -> None:
    if task.error:
        print(f"{number}/{count} {task.task}: not read: {task.error}", file=sys.stderr)
        return
    how = f"kernels in {task.kernels} of {task.graphs} graphs"
    how += f", views alone in {task.views}" if task.views else ""
    print(f"{number}/{count} {task.task}: {how}: {'; '.join(task.regions) or 'nothing'}", flush=True)
    for total in task.left:
        print(f"    stays with eager: {total.operator} ({total.count}): {total.why}")


def _print_left(tasks: list[TaskCoverage]) -> None:
    from passagent.expert.coverage import totals

    rows = [[t.operator, str(t.tasks), str(t.count), t.why] for t in totals(tasks)]
    if rows:
        print()
        print(table(["stays with eager", "tasks", "times", "why"], rows, wrap=["why"]))
    covered, kernels = sum(t.covered for t in tasks), sum(t.covered and not t.views for t in tasks)
    print(
        f"\n{covered} of {len(tasks)} tasks covered ({100 * covered / len(tasks):.1f}%), "
        f"{kernels} of them by a kernel in every graph"
    )


def build_tasks(samples: list[str], options: BuildOptions, most_refused: float, as_json: bool) -> None:
    """Build, and print the funnel. Raises PassagentError if a larger share of the samples is refused."""
    from passagent.data.pipeline.assembling import build

    out = str(options["out"])
    record = build(samples, options, lambda line: print(line, file=sys.stderr))
    if as_json:
        print(json.dumps({"out": out, **record}))
    else:
        print(funnel_text(record["funnel"]))
        counts = ", ".join(f"{count} {name}" for name, count in record["tasks"].items())
        print(f"wrote {counts} to {out}")
    first = record["funnel"][0]
    if first["in"] - first["out"] > most_refused * first["in"]:
        raise PassagentError(f"{out}: {first['in'] - first['out']} of {first['in']} samples are refused")


def funnel_text(steps: list[dict[str, Any]]) -> str:
    """The funnel as a table."""
    rows = []
    for step in steps:
        lost = ", ".join(f"{count} {reason}" for reason, count in step["lost"].items())
        numbers = [str(step["in"]), str(step["out"])]
        rows.append([step["step"], *numbers, lost, f"{step['seconds']:.0f}" if step["seconds"] else ""])
    return table(["step", ">in", ">out", "lost", ">s"], rows, drop=["s"], wrap=["lost"])


def import_tasks(suite: str, place: str, options: ImportOptions, as_json: bool) -> None:
    """Import a suite's problems into `out`, and print what came of them.

    Raises PassagentError where a larger share than `most_refused` became no task, UsageError.
    """
    from passagent.evaluator.hardware.devices import first_device
    from passagent.tasks.suites.import_problems import import_problems
    from passagent.tasks.suites.problems import How, find_problems

    out, most = options["out"], options["max_input"]
    how = How(
        device=first_device(options["device"] or "cpu"),
        most_bytes=most and most << 20,
        timeout_s=options["timeout"],
        jobs=options["jobs"],
        compute_ops=options["compute_ops"],
    )
    problems = find_problems(suite, place, options["level"])
    rows = []
    for row in import_problems(problems, Path(out), how):
        rows.append(row)
        print(_problem_line(row, len(rows), len(problems)), file=sys.stderr, flush=True)
    refused = [row for row in rows if row.reason is not None]
    if as_json:
        print(json.dumps({"path": out, "problems": [row.model_dump() for row in rows]}))
    else:
        print(_import_table(rows))
        print(f"wrote {sum(len(row.tasks) for row in rows)} tasks below {out}")
    if len(refused) > options["most_refused"] * len(rows):
        share = f"{len(refused)} of {len(rows)}"
        raise PassagentError(
            f"{share} problems became no task, such as {refused[0].name}: {refused[0].message}"
        )


def _problem_line(row: Row, number: int, count: int) -> str:
    """One line about a problem, for people who wait."""
    cut = "".join(f", {name} cut from {was} to {now}" for name, (was, now) in row.cut.items())
    left_out = f", {row.left_out} calls left out" if row.left_out else ""
    weak = f" ({', '.join(row.weak)})" if row.weak else ""
    done = f"{row.operators} operators{cut}{left_out}{weak}"
    return f"{number}/{count} {row.name}: " + (f"{row.reason}: {row.message}" if row.reason else done)


def _import_table(rows: list[Row]) -> str:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    lines = []
    for name, problems in groups.items():
        reasons = Counter(row.reason for row in problems if row.reason)
        exact = sum(row.is_exact for row in problems if not row.reason)
        refused = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common()) or "none"
        converted, tasks = len(problems) - reasons.total(), sum(len(row.tasks) for row in problems)
        lines.append([name, *map(str, (len(problems), converted, exact, tasks)), refused])
    return table(
        ["group", ">problems", ">converted", ">exact", ">tasks", "refused"],
        lines,
        drop=["exact"],
        wrap=["refused"],
    )


def export_harbor(
    words: list[str],
    directory: str,
    device: str,
    wheel: str | None,
    settings: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Write a Harbor task for each task and print where. Raises PassagentError."""
    from passagent.config import load_config
    from passagent.data.rl import harbor

    config = load_config(None, {**settings, "evaluator.device": device})
    pairs = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    written = harbor.export(
        find_tasks(words), Path(directory), harbor.Export(config, pairs, Path(wheel) if wheel else None)
    )
    if as_json:
        print(json.dumps({"format": "harbor", "tasks": [str(path) for path in written]}))
        return
    for path in written:
        print(path)
