"""`passagent eval`, `bench`, and `tasks list`, `check`, `hash`, `dedup`, `export` and `reward`."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from passagent.cli.options import (
    BaseUrl,
    ConfigOption,
    Device,
    DispatchOption,
    Json,
    RunsDir,
    SetOption,
    TaskArgument,
    settings_of,
)

commands = typer.Typer()
TasksArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="TASKS...", help="Tasks, directories of tasks, quoted globs, sample lists, example:NAME."
    ),
]
tasks_app = typer.Typer(help="Look at tasks, and export them.", no_args_is_help=True, rich_markup_mode=None)
commands.add_typer(tasks_app, name="tasks")


class HashLevel(enum.StrEnum):
    """What a structural hash covers."""

    instance = "instance"
    structure = "structure"


@commands.command("eval")
def evaluate(
    task: TaskArgument,
    pass_dir: Annotated[
        str | None,
        typer.Option(envvar="PASSAGENT_PASS_DIR", help="The candidate.", show_default="TASK/pass_dir"),
    ] = None,
    device: Device = None,
    dispatch: DispatchOption = None,
    strict_passbench: Annotated[
        bool,
        typer.Option(
            "--strict-passbench",
            envvar="PASSAGENT_STRICT_PASSBENCH",
            help="Measure by the paper's protocol, for comparison with published tables.",
        ),
    ] = False,
    validator: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_VALIDATOR",
            metavar="MODEL",
            help="Ask this model, too, whether a right pass cheats: openai/NAME, anthropic/NAME.",
        ),
    ] = None,
    base_url: BaseUrl = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", envvar="PASSAGENT_FRESH", help="Measure, whatever the store knows of it."),
    ] = False,
    runs_dir: RunsDir = "runs",
    config: ConfigOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Judge a pass directory on TASK: is it correct, and how fast?

    A pass that was measured before on this machine is answered from the store.
    """
    from passagent.commands import evaluating

    settings = settings_of(set_, {"device": device, "dispatch": dispatch, "validator": validator})
    settings |= {"evaluator.protocol": "passbench"} if strict_passbench else {}
    settings |= {"validator.base_url": base_url} if base_url else {}
    evaluating.evaluate(task, pass_dir, config, settings, runs_dir, fresh, json)


@commands.command()
def bench(
    tasks: TasksArgument,
    compiler: Annotated[
        list[str] | None,
        typer.Option(
            envvar="PASSAGENT_COMPILER",
            help="eager (against itself), inductor, torch:BACKEND[:MODE], expert (its first pass), "
            "pass_dir, or run (a search on each task); repeatable.",
            show_default="eager and inductor",
        ),
    ] = None,
    device: Device = None,
    dispatch: DispatchOption = None,
    pass_dir: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_PASS_DIR",
            help="Of --compiler pass_dir: task NAME's passes are in DIR/NAME.",
            metavar="DIR",
            show_default="TASK/pass_dir",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(envvar="PASSAGENT_MODEL", help="Of --compiler run: the model.", show_default="expert"),
    ] = None,
    iters: Annotated[
        int | None,
        typer.Option(
            envvar="PASSAGENT_ITERS",
            min=0,
            help="Of --compiler run: episodes on each task; of --compiler expert: search so long first.",
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
    out: Annotated[
        str | None,
        typer.Option(envvar="PASSAGENT_OUT", help="Where results are kept.", show_default="runs/bench/NAME"),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", envvar="PASSAGENT_FRESH", help="Put the results in --out aside, measure anew."
        ),
    ] = False,
    plots: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_PLOTS",
            metavar="DIR",
            help="Draw ES(t), S(t) and the speedups (needs passagent[report]).",
        ),
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: Json = False,
    csv: Annotated[
        bool, typer.Option("--csv", envvar="PASSAGENT_CSV", help="The table as CSV on stdout.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", envvar="PASSAGENT_MARKDOWN", help="The table as Markdown on stdout.")
    ] = False,
) -> None:
    """Measure compilers and passes on many tasks: PassNet's table. The same command again goes on."""
    from passagent.commands import benching

    given = {"model": model, "device": device, "dispatch": dispatch}
    request = benching.Request(
        tasks=tasks,
        compilers=compiler or ["eager", "inductor"],
        preset=config,
        settings=settings_of(set_, given),
        iters=iters,
        pass_dirs=pass_dir,
        root=root,
        out=out,
        fresh=fresh,
    )
    benching.bench(request, plots, benching.form_of(json=json, csv=csv, markdown=markdown))


@tasks_app.command("check")
def tasks_check(
    path: TaskArgument,
    device: Device = None,
    json: Json = False,
) -> None:
    """Check the subgraphs of a task. Says whether each is runnable, serialisable and analysable."""
    from passagent.commands import evaluating

    evaluating.check_tasks(path, device or "cpu", json)


@tasks_app.command("list")
def tasks_list(json: Json = False) -> None:
    """List the example tasks. example:NAME works wherever a command takes a task."""
    from passagent.commands import evaluating

    evaluating.list_tasks(json)


@tasks_app.command("hash")
def tasks_hash(tasks: TasksArgument, json: Json = False) -> None:
    """Hash what subgraphs compute: equal under other names, another format or order of statements."""
    from passagent.commands import model_extraction

    model_extraction.hash_tasks(tasks, json)


@tasks_app.command("dedup")
def tasks_dedup(
    tasks: TasksArgument,
    level: Annotated[
        HashLevel,
        typer.Option(
            envvar="PASSAGENT_LEVEL", help="instance: with sizes and dtypes; structure: for all of them."
        ),
    ] = HashLevel.instance,
    json: Json = False,
) -> None:
    """Say which subgraphs compute the same."""
    from passagent.commands import model_extraction

    model_extraction.dedup_tasks(tasks, level.value, json)


@tasks_app.command("export")
def tasks_export(
    tasks: TasksArgument,
    harbor: Annotated[
        str,
        typer.Option(
            "--harbor",
            envvar="PASSAGENT_HARBOR",
            metavar="DIR",
            help="Write Harbor tasks into DIR, a new one.",
        ),
    ],
    device: Device = None,
    wheel: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_WHEEL",
            metavar="FILE",
            help="Install this wheel of passagent in the images.",
            show_default="the released version",
        ),
    ] = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Write tasks as environments of Harbor. Each has an instruction, an image and a test."""
    from passagent.commands import harbor_tasks as command

    command.export_harbor(tasks, harbor, device or "cpu", wheel, set_ or [], json)


@tasks_app.command("reward")
def tasks_reward(
    task: TaskArgument,
    pass_dir: Annotated[str, typer.Option(envvar="PASSAGENT_PASS_DIR", help="The candidate.")],
    out: Annotated[
        str,
        typer.Option(envvar="PASSAGENT_OUT", metavar="DIR", help="Where reward.txt and evaluation.json go."),
    ],
    device: Device = None,
    set_: SetOption = None,
) -> None:
    """Judge a pass directory and write its reward. The test of an exported task does this."""
    from pathlib import Path

    from passagent.rl.verify import verify

    verify(task, pass_dir, device or "cpu", set_ or [], Path(out))
