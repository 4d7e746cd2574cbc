"""A whole model from Python, from `extract` to `optimize`. torch is imported when a function is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from passagent.errors import UsageError
from passagent.option_groups import checked
from passagent.options import OptimizeOptions

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from passagent.packages.deployed import Deployed
    from passagent.packages.loading import Passes
    from passagent.packages.measurement import Measurement
    from passagent.packages.optimized import Optimized
    from passagent.packages.package_writing import Packed
    from passagent.packages.rewriting import Rewriting
    from passagent.tasks.extract.extracting import Extracted, Regions


def extract(
    model: Callable[..., Any],
    *inputs: Any,
    name: str | None = None,
    dynamic: bool = False,
    out: str | Path | None = None,
) -> Extracted:
    """Write the graphs that Dynamo captures of `model(*inputs)` as subgraphs, and validate them.

    `dynamic`: sizes above 1 of the inputs are symbolic. `out`: a directory that is not there yet; default
    `extracted/NAME`. A module in training mode is captured with gradients. Raises PassagentError where Dynamo
    cannot capture the model, UsageError for `out`.
    """
    from passagent.tasks.extract.extracting import extract_model
    from passagent.tasks.extract.model_capture import Model

    if not callable(model):
        raise UsageError(f"extract: a {type(model).__name__} cannot be called; give a module or a function")
    called = name or _name(model)
    return extract_model(Model(called, model, inputs), _place(called, out), dynamic)


def extract_regions(
    model: Callable[..., Any], *inputs: Any, name: str | None = None, out: str | Path | None = None
) -> Regions:
    """Cut `model(*inputs)` into the regions that Inductor would fuse, and write each as a task below `out`.

    A region that occurs several times is one task, with its count; regions that differ in sizes or dtypes
    only are subgraphs of one. They come in the order of their share of the time. Raises as `extract` does.
    """
    from passagent.tasks.extract.extracting import extract_regions as extracted
    from passagent.tasks.extract.model_capture import Model

    called = name or _name(model)
    return extracted(Model(called, model, inputs), _place(called, out))


def optimize(
    model: Callable[..., Any],
    /,
    *example_inputs: Any,
    on_progress: Callable[[str], object] | None = None,
    **options: Unpack[OptimizeOptions],
) -> Optimized:
    """Make `model(*example_inputs)` faster: search its regions for passes, package those that pay on it.

    example_inputs: those of a call, or one list of (inputs, weight) for several shapes as they are served.
    options: those of `passagent optimize`, without `inputs`. `.package` of the result is None where nothing
    pays, and `.why_not` says why. The same call again goes on. Ctrl-C stops it cleanly, then
    KeyboardInterrupt is raised. on_progress is given each line on what happens. Raises UsageError,
    PassagentError.
    """
    from passagent.packages import optimizing
    from passagent.tasks.extract.model_capture import model_of

    if options.get("inputs"):
        raise UsageError("optimize: give the inputs themselves, behind the model")
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    complete = checked(OptimizeOptions, plain)
    return optimizing.optimize(
        complete, model_of(_name(model), model, example_inputs), on_progress or (lambda _line: None)
    )


def package(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    tasks: Sequence[str | Path] = (),
    runs_dir: str | Path = "runs",
) -> Packed:
    """Write a Python package of passes for `torch.compile`.

    sources: runs (their best passes), or directories that `best` wrote, with the task of each directory in
    `tasks`. Raises UsageError, PassagentError.
    """
    from passagent.packages.package_writing import pack, read_sources

    words = [sources] if isinstance(sources, str | Path) else sources
    return pack(
        list(read_sources([str(w) for w in words], [str(t) for t in tasks], str(runs_dir))), Path(out)
    )


def deploy(model: Callable[..., Any], passes: Passes) -> Deployed:
    """Compile a model with a package, in the mode in which the package was measured, and call it as before.

    passes: a package's directory or name, or several. The first call warns of passes that
    do nothing in the model. Raises UsageError, PassagentError.
    """
    from passagent.packages.deployed import deploy as deployed

    return deployed(model, passes)


def apply(graph_module: GraphModule, passes: Passes) -> GraphModule:
    """Put a package's operators into a graph that Dynamo captured, for eager calls; changes and returns it.

    Raises UsageError, PassagentError.
    """
    from passagent.packages.loading import load_packages
    from passagent.packages.rewriting import rewrite

    rewrite(graph_module.graph, load_packages(passes))
    graph_module.recompile()
    return graph_module


def explain(model: Callable[..., Any], *inputs: Any, passes: Passes) -> Rewriting:
    """Say which pass fits where in `model(*inputs)`, which does not and why. Nothing is compiled.

    Raises UsageError, PassagentError.
    """
    from passagent.packages.loading import load_packages
    from passagent.packages.rewriting import explain_model
    from passagent.tasks.extract.model_capture import Model

    return explain_model(Model(_name(model), model, inputs), load_packages(passes))


def measure(
    model: Callable[..., Any],
    *inputs: Any,
    passes: Passes,
    modes: Sequence[str] | None = None,
) -> Measurement:
    """Time `model(*inputs)` in eager, with Inductor, and with Inductor and passes, side by side.

    modes: of Inductor, or `cuda-graph`; by default `default`, on a GPU `cuda-graph` too. `.losers` of the
    result are the passes that do not pay. Raises UsageError, PassagentError.
    """
    from passagent.packages.loading import load_packages
    from passagent.packages.model_timing import measure_model
    from passagent.tasks.extract.model_capture import model_of

    return measure_model(model_of(_name(model), model, inputs), load_packages(passes), modes)


def _name(model: Any) -> str:
    return getattr(model, "__name__", None) or type(model).__name__


def _place(name: str, out: str | Path | None) -> Path:
    return Path(out) if out is not None else Path("extracted") / name
