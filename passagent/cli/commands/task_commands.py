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
from passagent.sandbox.machine_memory import memory_kills
from passagent.tasks import load_task
from passagent.tasks.reader import PREFIX, examples, subgraph_places
from passagent.tasks.tasklist import find_tasks
from passagent.view.text import counted, table

if TYPE_CHECKING:
    from passagent.tasks.suites.problems import Row


def list_tasks(as_json: bool) -> None:
    """Print the example tasks: name, operators, subgraphs and their dtypes."""
    tasks = {f"{PREFIX}{name}": load_task(path) for name, path in examples().items()}
    data: list[dict[str, Any]] = [
        {"task": name, "path": str(task.path), "operators": task.operators, "subgraphs": len(task.subgraphs)}
        for name, task in tasks.items()
    ]
    if as_json:
        print(json.dumps({"tasks": data}))
        return
    rows = [[row["task"], str(row["subgraphs"]), ", ".join(row["operators"])] for row in data]
    print(table(["task", ">subgraphs", "operators"], rows, indent=""))
    print(f"run one with: passagent run {PREFIX}NAME")


def check_tasks(words: list[str], device: str, as_json: bool) -> None:
    """Print what is wrong with the subgraphs of tasks. Raises PassagentError if any is not in order."""
    checked, problem = list[dict[str, Any]](), ""
    for path in find_tasks(words):
        results = _check_beside(path, device)
        bad = [result for result in results if not result["ok"]]
        checked.append({"task": str(path), "ok": not bad, "graphs": results})
        if bad and not problem:
            problem = f"{path}: {len(bad)} of {len(results)} subgraphs are not in order: {bad[0]['name']}"
        if not as_json:
            columns = ["runnable", "analysable"]
            rows = [[r["name"], *("yes" if r[column] else "no" for column in columns)] for r in results]
            print(table(["graph", *columns], rows))
            print("".join(f"{line}\n" for result in bad for line in result["problems"]), end="")
            for result in results:
                for weakness in result["weak"]:
                    print(f"{result['name']}: a result on it says little: {weakness}")
    if as_json:
        print(json.dumps({"ok": not problem, "tasks": checked}))
    if problem:
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

    coverages, paths = [], find_tasks(words)
    for number, path in enumerate(paths, start=1):
        coverages.append(task := cover(path, target))
        if task.error and not as_json:
            print(f"{number}/{len(paths)} {task.task}: not read: {task.error}", file=sys.stderr)
        elif not as_json:
            how = f"kernels in {task.kernels} of {task.graphs} graphs"
            how += f", views alone in {task.views}" if task.views else ""
            regions = "; ".join(task.regions) or "nothing"
            print(f"{number}/{len(paths)} {task.task}: {how}: {regions}", flush=True)
            for operator in task.left:
                print(f"    stays with eager: {operator.operator} ({operator.count}): {operator.why}")
    operators_left, covered = totals(coverages), [task for task in coverages if task.covered]
    if as_json:
        data = {
            "target": target,
            "tasks": [asdict(task) | {"covered": task.covered} for task in coverages],
            "operators_left": [asdict(total) for total in operators_left],
            "share_covered": len(covered) / len(coverages),
        }
        print(json.dumps(data))
    else:
        rows = [[total.operator, str(total.tasks), str(total.count), total.why] for total in operators_left]
        if rows:
            print("\n" + table(["stays with eager", "tasks", "times", "why"], rows, wrap=["why"]))
        share = f"{len(covered)} of {len(paths)} tasks covered ({100 * len(covered) / len(paths):.1f}%)"
        print(f"\n{share}, {sum(not task.views for task in covered)} of them by a kernel in every graph")
    broken = [task for task in coverages if task.error]
    if broken:
        count = f"{len(broken)} of {len(paths)}"
        raise PassagentError(f"{count} tasks could not be read, such as {broken[0].error}")


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
        result = f"{row.reason}: {row.message}"
        if not row.reason:
            cut = "".join(f", {name} cut from {was} to {now}" for name, (was, now) in row.cut.items())
            left_out = f", {row.left_out} calls left out" if row.left_out else ""
            weak = f" ({', '.join(row.weak)})" if row.weak else ""
            result = f"{row.operators} operators{cut}{left_out}{weak}"
        print(f"{len(rows)}/{len(problems)} {row.name}: {result}", file=sys.stderr, flush=True)
    refused = [row for row in rows if row.reason is not None]
    if as_json:
        print(json.dumps({"path": out, "problems": [row.model_dump() for row in rows]}))
    else:
        print(_import_table(rows))
        print(f"wrote {sum(len(row.tasks) for row in rows)} tasks below {out}")
    if len(refused) > options["most_refused"] * len(rows):
        share = f"{len(refused)} of {len(rows)} problems became no task"
        raise PassagentError(f"{share}, such as {refused[0].name}: {refused[0].message}")


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
    header = ["group", ">problems", ">converted", ">exact", ">tasks", "refused"]
    return table(header, lines, drop=["exact"], wrap=["refused"])


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
    export = harbor.Export(config, pairs, Path(wheel) if wheel else None)
    written = [str(path) for path in harbor.export(find_tasks(words), Path(directory), export)]
    print(json.dumps({"format": "harbor", "tasks": written}) if as_json else "\n".join(written))
