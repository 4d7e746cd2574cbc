"""`passagent collect`, `export`, and `tasks list`, `check`, `import`, `build` and `export`."""

from __future__ import annotations

import typer

from passagent.cli import dataset_options as of_data
from passagent.cli import model_options as own
from passagent.cli import options as opt

commands = typer.Typer()
tasks_app = typer.Typer(
    help="List, check, import, build and export tasks.", no_args_is_help=True, rich_markup_mode=None
)
commands.add_typer(tasks_app, name="tasks")


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
    from passagent.cli.commands import collecting

    settings = opt.settings_of(set_, locals())
    request = collecting.Request(
        tasks, settings, config, root, trials, parallel, shuffle, shard, max_steps, runs_dir
    )
    collecting.collect(request, json)


@commands.command()
def export(
    form: of_data.Format,
    out: of_data.ExportOut,
    keep: of_data.Keep = None,
    by: of_data.ByOption = of_data.By.episode,
    best_of: of_data.BestOf = None,
    per_sequence: of_data.PerSequence = None,
    failures: of_data.Failures = False,
    pairs: of_data.Pairs = False,
    parquet: of_data.Parquet = False,
    against: of_data.Against = None,
    tokenizer: of_data.Tokenizer = None,
    runs_dir: of_data.ExportedRuns = None,
    json: opt.Json = False,
) -> None:
    """Write a data set for a trainer, checked and with a card."""
    from passagent.cli.commands import exporting
    from passagent.data.export.selection import Selection

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


@tasks_app.command("list")
def tasks_list(json: opt.Json = False) -> None:
    """List the example tasks. example:NAME works wherever a command takes a task."""
    from passagent.cli.commands import task_commands

    task_commands.list_tasks(json)


@tasks_app.command("check")
def tasks_check(
    tasks: opt.TasksArgument,
    against: of_data.Against = None,
    coverage: of_data.Coverage = False,
    device: opt.Device = None,
    json: opt.Json = False,
) -> None:
    """Check that the subgraphs of tasks are runnable, serialisable and analysable.

    With --against: that they share nothing with other tasks. With --coverage: what the expert lowers.
    """
    from passagent.cli.commands import task_commands

    if against and coverage:
        raise typer.BadParameter("--against and --coverage exclude each other")
    if against:
        task_commands.check_leaks(tasks, against, json)
    elif coverage:
        task_commands.check_coverage(tasks, (device or "cpu").partition(":")[0], json)
    else:
        task_commands.check_tasks(tasks, device or "cpu", json)


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
    from passagent.cli.commands import task_commands
    from passagent.evaluator.hardware.devices import first_device
    from passagent.tasks.suites.import_problems import How

    if not all(word.isdigit() for word in level.split(",")):
        raise typer.BadParameter(f"--level {level}: write numbers, such as 1,2,3")
    levels = [int(word) for word in level.split(",")]
    on = first_device(device or "cpu")
    how = How(on, max_input and max_input << 20, timeout, jobs, compute_ops.value)
    task_commands.import_tasks(suite.value, path, levels, out, how, most_refused, json)


@tasks_app.command("build")
def tasks_build(
    samples: of_data.SamplesArgument,
    out: of_data.DatasetOut,
    shapes: of_data.Shapes = 10,
    evaluation: of_data.EvaluationSequences = 200,
    backward: of_data.Backward = False,
    device: opt.Device = None,
    parallel: of_data.AtATime = None,
    limit: of_data.LimitS = 600,
    most_refused: of_data.MostRefused = 0.03,
    json: opt.Json = False,
) -> None:
    """Make tasks of SAMPLES, for training and for evaluation. The same command again goes on.

    The models in SAMPLES are executed. Exit code 1 if too many samples are refused.
    """
    from passagent.cli.commands import task_commands
    from passagent.data.pipeline.assembling import Request

    request = Request(samples, out, device, shapes, evaluation, parallel, backward, limit)
    task_commands.build_tasks(request, most_refused, json)


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
    from passagent.cli.commands import task_commands

    task_commands.export_harbor(tasks, harbor, device or "cpu", wheel, set_ or [], json)
