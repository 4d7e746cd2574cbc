"""The commands that measure and deploy passes, and that make and read data."""

from __future__ import annotations

from typing import Annotated, Literal, Unpack

import typer

from passagent.cli import commands as do
from passagent.cli.groups import (
    BestOptions,
    BuildOptions,
    ExportOptions,
    ImportOptions,
)
from passagent.cli.parameters import argument, command
from passagent.cli.run_verbs import Run
from passagent.errors import UsageError
from passagent.option_groups import Option
from passagent.options import (
    Against,
    BenchOptions,
    CollectOptions,
    Device,
    Json,
    OptimizeOptions,
    RunsDir,
    SettingsOptions,
    Share,
)

commands = typer.Typer()
tasks_app = typer.Typer(
    help="List, check, import, build and export tasks.", no_args_is_help=True, rich_markup_mode=None
)
commands.add_typer(tasks_app, name="tasks")

Tasks = Annotated[
    list[str], argument("TASKS...", "Tasks, directories of tasks, quoted globs, sample lists, example:NAME.")
]
Factory = Annotated[
    str,
    argument(
        "FILE.py:FACTORY",
        "Your own function: it returns `module, example_inputs`, or a module. It runs unsandboxed.",
    ),
]
Inputs = Annotated[
    str | None,
    Option("A function that returns the inputs.", metavar="FILE.py:FUNCTION", shown="the factory's"),
]
Dynamic = Annotated[bool, Option("Keep sizes of the inputs symbolic.")]
NewDirectory = Annotated[str, Option("The directory to write; a new one.", metavar="DIR")]


# Judging


@command(commands)
def check(
    directory: Annotated[str, argument("DIR", "A directory that export or tasks build wrote.")],
    against: Against,
    runs_dir: Annotated[
        list[str] | None,
        Option("Where the runs are stored that it came from.", variable="PASSAGENT_CHECK_RUNS_DIR"),
    ],
    json: Json,
) -> None:
    """Check what export or tasks build wrote. Against its record, evaluation tasks and its runs."""
    do.collecting.check(directory, list(against or ()), runs_dir or [], json)


@command(commands)
def bench(
    tasks: Tasks,
    plots: Annotated[
        str | None,
        Option("Draw ES(t), S(t) and the speedups as SVG.", metavar="DIR", is_rare=True),
    ],
    markdown: Annotated[bool, Option("The table as Markdown on stdout.")],
    json: Json,
    **options: Unpack[BenchOptions],
) -> None:
    """Measure compilers and passes on many tasks. Prints PassNet's table; the same command again goes on."""
    if json and markdown:
        raise UsageError("--json and --markdown: one form at a time; the same command prints the other")
    do.benching.bench(tasks, options, plots, "json" if json else "markdown" if markdown else "table")


# Deploying


@command(commands)
def optimize(factory: Factory, json: Json, **options: Unpack[OptimizeOptions]) -> None:
    """Make your model faster. Searches its regions for passes, and packages those that pay on the whole.

    Ctrl-C stops cleanly; the same command again goes on.
    """
    do.deploying.optimize(factory, options, json)


@command(commands)
def extract(
    factory: Factory,
    out: NewDirectory,
    inputs: Inputs,
    dynamic: Dynamic,
    regions: Annotated[
        bool, Option("Cut the graphs into what Inductor fuses, a task each, by their share of time.")
    ],
    json: Json,
) -> None:
    """Write the graphs of your model as tasks. Each is validated against the model's own outputs."""
    if regions and dynamic:
        raise UsageError("--regions takes fixed sizes; leave out --dynamic")
    if regions:
        do.deploying.extract_regions(factory, inputs, out, json)
    else:
        do.deploying.extract(factory, inputs, dynamic, out, json)


@command(commands)
def package(
    sources: Annotated[
        list[str], argument("SOURCES...", "Runs (the best pass of each), or directories that best wrote.")
    ],
    out: Annotated[str, Option("The package to write; a new one.", metavar="DIR")],
    task: Annotated[list[str] | None, Option("Of each directory, in order.", metavar="TASK")],
    runs_dir: RunsDir,
    json: Json,
) -> None:
    """Make a Python package of passes for torch.compile."""
    do.deploying.package(sources, task or [], out, str(runs_dir), json)


@command(commands)
def explain(
    passes: Annotated[
        str,
        argument("PACKAGE", "Its directory or its name; passagent.passes: those that come with passagent."),
    ],
    factory: Factory,
    inputs: Inputs,
    json: Json,
) -> None:
    """Say where passes of a package fit in your model. Which pass does not fit, and why."""
    do.deploying.explain(passes, factory, inputs, json)


