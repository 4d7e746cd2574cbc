"""Commands that look at runs and change nothing."""

from __future__ import annotations

import typer

from passagent.cli import model_options as own
from passagent.cli import options as opt
from passagent.cli import result_options as of_result
from passagent.cli import server_options as serve

commands = typer.Typer()


@commands.command()
def status(run: opt.LiveRunArgument = None, runs_dir: opt.RunsDir = "runs", json: opt.Json = False) -> None:
    """Show the state of RUN: workers, budgets, pace, best so far."""
    from passagent.commands import surveying

    surveying.status(run, runs_dir, json)


@commands.command()
def tail(
    run: opt.RunArgument,
    follow: opt.Follow = False,
    lines: opt.Lines = 20,
    runs_dir: opt.RunsDir = "runs",
    json: opt.JsonLines = False,
) -> None:
    """Print the events of RUN. With -f, go on with new ones, of every process."""
    from passagent.commands import tailing

    tailing.tail(run, lines, follow, runs_dir, json)


@commands.command(context_settings={"ignore_unknown_options": True})  # -1 is an episode: a seed's
def show(
    run: opt.RunArgument,
    episode: opt.EpisodeArgument = None,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Show the tree and summary of RUN, or one EPISODE of it. An episode is shown by its messages."""
    from passagent.commands import showing

    if episode is None:
        showing.show(run, runs_dir, json)
    else:
        showing.show_episode(run, episode, runs_dir, json)


@commands.command()
def prompt(
    run: opt.RunArgument,
    node: opt.NodeArgument,
    next_: opt.Next = False,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Print the prompt of the episode that made NODE."""
    from passagent.commands import prompting

    prompting.prompt(run, node, runs_dir, next_, json)


@commands.command()
def best(
    run: opt.RunArgument,
    out: opt.BestOut,
    force: opt.Force = False,
    measure: opt.Measure = True,
    standalone: opt.Standalone = False,
    format_: of_result.BestFormatOption = of_result.BestFormat.review,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Write RUN's best pass to a directory that a person can review: with a test, a README and its plan."""
    from passagent.commands import delivering

    if format_ is of_result.BestFormat.review:
        delivering.best(run, out, runs_dir, force, measure, json, standalone)
    else:
        delivering.best_for_suite(run, out, runs_dir, force, measure, json, format_.value)


@commands.command()
def plan(
    pass_dir: opt.PassDirArgument,
    task: opt.TaskArgument,
    device: opt.PlanDevice = None,
    ir: opt.InternalFormOption = None,
    json: opt.Json = False,
) -> None:
    """Show what a pass does on TASK in each call. Allocations, launches with their arguments, bytes moved."""
    from passagent.commands import planning

    planning.plan(pass_dir, task, device, ir.value if ir else None, json)


@commands.command()
def why(node: opt.NodeArgument, runs_dir: opt.RunsDir = "runs", json: opt.Json = False) -> None:
    """Explain how NODE came to be. Its ancestors up to the task: what each changed and gained."""
    from passagent.commands import explaining

    explaining.why(node, runs_dir, json)


@commands.command()
def diff(
    first: opt.FirstNodeArgument,
    second: opt.SecondNodeArgument,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Compare nodes A and B: files, and the speedup of each subgraph."""
    from passagent.commands import comparing

    comparing.diff(first, second, runs_dir, json)


@commands.command()
def doctor(run: opt.RunArgument, runs_dir: opt.RunsDir = "runs", json: opt.Json = False) -> None:
    """Check that the mechanisms of RUN work. Gives figures and advice; exit code 1 if a check failed."""
    from passagent.commands import examining

    examining.doctor(run, runs_dir, json)


@commands.command()
def hints(runs_dir: opt.RunsDir = "runs", json: opt.Json = False) -> None:
    """List curated and learned hints: where they come from, and what showing learned ones gains."""
    from passagent.commands import learned_hints

    learned_hints.list_hints(runs_dir, json)


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

    from passagent.commands import viewing
    from passagent.page.page_server import Request
    from passagent.store.library import library_path

    place = Path(runs_dir)
    viewing.view(Request(place, host, port, token, allow_host or (), control, library_path(library, place)))


@commands.command()
def report(
    run: opt.RunArgument, html: serve.Html, runs_dir: opt.RunsDir = "runs", json: opt.Json = False
) -> None:
    """Write RUN as one HTML file that opens from disk. For an issue, an e-mail, a supplement."""
    from passagent.commands import reporting

    reporting.report(run, html, runs_dir, json)


@commands.command()
def plot(
    run: opt.RunArgument,
    out: serve.PlotOut,
    picture: serve.PictureOption = serve.Picture.best,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Draw a picture of RUN as SVG or PNG. Needs passagent[report]."""
    from passagent.commands import plotting

    plotting.plot(run, picture.value, out, runs_dir, json)
