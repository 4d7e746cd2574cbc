"""`passagent run`, `resume`, `fork` and `stop`; `runs`, `status` and `gc`."""

from __future__ import annotations

import json as json_text
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from passagent.cli.parameters import argument, command
from passagent.errors import UsageError
from passagent.option_groups import Option
from passagent.options import ForkOptions, Json, Natural, ResumeOptions, RunOptions, RunsDir
from passagent.sandbox.faults import writing
from passagent.store import Store
from passagent.view.text import Output, by_column, clock, number, table

if TYPE_CHECKING:
    from passagent.store.runs import Run as RunRecord

commands = typer.Typer()
runs_app = typer.Typer(rich_markup_mode=None)
commands.add_typer(runs_app, name="runs")

Task = Annotated[
    str,
    argument(
        "TASK", "A task directory (graph_list.txt), one subgraph directory, or example:NAME (see tasks list)."
    ),
]
Run = Annotated[str, argument("RUN", "A run's id, a unique prefix, or 'last'.")]
POLL_S = 0.25
"""Time between two looks of `status --follow` at the database, s."""


@command(commands)
def run(
    task: Task,
    json: Json,
    **options: Unpack[RunOptions],
) -> None:
    """Search for passes for TASK. Ctrl-C stops cleanly; resume, or the same command again, goes on."""
    from passagent.cli import running

    running.run(task, options, json)


@command(commands)
def resume(run: Run, json: Json, **options: Unpack[ResumeOptions]) -> None:
    """Go on with RUN where it was left. Its settings hold unless others are given."""
    from passagent.cli import running

    running.resume(run, options, json)


@command(commands)
def fork(
    run: Run,
    node: Annotated[int, Option("The node to start from.", metavar="NODE", flags=("--from",))],
    runs_dir: RunsDir,
    json: Json,
    **options: Unpack[ForkOptions],
) -> None:
    """Start a new run from a node of RUN. Its settings hold unless others are given."""
    from passagent.cli import running

    running.fork(run, node, options, str(runs_dir), json)


@command(commands)
def stop(
    run: Run,
    after_episodes: Annotated[bool, Option("Finish the episodes under way first.")],
    store: Store,
) -> Output:
    """Stop a live RUN, as Ctrl-C does. Model calls under way are finished and stored."""
    from passagent.store import runs, sessions

    before = runs.find_run(store, run)
    driver = sessions.ask_to_stop(store, before, after_episodes)
    wanted, go_on = runs.get_run(store, before.id).wanted, sessions.resume_command(store, before.id)
    finished = "model calls under way are finished and stored, evaluations only if they end in time"
    finished = "the episodes under way are finished first" if after_episodes else finished
    process = driver._asdict() if driver else None
    data = {"run": before.id, "wanted": wanted, "was": before.wanted, "process": process}
    return Output(data, f"run {before.id}: asked to stop; {finished}; go on with {go_on}")


@command(runs_app, is_callback=True)
def list_runs(context: typer.Context, runs_dir: RunsDir) -> Output | None:
    """List the runs, newest first. `passagent runs rm RUN...` removes some."""
    from passagent.store import runs
    from passagent.view.run_summary import run_row

    if context.invoked_subcommand is not None:
        sources = [context.get_parameter_source(name) for name in ("runs_dir", "json")]
        if any(source is not None and source.name == "COMMANDLINE" for source in sources):
            command = f"passagent runs {context.invoked_subcommand}"
            raise UsageError(f"write options after the command: {command} ...")
        return None
    with Store.open(runs_dir, create=False) as store:
        listed = [run_row(store, run) for run in runs.list_runs(store)]
    columns = {
        "run": lambda run: run["run"],
        "begun (UTC)": lambda run: run["created_at"][:16].replace("T", " "),
        "task": lambda run: run["task"],
        "model": lambda run: run["model"],
        "device": lambda run: run["device"],
        "state": lambda run: run["state"],
        ">episodes": lambda run: f"{run['episodes']}/{'-' if run['iters'] is None else run['iters']}",
        ">best AS": lambda run: number(run["best_as"]),
        "seed": _seed_text,
        ">time": lambda run: clock(run["elapsed_s"]),
    }
    drop = ["device", "begun (UTC)", "time", "model", "seed"]
    return Output({"runs": listed}, table(*by_column(listed, columns), indent="", drop=drop))


def _seed_text(run: dict[str, Any]) -> str:
    """`1.234 (directory)`."""
    return f"{number(run['seed'])} ({run['seed_from'].split()[0]})" if run["seed_from"] else "-"


