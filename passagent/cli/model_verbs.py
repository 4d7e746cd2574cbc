"""`passagent extract`, `package`, `explain` and `measure`."""

from __future__ import annotations

from typing import Annotated

import typer

from passagent.cli.options import Json, RunsDir

commands = typer.Typer()

FactoryArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py:FACTORY",
        help="Your own function: it returns `module, example_inputs`, or a module. It runs unsandboxed.",
    ),
]
InputsOption = Annotated[
    str | None,
    typer.Option(
        envvar="PASSAGENT_INPUTS",
        metavar="FILE.py:FUNCTION",
        help="A function that returns the inputs.",
        show_default="the factory's",
    ),
]
DynamicOption = Annotated[
    bool,
    typer.Option("--dynamic", envvar="PASSAGENT_DYNAMIC", help="Keep sizes of the inputs symbolic."),
]


@commands.command()
def extract(
    factory: FactoryArgument,
    out: Annotated[
        str, typer.Option(envvar="PASSAGENT_OUT", metavar="DIR", help="The directory to write; a new one.")
    ],
    inputs: InputsOption = None,
    dynamic: DynamicOption = False,
    regions: Annotated[
        bool,
        typer.Option(
            "--regions",
            envvar="PASSAGENT_REGIONS",
            help="Cut the graphs into what Inductor fuses: a task for each region, by its share of time.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Write the graphs of your model as tasks. Each is validated against the model's own outputs."""
    from passagent.commands import model_extraction

    if regions and dynamic:
        raise typer.BadParameter("--regions takes fixed sizes; leave out --dynamic")
    if regions:
        model_extraction.extract_regions(factory, inputs, out, json)
        return
    model_extraction.extract(factory, inputs, dynamic, out, json)


@commands.command()
def package(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCES...", help="Runs (the best pass of each), or directories that best wrote."
        ),
    ],
    out: Annotated[
        str, typer.Option(envvar="PASSAGENT_OUT", metavar="DIR", help="The package to write; a new one.")
    ],
    task: Annotated[
        list[str] | None,
        typer.Option(envvar="PASSAGENT_TASK", metavar="TASK", help="Of each directory, in their order."),
    ] = None,
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Make a Python package of passes for torch.compile."""
    from passagent.commands import deploying

    deploying.package(sources, task or [], out, runs_dir, json)


@commands.command()
def explain(
    passes: Annotated[str, typer.Argument(metavar="PACKAGE", help="A package: its directory or its name.")],
    factory: FactoryArgument,
    inputs: InputsOption = None,
    dynamic: DynamicOption = False,
    json: Json = False,
) -> None:
    """Say which pass of a package fits where in your model, which does not, and why."""
    from passagent.commands import deploying

    deploying.explain(passes, factory, inputs, dynamic, json)


@commands.command()
def measure(
    factory: FactoryArgument,
    passes: Annotated[
        str,
        typer.Option(envvar="PASSAGENT_PASSES", metavar="PACKAGE", help="A directory or a module."),
    ],
    inputs: InputsOption = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            envvar="PASSAGENT_MODE",
            help="Of Inductor: default, reduce-overhead, max-autotune; repeatable.",
            show_default="default, on a GPU reduce-overhead too",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_OUT", metavar="DIR", help="Write the package without passes that do not pay."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Time your model in eager, with Inductor, and with Inductor and a package of passes."""
    from passagent.commands import deploying

    deploying.measure(factory, inputs, passes, mode or [], out, json)
