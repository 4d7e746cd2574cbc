"""`passagent collect`."""

from __future__ import annotations

import typer

from passagent.cli import model_options as own
from passagent.cli import options as opt

commands = typer.Typer()


@commands.command()
def collect(
    tasks: opt.TasksArgument,
    model: opt.Model = None,
    trials: opt.Trials = 2,
    max_steps: opt.MaxSteps = None,
    parallel: opt.Parallel = 4,
    shuffle: opt.Shuffle = None,
    shard: opt.Shard = None,
    root: opt.Root = None,
    seed: opt.FirstSeed = None,
    device: opt.Device = None,
    pool: opt.Pool = None,
    token_file: opt.TokenFile = None,
    library: own.Library = None,
    exclude: own.Exclude = None,
    dispatch: opt.DispatchOption = None,
    base_url: opt.BaseUrl = None,
    max_time: opt.MaxTime = None,
    max_tokens: opt.MaxTokens = None,
    max_cost: opt.MaxCost = None,
    price: opt.Price = None,
    runs_dir: opt.RunsDir = "runs",
    config: opt.CollectConfig = None,
    set_: opt.Set = None,
    json: opt.Json = False,
) -> None:
    """Collect conversations on many tasks in one database. The same command again goes on."""
    from passagent.commands import collecting

    settings = opt.settings_of(set_, locals())
    request = collecting.Request(
        tasks, settings, config, root, trials, parallel, shuffle, shard, max_steps, runs_dir
    )
    collecting.collect(request, json)
