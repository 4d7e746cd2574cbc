"""`passagent dataset build`, `check`, `stats`, `leak-check` and `show`."""

from __future__ import annotations

import typer

from passagent.cli import dataset_options as of_data
from passagent.cli import options as opt

commands = typer.Typer()
dataset_app = typer.Typer(
    help="Make tasks of full graphs, many at once.", no_args_is_help=True, rich_markup_mode=None
)
commands.add_typer(dataset_app, name="dataset")


@dataset_app.command("build")
def build(
    samples: of_data.SamplesArgument,
    out: of_data.DatasetOut,
    shapes: of_data.Shapes = 10,
    evaluation: of_data.EvaluationSequences = 200,
    backward: of_data.Backward = False,
    device: opt.Device = None,
    parallel: of_data.AtATime = None,
    limit: of_data.LimitS = 600,
    most_refused: of_data.MostRefused = 0.03,
    json: opt.Json = False,
) -> None:
    """Make tasks of SAMPLES, for training and for evaluation. The same command again goes on.

    The models in SAMPLES are executed. Exit code 1 if too many samples are refused.
    """
    from passagent.commands import dataset_building as command
    from passagent.pipeline.assembling import request_of

    request = request_of(samples, out, shapes, evaluation, backward, device, parallel, limit)
    command.build(request, most_refused, json)


@dataset_app.command("check")
def check(directory: of_data.DatasetArgument, json: opt.Json = False) -> None:
    """Hold DIR against its record. Training and evaluation must share nothing."""
    from passagent.commands import dataset_building as command

    command.check(directory, json)


@dataset_app.command("stats")
def stats(
    directory: of_data.DatasetArgument, plots: of_data.DatasetPlots = None, json: opt.Json = False
) -> None:
    """Say what DIR holds, and what was lost at each step."""
    from passagent.commands import dataset_building as command

    command.stats(directory, plots, json)


@dataset_app.command("leak-check")
def leak_check(one: of_data.FirstTasks, other: of_data.OtherTasks, json: opt.Json = False) -> None:
    """Say which tasks of A share an operator sequence or a subgraph with one of B.

    Exit code 1 if any does.
    """
    from passagent.commands import dataset_building as command

    command.leak_check(one, other, json)


@dataset_app.command("show")
def show(directory: of_data.DatasetArgument, task: of_data.ListedTask, json: opt.Json = False) -> None:
    """Print a task of DIR: its text, its subgraphs' inputs and where they come from."""
    from passagent.commands import dataset_building as command

    command.show(directory, task, json)
