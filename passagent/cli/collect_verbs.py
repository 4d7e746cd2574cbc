"""`passagent collect`."""

from __future__ import annotations

from typing import Annotated

import typer

from passagent.cli.options import (
    BaseUrl,
    Device,
    DispatchOption,
    Json,
    MaxCost,
    MaxTime,
    MaxTokens,
    ModelOption,
    PriceOption,
    RunsDir,
    SetOption,
    settings_of,
)

commands = typer.Typer()


@commands.command()
def collect(
    tasks: Annotated[
        list[str],
        typer.Argument(
            metavar="TASKS...",
            help="Tasks, directories of tasks, quoted globs, sample lists, example:NAME. With --merge: runs "
            "directories.",
        ),
    ],
    model: ModelOption = None,
    trials: Annotated[
        int, typer.Option(envvar="PASSAGENT_TRIALS", min=1, help="Conversations on each task.")
    ] = 2,
    max_steps: Annotated[
        int | None,
        typer.Option(
            envvar="PASSAGENT_MAX_STEPS",
            min=1,
            help="Model calls, and evaluations, in a conversation at most.",
            show_default="50",
        ),
    ] = None,
    parallel: Annotated[
        int,
        typer.Option(
            envvar="PASSAGENT_PARALLEL", min=1, help="Conversations at a time, on the same devices."
        ),
    ] = 4,
    shuffle: Annotated[
        int | None,
        typer.Option(envvar="PASSAGENT_SHUFFLE", metavar="SEED", help="Take the trials in a random order."),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_SHARD",
            metavar="I/N",
            help="Make the part I (from 0) of N parts: for N machines with a database each.",
        ),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_ROOT",
            help="What the paths in sample lists are relative to.",
            show_default="the list's directory, else the current one",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            envvar="PASSAGENT_SEED", help="Seed of the first trial; the others' follow.", show_default="0"
        ),
    ] = None,
    device: Device = None,
    dispatch: DispatchOption = None,
    base_url: BaseUrl = None,
    max_time: MaxTime = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    price: PriceOption = None,
    runs_dir: RunsDir = "runs",
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            envvar="PASSAGENT_CONFIG",
            help="A preset's name or a YAML file.",
            show_default="teacher",
        ),
    ] = None,
    set_: SetOption = None,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            envvar="PASSAGENT_MERGE",
            help="Write the databases in the directories TASKS as one new one to --runs-dir.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Collect conversations on many tasks in one database. The same command again goes on."""
    from passagent.commands import collecting

    if merge:
        collecting.merge(tasks, runs_dir, json)
        return
    collecting.collect(
        collecting.Request(
            tasks=tasks,
            settings=settings_of(set_, locals()),
            preset=config,
            root=root,
            trials=trials,
            parallel=parallel,
            shuffle=shuffle,
            shard=shard,
            max_steps=max_steps,
            runs_dir=runs_dir,
        ),
        json,
    )
