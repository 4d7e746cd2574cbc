"""Passes beside Inductor: the backend `passagent` of torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from passagent.errors import UsageError
from passagent.packages.loading import load_packages
from passagent.packages.package_operators import overload
from passagent.packages.rewriting import Rewriting, rewrite


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
