"""Calls of a compiled model as replays of CUDA graphs: without the host's share of each operator's time.

Inductor's `reduce-overhead` replays graphs, too, behind Dynamo's guards on every module and parameter. Here a
call looks up the layout of its inputs, copies them to where the graph reads them, replays, and copies the
outputs. While the device works, the host looks whether parameters and buffers are those of the capture; if
not, the outputs are dropped, and the compiled model is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch._inductor.cudagraph_trees import clear_cublass_cache

from passagent.evaluator.runner import hostless
from passagent.evaluator.runner.calls import repeats, same_bytes

CUDA_GRAPH = "cuda-graph"
"""The mode: Inductor's default code in a CUDA graph."""
_MOST = 16
"""Layouts that are captured; calls with others are those of the compiled model."""
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
"""Types of values beside tensors that a call may take and return."""


class _NotCapturedError(Exception):
    """A call that no graph can stand for; its text says why."""


class _Call(NamedTuple):
    """What a call is given: its leaves, and how they are put together again."""

    leaves: list[Any]
    rebuilt: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]
    form: Any
    """What decides about `rebuilt`; hashable."""

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        """Read the arguments of a call."""
        leaves, count, names = [*args, *kwargs.values()], len(args), tuple(kwargs)
        if all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):  # faster than pytree

            def rebuilt(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
                return tuple(values[:count]), dict(zip(names, values[count:], strict=True))

            return cls(leaves, rebuilt, (count, names))
        leaves, spec = pytree.tree_flatten((args, kwargs))
        return cls(leaves, lambda values: pytree.tree_unflatten(values, spec), repr(spec))

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The leaves that are tensors."""
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def layout(self) -> Any:
        """Describe what a graph is captured for; hashable. Raises _NotCapturedError."""
        if torch.is_grad_enabled():
            raise _NotCapturedError("gradients are recorded: call it under torch.no_grad()")
        if torch.is_autocast_enabled("cuda"):
            raise _NotCapturedError("autocast is on")
        described, device = [torch.is_inference_mode_enabled(), self.form], None
        for leaf in self.leaves:
            if isinstance(leaf, torch.Tensor):
                if not leaf.is_cuda:
                    raise _NotCapturedError("an input is not on a GPU")
                device = leaf.device.index
                described.append((leaf.shape, leaf.stride(), leaf.dtype, device))
            elif isinstance(leaf, _PLAIN):
                described.append((type(leaf), leaf))
            else:
                raise _NotCapturedError(f"an input is a {type(leaf).__name__}")
        if device != torch.cuda.current_device():
            raise _NotCapturedError("no input is on the current device")
        if torch.cuda.is_current_stream_capturing():
            raise _NotCapturedError("another graph is being captured")
        return tuple(described)


@dataclass
class _Captured:
    """One layout's graph."""

    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    outputs: list[Any]
    """The leaves of what the model returned: its tensors are written by each replay."""
    spec: pytree.TreeSpec

    def replay(self, inputs: list[torch.Tensor]) -> Any:
        """Return what the model returns, in memory of its own."""
        torch._foreach_copy_(self.inputs, inputs)
        self.graph.replay()
        written = [leaf for leaf in self.outputs if isinstance(leaf, torch.Tensor)]
        copies = [_empty_like(leaf) for leaf in written]
        torch._foreach_copy_(copies, written)
        rest = iter(copies)
        leaves = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.outputs]
        return pytree.tree_unflatten(leaves, self.spec)


class _Parameters:
    """The parameters and buffers of a module, as they were; of any other function none are known."""

    def __init__(self, model: Any) -> None:
        parts = list(model.modules()) if isinstance(model, torch.nn.Module) else []
        self._training = [(part, part.training) for part in parts[:1]]
        dictionaries = [values for part in parts for values in (part._parameters, part._buffers)]
        each = [(values, *item) for values in dictionaries for item in values.items()]
        self._places = [(values, name, value.detach()) for values, name, value in each if value is not None]
        self._versions = [_version(alias) for _, _, alias in self._places]
        self.memories = {alias.untyped_storage().data_ptr() for _, _, alias in self._places}

    def are_same(self) -> bool:
        """Tell whether none was written, moved or replaced; the aliases keep the memory of all."""
        for (values, name, alias), version in zip(self._places, self._versions, strict=True):
            now = values.get(name)
            if now is None or now.data_ptr() != alias.data_ptr() or _version(now) != version:
                return False
        return all(part.training == before for part, before in self._training)