@command(runs_app, "rm")
def runs_rm(
    names: Annotated[list[str], argument("RUN...", "Ids of runs, unique prefixes, or 'last'.")],
    yes: Annotated[bool, Option("Do not ask.", flags=("--yes", "-y"))],
    store: Store,
) -> Output | None:
    """Remove runs at rest, with all that is theirs alone."""
    from passagent.store import runs, sessions

    chosen = list({run.id: run for run in (runs.find_run(store, name) for name in names)}.values())
    for run in chosen:
        if sessions.is_driven(store, run.id):
            raise sessions.driven(store, run.id)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("passagent runs rm asks before it removes; without a terminal say --yes")
        named = ", ".join(f"{run.id} ({run.task}, begun {run.created_at[:16]})" for run in chosen)
        print(f"remove {named} for good? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return None
    runs.for_removal(store)
    removed = {}
    with store.transaction():
        for run in chosen:
            if sessions.is_driven(store, run.id):
                raise UsageError(f"run {run.id} was taken up meanwhile; nothing was removed")
            removed[run.id] = runs.remove_run(store, run.id)
    for run in chosen:
        shutil.rmtree(store.runs_dir / run.id, ignore_errors=True)
    lines = []
    for name, counts in removed.items():
        hints = ", {hints} hints distilled from it".format(**counts) if counts["hints"] else ""
        rows = "{nodes} nodes, {evaluations} evaluations, {messages} messages".format(**counts)
        lines.append(f"removed run {name}: {rows}{hints}")
    lines.append(f"passagent gc{sessions.runs_dir_flag(store)} frees the space")
    return Output({"removed": removed}, "\n".join(lines))


@command(commands)
def status(
    run: Annotated[
        str | None, argument("[RUN]", "A run's id, a unique prefix, or 'last'.", show_default="live runs")
    ] = None,
    *,
    follow: Annotated[bool, Option("Print the events of RUN until it is at rest.", flags=("--follow", "-f"))],
    lines: Annotated[
        Natural, Option("With --follow: past events to begin with.", flags=("--lines", "-n"), default=20)
    ],
    store: Store,
    json: Json,
) -> Output | None:
    """Show the state of RUN. Processes, budgets, pace, best so far; with -f, its events as they happen."""
    from passagent.store import runs, sessions
    from passagent.view.run_summary import status_data, status_text

    if follow:
        _follow(store, runs.find_run(store, run or "last"), lines, json)
        return None
    live = [record for record in runs.list_runs(store) if sessions.is_driven(store, record.id)]
    listed = [runs.find_run(store, run or "last")] if run is not None or not live else live
    data = [status_data(store, record) for record in listed]
    one_or_all = data[0] if run is not None else {"runs": data}
    return Output(one_or_all, "\n\n".join(status_text(store, of) for of in data))


def _follow(store: Store, run: RunRecord, count: int, as_json: bool) -> None:
    """Print a run's last `count` events, then those to come, until no process works on it."""
    from passagent.store import runs, sessions, timeline
    from passagent.view.progress import event_line
    from passagent.view.run_summary import shown_state

    roles = {island.island: island.role for island in runs.islands(store, run.id)}
    events, position = timeline.newest(store, run.id, count)
    is_live = True
    while True:
        for event in events:
            # such as `11-21 15:17:33 island 0 (fusion) node 7: ok, AS 1.310, +8.2% over node 3: ...`, in UTC
            line = f"{event.at[5:19].replace('T', ' ')} {event_line(event, roles)}"
            print(json_text.dumps(event.as_json()) if as_json else line, flush=True)
        if not is_live:
            break
        # asked before looking, so that what a process did before it left is seen, too
        is_live = sessions.is_driven(store, run.id)
        if is_live:
            time.sleep(POLL_S)
        events = timeline.since(store, run.id, position)
    if not as_json:
        run = runs.get_run(store, run.id)
        print(f"run {run.id} is {shown_state(store, run)}: {run.stop_reason or 'no process works on it'}")


_RUN = re.compile(r"[0-9a-f]{8}")
_OF_A_RUN = {"run.log", "devices.json"}


@command(commands)
def gc(dry_run: Annotated[bool, Option("Say what would go, remove nothing.")], store: Store) -> Output:
    """Remove what nothing needs. Old directories, files of dead evaluators, old kernels."""
    from passagent.evaluator.reference.leftovers import dead_scratch, unused_builds
    from passagent.store import runs, sessions

    kinds = {
        "directory of a removed run": _directories_of_removed_runs(store),
        "scratch": dead_scratch(),
        "built kernel": unused_builds(),
    }
    leftovers: list[dict[str, Any]] = [
        {"kind": kind, "path": str(path), "bytes": size_of(path)}
        for kind, paths in kinds.items()
        for path in paths
    ]
    for path in () if dry_run else [Path(leftover["path"]) for leftover in leftovers]:
        with writing(path):  # one that is gone already is no error
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    live, reason = [run.id for run in runs.list_runs(store) if sessions.is_driven(store, run.id)], ""
    [free] = store.rows(
        "SELECT freelist_count * page_size AS size FROM pragma_freelist_count, pragma_page_size"
    )
    if free["size"] and live:
        reason = f"the space in passagent.db is kept while a run is live: {', '.join(live)}"
    elif free["size"]:
        leftovers.append(
            {"kind": "space in passagent.db", "path": str(store.runs_dir), "bytes": free["size"]}
        )
        if not dry_run:
            store.execute("VACUUM", {})
    sizes: dict[str, list[int]] = {}
    for leftover in leftovers:
        sizes.setdefault(leftover["kind"], []).append(leftover["bytes"])
    total = sum(map(sum, sizes.values()))
    rows = [[kind, str(len(of_kind)), _size(sum(of_kind))] for kind, of_kind in sorted(sizes.items())]
    lines = [table(["what", ">count", ">size"], rows, indent="")] if rows else []
    lines.append(f"{'would free' if dry_run else 'freed'} {_size(total)}{f'; {reason}' if reason else ''}")
    data = {"dry_run": dry_run, "bytes": total, "kept": reason or None, "found": leftovers}
    return Output(data, "\n".join(lines))


def _size(size: int) -> str:
    """`12 kB`, `3.4 MB`."""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _directories_of_removed_runs(store: Store) -> Iterator[Path]:
    """Directories of runs that the database does not know any more."""
    run_ids = {row["id"] for row in store.rows("SELECT id FROM runs")}
    for path in store.runs_dir.iterdir():
        if path.name not in run_ids and _RUN.fullmatch(path.name) and path.is_dir():
            names = {entry.name for entry in path.iterdir()}
            if names and names <= _OF_A_RUN:
                yield path


def size_of(path: Path) -> int:
    """Return the bytes of a file or of all files in a directory; 0 for what another process removes."""
    if path.is_dir():
        return sum(size_of(Path(place, name)) for place, _, names in os.walk(path) for name in names)
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
