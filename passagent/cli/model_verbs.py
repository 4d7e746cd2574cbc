"""`passagent extract`."""

from __future__ import annotations

from typing import Annotated

import typer

from passagent.cli.options import Json

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
