"""`passagent tasks`: list, check, import, build and export tasks."""

from __future__ import annotations

import json as json_text
import os
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import typer

from passagent.cli.data_verbs import Tasks
from passagent.cli.groups import BuildOptions, ImportOptions
from passagent.cli.parameters import argument, command
from passagent.errors import MachineFault, TaskError, UsageError
from passagent.option_groups import Option
from passagent.options import Against, Device, SettingsOptions, Share
from passagent.view.text import Output, by_column, counted, table

if TYPE_CHECKING:
    from passagent.tasks.suites.problems import Row

commands = typer.Typer()
tasks_app = typer.Typer(
    help="List, check, import, build and export tasks.", no_args_is_help=True, rich_markup_mode=None
)
commands.add_typer(tasks_app, name="tasks")


@command(tasks_app, "list")
def tasks_list() -> Output:
    """List the example tasks. example:NAME works wherever a command takes a task."""
    from passagent.tasks import load_task
    from passagent.tasks.reader import PREFIX, examples

    tasks = {f"{PREFIX}{name}": load_task(path) for name, path in examples().items()}
    data = [
        {"task": name, "path": str(task.path), "operators": task.operators, "subgraphs": len(task.subgraphs)}
        for name, task in tasks.items()
    ]
    columns = {
        "task": lambda row: row["task"],
        ">subgraphs": lambda row: str(row["subgraphs"]),
        "operators": lambda row: ", ".join(row["operators"]),
    }
    text = f"{table(*by_column(data, columns), indent='')}\nrun one with: passagent run {PREFIX}NAME"
    return Output({"tasks": data}, text)


@command(tasks_app, "check")
def tasks_check(
    tasks: Tasks,
    against: Against,
    coverage: Annotated[
        bool,
        Option("Say what the expert lowers of each task for --device, and why not the rest; nothing is run."),
    ],
    device: Device,
) -> Output:
    """Check that the subgraphs of tasks are runnable and analysable.

    With --against: that they share nothing with other tasks. With --coverage: what the expert lowers.
    """
    if against and coverage:
        raise UsageError("--against and --coverage exclude each other")
    if against:
        from passagent.data.pipeline.grouping import leaks

        shared = leaks(tasks, list(against))
        problem = f"{counted(len(shared), 'task')} in {', '.join(against)}: {shared[0]}" if shared else ""
        return Output({"ok": not shared, "shared": shared}, "\n".join(shared) or "nothing is shared", problem)
    if coverage:
        return _check_coverage(tasks, (device or "cpu").partition(":")[0])
    return _check_tasks(tasks, device or "cpu")


def _check_tasks(words: list[str], device: str) -> Output:
    """Return what is wrong with the subgraphs of tasks."""
    from passagent.tasks.tasklist import find_tasks

    checked, lines, problem = list[dict[str, Any]](), list[str](), ""
    for path in find_tasks(words):
        results = _check_beside(path, device)
        bad = [result for result in results if not result["ok"]]
        checked.append({"task": str(path), "ok": not bad, "graphs": results})
        if bad and not problem:
            problem = f"{path}: {len(bad)} of {len(results)} subgraphs are not in order: {bad[0]['name']}"
        columns = ["runnable", "analysable"]
        rows = [[r["name"], *("yes" if r[column] else "no" for column in columns)] for r in results]
        lines.append(table(["graph", *columns], rows))
        lines += [line for result in bad for line in result["problems"]]
        for result in results:
            weak = result["weak"]
            lines += [f"{result['name']}: a result on it says little: {weakness}" for weakness in weak]
    return Output({"ok": not problem, "tasks": checked}, "\n".join(lines), problem)


def _check_beside(root: Path, device: str) -> list[dict[str, Any]]:
    """The CheckResult of each subgraph as plain data, and `ok`, from a process beside this one.

    Raises TaskError for a subgraph that ends that process, as one does that takes all memory.
    """
    from passagent.sandbox.environment import import_path
    from passagent.sandbox.machine_memory import memory_kills
    from passagent.tasks.reader import subgraph_places

    kills = memory_kills()
    places = subgraph_places(root)
    command = [sys.executable, "-m", "passagent.tasks.constraints", str(root), device]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ | import_path(), check=False)
    checked = [json_text.loads(line) for line in done.stdout.splitlines()]
    if checked and "fault" in checked[-1]:
        raise MachineFault(checked[-1]["fault"])
    if len(checked) < len(places):
        too_large = "needs more memory than there is; use a smaller task"
        ended = too_large if memory_kills() > kills else "ends the process that runs it"
        raise TaskError(f"{places[len(checked)][0]}: {ended}")
    return checked


