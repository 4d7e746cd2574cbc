"""`passagent optimize`, `extract`, `package`, `explain` and `measure`."""

from __future__ import annotations

import typer

from passagent.cli import model_options as own
from passagent.cli import options as opt

commands = typer.Typer()


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
    """Make your model faster: search its regions for passes, package those that pay on the whole model.

    Ctrl-C stops cleanly; the same command again goes on.
    """
    from passagent.commands import model_optimizing

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
    from passagent.commands import model_extraction

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
    from passagent.commands import deploying

    deploying.package(sources, task or [], out, runs_dir, json)


@commands.command()
def explain(
    passes: own.PackageArgument,
    factory: own.FactoryArgument,
    inputs: own.Inputs = None,
    dynamic: own.Dynamic = False,
    json: opt.Json = False,
) -> None:
    """Say which pass of a package fits where in your model, which does not, and why."""
    from passagent.commands import deploying

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
    """Time your model in eager, with Inductor, and with Inductor and a package of passes."""
    from passagent.commands import deploying

    deploying.measure(factory, inputs, passes, mode or [], out, json)
