"""`passagent extract`, `optimize`, `package`, `explain`, `measure`, `best` and `library`."""

from __future__ import annotations

import typer

from passagent.cli import model_options as own
from passagent.cli import options as opt
from passagent.cli import result_options as of_result

commands = typer.Typer()
library_app = typer.Typer(
    help="List, show and verify passes found for earlier models.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
commands.add_typer(library_app, name="library")


@commands.command()
def optimize(
    factory: own.FactoryArgument,
    out: own.OptimizeOut,
    inputs: own.Inputs = None,
    model: opt.Model = None,
    iters: own.OptimizeIters = None,
    max_time: opt.MaxTime = None,
    state: own.State = None,
    library: own.Library = None,
    base_url: opt.BaseUrl = None,
    max_tokens: opt.MaxTokens = None,
    max_cost: opt.MaxCost = None,
    price: opt.Price = None,
    config: opt.Config = None,
    set_: opt.Set = None,
    json: opt.Json = False,
) -> None:
    """Make your model faster. Searches its regions for passes, and packages those that pay on the whole.

    Ctrl-C stops cleanly; the same command again goes on.
    """
    from passagent.cli.commands import model_optimizing

    given = {key: value for key, value in locals().items() if key not in ("max_time", "library")}
    settings = opt.settings_of(set_, given)
    model_optimizing.optimize(factory, inputs, out, state, library, max_time, config, settings, json)


@commands.command()
def extract(
    factory: own.FactoryArgument,
    out: own.ExtractOut,
    inputs: own.Inputs = None,
    dynamic: own.Dynamic = False,
    regions: own.Regions = False,
    json: opt.Json = False,
) -> None:
    """Write the graphs of your model as tasks. Each is validated against the model's own outputs."""
    from passagent.cli.commands import model_extraction

    if regions and dynamic:
        raise typer.BadParameter("--regions takes fixed sizes; leave out --dynamic")
    if regions:
        model_extraction.extract_regions(factory, inputs, out, json)
        return
    model_extraction.extract(factory, inputs, dynamic, out, json)


@commands.command()
def package(
    sources: own.SourcesArgument,
    out: own.PackageOut,
    task: own.PackageTasks = None,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Make a Python package of passes for torch.compile."""
    from passagent.cli.commands import deploying

    deploying.package(sources, task or [], out, runs_dir, json)


@commands.command()
def explain(
    passes: own.PackageArgument,
    factory: own.FactoryArgument,
    inputs: own.Inputs = None,
    dynamic: own.Dynamic = False,
    json: opt.Json = False,
) -> None:
    """Say where passes of a package fit in your model. Which pass does not fit, and why."""
    from passagent.cli.commands import deploying

    deploying.explain(passes, factory, inputs, dynamic, json)


@commands.command()
def measure(
    factory: own.FactoryArgument,
    passes: own.Passes,
    inputs: own.Inputs = None,
    mode: own.Mode = None,
    out: own.MeasureOut = None,
    json: opt.Json = False,
) -> None:
    """Time your model with a package of passes. Beside it: eager, and Inductor alone."""
    from passagent.cli.commands import deploying

    deploying.measure(factory, inputs, passes, mode or [], out, json)


@commands.command()
def best(
    run: opt.RunArgument,
    out: opt.BestOut,
    force: opt.Force = False,
    measure: opt.Measure = True,
    standalone: opt.Standalone = False,
    format_: of_result.BestFormatOption = of_result.BestFormat.review,
    runs_dir: opt.RunsDir = "runs",
    json: opt.Json = False,
) -> None:
    """Write RUN's best pass to a directory for review. With a test, a README and its plan."""
    from passagent.cli.commands import delivering

    if format_ is of_result.BestFormat.review:
        delivering.best(run, out, runs_dir, force, measure, json, standalone)
    else:
        delivering.best_for_suite(run, out, runs_dir, force, measure, json, format_.value)


@library_app.command("list")
def library_list(library: own.Library = None, json: opt.Json = False) -> None:
    """List the passes that are kept, the fastest first."""
    from passagent.cli.commands import library_of_passes

    library_of_passes.list_passes(library, json)


@library_app.command("show")
def library_show(kept: own.KeptArgument, library: own.Library = None, json: opt.Json = False) -> None:
    """Show a pass: where it comes from, how it was measured, its text."""
    from passagent.cli.commands import library_of_passes

    library_of_passes.show(kept, library, json)


@library_app.command("verify")
def library_verify(
    kept: own.KeptArguments = None,
    library: own.Library = None,
    device: opt.Device = None,
    json: opt.Json = False,
) -> None:
    """Evaluate passes again. One that does not hold is used no more; exit code 1."""
    from passagent.cli.commands import library_of_passes

    library_of_passes.verify(kept or [], library, device or "cpu", json)
