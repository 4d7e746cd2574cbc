"""Inductor's fusions: one scheduling of a whole graph, without code generation and without a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch._inductor.config as inductor_config
from torch import fx

from passagent.errors import PassagentError
from passagent.tasks.extract.model_capture import quiet

_KEY = "passagent"
_VIEWS = ("_unsafe_view", "_reshape_alias", "alias")


class Kernels(NamedTuple):
    """The kernels of a schedule, each by the operators of the captured graph that it computes."""

    fused: list[frozenset[str]]
    """Kernels that Inductor generates: names of nodes."""
    library: frozenset[str]
    """Operators with a part that a library computes: matrix products, convolutions, attention."""
    launches: int = 0
    """Kernels of both kinds that one run launches."""


class _Scheduled(Exception):
    """There is no need to go on."""


def scheduled_kernels(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Kernels:
    """Inductor's schedule of a graph for these inputs, on their device. Raises PassagentError.

    Its passes and its fusion run as they do in a compilation. The graph is not changed.
    """
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.utils import fresh_cache

    schedules: list[Kernels] = []

    def look(nodes: list[Any]) -> list[Any]:
        schedules.append(_kernels(nodes))
        raise _Scheduled

    settings = {"_post_fusion_custom_pass": look, "force_disable_caches": True, "fx_graph_cache": False}
    tagged = _tagged(graph_module)
    with fresh_cache(), inductor_config.patch(settings), quiet():
        try:
            compile_fx(tagged, list(inputs))
        except Exception as error:
            if not schedules:
                text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                raise PassagentError(f"Inductor cannot schedule the graph: {text}") from error
    return schedules[0] if schedules else Kernels([], frozenset())


def _tagged(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy in which each node carries its name; what is made of the node inherits it."""
    copy = fx.GraphModule(graph_module, fx.Graph())
    copies: dict[fx.Node, fx.Node] = {}
    output = copy.graph.graph_copy(graph_module.graph, copies)
    copy.graph.output(output)
    for node, tagged in copies.items():
        tagged.meta = {**node.meta, "custom": {_KEY: node.name}}
    copy.recompile()
    return copy


def _kernels(nodes: Sequence[Any]) -> Kernels:
    from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode

    external = [kernel.node for kernel in nodes if isinstance(kernel, ExternKernelSchedulerNode)]
    count = sum(not isinstance(kernel, NopKernelSchedulerNode) for kernel in nodes)
    called = {getattr(node, "get_origin_node", lambda: None)() for node in external} - {None}
    library, fused = _names(called), []
    for kernel in nodes:
        if isinstance(kernel, NopKernelSchedulerNode | ExternKernelSchedulerNode):
            continue
        parts = [part.node for part in kernel.get_nodes() if part.node is not None]
        # what a library computes is no part of a kernel that lays out its input for it
        computed = _names({origin for part in parts for origin in part.get_origins()} - called)
        if computed:
            fused.append(frozenset(computed))
    return Kernels(fused, frozenset(library), count)


def _names(origins: Iterable[Any]) -> set[str]:
    """The operators that nodes which compute come from; views compute nothing."""
    return {
        origin.meta["custom"][_KEY]
        for origin in origins
        if origin.op == "call_function"
        and _KEY in (origin.meta.get("custom") or {})
        and not getattr(origin.target, "is_view", False)
        and getattr(getattr(origin.target, "overloadpacket", None), "__name__", "") not in _VIEWS
    }
