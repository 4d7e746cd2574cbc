"""Passes beside Inductor: a pass over Dynamo's graph, and the backend `passagent` of torch.compile."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from passagent.errors import UsageError
from passagent.packages.loading import Package, Passes, load_packages
from passagent.packages.package_operators import overload
from passagent.packages.rewriting import Rewriting, rewrite

_KEY = "pre_grad_custom_pass"


class PassesInGraph(CustomGraphPass):
    """Runs the passes of packages, after another custom pass that was there (`before`).

    `last` is what the latest graph became. Inductor's caches know it by the content of the packages: where
    they hold a compiled graph, it does not run.
    """

    def __init__(self, packages: Iterable[Package], before: Any = None) -> None:
        self.packages, self.before = list(packages), before
        self.last: Rewriting | None = None

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a graph that Dynamo captured."""
        for graph_pass in _several(self.before):
            graph_pass(graph)
        self.last = rewrite(graph, self.packages)
        _lower(self.last)

    def uuid(self) -> Any:
        """The content of the packages and of this code; None, no caching, if another pass has none."""
        others = [getattr(graph_pass, "uuid", lambda: None)() for graph_pass in _several(self.before)]
        if None in others:
            return None
        return ("passagent", _code(), *(package.digest for package in self.packages), *map(repr, others))

    def __deepcopy__(self, _memory: dict[int, Any]) -> PassesInGraph:
        """Itself: Inductor copies its configuration, and packages may be parts of what a directory holds."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        packages = [(str(package.path), [each.name for each in package.passes]) for package in self.packages]
        return {"packages": packages, "uuid": self.uuid()}


def inductor_options(passes: Passes) -> dict[str, Any]:
    """Options for `torch.compile(model, options=...)`, to be merged with others: `{**mine, **these}`.

    A custom pass that Inductor's configuration has already runs first. Rewrites that prepare values of
    parameters are left out: these take `backend="passagent"`. Raises UsageError, PassagentError.
    """
    return {_KEY: PassesInGraph(load_packages(passes), inductor_config.pre_grad_custom_pass)}


def passagent(
    graph_module: fx.GraphModule,
    example_inputs: list[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend: Inductor with the passes of `options["passes"]`; all other options are Inductor's.

    `options["replaced"]`, a set, is given the names of passes that fit.
    """
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    inductor = dict(options or {})
    if "passes" not in inductor:
        raise UsageError('backend "passagent": name packages: options={"passes": "my_passes"}')
    packages, replaced = load_packages(inductor.pop("passes")), inductor.pop("replaced", set())
    trains = torch.is_grad_enabled() and any(getattr(each, "requires_grad", False) for each in example_inputs)
    graph_module = _copied(graph_module)
    done = rewrite(graph_module.graph, packages, prepares=not trains)
    replaced |= {site.name for site in done.replaced}
    _lower(done)
    graph_module.recompile()
    patches = {**(list_mode_options(mode) if mode else {}), **inductor}
    prepared = done.prepared
    if prepared is None:
        return compile_fx(graph_module, example_inputs, config_patches=patches)  # type: ignore[return-value]
    compiled = compile_fx(graph_module, [*example_inputs, *prepared.examples], config_patches=patches)
    return lambda *args: compiled(*args, *prepared.of(args))  # type: ignore[operator]


def _copied(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy that may get further inputs: Dynamo looks at its own graph's again."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(graph_module.graph, copies))
    for node in graph_module.graph.find_nodes(op="placeholder"):
        copies[node]._dynamo_source = node._dynamo_source  # type: ignore[attr-defined]
    copied = fx.GraphModule(graph_module, graph)
    copied.meta = graph_module.meta
    copied._param_name_to_source = graph_module._param_name_to_source
    return copied


def _several(passes: Any) -> list[Any]:
    if passes is None:
        return []
    return list(passes) if isinstance(passes, list | tuple) else [passes]


def _code() -> str:
    """A hash of what decides how a graph is rewritten."""
    here = Path(__file__).parent
    places = here, here.parent / "evaluator" / "matching", here.parent / "passes"
    texts = [file.read_bytes() for place in places for file in sorted(place.glob("*.py"))]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def _lower(done: Rewriting) -> None:
    """Tell Inductor that operators are called as they are; from Python without torch's dispatcher."""
    from torch._inductor import ir
    from torch._inductor.lowering import lowerings, make_fallback, register_lowering
    from torch._inductor.virtualized import V
    from torch.utils import _pytree

    class DirectCall(ir.FallbackKernel):
        """A call of one of our operators, by the function itself where the generated code is Python."""

        def codegen(self, wrapper: Any) -> None:
            """Write the call."""
            called = self.op_overload
            if isinstance(called, torch._ops.OpOverload) and not (V.graph.cpp_wrapper or V.graph.fx_wrapper):
                wrapper.add_import_once("from passagent.packages.package_operators import direct_calls")
                self.python_kernel_name = f"direct_calls.{called._schema.name.partition('::')[2]}"
            super().codegen(wrapper)

    def lowering(function: torch._ops.OpOverload) -> Callable[..., Any]:
        def lowered(*args: Any) -> Any:
            result = DirectCall.create(function, *args)
            return _pytree.tree_map(ir.TensorBox.create, result)

        return lowered

    for name in sorted({site.operator for site in done.replaced} - {""}):
        if overload(name) not in lowerings:
            make_fallback(overload(name), warn=False)
            register_lowering(overload(name), type_promotion_kind=None)(lowering(overload(name)))
