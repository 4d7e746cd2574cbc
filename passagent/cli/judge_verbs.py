"""`passagent eval`, `bench`, `tasks ...` and `expert coverage`."""

from __future__ import annotations

import typer

from passagent.cli import dataset_options as of_data
from passagent.cli import model_options as own
from passagent.cli import options as opt
from passagent.cli import result_options as of_result

commands = typer.Typer()
tasks_app = typer.Typer(help="Look at tasks, and export them.", no_args_is_help=True, rich_markup_mode=None)
commands.add_typer(tasks_app, name="tasks")


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
    runs_dir: opt.RunsDir = "runs",
    config: opt.Config = None,
    set_: opt.Set = None,
    json: opt.Json = False,
) -> None:
    """Judge a pass directory on TASK: is it correct, and how fast?

    A pass that was measured before on this machine is answered from the store. Exit code 1 if it is not ok.
    """
    from passagent.commands import evaluating

    options = {"device": device, "pool": pool, "token_file": token_file, "dispatch": dispatch}
    settings = opt.settings_of(set_, options | {"validator": validator})
    settings |= {"evaluator.protocol": "passbench"} if strict_passbench else {}
    settings |= {"validator.base_url": base_url} if base_url else {}
    evaluating.evaluate(task, pass_dir, config, settings, runs_dir, fresh, json)


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
    from passagent.commands import profiling_passes

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
    """Measure compilers and passes on many tasks: PassNet's table. The same command again goes on."""
    from passagent.benchmark.kernelbench import default_compilers
    from passagent.commands import benching

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


@tasks_app.command("check")
def tasks_check(path: opt.TaskArgument, device: opt.Device = None, json: opt.Json = False) -> None:
    """Check the subgraphs of a task. Says whether each is runnable, serialisable and analysable."""
    from passagent.commands import checking_tasks

    checking_tasks.check_tasks(path, device or "cpu", json)


@tasks_app.command("list")
def tasks_list(json: opt.Json = False) -> None:
    """List the example tasks. example:NAME works wherever a command takes a task."""
    from passagent.commands import listing_tasks

    listing_tasks.list_tasks(json)


@tasks_app.command("hash")
def tasks_hash(tasks: opt.TasksArgument, json: opt.Json = False) -> None:
    """Hash what subgraphs compute: equal under other names, another format or order of statements."""
    from passagent.commands import model_extraction

    model_extraction.hash_tasks(tasks, json)


@tasks_app.command("dedup")
def tasks_dedup(
    tasks: opt.TasksArgument, level: of_data.Level = of_data.HashLevel.instance, json: opt.Json = False
) -> None:
    """Say which subgraphs compute the same."""
    from passagent.commands import model_extraction

    model_extraction.dedup_tasks(tasks, level.value, json)


@tasks_app.command("import")
def tasks_import(
    suite: of_data.SuiteArgument,
    path: of_data.PlaceArgument,
    out: of_data.ImportOut,
    level: of_data.Levels = "1,2,3",
    device: opt.Device = None,
    max_input: of_data.MaxInput = None,
    timeout: of_data.ProblemTime = 600,
    jobs: of_data.ImportJobs = 1,
    compute_ops: of_data.ComputeOps = of_data.Computing.allowed,
    most_refused: of_data.MostRefused = 0.1,
    json: opt.Json = False,
) -> None:
    """Make tasks of another suite's problems. Their code runs shut in, each in a process of its own."""
    from passagent.commands import importing_tasks
    from passagent.evaluator.hardware.devices import first_device
    from passagent.suites.import_problems import How

    if not all(word.isdigit() for word in level.split(",")):
        raise typer.BadParameter(f"--level {level}: write numbers, such as 1,2,3")
    levels = [int(word) for word in level.split(",")]
    on = first_device(device or "cpu")
    how = How(on, max_input and max_input << 20, timeout, jobs, compute_ops.value)
    importing_tasks.import_tasks(suite.value, path, levels, out, how, most_refused, json)


@tasks_app.command("export")
def tasks_export(
    tasks: opt.TasksArgument,
    harbor: opt.Harbor,
    device: opt.Device = None,
    wheel: opt.Wheel = None,
    set_: opt.Set = None,
    json: opt.Json = False,
) -> None:
    """Write tasks as environments of Harbor. Each has an instruction, an image and a test."""
    from passagent.commands import harbor_tasks as command

    command.export_harbor(tasks, harbor, device or "cpu", wheel, set_ or [], json)


@tasks_app.command("reward")
def tasks_reward(
    task: opt.TaskArgument,
    pass_dir: opt.GivenPassDir,
    out: opt.RewardOut,
    device: opt.Device = None,
    set_: opt.Set = None,
) -> None:
    """Judge a pass directory and write its reward. The test of an exported task does this."""
    from pathlib import Path

    from passagent.rl.verify import verify

    verify(task, pass_dir, device or "cpu", set_ or [], Path(out))


expert_app = typer.Typer(help="Look at what the expert can do.", no_args_is_help=True, rich_markup_mode=None)


@expert_app.callback()
def _expert() -> None:
    """Look at what the expert can do."""


@expert_app.command("coverage")
def coverage(tasks: opt.TasksOnDiskArgument, target: opt.Target = "cpu", json: opt.Json = False) -> None:
    """Say what the expert lowers of each task, and why not the rest. Nothing is run or timed."""
    from passagent.commands import expert_coverage

    expert_coverage.coverage(tasks, target, json)
