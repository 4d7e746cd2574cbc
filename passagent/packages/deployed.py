"""A model compiled with passes: how it is delivered, and how it is measured."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._inductor import config as inductor_config
from torch._inductor import list_mode_options
from torch._inductor.compile_fx import compile_fx

from passagent.packages.cuda_graphs import CUDA_GRAPH, CudaGraphs
from passagent.packages.inductor_pass import passagent
from passagent.packages.loading import CompileSettings, Package, Passes, load_packages


@dataclass(frozen=True)
class CompiledModel:
    """A function of torch.compile's, called like it."""

    function: Callable[..., Any]
    parts: list[Callable[..., Any]]
    """The compiler's function for each graph. They are kept because CUDA graphs read the constants in them,
    while `torch._dynamo.reset()` lets go of them."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self.function(*args, **kwargs)


def compile_model(
    model: Callable[..., Any],
    packages: Sequence[Package] = (),
    settings: CompileSettings = CompileSettings(),
    replaced: set[str] | None = None,
) -> Callable[..., Any]:
    """Compile a module or function with the passes of packages.

    `replaced` is filled with the names of passes that are put into a graph.
    """
    if settings.mode == CUDA_GRAPH:
        default = compile_model(model, packages, settings._replace(mode="default"), replaced)
        return CudaGraphs(default, model)
    options: dict[str, Any] = dict(list_mode_options(settings.mode))
    dynamic = False if settings.is_static else None
    parts: list[Callable[..., Any]] = []

    def backend(graph_module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        if packages:
            passes = {"passes": list(packages), "replaced": set() if replaced is None else replaced}
            parts.append(passagent(graph_module, example_inputs, options=options | passes))
        else:
            parts.append(compile_fx(graph_module, example_inputs, config_patches=options))  # type: ignore[arg-type]
        return parts[-1]

    if not settings.is_frozen:
        return CompiledModel(torch.compile(model, backend=backend, dynamic=dynamic), parts)

    def forward(*args: Any, **kwargs: Any) -> Any:
        """Be a function of its own: Dynamo would take the code that it has for the model's."""
        return model(*args, **kwargs)

    compiled, layouts = torch.compile(forward, backend=backend, dynamic=dynamic), set[Any]()

    def call(*args: Any, **kwargs: Any) -> Any:
        layout = _layout(args, kwargs)
        if layout in layouts:
            return compiled(*args, **kwargs)
        with inductor_config.patch(freezing=True):  # Dynamo asks when it captures: options would be too late
            result = compiled(*args, **kwargs)
        layouts.add(layout)
        return result

    return CompiledModel(call, parts)


class Deployed:
    """A model with packages, called like the model; all attributes are the model's.

    The first call without gradients warns of passes of a package that fit nowhere, in one line each. One
    warning says why a call cannot be the replay of a CUDA graph.
    """

    def __init__(
        self, model: Callable[..., Any], packages: Sequence[Package], settings: CompileSettings
    ) -> None:
        self._model, self._packages, self._is_frozen = model, packages, settings.is_frozen
        self._replaced, self._told, self._is_checked = set[str](), set[str](), False
        self._compiled = compile_model(model, packages, settings, self._replaced)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled model."""
        result = self._compiled(*args, **kwargs)
        why_not = self._compiled.why_not if isinstance(self._compiled, CudaGraphs) else ""
        if why_not and why_not not in self._told:
            self._told.add(why_not)
            warnings.warn(f"called without a CUDA graph: {why_not}", stacklevel=2)
        if not self._is_checked and not torch.is_grad_enabled():
            self._is_checked = True
            for line in self._problems():
                warnings.warn(line, stacklevel=2)
        return result

    def __getattr__(self, name: str) -> Any:
        if "_model" not in self.__dict__:  # a copy that is being made
            raise AttributeError(name)
        return getattr(self.__dict__["_model"], name)

    def _problems(self) -> list[str]:
        """Say which passes do nothing. A directory without a manifest holds what fits other models, too."""
        lines = list[str]()
        for package in self._packages:
            if "torch" not in package.manifest:
                continue
            names = [each.name for each in package.passes]
            if not self._is_frozen:  # else parameters are constants, and nothing is prepared of them
                names += [rewrite.name for rewrite in package.rewrites]
            packaged, here = package.manifest["torch"], str(torch.__version__)
            versions = "" if packaged == here else f" (packaged with torch {packaged}, this is {here})"
            lines += [
                f"{package.path.name}: {name} does nothing here{versions}; passagent explain says more"
                for name in names
                if name not in self._replaced
            ]
        return lines


def deploy(model: Callable[..., Any], passes: Passes) -> Deployed:
    """Compile a model as the first of its packages was measured. Raises UsageError, PassagentError."""
    packages = load_packages(passes)
    measured = packages[0].manifest
    mode, flags = measured.get("mode", "default"), (bool(measured.get(name)) for name in ("frozen", "static"))
    return Deployed(model, packages, CompileSettings(mode, *flags))


def _layout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return what decides whether Dynamo captures again: layouts of tensors, and types of all else."""
    leaves = pytree.tree_leaves((args, kwargs))
    described = [
        (leaf.shape, leaf.stride(), leaf.dtype, leaf.device) if isinstance(leaf, torch.Tensor) else type(leaf)
        for leaf in leaves
    ]
    return torch.is_grad_enabled(), tuple(kwargs), *described
