"""`passagent run`, `resume`, `fork` and `stop`."""

from __future__ import annotations

import typer

from passagent.cli import model_options as own
from passagent.cli import options as opt

commands = typer.Typer()


@commands.command()
def run(
    task: opt.TaskArgument,
    model: opt.Model = None,
    iters: opt.Iters = None,
    islands: opt.Islands = None,
    seed: opt.Seed = None,
    seed_dir: opt.SeedDir = None,
    device: opt.Device = None,
    pool: opt.Pool = None,
    token_file: opt.TokenFile = None,
    library: own.Library = None,
    exclude: own.Exclude = None,
    dispatch: opt.DispatchOption = None,
    base_url: opt.BaseUrl = None,
    runs_dir: opt.RunsDir = "runs",
    config: opt.Config = None,
    set_: opt.Set = None,
    max_time: opt.MaxTime = None,
    max_tokens: opt.MaxTokens = None,
    max_cost: opt.MaxCost = None,
    max_evals: opt.MaxEvals = None,
    price: opt.Price = None,
    target_as: opt.TargetAs = None,
    max_stagnation: opt.MaxStagnation = None,
    until: opt.Until = None,
    deterministic: opt.Deterministic = None,
    new: opt.New = False,
    events: opt.Events = None,
    json: opt.Json = False,
) -> None:
    """Search for passes for TASK. Ctrl-C stops cleanly; resume, or the same command again, goes on."""
    from passagent.cli.commands import running

    running.run(task, config, opt.settings_of(set_, locals()), runs_dir, json, new, events_file=events)


@commands.command()
def resume(
    run: opt.RunArgument,
    iters: opt.Iters = None,
    max_time: opt.MaxTime = None,
    max_tokens: opt.MaxTokens = None,
    max_cost: opt.MaxCost = None,
    max_evals: opt.MaxEvals = None,
    price: opt.Price = None,
    target_as: opt.TargetAs = None,
    max_stagnation: opt.MaxStagnation = None,
    until: opt.Until = None,
    pool: opt.Pool = None,
    token_file: opt.TokenFile = None,
    library: own.Library = None,
    exclude: own.Exclude = None,
    set_: opt.Set = None,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Go on with RUN where it was left. Its settings hold unless others are given."""
    from passagent.cli.commands import searching

    searching.resume(run, opt.settings_of(set_, locals()), runs_dir, json)


@commands.command()
def fork(
    run: opt.RunArgument,
    node: opt.FromNode,
    model: opt.Model = None,
    iters: opt.Iters = None,
    base_url: opt.BaseUrl = None,
    max_time: opt.MaxTime = None,
    max_tokens: opt.MaxTokens = None,
    max_cost: opt.MaxCost = None,
    max_evals: opt.MaxEvals = None,
    price: opt.Price = None,
    target_as: opt.TargetAs = None,
    max_stagnation: opt.MaxStagnation = None,
    until: opt.Until = None,
    pool: opt.Pool = None,
    token_file: opt.TokenFile = None,
    library: own.Library = None,
    exclude: own.Exclude = None,
    set_: opt.Set = None,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Start a new run from a node of RUN. Its settings hold unless others are given."""
    from passagent.cli.commands import searching

    searching.fork(run, node, opt.settings_of(set_, locals()), runs_dir, json)


@commands.command()
def stop(
    run: opt.RunArgument,
    after_episodes: opt.AfterEpisodes = False,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Stop a live RUN, as Ctrl-C does. Model calls under way are finished and stored."""
    from passagent.cli.commands import run_commands

    run_commands.stop(run, after_episodes, runs_dir, json)
