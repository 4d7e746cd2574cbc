"""`passagent hints list`."""

from __future__ import annotations

import typer

from passagent.cli import model_options as own
from passagent.cli import options as opt

hints_app = typer.Typer(
    help="Look at hints that models wrote after episodes, and at what showing them gains.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@hints_app.command("list")
def hints_list(library: own.Library = own.OF_RUNS, json: opt.Json = False) -> None:
    """List the learned hints with their state and uplift."""
    from passagent.commands import learned_hints

    learned_hints.list_hints(library, json)
