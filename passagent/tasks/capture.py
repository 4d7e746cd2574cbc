"""The graph that Dynamo captures of a subgraph: what passes are matched against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
import torch.fx
import torch.utils._pytree as pytree
from torch._dynamo.eval_frame import _reset_guarded_backend_cache

from passagent.errors import TaskError


@dataclass(frozen=True)
class Captured:
    """`graph_module(*[inputs[i] for i in order])` is the list of outputs of `module(*inputs)`, flattened."""

    graph_module: torch.fx.GraphModule
    order: list[int]
    """For each placeholder of the graph the position of its input."""


@dataclass
class Piece:
    """A graph of a model. Where Dynamo breaks a graph there are several, in the order of their runs."""

    graph_module: torch.fx.GraphModule
    inputs: list[Any]
    """Inputs of its first call, before the call: one for each placeholder."""
    outputs: list[Any]
    """Outputs of that call. `capture_model` has large tensors of a GPU in host memory here."""
    runs: int = 1
    """How often one call of the model runs it."""


def capture(module: torch.nn.Module, inputs: list[Any]) -> Captured:
    """Capture `module(*inputs)` with Dynamo as one graph, static shapes, without gradients.

    `inputs` are not changed. Data-dependent sizes and scalars are captured if the graph has any. Raises
    TaskError with Dynamo's reason if the module breaks into several graphs or does not run.
    """
    calls: list[Piece] = []

    def backend(graph_module: torch.fx.GraphModule, _example: list[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            outputs = graph_module.forward(*args)
            calls.append(Piece(graph_module, list(args), list(outputs)))
            return outputs

        return run

    copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    settings = torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
    forget()
    try:
        with torch.no_grad(), settings:
            returned = torch.compile(module, backend=backend, fullgraph=True, dynamic=False)(*copies)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TaskError(f"{type(module).__name__} is not one graph for Dynamo: {reason}") from error
    finally:
        forget()
    flat = pytree.tree_leaves(returned)
    if not calls:  # Dynamo leaves a graph without operators to Python
        empty = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
        empty.graph.output(())
        calls.append(Piece(empty, [], []))
    return _completed(calls[0], copies, flat)


def forget() -> None:
    """Have Dynamo compile anew. Its `reset` imports TorchInductor, seconds of work, where there is a GPU."""
    torch._dynamo.reset_code_caches()
    _reset_guarded_backend_cache()


def _completed(first_call: Piece, inputs: list[Any], returned: list[Any]) -> Captured:
    """Give the graph all of the module's outputs, in order.

    Dynamo leaves out of the graph what needs no operator (an input returned as it is, a number) and returns
    an output that occurs twice only once. Outputs of several operators can be one tensor, too (dropout of an
    evaluation hands on its input): each of the graph's is taken once before one is taken again.
    """
    graph = first_call.graph_module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    order = [_position(value, inputs) for value in first_call.inputs]
    output = next(iter(reversed(graph.nodes)))
    computed = list(output.args[0])  # type: ignore[arg-type]
    results: list[Any] = []
    untaken = list(range(len(computed)))
    for value in returned:
        at = _position(value, [first_call.outputs[i] for i in untaken])
        if at is not None:
            results.append(computed[untaken.pop(at)])
        elif (at := _position(value, first_call.outputs)) is not None:
            results.append(computed[at])
        elif (source := _position(value, inputs)) is not None:
            if source not in order:
                with graph.inserting_after(placeholders[-1]) if placeholders else graph.inserting_before():
                    placeholders.append(graph.placeholder(f"in_{source}"))
                order.append(source)
            results.append(placeholders[order.index(source)])
        elif isinstance(value, torch.Tensor):
            raise TaskError("the module returns a tensor that is neither computed in its graph nor an input")
        else:
            results.append(value)
    missing = [p.name for p, position in zip(placeholders, order, strict=True) if position is None]
    if missing:
        raise TaskError(
            f"the captured graph takes {', '.join(missing)}, which is none of the module's inputs"
        )
    output.args = (tuple(results),)
    graph.lint()
    first_call.graph_module.recompile()
    return Captured(first_call.graph_module, [position for position in order if position is not None])


def _position(value: Any, among: list[Any]) -> int | None:
    """Position of this very tensor."""
    if not isinstance(value, torch.Tensor):
        return None
    return next((i for i, other in enumerate(among) if other is value), None)
