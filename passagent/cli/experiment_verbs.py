"""`passagent experiment memory`."""

from __future__ import annotations

from typing import Annotated

import typer

from passagent.cli import options as opt
from passagent.cli.options import option

experiment_app = typer.Typer(
    help="Measure whether a part of passagent helps, with an outcome that is fixed beforehand.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Tasks = Annotated[list[str], option("--tasks", "Tasks or directories of tasks; repeatable.", metavar="TASKS")]
Arms = Annotated[str, option("--arms", "Of off, curated and learned, off among them, with commas.")]
Seeds = Annotated[int, option("--seeds", "Runs of each arm on each task.", min=1)]
Out = Annotated[str, option("--out", "Where its runs, its library and its results are.", metavar="DIR")]


@experiment_app.callback()
def _experiment() -> None:
    """A group, though it has one command yet."""


@experiment_app.command("memory")
def experiment_memory(
    tasks: Tasks,
    arms: Arms = "off,learned",
    seeds: Seeds = 3,
    out: Out = "runs/experiment",
    iters: opt.Iters = None,
    model: opt.Model = None,
    device: opt.Device = None,
    config: opt.Config = None,
    set_: opt.Set = None,
    json: opt.Json = False,
) -> None:
    """Compare searches with and without what was learned on other tasks. The same command goes on."""
    from passagent.commands import experiments

    settings = opt.settings_of(set_, {"iters": iters, "model": model, "device": device})
    experiments.memory(tasks, arms, seeds, out, config, settings, json)
