"""`passagent library list`, `show`, `verify` and `prune`."""

from __future__ import annotations

import typer

from passagent.cli import model_options as own
from passagent.cli import options as opt

library_app = typer.Typer(
    help="Look at passes that were found for earlier models, and check them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@library_app.command("list")
def library_list(library: own.Library = None, json: opt.Json = False) -> None:
    """List the passes that are kept, the fastest first."""
    from passagent.commands import library_of_passes

    library_of_passes.list_passes(library, json)


@library_app.command("show")
def library_show(kept: own.KeptArgument, library: own.Library = None, json: opt.Json = False) -> None:
    """Show a pass: where it comes from, how it was measured, its text."""
    from passagent.commands import library_of_passes

    library_of_passes.show(kept, library, json)


@library_app.command("verify")
def library_verify(
    kept: own.KeptArguments = None,
    library: own.Library = None,
    device: opt.Device = None,
    json: opt.Json = False,
) -> None:
    """Evaluate passes again. One that does not hold is used no more; exit code 1."""
    from passagent.commands import library_of_passes

    library_of_passes.verify(kept or [], library, device or "cpu", json)


@library_app.command("prune")
def library_prune(
    other_torch: own.OtherTorch = False, library: own.Library = None, json: opt.Json = False
) -> None:
    """Remove passes that did not hold when they were verified."""
    from passagent.commands import library_of_passes

    library_of_passes.prune(library, other_torch, json)
