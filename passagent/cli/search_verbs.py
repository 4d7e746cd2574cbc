"""`passagent run`, `resume` and `models`."""

from __future__ import annotations

from typing import Annotated

import typer

from passagent.cli.options import (
    BaseUrl,
    ConfigOption,
    Device,
    DispatchOption,
    Iters,
    Json,
    MaxCost,
    MaxEvals,
    MaxStagnation,
    MaxTime,
    MaxTokens,
    ModelOption,
    PriceOption,
    RunArgument,
    RunsDir,
    SetOption,
    TargetAs,
    TaskArgument,
    Until,
    settings_of,
)

commands = typer.Typer()


@commands.command()
def run(
    task: TaskArgument,
    model: ModelOption = None,
    iters: Iters = None,
    islands: Annotated[
        int | None, typer.Option(envvar="PASSAGENT_ISLANDS", help="Populations that search side by side.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(envvar="PASSAGENT_SEED", help="Seed of the search's choices.")
    ] = None,
    seed_dir: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_SEED_DIR",
            metavar="DIR",
            help="A pass directory that the first episode of every island starts from.",
        ),
    ] = None,
    device: Device = None,
    dispatch: DispatchOption = None,
    base_url: BaseUrl = None,
    runs_dir: RunsDir = "runs",
    config: ConfigOption = None,
    set_: SetOption = None,
    max_time: MaxTime = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    max_evals: MaxEvals = None,
    price: PriceOption = None,
    target_as: TargetAs = None,
    max_stagnation: MaxStagnation = None,
    until: Until = None,
    new: Annotated[
        bool, typer.Option("--new", envvar="PASSAGENT_NEW", help="Do not go on with an unfinished equal run.")
    ] = False,
    events: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_EVENTS",
            metavar="FILE.jsonl",
            help="Append what happens to this file, a JSON object a line.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Search for passes for TASK. Ctrl-C stops cleanly; resume, or the same command again, goes on."""
    from passagent.commands import running

    running.run(task, config, settings_of(set_, locals()), runs_dir, json, new, events_file=events)


@commands.command()
def resume(
    run: RunArgument,
    iters: Iters = None,
    max_time: MaxTime = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    max_evals: MaxEvals = None,
    price: PriceOption = None,
    target_as: TargetAs = None,
    max_stagnation: MaxStagnation = None,
    until: Until = None,
    set_: SetOption = None,
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Go on with RUN where it was left. Its settings hold unless others are given."""
    from passagent.commands import searching

    searching.resume(run, settings_of(set_, locals()), runs_dir, json)


@commands.command()
def fork(
    run: RunArgument,
    node: Annotated[
        int, typer.Option("--from", envvar="PASSAGENT_FROM", metavar="NODE", help="The node to start from.")
    ],
    model: ModelOption = None,
    iters: Iters = None,
    base_url: BaseUrl = None,
    max_time: MaxTime = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    max_evals: MaxEvals = None,
    price: PriceOption = None,
    target_as: TargetAs = None,
    max_stagnation: MaxStagnation = None,
    until: Until = None,
    set_: SetOption = None,
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Start a new run from a node of RUN. Its settings hold unless others are given."""
    from passagent.commands import searching

    searching.fork(run, node, settings_of(set_, locals()), runs_dir, json)


@commands.command()
def models(
    model: ModelOption = None,
    base_url: BaseUrl = None,
    check: Annotated[
        bool,
        typer.Option("--check", envvar="PASSAGENT_CHECK", help="Ask each for one tiny tool call."),
    ] = False,
    price: PriceOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """List models with their addresses, keys and prices. Exit code 1 if one fails --check."""
    from passagent.commands import model_check as command

    command.models(config, settings_of(set_, locals()), check, json)
