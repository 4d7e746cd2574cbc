"""Commands that look at runs and change nothing."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from passagent.cli.options import Json, NodeArgument, RunArgument, RunsDir, TaskArgument

commands = typer.Typer()


class InternalForm(enum.StrEnum):
    """Of a kernel."""

    ttir = "ttir"


@commands.command()
def status(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="A run's id, a unique prefix, or 'last'.", show_default="live runs"
        ),
    ] = None,
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Show the state of RUN: workers, budgets, pace, best so far."""
    from passagent.commands import operating

    operating.status(run, runs_dir, json)


@commands.command()
def tail(
    run: RunArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", envvar="PASSAGENT_FOLLOW", help="Go on until RUN is at rest.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", envvar="PASSAGENT_LINES", min=0, help="Events to begin with.")
    ] = 20,
    runs_dir: RunsDir = "runs",
    json: Annotated[
        bool, typer.Option("--json", envvar="PASSAGENT_JSON", help="A JSON object for each event.")
    ] = False,
) -> None:
    """Print the events of RUN. With -f, go on with new ones, of every process."""
    from passagent.commands import tailing

    tailing.tail(run, lines, follow, runs_dir, json)


@commands.command(context_settings={"ignore_unknown_options": True})  # -1 is an episode: a seed's
def show(
    run: RunArgument,
    episode: Annotated[
        int | None,
        typer.Argument(metavar="EPISODE", help="An episode's number (a seed's: 0, -1, ...)."),
    ] = None,
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Show the tree and summary of RUN, or one EPISODE of it. An episode is shown by its messages."""
    from passagent.commands import looking

    if episode is None:
        looking.show(run, runs_dir, json)
    else:
        looking.show_episode(run, episode, runs_dir, json)


@commands.command()
def prompt(
    run: RunArgument,
    node: NodeArgument,
    next_: Annotated[
        bool,
        typer.Option("--next", envvar="PASSAGENT_NEXT", help="As if an episode started from NODE now."),
    ] = False,
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Print the prompt of the episode that made NODE."""
    from passagent.commands import prompting

    prompting.prompt(run, node, runs_dir, next_, json)


@commands.command()
def best(
    run: RunArgument,
    out: Annotated[str, typer.Option(envvar="PASSAGENT_OUT", help="The directory to write.")],
    force: Annotated[
        bool, typer.Option("--force", envvar="PASSAGENT_FORCE", help="Replace the pass files in it.")
    ] = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure",
            envvar="PASSAGENT_MEASURE",
            help="Measure again what is not the program that the run measured, and AS without each pass.",
        ),
    ] = True,
    standalone: Annotated[
        bool,
        typer.Option(
            "--standalone", envvar="PASSAGENT_STANDALONE", help="Write it so that it runs without passagent."
        ),
    ] = False,
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Write RUN's best pass to a directory that a person can review: with a test, a README and its plan."""
    from passagent.commands import delivering

    delivering.best(run, out, runs_dir, force, measure, json, standalone)


@commands.command()
def plan(
    pass_dir: Annotated[str, typer.Argument(metavar="PASS_DIR", help="The candidate.")],
    task: TaskArgument,
    device: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_DEVICE",
            help="cpu or cuda; no GPU is needed for either.",
            show_default="cuda for Triton and CUDA C++, else cpu",
        ),
    ] = None,
    ir: Annotated[
        InternalForm | None,
        typer.Option(envvar="PASSAGENT_IR", help="Also print what each Triton kernel became."),
    ] = None,
    json: Json = False,
) -> None:
    """Show what a pass does on TASK in each call. Allocations, launches with their arguments, bytes moved."""
    from passagent.commands import planning

    planning.plan(pass_dir, task, device, ir.value if ir else None, json)


@commands.command()
def why(node: NodeArgument, runs_dir: RunsDir = "runs", json: Json = False) -> None:
    """Explain how NODE came to be. Its ancestors up to the task: what each changed and gained."""
    from passagent.commands import explaining

    explaining.why(node, runs_dir, json)


@commands.command()
def diff(
    first: Annotated[int, typer.Argument(metavar="A", help="A node's number.")],
    second: Annotated[int, typer.Argument(metavar="B", help="Another node's.")],
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Compare nodes A and B: files, and the speedup of each subgraph."""
    from passagent.commands import explaining

    explaining.diff(first, second, runs_dir, json)


@commands.command()
def doctor(run: RunArgument, runs_dir: RunsDir = "runs", json: Json = False) -> None:
    """Check that the mechanisms of RUN work. Gives figures and advice; exit code 1 if a check failed."""
    from passagent.commands import examining

    examining.doctor(run, runs_dir, json)