@command(commands)
def measure(
    factory: Factory,
    passes: Annotated[
        str | None,
        Option("A package's directory or name.", metavar="PACKAGE", shown="what comes with passagent"),
    ],
    inputs: Inputs,
    mode: Annotated[
        list[str] | None,
        Option(
            "Of Inductor: default, reduce-overhead, max-autotune.",
            shown="default, on a GPU reduce-overhead too",
        ),
    ],
    out: Annotated[str | None, Option("Write the package without passes that do not pay.", metavar="DIR")],
    json: Json,
) -> None:
    """Time your model with a package of passes. Beside it: eager, and Inductor alone."""
    do.deploying.measure(factory, inputs, passes or "passagent.passes", mode or [], out, json)


@command(commands)
def best(run: Run, json: Json, **options: Unpack[BestOptions]) -> None:
    """Write RUN's best pass to a directory for review. With a test, a README and its plan."""
    do.delivering.best(run, options, json)


# Data


@command(commands)
def collect(tasks: Tasks, json: Json, **options: Unpack[CollectOptions]) -> None:
    """Collect conversations on many tasks in one database. The same command again goes on."""
    do.collecting.collect(tasks, options, json)


@command(commands)
def export(
    runs_dir: Annotated[list[str] | None, Option("Where runs are stored.", shown="runs")],
    json: Json,
    **options: Unpack[ExportOptions],
) -> None:
    """Write a data set for a trainer, checked and with a card."""
    do.collecting.export(runs_dir or ["runs"], options, json)


@command(tasks_app, "list")
def tasks_list(json: Json) -> None:
    """List the example tasks. example:NAME works wherever a command takes a task."""
    do.task_commands.list_tasks(json)


@command(tasks_app, "check")
def tasks_check(
    tasks: Tasks,
    against: Against,
    coverage: Annotated[
        bool,
        Option("Say what the expert lowers of each task for --device, and why not the rest; nothing is run."),
    ],
    device: Device,
    json: Json,
) -> None:
    """Check that the subgraphs of tasks are runnable and analysable.

    With --against: that they share nothing with other tasks. With --coverage: what the expert lowers.
    """
    if against and coverage:
        raise UsageError("--against and --coverage exclude each other")
    if against:
        do.task_commands.check_leaks(tasks, list(against), json)
    elif coverage:
        do.task_commands.check_coverage(tasks, (device or "cpu").partition(":")[0], json)
    else:
        do.task_commands.check_tasks(tasks, device or "cpu", json)


@command(tasks_app, "import")
def tasks_import(
    suite: Annotated[
        Literal["kernelbench", "opinfo", "flashinfer", "gpumode"],
        argument("SUITE", "Whose problems: kernelbench, opinfo, flashinfer, gpumode."),
    ],
    path: Annotated[
        str,
        argument("PATH", "The suite's directory or file; of opinfo operators, such as add,softmax, or all."),
    ],
    json: Json,
    **options: Unpack[ImportOptions],
) -> None:
    """Make tasks of another suite's problems. Their code runs shut in, each in a process of its own."""
    do.task_commands.import_tasks(suite, path, options, json)


@command(tasks_app, "build")
def tasks_build(
    samples: Annotated[list[str], argument("SAMPLES...", "Directories of full graphs in GraphNet's layout.")],
    most_refused: Annotated[Share, Option("Exit with 1 if a larger share is refused.", default=0.03)],
    json: Json,
    **options: Unpack[BuildOptions],
) -> None:
    """Make tasks of SAMPLES, for training and for evaluation. The same command again goes on.

    The models in SAMPLES are executed, shut in. Exit code 1 if too many samples are refused.
    """
    do.task_commands.build_tasks(samples, options, most_refused, json)


@command(tasks_app, "export")
def tasks_export(
    tasks: Tasks,
    harbor: Annotated[str, Option("Write Harbor tasks into DIR, a new one.", metavar="DIR")],
    device: Device,
    wheel: Annotated[
        str | None,
        Option(
            "Install this wheel of passagent in the images.", metavar="FILE", shown="the released version"
        ),
    ],
    json: Json,
    **options: Unpack[SettingsOptions],
) -> None:
    """Write tasks as environments of Harbor. Each has an instruction, an image and a test."""
    settings = options["settings"] or {}
    do.task_commands.export_harbor(tasks, harbor, device or "cpu", wheel, settings, json)
