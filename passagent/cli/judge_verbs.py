"""`passagent eval`, `check`, `plan`, `profile` and `bench`."""

from __future__ import annotations

import typer

from passagent.cli import dataset_options as of_data
from passagent.cli import model_options as own
from passagent.cli import options as opt
from passagent.cli import result_options as of_result

commands = typer.Typer()


@commands.command("eval")
def evaluate(
    task: opt.TaskArgument,
    pass_dir: opt.PassDir = None,
    device: opt.Device = None,
    pool: opt.Pool = None,
    token_file: opt.TokenFile = None,
    dispatch: opt.DispatchOption = None,
    strict_passbench: opt.StrictPassbench = False,
    validator: opt.Validator = None,
    base_url: opt.BaseUrl = None,
    fresh: opt.Fresh = False,
    reward: opt.Reward = None,
    runs_dir: opt.RunsDir = "runs",
    config: opt.Config = None,
    set_: opt.Set = None,
    json: opt.Json = False,
) -> None:
    """Judge a pass directory on TASK. Is it correct, and how fast?

    A pass that was measured before on this machine is answered from the store. Exit code 1 if it is not ok.
    """
    from passagent.cli.commands import evaluating

    options = {"device": device, "pool": pool, "token_file": token_file, "dispatch": dispatch}
    settings = opt.settings_of(set_, options | {"validator": validator})
    settings |= {"evaluator.protocol": "passbench"} if strict_passbench else {}
    settings |= {"validator.base_url": base_url} if base_url else {}
    if reward is not None:
        if fresh or validator is not None:
            raise typer.BadParameter("--reward takes neither --fresh nor --validator")
        evaluating.reward(task, pass_dir, config, settings, reward, json)
        return
    evaluating.evaluate(task, pass_dir, config, settings, runs_dir, fresh, json)


@commands.command()
def check(
    directory: of_data.WrittenArgument,
    against: of_data.Against = None,
    runs_dir: of_data.CameFrom = None,
    json: opt.Json = False,
) -> None:
    """Check what export or tasks build wrote. Against its record, evaluation tasks and its runs."""
    from passagent.cli.commands import exporting

    exporting.check(directory, against or [], runs_dir or [], json)


@commands.command()
def plan(
    pass_dir: opt.PassDirArgument,
    task: opt.TaskArgument,
    device: opt.PlanDevice = None,
    ir: opt.InternalFormOption = None,
    json: opt.Json = False,
) -> None:
    """Show what a pass does on TASK in each call. Allocations, launches with their arguments, bytes moved."""
    from passagent.cli.commands import planning

    planning.plan(pass_dir, task, device, ir.value if ir else None, json)


@commands.command()
def profile(
    pass_dir: opt.PassDirArgument,
    task: opt.TaskArgument,
    deep: opt.Deep = False,
    device: opt.Device = None,
    dispatch: opt.DispatchOption = None,
    runs_dir: opt.RunsDir = "runs",
    config: opt.Config = None,
    set_: opt.Set = None,
    json: opt.Json = False,
) -> None:
    """Say what limits a pass on TASK. Speed of light, compilers' figures, a trace; --deep: GPU counters."""
    from passagent.cli.commands import profiling_passes

    settings = opt.settings_of(set_, {"device": device, "dispatch": dispatch})
    profiling_passes.profile(pass_dir, task, config, settings, runs_dir, deep, json)


@commands.command()
def bench(
    tasks: opt.TasksArgument,
    compiler: opt.Compiler = None,
    device: opt.Device = None,
    pool: opt.Pool = None,
    token_file: opt.TokenFile = None,
    library: own.Library = None,
    dispatch: opt.DispatchOption = None,
    pass_dir: opt.BenchPassDir = None,
    model: opt.BenchModel = None,
    iters: opt.BenchIters = None,
    root: opt.Root = None,
    out: opt.BenchOut = None,
    fresh: opt.BenchFresh = False,
    hold_out_shapes: opt.HoldOut = None,
    suite: of_result.SuiteTable = None,
    explain: of_result.Explain = False,
    shard: of_result.BenchShard = None,
    plots: opt.Plots = None,
    config: opt.Config = None,
    set_: opt.Set = None,
    json: opt.Json = False,
    markdown: opt.Markdown = False,
) -> None:
    """Measure compilers and passes on many tasks. Prints PassNet's table; the same command again goes on."""
    from passagent.cli.commands import benching
    from passagent.data.bench.kernelbench import default_compilers

    options = {"device": device, "pool": pool, "token_file": token_file, "dispatch": dispatch}
    settings = opt.settings_of(set_, options | {"model": model, "library": library})
    compilers = compiler or default_compilers(suite, device)
    request = benching.Request(
        tasks,
        compilers,
        config,
        settings,
        iters,
        pass_dir,
        root,
        out,
        fresh,
        opt.share_of(hold_out_shapes),
        suite,
        explain,
        shard,
    )
    form = benching.form_of(json=json, markdown=markdown)
    benching.bench(request, plots, form)
