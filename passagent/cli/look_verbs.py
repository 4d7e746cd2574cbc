"""Commands that look at runs: `runs`, `status`, `show`, `diff`, `doctor`, `view` and `report`."""

from __future__ import annotations

import typer

from passagent.cli import model_options as own
from passagent.cli import options as opt
from passagent.cli import server_options as serve
from passagent.errors import UsageError

commands = typer.Typer()
runs_app = typer.Typer(rich_markup_mode=None)
commands.add_typer(runs_app, name="runs")


@runs_app.callback(invoke_without_command=True)
def runs(context: typer.Context, runs_dir: opt.RunsDir = "runs", json: opt.Json = False) -> None:
    """List the runs, newest first. `passagent runs rm RUN...` removes some."""
    from passagent.cli.commands import run_commands

    if context.invoked_subcommand is None:
        run_commands.list_runs(runs_dir, json)
        return
    given = [context.get_parameter_source(name) for name in ("runs_dir", "json")]
    if any(source is not None and source.name == "COMMANDLINE" for source in given):
        raise UsageError(f"write options after the command: passagent runs {context.invoked_subcommand} ...")


@runs_app.command("rm")
def runs_rm(
    names: opt.RunsArgument, yes: opt.Yes = False, runs_dir: opt.RunsDir = "runs", json: opt.Json = False
) -> None:
    """Remove runs at rest, with all that is theirs alone."""
    from passagent.cli.commands import run_commands

    run_commands.remove_runs(names, yes, runs_dir, json)


@commands.command()
def status(
    run: opt.LiveRunArgument = None,
    follow: opt.Follow = False,
    lines: opt.Lines = 20,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Show the state of RUN. Processes, budgets, pace, best so far; with -f, its events as they happen."""
    from passagent.cli.commands import run_commands

    if follow:
        run_commands.follow(run or "last", lines, runs_dir, json)
    else:
        run_commands.status(run, runs_dir, json)


@commands.command(context_settings={"ignore_unknown_options": True})  # -1 is an episode: a seed's
def show(
    what: opt.ShownArgument,
    number: opt.ShownNumber = None,
    why: opt.Why = False,
    prompt: opt.Prompt = False,
    conversation: opt.Conversation = False,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Show a node, run, episode, task, data set or row of one.

    What it is; and of a node, how it came to be."""
    from passagent.cli.commands import showing

    parts: list[showing.Part] = []
    parts += ["why"] if why else []
    parts += ["prompt"] if prompt else []
    parts += ["conversation"] if conversation else []
    if len(parts) > 1:
        raise typer.BadParameter(f"--{parts[0]} and --{parts[1]} exclude each other")
    showing.show(what, number, parts[0] if parts else None, runs_dir, json)


@commands.command()
def diff(
    first: opt.FirstNodeArgument,
    second: opt.SecondNodeArgument,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Compare nodes A and B. Their files, and the speedup of each subgraph."""
    from passagent.cli.commands import run_commands

    run_commands.diff(first, second, runs_dir, json)


@commands.command()
def doctor(run: opt.RunArgument, runs_dir: opt.RunsDir = "runs", json: opt.Json = False) -> None:
    """Check that the mechanisms of RUN work. Gives figures and advice; exit code 1 if a check failed."""
    from passagent.cli.commands import run_commands

    run_commands.doctor(run, runs_dir, json)


@commands.command()
def view(
    runs_dir: serve.RunsDirArgument = "runs",
    port: serve.Port = 8640,
    host: serve.Host = "127.0.0.1",
    token: serve.Token = None,
    allow_host: serve.AllowHost = None,
    control: serve.Control = False,
    library: own.Library = None,
) -> None:
    """Serve a page to look at runs in a browser, live. Needs passagent[web]; Ctrl-C ends it."""
    from pathlib import Path

    from passagent.store.pass_library import library_path
    from passagent.view.page.page_server import Request
    from passagent.view.page.page_server import serve as serve_page

    place = Path(runs_dir)
    serve_page(Request(place, host, port, token, allow_host or (), control, library_path(library, place)))


@commands.command()
def report(
    run: opt.RunArgument,
    html: serve.Html = None,
    pictures: serve.Pictures = None,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Write RUN as one HTML file, which opens from disk.

    With --pictures, draw it as SVG files, too."""
    from passagent.cli.commands import run_commands

    run_commands.report(run, html, pictures, runs_dir, json)
