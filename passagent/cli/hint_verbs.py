"""`passagent hints list`, `show`, `export`, `import` and `retire`."""

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


@hints_app.command("show")
def hints_show(hint: own.HintArgument, library: own.Library = own.OF_RUNS, json: opt.Json = False) -> None:
    """Show a hint: its text, where it comes from, what episodes gained with it and without it."""
    from passagent.commands import learned_hints

    learned_hints.show(hint, library, json)


@hints_app.command("export")
def hints_export(out: own.HintsOut, library: own.Library = own.OF_RUNS, json: opt.Json = False) -> None:
    """Write the hints that are not retired, without their evidence, for another library."""
    from passagent.commands import learned_hints

    learned_hints.export(out, library, json)


@hints_app.command("import")
def hints_import(file: own.HintsFile, library: own.Library = own.OF_RUNS, json: opt.Json = False) -> None:
    """Add hints that were exported. They begin on probation here."""
    from passagent.commands import learned_hints

    learned_hints.take(file, library, json)


@hints_app.command("retire")
def hints_retire(hint: own.HintArgument, library: own.Library = own.OF_RUNS, json: opt.Json = False) -> None:
    """Take a hint out of use. Its text and its evidence stay."""
    from passagent.commands import learned_hints

    learned_hints.retire(hint, library, json)
