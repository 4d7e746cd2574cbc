"""Calls of a compiled model as replays of CUDA graphs: without the host's share of each operator's time.

Inductor's `reduce-overhead` replays graphs, too, behind Dynamo's guards on every module and parameter. Here a
call looks up the layout of its inputs, copies them to where the graph reads them, replays, and copies the
outputs. While the device works, the host looks whether the model is as it was at the capture; if not, the
outputs are dropped, and the compiled model is called. What a graph may not stand for is never captured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch._C._dynamo.guards import GlobalStateGuard

from passagent.evaluator.runner import hostless
from passagent.evaluator.runner.calls import repeats, same_bytes
from passagent.packages.package_operators import ready_plans

CUDA_GRAPH = "cuda-graph"
"""The mode: Inductor's default code in a CUDA graph."""
_MOST_GRAPHS, _MOST_LAYOUTS, _MOST_FAILURES = 16, 256, 3
"""Layouts that are captured and that are looked at; captures that may fail. Other calls are the compiled
model's."""
_NUMBERS = (float, complex)
_PLAIN = (bool, int, str, type(None), torch.dtype, torch.device, *_NUMBERS)
"""Types of values beside tensors that a call may take and return."""
_lock = threading.RLock()
_last_streams: dict[int, torch.cuda.Stream] = {}
"""By device the stream of the last replay. Graphs of one process are replayed one after the other, as scratch
memory of kernels belongs to all calls of a pass."""


class _NotCapturedError(Exception):
    """A call that no graph can stand for; its text says why."""


class _Call(NamedTuple):
    """The arguments of a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    tensors: list[torch.Tensor]
    rebuilt: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]
    """Makes arguments of other leaves."""
    layout: Any
    """A description of it for which a graph is captured; hashable."""

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        """Read the arguments of a call. Raises _NotCapturedError."""
        leaves, count, names = [*args, *kwargs.values()], len(args), tuple(kwargs)
        if all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):  # faster than pytree

            def rebuilt(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
                return tuple(values[:count]), dict(zip(names, values[count:], strict=True))

            form: Any = (count, names)
        else:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            form = repr(spec)

            def rebuilt(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
                return pytree.tree_unflatten(values, spec)  # type: ignore[no-any-return]

        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return cls(args, kwargs, leaves, tensors, rebuilt, (form, *_layout_of(leaves)))


def _layout_of(leaves: list[Any]) -> list[Any]:
    """Describe the leaves of a call, and under which settings it is made. Raises _NotCapturedError."""
    if torch.is_grad_enabled():
        raise _NotCapturedError("gradients are recorded: call it under torch.no_grad()")
    if torch.is_autocast_enabled("cuda"):
        raise _NotCapturedError("autocast is on")
    described: list[Any] = [torch.is_inference_mode_enabled()]
    places: dict[int, int] = {}
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if problem := _problem_of(leaf):
                raise _NotCapturedError(f"an input {problem}")
            place = places.setdefault(id(leaf), len(places))  # one tensor given twice
            described.append((place, leaf.shape, leaf.stride(), leaf.dtype, leaf.is_inference()))
        elif isinstance(leaf, _PLAIN):
            described.append((type(leaf), repr(leaf) if isinstance(leaf, _NUMBERS) else leaf))
        else:
            raise _NotCapturedError(f"an input is a {type(leaf).__name__}")
    if not places:
        raise _NotCapturedError("it takes no tensor")
    if torch.cuda.is_current_stream_capturing():
        raise _NotCapturedError("another graph is being captured")
    return described


def _problem_of(tensor: torch.Tensor) -> str:
    """Say why a tensor is none that a graph can read and write; empty if it is one."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"is a {type(tensor).__name__}"
    if tensor.layout != torch.strided:
        return f"is {tensor.layout}"
    if not tensor.is_cuda:
        return "is not on a GPU"
    return "" if tensor.device.index == torch.cuda.current_device() else "is not on the current device"


