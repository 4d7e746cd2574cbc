"""A whole model, timed in eager, with Inductor, and with Inductor and passes; its outputs held to eager's."""

from __future__ import annotations

import copy
import hashlib
import io
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
import torch.utils._pytree as pytree

from passagent.errors import PassagentError
from passagent.evaluator.hardware.devices import find_device
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.timing import estimate
from passagent.packages.cuda_graphs import CUDA_GRAPH, CudaGraphs
from passagent.packages.deployed import compile_model
from passagent.packages.loading import CompileSettings, Package
from passagent.packages.measurement import InputTimes, Measurement, Ratio
from passagent.packages.model_outputs import Outputs, find_difference, outputs_in_float64, read_outputs
from passagent.packages.rewriting import explain_model
from passagent.tasks.extract.model_capture import Model


class _Call(NamedTuple):
    """A call of a model, compiled in some way, on its inputs."""

    function: Callable[..., Any]
    model: Model

    def __call__(self) -> Any:
        return self.function(*self.model.args, **self.model.kwargs)


_WARM_UP, _BLOCKS, _BLOCK_S, _MOST_CALLS = 5, 20, 0.02, 50
"""Calls before anything is timed; blocks of each side, and what a block lasts."""
_INTERVAL, _MOST_S = 0.01, 10.0
"""Half the width of the gain's interval that is good enough, relative; s after which it is as it is."""
_GRAPHED = "eager in a CUDA graph"


def measure_model(
    model: Model,
    packages: Sequence[Package],
    modes: Sequence[str] | None = None,
    is_quick: bool = False,
    freezes: bool = False,
    compiled: Compiled | None = None,
) -> Measurement:
    """Time a model. `modes`: Inductor's or `cuda-graph`; by default `default`, on a GPU `cuda-graph` too.

    All sides take turns, in blocks of calls. The last mode is also timed without each of several passes, and
    in it Inductor is also timed frozen and with weights in channels_last, as rivals. `is_quick`: one mode,
    on a GPU in CUDA graphs, with all passes alone, and no rivals. `compiled` keeps what is compiled for
    another measurement of the model, and takes what the model prints. Times on several inputs are added by
    their weights. Raises PassagentError where no pass is used, or the model returns no tensor.
    """
    compiled = Compiled(model) if compiled is None else compiled
    leaves = pytree.tree_leaves((model.args, model.kwargs))
    if isinstance(model.module, torch.nn.Module):
        leaves += model.module.parameters()
    is_cuda = any(isinstance(value, torch.Tensor) and value.is_cuda for value in leaves)
    modes = list(modes or (["default", CUDA_GRAPH] if is_cuda else ["default"]))
    with torch.no_grad(), redirect_stdout(compiled.printed):
        expected = [read_outputs(_Call(each.module, each)()) for each in (model, *model.others)]
        if not all(expected):
            raise PassagentError(f"{model.name}: returns no tensor, so that nothing could be compared")
        explained = [explain_model(each, packages) for each in (model, *model.others)]
        used = list(dict.fromkeys(match.name for each in explained for match in each.replaced))
        if not used:
            reasons = [f": {match.name}: {match.reason}" for match in explained[0].refused[:1]]
            raise PassagentError(f"no pass fits in the model{''.join(reasons)}; passagent explain says more")
        plan = _Plan(list(packages), used, modes[-1:] if is_quick else modes, is_quick, freezes, is_cuda)
        pairs = zip((model, *model.others), expected, strict=True)
        parts = [_time_sides(each, outputs, plan, compiled) for each, outputs in pairs]
    modes = [mode for mode in plan.modes if all(mode in part.times for part in parts)] or ["default"]
    last, lacking = modes[-1], {}
    for side in parts[0].times:
        if ", without " in side and all(side in part.times for part in parts):
            lacking[side.rpartition(", without ")[2]] = side
    sides = [side for side in parts[0].times if all(side in part.times for part in parts)]
    us = {side: _mean_us(parts, side) for side in sides}
    baselines = {mode: _faster(mode, us, is_cuda) for mode in modes}
    gains = {mode: _gain(parts, baselines[mode], f"{mode} + passes") for mode in modes}
    us |= {f"{mode} + passes": us[baselines[mode]] / gain.ratio for mode, gain in gains.items()}
    with_passes = [f"{mode} + passes" for mode in modes]
    fastest = min(with_passes, key=us.__getitem__)
    best = min(us.keys() - {*with_passes, *lacking.values()}, key=us.__getitem__)
    return Measurement(
        device=torch.cuda.get_device_name() if is_cuda else "cpu",
        us=us,
        gains=gains,
        passes={name: _gain(parts, side, f"{last} + passes") for name, side in lacking.items()},
        unequal=[problem for part in parts for problem in part.unequal],
        left_out=list(dict.fromkeys(problem for part in parts for problem in part.left_out)),
        best=best,
        over_best=None if is_quick else _gain(parts, best, fastest),
        baselines=baselines,
        unused=[each.name for package in packages for each in package.rewrites if each.name not in used],
        inputs=[part.row(gains, baselines) for part in parts] if model.others else [],
    )


