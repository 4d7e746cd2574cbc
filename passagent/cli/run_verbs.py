"""`passagent run`, `resume`, `fork`, `stop`, and the commands that look at runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Unpack

import typer

from passagent.cli import commands as do
from passagent.cli.groups import PageOptions, ShowOptions
from passagent.cli.parameters import argument, command
from passagent.errors import UsageError
from passagent.options import ForkOptions, Json, Natural, ResumeOptions, RunOptions, RunsDir
from passagent.system.option_groups import Option

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


@command(commands)
def run(
    task: Task,
    events: Annotated[
        str | None,
        Option("Append what happens to this file, a JSON object a line.", metavar="FILE.jsonl", is_rare=True),
    ],
    json: Json,
    **options: Unpack[RunOptions],
) -> None:
    """Search for passes for TASK. Ctrl-C stops cleanly; resume, or the same command again, goes on."""
    do.running.run(task, options, json, events_file=events)


@command(commands)
def resume(run: Run, json: Json, **options: Unpack[ResumeOptions]) -> None:
    """Go on with RUN where it was left. Its settings hold unless others are given."""
    do.running.resume(run, options, json)


@command(commands)
def fork(
    run: Run,
    node: Annotated[int, Option("The node to start from.", metavar="NODE", flags=("--from",))],
    runs_dir: RunsDir,
    json: Json,
    **options: Unpack[ForkOptions],
) -> None:
    """Start a new run from a node of RUN. Its settings hold unless others are given."""
    do.running.fork(run, node, options, str(runs_dir), json)


@command(commands)
def stop(
    run: Run,
    after_episodes: Annotated[bool, Option("Finish the episodes under way first.")],
    runs_dir: RunsDir,
    json: Json,
) -> None:
    """Stop a live RUN, as Ctrl-C does. Model calls under way are finished and stored."""
    do.run_commands.stop(run, after_episodes, str(runs_dir), json)


@command(runs_app, is_callback=True)
def runs(context: typer.Context, runs_dir: RunsDir, json: Json) -> None:
    """List the runs, newest first. `passagent runs rm RUN...` removes some."""
    if context.invoked_subcommand is None:
        do.run_commands.list_runs(str(runs_dir), json)
        return
    sources = [context.get_parameter_source(name) for name in ("runs_dir", "json")]
    if any(source is not None and source.name == "COMMANDLINE" for source in sources):
        raise UsageError(f"write options after the command: passagent runs {context.invoked_subcommand} ...")


@command(runs_app, "rm")
def runs_rm(
    names: Annotated[list[str], argument("RUN...", "Ids of runs, unique prefixes, or 'last'.")],
    yes: Annotated[bool, Option("Do not ask.", flags=("--yes", "-y"))],
    runs_dir: RunsDir,
    json: Json,
) -> None:
    """Remove runs at rest, with all that is theirs alone."""
    do.run_commands.remove_runs(names, yes, str(runs_dir), json)


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
    runs_dir: RunsDir,
    json: Json,
) -> None:
    """Show the state of RUN. Processes, budgets, pace, best so far; with -f, its events as they happen."""
    if follow:
        do.run_commands.follow(run or "last", lines, str(runs_dir), json)
    else:
        do.run_commands.status(run, str(runs_dir), json)


@command(commands, context_settings={"ignore_unknown_options": True})  # -1 is an episode: a seed's
def show(
    what: Annotated[
        str,
        argument(
            "WHAT",
            "A node's number; a run's id or 'last'; a task; a directory that export or tasks build wrote.",
        ),
    ],
    number: Annotated[
        int | None, argument("[N]", "An episode of the run (a seed's: 0, -1, ...), or a row of the export.")
    ] = None,
    **options: Unpack[ShowOptions],
) -> None:
    """Show a node, run, episode, task, data set or row of one.

    What it is; and of a node, how it came to be."""
    parts: list[do.showing.Part] = [part for part in do.showing.PARTS if options[part]]
    if len(parts) > 1:
        raise UsageError(f"--{parts[0]} and --{parts[1]} exclude each other")
    do.showing.show(what, number, parts[0] if parts else None, str(options["runs_dir"]), options["json"])


@command(commands)
def diff(
    first: Annotated[int, argument("A", "A node's number.")],
    second: Annotated[int, argument("B", "Another node's.")],
    runs_dir: RunsDir,
    json: Json,
) -> None:
    """Compare nodes A and B. Their files, and the speedup of each subgraph."""
    do.run_commands.diff(first, second, str(runs_dir), json)


@command(commands)
def doctor(run: Run, runs_dir: RunsDir, json: Json) -> None:
    """Check that the mechanisms of RUN work. Gives figures and advice; exit code 1 if a check failed."""
    do.run_commands.doctor(run, str(runs_dir), json)


@command(commands)
def view(
    runs_dir: Annotated[
        str,
        argument(
            "[RUNS_DIR]",
            "Where runs are stored.",
            envvar="PASSAGENT_RUNS_DIR",
            show_default="runs",
        ),
    ] = "runs",
    **options: Unpack[PageOptions],
) -> None:
    """Serve a page to look at runs in a browser, live. Needs passagent[web]; Ctrl-C ends it."""
    try:
        from passagent.view.page.app import serve
    except ModuleNotFoundError as error:
        raise UsageError(f"view needs {error.name}; run: pip install 'passagent[web]'") from error
    serve(Path(runs_dir), options)


@command(commands)
def report(
    run: Run,
    html: Annotated[str | None, Option("The page to write.", metavar="FILE")],
    pictures: Annotated[
        str | None,
        Option(
            "Draw the best so far, the islands, the cost and the tree as SVG (needs passagent[report]).",
            metavar="DIR",
        ),
    ],
    runs_dir: RunsDir,
    json: Json,
) -> None:
    """Write RUN as one HTML file, which opens from disk.

    With --pictures, draw it as SVG files, too."""
    do.run_commands.report(run, html, pictures, str(runs_dir), json)


@command(commands)
def hints(runs_dir: RunsDir, json: Json) -> None:
    """List curated and learned hints. With where they come from, and what showing learned ones gains."""
    do.run_commands.list_hints(str(runs_dir), json)


@command(commands)
def gc(
    dry_run: Annotated[bool, Option("Say what would go, remove nothing.")],
    runs_dir: RunsDir,
    json: Json,
) -> None:
    """Remove what nothing needs. Old directories, files of dead evaluators, old kernels."""
    do.tidying.gc(dry_run, str(runs_dir), json)