class CudaGraphs:
    """A compiled function of CUDA tensors, called like it; the third call of a layout is the first replay.

    `why_not` says why the latest call was none: gradients or autocast are on, an input or output is not on
    the device, an input is written, an output shares memory, CUDA refuses. Then the compiled function is
    called. Not seen are changes of a module's attributes that are no tensors, but for `training`.
    """

    def __init__(self, compiled: Callable[..., Any], model: Any) -> None:
        """`model`: the module whose parameters and buffers the compiled function reads."""
        self._compiled, self._model = compiled, model
        self._graphs: dict[Any, _Captured | str | None] = {}
        """By layout; None: called once. A text says why it cannot be captured."""
        self._parameters = _Parameters(model)
        self._lock = threading.Lock()
        self._stream: torch.cuda.Stream | None = None
        self.why_not = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Replay the graph of the layout, or call the compiled function. Raises what that does."""
        call = _Call.of(args, kwargs)
        try:
            layout = call.layout()
        except _NotCapturedError as error:
            self.why_not = str(error)
            return self._compiled(*args, **kwargs)
        with self._lock:
            stream = torch.cuda.current_stream()
            if self._stream is not None and stream != self._stream:
                stream.wait_stream(self._stream)  # graphs share memory from call to call
            self._stream = stream
            graph = self._graphs.get(layout)
            if isinstance(graph, _Captured):
                self.why_not = ""
                result = graph.replay(call.tensors)
                if self._parameters.are_same():
                    return result
                self._graphs = {key: why for key, why in self._graphs.items() if isinstance(why, str)}
            elif layout in self._graphs and graph is None:
                graph = self._graphs[layout] = self._capture(call)
            if isinstance(graph, str):
                self.why_not = graph
                return self._compiled(*args, **kwargs)
            return self._observed(layout, call)

    def _observed(self, layout: Any, call: _Call) -> Any:
        """Call the compiled function, and note what keeps a graph from standing for such calls."""
        before = [
            (each, _version(each), each.clone() if each.is_inference() else None) for each in call.tensors
        ]
        args, kwargs = call.rebuilt(call.leaves)
        result = self._compiled(*args, **kwargs)
        why = ""
        if any(
            _version(each) != version or (copy is not None and not same_bytes(each, copy))
            for each, version, copy in before
        ):
            why = "it writes into an input"
        parameters = _Parameters(self._model)
        memories = parameters.memories | {each.untyped_storage().data_ptr() for each in call.tensors}
        why = why or _what_is_shared(pytree.tree_leaves(result), memories)
        if why:
            self._graphs[layout] = self.why_not = why
        elif not self._parameters.are_same():  # what was captured just now may have read other ones
            self._graphs[layout] = None
        else:
            self._graphs.setdefault(layout, None)
        self._parameters = parameters
        return result

    def _capture(self, call: _Call) -> _Captured | str:
        """Return the graph of a call with these inputs, or why there is none."""
        if sum(isinstance(each, _Captured) for each in self._graphs.values()) >= _MOST:
            return f"{_MOST} layouts are captured already"
        if any(repeats(each) for each in call.tensors):
            return "elements of an input share memory"
        inputs = [_empty_like(each).copy_(each) for each in call.tensors]
        rest = iter(inputs)
        leaves = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in call.leaves]
        args, kwargs = call.rebuilt(leaves)

        def compiled() -> Any:
            return self._compiled(*args, **kwargs)

        def warm() -> None:
            compiled()
            _drop_workspaces()

        try:
            graph, returned = hostless.record(warm, compiled)
        except RuntimeError as error:
            return str(error)
        finally:
            _drop_workspaces()
        return _Captured(graph, inputs, *pytree.tree_flatten(returned))


def _drop_workspaces() -> None:
    """Let a capture get cuBLAS workspaces of its own: Inductor's graphs free those that all others share."""
    torch.cuda.synchronize()
    clear_cublass_cache()


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _what_is_shared(outputs: list[Any], memories: set[int]) -> str:
    """Say which output no graph can be asked for: it is no tensor of the device, or is somebody else's."""
    for leaf in outputs:
        if isinstance(leaf, torch.Tensor):
            if not leaf.is_cuda:
                return "an output is not on a GPU"
            memory = leaf.untyped_storage().data_ptr()
            if memory in memories or repeats(leaf):
                return "an output shares memory with an input, a parameter, another output or itself"
            memories.add(memory)
        elif not isinstance(leaf, _PLAIN):
            return f"an output is a {type(leaf).__name__}"
    return ""