class _Plan(NamedTuple):
    """The sides of a model that are timed."""

    packages: list[Package]
    used: list[str]
    """Names of passes that fit."""
    modes: list[str]
    is_quick: bool
    freezes: bool
    is_cuda: bool


@dataclass
class _Part:
    """The times of a model on one of its inputs."""

    model: Model
    times: dict[str, list[list[int]]] = field(default_factory=dict)
    """Nanoseconds of the calls of each side's blocks."""
    unequal: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def row(self, gains: dict[str, Ratio], baselines: dict[str, str]) -> InputTimes:
        """Return the report's row."""
        times = {side: estimate.typical_ns(blocks) / 1e3 for side, blocks in self.times.items()}
        each = {mode: _ratio(self.times[baselines[mode]], self.times[f"{mode} + passes"]) for mode in gains}
        return InputTimes(self.model.shapes, self.model.weight, times, each)


def _time_sides(model: Model, expected: Outputs, plan: _Plan, compiled: Compiled) -> _Part:
    """Time all sides on a model's inputs, whose outputs are held to `expected`."""
    sides = {"eager": _Call(model.module, model)}
    part, modes = _Part(model), plan.modes
    if plan.is_cuda:
        part.left_out += _add_graph(model, sides)
    if CUDA_GRAPH in modes and (why_not := _why_no_graph(compiled.call(model, CUDA_GRAPH, []))):
        part.left_out.append(f"{CUDA_GRAPH}: {why_not}")
        modes = [mode for mode in modes if mode != CUDA_GRAPH] or ["default"]
    last = modes[-1]
    for mode in modes:
        sides[mode] = compiled.call(model, mode, [])
        sides[f"{mode} + passes"] = compiled.call(model, mode, plan.packages, plan.freezes)
    for name in plan.used if len(plan.used) > 1 and not plan.is_quick else ():
        fewer = [without(package, [name]) for package in plan.packages]
        sides[f"{last}, without {name}"] = compiled.call(model, last, fewer, plan.freezes)
    exact = outputs_in_float64(model)
    where = f" for {model.shapes}" if compiled.is_static else ""
    with _compiles_apart(len(sides) + len(_RIVALS)):
        for side, call in sides.items():
            if difference := _difference(call, expected, exact):
                part.unequal.append(f"{side}{where}: {difference}")
        for name, make in () if plan.is_quick else _RIVALS.items():
            side = f"{last}, {name}"
            try:
                rival = make(model, last)
                problem = _difference(rival, expected, exact) if rival else ""
            except Exception as error:  # a rival costs itself alone
                rival, problem = None, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            if problem:
                part.left_out.append(f"{side}{where}: {problem}")
            elif rival is not None:
                sides[side] = rival
        with DeviceLease(find_device("cuda:0" if plan.is_cuda else "cpu")).exclusive() as share:
            part.times = _times(sides, modes, plan.is_cuda, share)
    return part


def without(package: Package, names: Collection[str]) -> Package:
    """Return the package without some of its passes."""
    passes = [deployed for deployed in package.passes if deployed.name not in names]
    rewrites = [rewrite for rewrite in package.rewrites if rewrite.name not in names]
    fewer = replace(package, passes=passes, rewrites=rewrites)
    content = "\n".join([package.digest, *fewer.names])
    return replace(fewer, digest=hashlib.sha256(content.encode()).hexdigest())


def _compiles_apart(count: int) -> AbstractContextManager[None]:
    """Let Dynamo compile so many sides of one model: beyond its limit for one function it runs eager."""
    limit = torch._dynamo.config.recompile_limit * count
    return torch._dynamo.config.patch(recompile_limit=limit, accumulated_recompile_limit=32 * limit)  # type: ignore[no-any-return]


class Compiled:
    """Functions that were compiled of a model; `cuda-graph` captures what `default` calls."""

    def __init__(self, model: Model, printed: TextIO | None = None) -> None:
        """`printed` takes what the model prints while it is timed; by default it is dropped."""
        self.printed = io.StringIO() if printed is None else printed
        self.is_static = bool(model.others)
        """Each of several inputs is compiled for itself."""
        self._functions: dict[Any, Callable[..., Any]] = {}

    def call(self, model: Model, mode: str, packages: Sequence[Package], is_frozen: bool = False) -> _Call:
        """Return a call on the model's inputs in a mode, with the passes of packages."""
        key = (mode, tuple(package.digest for package in packages), is_frozen)
        if key not in self._functions and mode == CUDA_GRAPH:
            default = self.call(model, "default", packages, is_frozen)
            self._functions[key] = CudaGraphs(default.function, model.module)
        elif key not in self._functions:
            settings = CompileSettings(mode, is_frozen, self.is_static)
            self._functions[key] = compile_model(model.module, packages, settings)
        return _Call(self._functions[key], model)


def _difference(call: _Call, expected: Outputs, exact: Outputs) -> str:
    """Say what find_difference says of a call, of CUDA graphs of a replay."""
    _why_no_graph(call)
    return find_difference(expected, exact, read_outputs(call()))


