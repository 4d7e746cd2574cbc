"""The commands that judge passes, deploy them, make and read data, and serve others."""

from __future__ import annotations

from typing import Annotated, Literal, Unpack

import typer

from passagent.cli import commands as do
from passagent.cli.groups import (
    BestOptions,
    BuildOptions,
    ExportOptions,
    ImportOptions,
    McpOptions,
    ModelsOptions,
    ProfileOptions,
    WorkerOptions,
)
from passagent.cli.parameters import argument, command
from passagent.cli.run_verbs import Run, Task
from passagent.errors import UsageError
from passagent.options import (
    Against,
    BenchOptions,
    CollectOptions,
    Device,
    EvalOptions,
    Json,
    OptimizeOptions,
    OwnLibrary,
    RunsDir,
    SettingsOptions,
    Share,
)
from passagent.system.option_groups import Option

commands = typer.Typer()
tasks_app = typer.Typer(
    help="List, check, import, build and export tasks.", no_args_is_help=True, rich_markup_mode=None
)
library_app = typer.Typer(
    help="List, show and verify passes found for earlier models.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
commands.add_typer(tasks_app, name="tasks")
commands.add_typer(library_app, name="library")

Tasks = Annotated[
    list[str], argument("TASKS...", "Tasks, directories of tasks, quoted globs, sample lists, example:NAME.")
]
PassDir = Annotated[str, argument("PASS_DIR", "The candidate.")]
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


@command(commands, "eval")
def evaluate(task: Task, json: Json, **options: Unpack[EvalOptions]) -> None:
    """Judge a pass directory on TASK. Is it correct, and how fast?

    A pass that was measured before on this machine is answered from the store. Exit code 1 if it is not ok.
    """
    do.pass_commands.evaluate(task, options, json)


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
def plan(
    pass_dir: PassDir,
    task: Task,
    device: Annotated[
        str | None,
        Option("cpu or cuda; no GPU is needed for either.", shown="cuda for Triton and CUDA C++, else cpu"),
    ],
    ir: Annotated[Literal["ttir"] | None, Option("Also print what each Triton kernel became.")],
    json: Json,
) -> None:
    """Show what a pass does on TASK in each call. Allocations, launches with their arguments, bytes moved."""
    do.pass_commands.plan(pass_dir, task, device, ir, json)


@command(commands)
def profile(pass_dir: PassDir, task: Task, json: Json, **options: Unpack[ProfileOptions]) -> None:
    """Say what limits a pass on TASK. Speed of light, compilers' figures, a trace; --deep: GPU counters."""
    do.pass_commands.profile(pass_dir, task, options, json)


@command(commands)
def bench(
    tasks: Tasks,
    plots: Annotated[
        str | None,
        Option("Draw ES(t), S(t) and the speedups (needs passagent[report]).", metavar="DIR", is_rare=True),
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
    passes: Annotated[str, argument("PACKAGE", "A package: its directory or its name.")],
    factory: Factory,
    inputs: Inputs,
    json: Json,
) -> None:
    """Say where passes of a package fit in your model. Which pass does not fit, and why."""
    do.deploying.explain(passes, factory, inputs, json)


@command(commands)
def measure(
    factory: Factory,
    passes: Annotated[str, Option("A directory or a module.", metavar="PACKAGE")],
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
    do.deploying.measure(factory, inputs, passes, mode or [], out, json)


@command(commands)
def best(run: Run, json: Json, **options: Unpack[BestOptions]) -> None:
    """Write RUN's best pass to a directory for review. With a test, a README and its plan."""
    do.delivering.best(run, options, json)


@command(library_app, "list")
def library_list(library: OwnLibrary, json: Json) -> None:
    """List the passes that are kept, the fastest first."""
    do.library_of_passes.list_passes(library, json)


@command(library_app, "show")
def library_show(
    kept: Annotated[str, argument("HASH", "The beginning of a region's hash, as list shows it.")],
    library: OwnLibrary,
    json: Json,
) -> None:
    """Show a pass: where it comes from, how it was measured, its text."""
    do.library_of_passes.show(kept, library, json)


@command(library_app, "verify")
def library_verify(
    kept: Annotated[
        list[str] | None,
        argument("[HASH...]", "Beginnings of regions' hashes; without any, all of this device."),
    ] = None,
    *,
    library: OwnLibrary,
    device: Device,
    json: Json,
) -> None:
    """Evaluate passes again. One that does not hold is used no more; exit code 1."""
    do.library_of_passes.verify(kept or [], library, device or "cpu", json)


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

    The models in SAMPLES are executed. Exit code 1 if too many samples are refused.
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


# Serving


@command(commands)
def worker(
    target: Annotated[
        str | None,
        argument(
            "[ssh://HOST]",
            "Start it on another machine, forwarded here.",
            show_default=False,
        ),
    ] = None,
    *,
    json: Json,
    **options: Unpack[WorkerOptions],
) -> None:
    """Evaluate for other machines. They name it by --pool http://HOST:PORT. SIGTERM lets it finish first."""
    do.server_commands.offer(target, options, json)


@command(commands)
def mcp(**options: Unpack[McpOptions]) -> None:
    """Serve the evaluator to coding agents. Over the Model Context Protocol on stdin and stdout."""
    do.server_commands.serve_mcp(options)


@command(commands)
def models(json: Json, **options: Unpack[ModelsOptions]) -> None:
    """List models with their addresses, keys and prices. Exit code 1 if one fails --check."""
    do.model_check.models(options, json)
