"""Commands that act on runs that are there: on live ones from another terminal, and on what is kept."""

from __future__ import annotations

import typer

from passagent.cli.options import Json, RunArgument, RunsDir

commands = typer.Typer()


@commands.command()
def pause(run: RunArgument, runs_dir: RunsDir = "runs", json: Json = False) -> None:
    """Begin nothing new in a live RUN until resume; what is under way is finished, its processes stay."""
    from passagent.commands import operating

    operating.ask(run, "pause", runs_dir, json)


@commands.command()
def drain(run: RunArgument, runs_dir: RunsDir = "runs", json: Json = False) -> None:
    """Let a live RUN finish its episodes under way, then stop."""
    from passagent.commands import operating

    operating.ask(run, "drain", runs_dir, json)


@commands.command()
def stop(run: RunArgument, runs_dir: RunsDir = "runs", json: Json = False) -> None:
    """Stop a live RUN as one Ctrl-C would: calls and evaluations under way are finished and stored."""
    from passagent.commands import operating

    operating.ask(run, "stop", runs_dir, json)