def _why_no_graph(call: _Call) -> str:
    """Why a call is no replay from now on; empty where it is one, or is not meant to be."""
    if not isinstance(call.function, CudaGraphs):
        return ""
    for _ in range(2):  # the first compiles, the second captures
        call()
    return call.function.why_not


def _frozen(model: Model, mode: str) -> _Call:
    """Compile the model with its parameters as constants. Nobody can load other weights into that."""
    return Compiled(model).call(model, mode, [], is_frozen=True)


def _channels_last(model: Model, mode: str) -> _Call | None:
    """Compile a copy with weights and inputs in channels_last; None where no weight has four dimensions."""
    if not isinstance(model.module, torch.nn.Module):
        return None
    if not any(value.dim() == 4 for value in model.module.parameters()):
        return None

    def laid_out(value: Any) -> Any:
        is_image = isinstance(value, torch.Tensor) and value.dim() == 4
        return value.to(memory_format=torch.channels_last) if is_image else value

    module = copy.deepcopy(model.module).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    args, kwargs = pytree.tree_map(laid_out, (model.args, model.kwargs))
    turned = replace(model, module=module, args=args, kwargs=kwargs)
    return Compiled(turned).call(turned, mode, [])


_RIVALS: dict[str, Callable[[Model, str], _Call | None]] = {
    "frozen": _frozen,
    "channels_last": _channels_last,
}
"""Ways to compile a model that a user has without passes."""


def _add_graph(model: Model, sides: dict[str, _Call]) -> list[str]:
    """Add eager's replay in a CUDA graph to the sides; why there is none where it cannot be captured."""
    graphed = _Call(CudaGraphs(model.module, model.module), model)
    if why_not := _why_no_graph(graphed):
        return [f"{_GRAPHED}: {why_not}"]
    sides[_GRAPHED] = graphed
    return []


def _times(
    sides: dict[str, _Call], modes: Sequence[str], is_cuda: bool, share: Callable[[], float]
) -> dict[str, list[list[int]]]:
    """Nanoseconds of the calls of each side's blocks. Sides take turns, each time in another order.

    There are more blocks where the gain of the last mode is not known to within 1%, for a while.
    """
    wait = torch.cuda.synchronize if is_cuda else lambda: None
    calls = {}
    for name, call in sides.items():
        took = [_timed(call, wait) for _ in range(_WARM_UP)]
        calls[name] = max(2, min(_MOST_CALLS, int(_BLOCK_S * 1e9 / min(took))))
    random, times = np.random.default_rng(0), dict[str, list[list[int]]]()
    begun, blocks = time.monotonic(), 0
    while blocks < _BLOCKS or (time.monotonic() - begun < _MOST_S and not _is_narrow(times, modes[-1])):
        blocks += 1
        for name in random.permutation(list(sides)).tolist():
            sides[name]()
            block = [_timed(sides[name], wait) for _ in range(calls[name])]
            times.setdefault(name, []).append(block)
            begun += share()
    return {name: times[name] for name in sides}


def _is_narrow(times: dict[str, list[list[int]]], mode: str) -> bool:
    gain = _ratio(times[mode], times[f"{mode} + passes"])
    return gain.high - gain.low < 2 * _INTERVAL * gain.ratio


def _timed(call: _Call, wait: Callable[[], None]) -> int:
    wait()
    begun = time.perf_counter_ns()
    call()
    wait()
    return time.perf_counter_ns() - begun


def _ratio(slow: list[list[int]], fast: list[list[int]]) -> Ratio:
    logs = estimate.log_ratios(slow, fast)
    return Ratio(estimate.ratio(logs), *estimate.interval(logs))


def _mean_us(parts: Sequence[_Part], side: str) -> float:
    """The time of a call, us: the mean over the inputs, by their weights."""
    total = sum(part.model.weight for part in parts)
    return sum(estimate.typical_ns(part.times[side]) * part.model.weight for part in parts) / total / 1e3


def _gain(parts: Sequence[_Part], slow: str, fast: str) -> Ratio:
    """How much faster a side is: of several inputs the ratio of their times, added by their weights."""
    ratios = [_ratio(part.times[slow], part.times[fast]) for part in parts]
    if len(parts) == 1:
        return ratios[0]
    shares = [estimate.typical_ns(part.times[slow]) * part.model.weight for part in parts]
    each = zip(*((ratio.ratio, ratio.low, ratio.high) for ratio in ratios), strict=True)
    return Ratio(*(sum(shares) / sum(np.divide(shares, ends)) for ends in each))


def _faster(mode: str, us: dict[str, float], is_cuda: bool) -> str:
    """The faster of Inductor and eager, called as a mode calls: in a CUDA graph or not."""
    from torch._inductor import list_mode_options

    in_graph = mode == CUDA_GRAPH or list_mode_options(mode).get("triton.cudagraphs")
    eager = _GRAPHED if is_cuda and in_graph else "eager"
    return min((side for side in (mode, eager) if side in us), key=us.__getitem__)
