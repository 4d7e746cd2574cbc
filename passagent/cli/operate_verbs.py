"""Commands that act on runs that are there: on live ones from another terminal, and on what is kept."""

from __future__ import annotations

import typer

from passagent.cli import options as opt
from passagent.errors import UsageError

commands = typer.Typer()
runs_app = typer.Typer(rich_markup_mode=None)
commands.add_typer(runs_app, name="runs")


@runs_app.callback(invoke_without_command=True)
def runs(context: typer.Context, runs_dir: opt.RunsDir = "runs", json: opt.Json = False) -> None:
    """List the runs, newest first. `passagent runs rm RUN...` removes some."""
    from passagent.commands import listing_runs

    if context.invoked_subcommand is None:
        listing_runs.list_runs(runs_dir, json)
        return
    given = [context.get_parameter_source(name) for name in ("runs_dir", "json")]
    if any(source is not None and source.name == "COMMANDLINE" for source in given):
        raise UsageError(f"write options after the command: passagent runs {context.invoked_subcommand} ...")


@runs_app.command("rm")
def runs_rm(
    names: opt.RunsArgument, yes: opt.Yes = False, runs_dir: opt.RunsDir = "runs", json: opt.Json = False
) -> None:
    """Remove runs at rest, with all that is theirs alone."""
    from passagent.commands import removing

    removing.remove_runs(names, yes, runs_dir, json)


@commands.command()
def stop(
    run: opt.RunArgument,
    after_episodes: opt.AfterEpisodes = False,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Stop a live RUN, as Ctrl-C does. Model calls under way are finished and stored."""
    from passagent.commands import operating

    operating.stop(run, after_episodes, runs_dir, json)


@commands.command()
def gc(dry_run: opt.DryRun = False, runs_dir: opt.RunsDir = "runs", json: opt.Json = False) -> None:
    """Remove what nothing needs. Old directories, files of dead evaluators, old kernels."""
    from passagent.commands import tidying

    tidying.gc(dry_run, runs_dir, json)