def _check_coverage(words: list[str], target: str) -> Output:
    """Return what the expert lowers of each task; one that cannot be read is the answer's problem."""
    from passagent.expert.author import cover, totals
    from passagent.tasks.tasklist import find_tasks

    paths, lines = find_tasks(words), list[str]()
    coverages = [cover(path, target) for path in paths]
    for task in coverages:
        how = f"kernels in {task.kernels} of {task.graphs} graphs"
        how += f", views alone in {task.views}" if task.views else ""
        result = f"not read: {task.error}" if task.error else f"{how}: {'; '.join(task.regions) or 'nothing'}"
        lines.append(f"{task.task}: {result}")
        for operator in task.left:
            lines.append(f"    stays with eager: {operator.operator} ({operator.count}): {operator.why}")
    operators_left, covered = totals(coverages), [task for task in coverages if task.covered]
    rows = [[total.operator, str(total.tasks), str(total.count), total.why] for total in operators_left]
    if rows:
        lines.append("\n" + table(["stays with eager", "tasks", "times", "why"], rows, wrap=["why"]))
    share = f"{len(covered)} of {len(paths)} tasks covered ({100 * len(covered) / len(paths):.1f}%)"
    lines.append(f"\n{share}, {sum(not task.views for task in covered)} of them by a kernel in every graph")
    data = {
        "target": target,
        "tasks": [asdict(task) | {"covered": task.covered} for task in coverages],
        "operators_left": [asdict(total) for total in operators_left],
        "share_covered": len(covered) / len(coverages),
    }
    broken = [task.error for task in coverages if task.error]
    count = f"{len(broken)} of {len(paths)} tasks could not be read"
    return Output(data, "\n".join(lines), f"{count}, such as {broken[0]}" if broken else "")


@command(tasks_app, "import")
def tasks_import(
    suite: Annotated[Literal["kernelbench"], argument("SUITE", "Whose problems: kernelbench.")],
    path: Annotated[str, argument("PATH", "A checkout of the suite.")],
    **options: Unpack[ImportOptions],
) -> Output:
    """Make tasks of another suite's problems. Their code runs shut in, each in a process of its own."""
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
    problems = find_problems(path, options["level"])
    rows = []
    for row in import_problems(problems, Path(out), how):
        rows.append(row)
        result = f"{row.reason}: {row.message}"
        if not row.reason:
            cut = "".join(f", {name} cut from {was} to {now}" for name, (was, now) in row.cut.items())
            weak = f" ({', '.join(row.weak)})" if row.weak else ""
            result = f"{row.operators} operators{cut}{weak}"
        print(f"{len(rows)}/{len(problems)} {row.name}: {result}", file=sys.stderr, flush=True)
    refused = [row for row in rows if row.reason is not None]
    data = {"path": out, "problems": [row.model_dump() for row in rows]}
    text = f"{_import_table(rows)}\nwrote {sum(len(row.tasks) for row in rows)} tasks below {out}"
    share, problem = f"{len(refused)} of {len(rows)} problems became no task", ""
    if len(refused) > options["most_refused"] * len(rows):
        problem = f"{share}, such as {refused[0].name}: {refused[0].message}"
    return Output(data, text, problem)


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


@command(tasks_app, "build")
def tasks_build(
    samples: Annotated[list[str], argument("SAMPLES...", "Directories of full graphs in GraphNet's layout.")],
    most_refused: Annotated[Share, Option("Exit with 1 if a larger share is refused.", default=0.03)],
    **options: Unpack[BuildOptions],
) -> Output:
    """Make tasks of SAMPLES, for training and for evaluation. The same command again goes on.

    The models in SAMPLES are executed, shut in. Exit code 1 if too many samples are refused.
    """
    from passagent.data.pipeline.assembling import build

    out = str(options["out"])
    record = build(samples, options, lambda line: print(line, file=sys.stderr))
    counts = ", ".join(f"{count} {name}" for name, count in record["tasks"].items())
    text = f"{funnel_text(record['funnel'])}\nwrote {counts} to {out}"
    count, total = record["funnel"][0]["in"] - record["funnel"][0]["out"], record["funnel"][0]["in"]
    problem = f"{out}: {count} of {total} samples are refused" if count > most_refused * total else ""
    return Output({"out": out, **record}, text, problem)


def funnel_text(steps: list[dict[str, Any]]) -> str:
    """The funnel as a table."""
    columns = {
        "step": lambda step: step["step"],
        ">in": lambda step: str(step["in"]),
        ">out": lambda step: str(step["out"]),
        "lost": lambda step: ", ".join(f"{count} {reason}" for reason, count in step["lost"].items()),
        ">s": lambda step: f"{step['seconds']:.0f}" if step["seconds"] else "",
    }
    return table(*by_column(steps, columns), drop=["s"], wrap=["lost"])


@command(tasks_app, "export")
def tasks_export(
    tasks: Tasks,
    harbor: Annotated[str, Option("Write Harbor tasks into DIR, a new one.", metavar="DIR")],
    device: Device,
    wheel: Annotated[
        str | None,
        Option(
            "Install this wheel of passagent in the images.", metavar="FILE", shown="the released version"
        ),
    ],
    **options: Unpack[SettingsOptions],
) -> Output:
    """Write tasks as environments of Harbor. Each has an instruction, an image and a test."""
    from passagent.config import load_config
    from passagent.data.rl.harbor import export as write_tasks
    from passagent.tasks.tasklist import find_tasks

    settings = options["settings"] or {}
    config = load_config(None, {**settings, "evaluator.device": device or "cpu"})
    pairs = [f"{key}={json_text.dumps(value)}" for key, value in settings.items()]
    places = write_tasks(find_tasks(tasks), Path(harbor), config, pairs, Path(wheel) if wheel else None)
    written = [str(path) for path in places]
    return Output({"format": "harbor", "tasks": written}, "\n".join(written))
