"""`passagent export` and its `check`, `stats` and `show`."""

from __future__ import annotations

import typer

from passagent.cli import options as opt

commands = typer.Typer()
group = typer.Typer(invoke_without_command=True)
commands.add_typer(group, name="export")


@group.callback()
def export(
    context: typer.Context,
    form: opt.Format = None,
    out: opt.ExportOut = None,
    keep: opt.Keep = None,
    by: opt.ByOption = opt.By.episode,
    best_of: opt.BestOf = None,
    per_sequence: opt.PerSequence = None,
    failures: opt.Failures = False,
    pairs: opt.Pairs = False,
    parquet: opt.Parquet = False,
    against: opt.Against = None,
    tokenizer: opt.Tokenizer = None,
    runs_dir: opt.ExportedRuns = None,
    json: opt.Json = False,
) -> None:
    """Write a data set for a trainer, checked and with a card."""
    if context.invoked_subcommand is not None:
        return
    from passagent.commands import exporting
    from passagent.dataset.selection import Selection
    from passagent.errors import UsageError

    if form is None or out is None:
        raise UsageError("export needs --format and --out; see passagent export --help")
    request = exporting.Request(
        form=form.value,
        out=out,
        selection=Selection(keep, by.value, best_of, per_sequence),
        runs_dirs=runs_dir or ["runs"],
        against=against or [],
        with_failures=failures,
        with_pairs=pairs,
        parquet=parquet,
        tokenizer=tokenizer,
    )
    exporting.export(request, json)


@group.command()
def check(
    directory: opt.ExportArgument,
    against: opt.Against = None,
    runs_dir: opt.CameFrom = None,
    json: opt.Json = False,
) -> None:
    """Compare DIR with its record, evaluation tasks and its runs."""
    from passagent.commands import exporting

    exporting.check(directory, against or [], runs_dir or [], json)


@group.command()
def stats(directory: opt.ExportArgument, json: opt.Json = False) -> None:
    """Say what DIR holds, by model and by task."""
    from passagent.commands import exporting

    exporting.stats(directory, json)


@group.command()
def show(directory: opt.ExportArgument, number: opt.RowArgument, json: opt.Json = False) -> None:
    """Print row N of DIR as a person reads it."""
    from passagent.commands import exporting

    exporting.show(directory, number, json)
