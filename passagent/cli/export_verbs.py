"""`passagent export` and its `check`, `stats` and `show`."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from passagent.cli.options import Json, RunsDir

commands = typer.Typer()
group = typer.Typer(invoke_without_command=True)
commands.add_typer(group, name="export")

DirectoryArgument = Annotated[str, typer.Argument(metavar="DIR", help="A directory that export wrote.")]
Against = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        envvar="PASSAGENT_AGAINST",
        metavar="TASKS",
        help="Evaluation tasks, or a list of them, that nothing may be shared with.",
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--db", envvar="PASSAGENT_DB", metavar="FILE", help="A passagent.db, in place of --runs-dir."
    ),
]


class By(enum.StrEnum):
    """What an example is."""

    episode = "episode"
    step = "step"


class FormatName(enum.StrEnum):
    """The forms of docs/formats.md."""

    passagent = "passagent"
    trl = "trl"
    openai = "openai"
    llamafactory = "llamafactory"
    axolotl = "axolotl"
    atif = "atif"


@group.callback()
def export(
    context: typer.Context,
    form: Annotated[
        FormatName | None, typer.Option("--format", envvar="PASSAGENT_FORMAT", help="Who is to read it.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(envvar="PASSAGENT_OUT", metavar="DIR", help="The directory to write; a new one."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_KEEP",
            metavar="CONDITION",
            help="Which examples, such as 'as_score > 0.1 and steps <= 50'.",
        ),
    ] = None,
    by: Annotated[
        By, typer.Option(envvar="PASSAGENT_BY", help="An example is a whole episode, or a step that gained.")
    ] = By.episode,
    best_of: Annotated[
        int | None,
        typer.Option(
            "--best-of", envvar="PASSAGENT_BEST_OF", min=1, help="At most so many of a task, the best."
        ),
    ] = None,
    per_sequence: Annotated[
        int | None,
        typer.Option(
            "--per-sequence",
            envvar="PASSAGENT_PER_SEQUENCE",
            min=1,
            help="At most so many of an operator sequence, the best.",
        ),
    ] = None,
    failures: Annotated[
        bool,
        typer.Option(
            "--failures", envvar="PASSAGENT_FAILURES", help="Write failed episodes, too: failures_*."
        ),
    ] = False,
    pairs: Annotated[
        bool,
        typer.Option(
            "--pairs", envvar="PASSAGENT_PAIRS", help="Write pairs (better, worse): preferences.jsonl."
        ),
    ] = False,
    parquet: Annotated[
        bool, typer.Option("--parquet", envvar="PASSAGENT_PARQUET", help="Write tables as parquet, too.")
    ] = False,
    against: Against = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_TOKENIZER",
            metavar="FILE",
            help="A tokenizer.json that lengths are counted with.",
        ),
    ] = None,
    runs_dir: RunsDir = "runs",
    db: Database = None,
    json: Json = False,
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
        runs_dir=exporting.runs_dir_of(runs_dir, db),
        against=against or [],
        with_failures=failures,
        with_pairs=pairs,
        parquet=parquet,
        tokenizer=tokenizer,
    )
    exporting.export(request, json)


@group.command()
def check(
    directory: DirectoryArgument,
    against: Against = None,
    runs_dir: Annotated[
        str | None,
        typer.Option(
            "--runs-dir",
            envvar="PASSAGENT_CHECK_RUNS_DIR",
            help="Where the runs are stored that it came from.",
        ),
    ] = None,
    db: Database = None,
    json: Json = False,
) -> None:
    """Compare DIR with its record, evaluation tasks and its runs."""
    from passagent.commands import exporting

    place = exporting.runs_dir_of(runs_dir or "runs", db) if runs_dir or db else None
    exporting.check(directory, against or [], place, json)


@group.command()
def stats(directory: DirectoryArgument, json: Json = False) -> None:
    """Say what DIR holds, by model and by task."""
    from passagent.commands import exporting

    exporting.stats(directory, json)


@group.command()
def show(
    directory: DirectoryArgument,
    number: Annotated[int, typer.Argument(metavar="N", help="The row's number, from 1.")],
    json: Json = False,
) -> None:
    """Print row N of DIR as a person reads it."""
    from passagent.commands import exporting

    exporting.show(directory, number, json)