class _State:
    """The parts, parameters, buffers and tensors of a module, as they were."""

    def __init__(self, model: Any) -> None:
        parts = list(model.modules()) if isinstance(model, torch.nn.Module) else []
        hooks = [each for part in parts for each in (part._forward_hooks, part._forward_pre_hooks)]
        named = [each for part in parts for each in (part._parameters, part._buffers, part._modules)]
        self._dictionaries: list[dict[Any, Any]] = [*named, *hooks]
        self._size = sum(map(len, self._dictionaries))
        self._filled = [each for each in named if each]
        self._values = [value for each in self._filled for value in each.values()]
        self._attributes = [
            (vars(part), name, value)
            for part in parts
            for name, value in vars(part).items()
            if isinstance(value, torch.Tensor)
        ]
        held = [value for value in self._values if isinstance(value, torch.Tensor)]
        problems = (f"a parameter or buffer {problem}" for problem in map(_problem_of, held) if problem)
        tensors = [*held, *(value for _, _, value in self._attributes)]
        self.problem = "" if parts else "it is no torch.nn.Module"
        self.problem = self.problem or ("a part of it has hooks" if any(hooks) else "") or next(problems, "")
        if any(tensor.is_inference() for tensor in tensors):
            self.problem = "a parameter or buffer was made in inference mode"
        self._tensors = [] if self.problem else tensors
        self._aliases = [tensor.detach() for tensor in self._tensors]  # which keep the memory
        self._versions = [tensor._version for tensor in self._tensors]
        self._pointers = list(map(torch.Tensor.data_ptr, self._tensors))
        self._training = [(part, part.training) for part in parts]
        self._globals = GlobalStateGuard()

    @property
    def memories(self) -> set[int]:
        """Where the memory of its tensors lies."""
        return {alias.untyped_storage().data_ptr() for alias in self._aliases}

    def are_same(self) -> bool:
        """Tell whether nothing was written, moved, replaced, added or set otherwise."""
        return (
            sum(map(len, self._dictionaries)) == self._size
            and all(map(is_, chain.from_iterable(each.values() for each in self._filled), self._values))
            and all(values.get(name) is value for values, name, value in self._attributes)
            and all(part.training == before for part, before in self._training)
            and [tensor._version for tensor in self._tensors] == self._versions
            and list(map(torch.Tensor.data_ptr, self._tensors)) == self._pointers
            and self._globals.check()
        )


@dataclass
class _Captured:
    """One layout's graph."""

    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    outputs: list[Any]
    """The leaves of what the model returned: its tensors are written by each replay."""
    spec: pytree.TreeSpec
    plans: list[Any]
    """Plans of passes that the graph reads: their memory belongs to the thread that captured."""

    def replay(self, call: _Call) -> Any:
        """Return what the model returns, in memory of its own."""
        device = torch.cuda.current_device()
        stream, before = torch.cuda.current_stream(), _last_streams.get(device)
        if before is not None and stream != before:
            stream.wait_stream(before)
        _last_streams[device] = stream
        torch._foreach_copy_(self.inputs, call.tensors)
        self.graph.replay()
        written = [leaf for leaf in self.outputs if isinstance(leaf, torch.Tensor)]
        copies = [_empty_like(leaf) for leaf in written]
        torch._foreach_copy_(copies, written)
        rest = iter(copies)
        leaves = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.outputs]
        return pytree.tree_unflatten(leaves, self.spec)


_SEEN, _NOTHING = object(), object()
"""A layout that was called once, and may be captured; no result."""


