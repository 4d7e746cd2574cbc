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
    json: Json = False,
) -> None:
    """Write the graphs of your model as tasks. Each is validated against the model's own outputs."""
    from passagent.commands import model_extraction

    model_extraction.extract(factory, inputs, dynamic, out, json)