class CudaGraphs:
    """A compiled function of CUDA tensors, called like it; the second call of a layout is the first replay.

    `why_not` says why the latest call was none. Then the compiled function is called. Not seen are changes
    of a module's attributes that are no tensors, but for `training`, and what Python does besides.
    """

    def __init__(self, compiled: Callable[..., Any], model: Any) -> None:
        """`model`: the module whose parameters and buffers the compiled function reads."""
        self._compiled, self._model = compiled, model
        self._graphs: dict[Any, Any] = {}
        """By layout a graph, _SEEN, or a text that says why there is none."""
        self._state = _State(model)
        self._failures = 0
        self.why_not = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Replay the graph of the layout, or call the compiled function. Raises what that does."""
        try:
            call = _Call.of(args, kwargs)
            with _lock:
                result = self._replayed(call)
        except _NotCapturedError as error:
            self.why_not = str(error)
            return self._compiled(*args, **kwargs)
        self.why_not = ""
        return self._observed(call) if result is _NOTHING else result

    def _replayed(self, call: _Call) -> Any:
        """Return what a replay computes, after a capture if it is time; _NOTHING where that has to wait.

        Raises _NotCapturedError.
        """
        entry = self._graphs.get(call.layout)
        if isinstance(entry, str):
            raise _NotCapturedError(entry)
        if entry is None and len(self._graphs) >= _MOST_LAYOUTS:
            raise _NotCapturedError(f"there are more than {_MOST_LAYOUTS} layouts of inputs")
        if entry is _SEEN and self._state.are_same():
            entry = self._graphs[call.layout] = self._capture(call)
        if isinstance(entry, _Captured):
            result = entry.replay(call)
            if self._state.are_same():
                return result
        return _NOTHING

    def _observed(self, call: _Call) -> Any:
        """Call the compiled function, and note what keeps a graph from standing for such calls."""
        before = _State(self._model)
        copies = [tensor.clone() for tensor in call.tensors]
        result = self._compiled(*call.args, **call.kwargs)
        leaves = pytree.tree_leaves((call.args, call.kwargs))
        why = before.problem
        if not all(map(same_bytes, call.tensors, copies)):
            why = "it writes into an input"
        elif len(leaves) != len(call.leaves) or not all(map(is_, leaves, call.leaves)):
            why = "it changes an argument"
        elif not before.are_same():
            why = "it writes into a parameter or buffer"
        memories = before.memories | {each.untyped_storage().data_ptr() for each in call.tensors}
        why = why or _what_is_shared(pytree.tree_leaves(result), memories)
        with _lock:
            if not self._state.are_same():
                torch.cuda.synchronize()  # a replay may still read what is dropped
                self._graphs.clear()
                self._state = _State(self._model)
            self._graphs[call.layout] = why or _SEEN
        self.why_not = why
        return result

    def _capture(self, call: _Call) -> _Captured:
        """Return the graph of a call with these inputs. Raises _NotCapturedError."""
        if sum(isinstance(each, _Captured) for each in self._graphs.values()) >= _MOST_GRAPHS:
            raise _NotCapturedError(f"{_MOST_GRAPHS} layouts are captured already")
        if self._failures >= _MOST_FAILURES:
            raise _NotCapturedError(f"{_MOST_FAILURES} captures failed")
        try:
            with torch.random.fork_rng([torch.cuda.current_device()]):
                return self._recorded(call)
        except RuntimeError as error:
            self._failures += 1
            self._graphs[call.layout] = str(error)
            raise _NotCapturedError(str(error)) from error
        finally:
            _drop_workspaces()

    def _recorded(self, call: _Call) -> _Captured:
        """Record a call on inputs of its own. Raises RuntimeError for what cannot be."""
        inputs: dict[int, torch.Tensor] = {}
        for tensor in call.tensors:
            if repeats(tensor):
                raise RuntimeError("elements of an input share memory")
            if id(tensor) not in inputs:
                with torch.inference_mode(tensor.is_inference()):  # as Dynamo compiled for
                    inputs[id(tensor)] = _empty_like(tensor)
                inputs[id(tensor)].copy_(tensor)
        args, kwargs = call.rebuilt([inputs.get(id(leaf), leaf) for leaf in call.leaves])

        def compiled() -> Any:
            return self._compiled(*args, **kwargs)

        def warm() -> None:
            compiled()
            _drop_workspaces()

        graph, returned = hostless.record(warm, compiled, "thread_local")
        places = [inputs[id(tensor)] for tensor in call.tensors]
        captured = _Captured(graph, places, *pytree.tree_flatten(returned), ready_plans())
        captured.replay(call)  # raises where values of a dtype cannot be copied
        return captured


def _drop_workspaces() -> None:
    """Let a capture get cuBLAS workspaces of its own: Inductor's graphs free those that all others share."""
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _what_is_shared(outputs: list[Any], memories: set[int]) -> str:
    """Say which output no graph can be asked for: it is no tensor of the device, or is somebody else's."""
    if not any(isinstance(leaf, torch.Tensor) for leaf in outputs):
        return "it returns no tensor"
    for leaf in outputs:
        if isinstance(leaf, torch.Tensor):
            if problem := _problem_of(leaf) or ("requires a gradient" if leaf.requires_grad else ""):
                return f"an output {problem}"
            memory = leaf.untyped_storage().data_ptr()
            if memory in memories or repeats(leaf):
                return "an output shares memory with an input, a parameter, another output or itself"
            memories.add(memory)
        elif not isinstance(leaf, _PLAIN):
            return f"an output is a {type(leaf).__name__}"
    return ""
