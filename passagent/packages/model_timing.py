"""A whole model, timed in eager, with Inductor, and with Inductor and passes; its outputs held to eager's."""

from __future__ import annotations

import copy
import hashlib
import io
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree

from passagent.errors import PassagentError
from passagent.evaluator.correctness.compare import compare
from passagent.evaluator.correctness.double import in_float64
from passagent.evaluator.correctness.precision import Expected, Fact, judge_precision
from passagent.evaluator.correctness.settled import first_beyond, room_of
from passagent.evaluator.hardware.devices import find_device
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.runner import hostless
from passagent.evaluator.timing import estimate
from passagent.packages.deployed import compile_model
from passagent.packages.loading import Package
from passagent.packages.rewriting import explain_model
from passagent.tasks.extract.model_capture import Model

Outputs = dict[str, torch.Tensor]
"""Copies on the CPU, by their place in what a model returns: `output.logits`, `output[1]['key']`."""


def read_outputs(returned: Any, place: str = "output") -> Outputs:
    """The tensors in what a model returned: in tuples, dicts, dataclasses and nodes of torch's pytree."""
    outputs: Outputs = {}
    for path, value in pytree.tree_flatten_with_path(returned, _is_without_keys)[0]:
        where = place + pytree.keystr(path)
        if isinstance(value, torch.Tensor):
            outputs[where] = value.detach().cpu().clone()
        elif _is_without_keys(value):
            outputs |= read_outputs(list(pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0]), where)
        elif is_dataclass(value) and not isinstance(value, type):
            for part in fields(value):
                outputs |= read_outputs(getattr(value, part.name), f"{where}.{part.name}")
        elif isinstance(value, Mapping):
            outputs |= read_outputs(dict(value), where)
    return outputs


def _is_without_keys(value: Any) -> bool:
    node = pytree.SUPPORTED_NODES.get(type(value))
    return node is not None and node.flatten_with_keys_fn is None


def outputs_in_float64(model: Model) -> Outputs:
    """Return the model's outputs with all its floats carried in float64; nothing where it does not run so."""
    module, places, state = model.module, list[str](), dict[str, torch.Tensor]()
    if isinstance(module, torch.nn.Module):
        state = dict([*module.named_parameters(), *module.named_buffers()])
    leaves, spec = pytree.tree_flatten((state, model.args, model.kwargs))

    def forward(*values: Any) -> list[torch.Tensor]:
        state, args, kwargs = pytree.tree_unflatten(values, spec)
        if isinstance(module, torch.nn.Module):
            returned = torch.func.functional_call(module, state, args, kwargs)
        else:
            returned = module(*args, **kwargs)
        outputs = read_outputs(returned)
        places.extend(outputs)
        return list(outputs.values())

    try:
        values = in_float64(SimpleNamespace(forward=forward), leaves)  # type: ignore[arg-type]
    except Exception:  # a model's own code may raise anything where it meets another dtype
        values = None
    return dict(zip(places, values or [], strict=bool(values)))


def find_difference(eager: Outputs, exact: Outputs, got: Outputs) -> str:
    """Say where and by how much outputs differ from eager's; empty where they do not.

    As in the evaluator: infinities, NaN, integers and booleans are eager's; the error of floats against
    float64 is of the size of eager's own. Where float64 is not known, eager's values stand in its place.
    """
    if eager.keys() != got.keys():
        place = min(eager.keys() ^ got.keys())
        return f"{place} is returned by {'eager' if place in eager else 'it'} alone"
    for place, want in eager.items():
        have, compared = got[place], compare([want], [got[place]])
        if compared.problem:
            return compared.problem.replace("output 0", place)
        double = [exact[place]] if place in exact else None
        expected = Expected([want], [Fact(contiguous=True, device="cpu")], double)
        is_far = judge_precision([(expected, [have])]).kind != "right"
        worst = compared.worst if compared.passes_from_t is None or is_far else None
        if worst is None and double is not None:  # single values
            worst = first_beyond(0, want, room_of(want, double), have)
        if worst is not None:
            at = f"{place}{worst.index}" if worst.index else place
            return f"{at} is {worst.got:.6g}, eager's is {worst.expected:.6g}"
    return ""


Call = Callable[[], Any]
_WARM_UP, _BLOCKS, _BLOCK_S, _MOST_CALLS = 5, 20, 0.02, 50
"""Calls before anything is timed; blocks of each side, and what a block lasts."""
_GRAPHED = "eager in a CUDA graph"


@dataclass(frozen=True)
class Ratio:
    """How much faster the second side is, with its 95% interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f}x ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Measurement:
    """A model's times."""

    device: str
    us: dict[str, float]
    """Microseconds of a call of each side: the median over the blocks. With passes: that without, divided by
    the gain, which compares blocks that were timed one after the other."""
    gains: dict[str, Ratio]
    """Gains by mode: the faster of Inductor and eager, called in that way, over Inductor with passes."""
    passes: dict[str, Ratio]
    """For each pass that is used: all passes but this one against all of them; below 1 it does not pay."""
    unequal: list[str]
    """Sides whose outputs are not eager's, and where."""
    baselines: dict[str, str] = field(default_factory=dict)
    """For each mode the side that its gain is over."""
    left_out: list[str] = field(default_factory=list)
    """Sides that are not timed, and why."""
    best: str = ""
    """The fastest side without passes, whatever its mode."""
    over_best: Ratio | None = None
    """How much faster the fastest side with passes is than that."""
    unused: list[str] = field(default_factory=list)
    """Rewrites that fit nowhere in the model."""

    def baseline(self, mode: str) -> str:
        """Return the side that the gain of a mode is over, in words."""
        side = self.baselines.get(mode, mode)
        return f"Inductor ({mode})" if side == mode else side

    @property
    def losers(self) -> list[str]:
        """Passes without which the model is faster: the whole interval says so."""
        return [name for name, ratio in self.passes.items() if ratio.high < 1]

    def data(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "losers": self.losers}

    def __str__(self) -> str:
        lines = [f"{name:<36} {us:>10.1f} us" for name, us in self.us.items()]
        return "\n".join([*lines, *self.comparisons()])

    def comparisons(self) -> list[str]:
        """Lines: what is not timed, the gain of each mode, what each pass pays, whose outputs differ."""
        lines = [f"not timed: {side}" for side in self.left_out]
        lines += [f"{mode}: with passes {r} of {self.baseline(mode)}" for mode, r in self.gains.items()]
        if self.over_best is not None:
            lines.append(f"with passes {self.over_best} of the best without them: {self.best}")
        lines += [f"{name}: pays {ratio}" for name, ratio in self.passes.items()]
        return lines + [f"outputs are not eager's: {difference}" for difference in self.unequal]


def measure_model(
    model: Model,
    packages: Sequence[Package],
    modes: Sequence[str] | None = None,
    is_quick: bool = False,
    freezes: bool = False,
) -> Measurement:
    """Time a model. `modes` of Inductor: by default `default`, on a GPU `reduce-overhead` too.

    All sides take turns, in blocks of calls; with several passes the first mode is also timed without each of
    them. In the last mode Inductor is also timed frozen and with weights in channels_last, as rivals.
    `is_quick`: one mode, on a GPU in CUDA graphs, with all passes alone, and no rivals. What the model prints
    is dropped. Raises PassagentError where no pass is used, or the model returns no tensor.
    """
    leaves = pytree.tree_leaves((model.args, model.kwargs))
    if isinstance(model.module, torch.nn.Module):
        leaves += model.module.parameters()
    is_cuda = any(isinstance(value, torch.Tensor) and value.is_cuda for value in leaves)
    modes = list(modes or (["default", "reduce-overhead"] if is_cuda else ["default"]))
    modes = modes[-1:] if is_quick else modes
    first, left_out = f"{modes[0]} + passes", list[str]()
    with torch.no_grad(), redirect_stdout(io.StringIO()):
        sides: dict[str, Call] = {"eager": lambda: model.module(*model.args, **model.kwargs)}
        expected = read_outputs(sides["eager"]())
        if not expected:
            raise PassagentError(f"{model.name}: returns no tensor, so that nothing could be compared")
        explained = explain_model(model, packages)
        used = list(dict.fromkeys(match.name for match in explained.replaced))
        if not used:
            reasons = [f": {match.name}: {match.reason}" for match in explained.refused[:1]]
            raise PassagentError(f"no pass fits in the model{''.join(reasons)}; passagent explain says more")
        if is_cuda:
            left_out += _add_graph(sides)
        for mode in modes:
            sides[mode] = _compiled(model, mode, [])
            sides[f"{mode} + passes"] = _compiled(model, mode, packages, freezes)
        lacking = {f"{modes[0]}, without {name}": name for name in used if len(used) > 1 and not is_quick}
        for side, name in lacking.items():
            fewer = [without(package, [name]) for package in packages]
            sides[side] = _compiled(model, modes[0], fewer, freezes)
        exact = outputs_in_float64(model)
        with _compiles_apart(len(sides) + len(_RIVALS)):
            differing = {
                side: find_difference(expected, exact, read_outputs(call())) for side, call in sides.items()
            }
            for name, make in () if is_quick else _RIVALS.items():
                side = f"{modes[-1]}, {name}"
                try:
                    call = make(model, modes[-1])
                    problem = find_difference(expected, exact, read_outputs(call())) if call else ""
                except Exception as error:  # a rival costs itself alone
                    call, problem = None, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                if problem:
                    left_out.append(f"{side}: {problem}")
                elif call is not None:
                    sides[side] = call
            with DeviceLease(find_device("cuda:0" if is_cuda else "cpu")).exclusive() as share:
                times = _times(sides, is_cuda, share)
    us = {name: estimate.typical_ns(blocks) / 1e3 for name, blocks in times.items()}
    baselines = {mode: _faster(mode, times, is_cuda) for mode in modes}
    gains = {mode: _ratio(times[baselines[mode]], times[f"{mode} + passes"]) for mode in modes}
    us |= {f"{mode} + passes": us[baselines[mode]] / gain.ratio for mode, gain in gains.items()}
    with_passes = [f"{mode} + passes" for mode in modes]
    fastest = min(with_passes, key=us.__getitem__)
    best = min(us.keys() - {*with_passes, *lacking}, key=us.__getitem__)
    return Measurement(
        device=torch.cuda.get_device_name() if is_cuda else "cpu",
        us=us,
        gains=gains,
        passes={name: _ratio(times[side], times[first]) for side, name in lacking.items()},
        unequal=[f"{name}: {difference}" for name, difference in differing.items() if difference],
        left_out=left_out,
        best=best,
        over_best=None if is_quick else _ratio(times[best], times[fastest]),
        baselines=baselines,
        unused=[each.name for package in packages for each in package.rewrites if each.name not in used],
    )


def without(package: Package, names: Collection[str]) -> Package:
    """Return the package without some of its passes."""
    passes = [deployed for deployed in package.passes if deployed.name not in names]
    rewrites = [rewrite for rewrite in package.rewrites if rewrite.name not in names]
    remaining = [*(deployed.name for deployed in passes), *(rewrite.name for rewrite in rewrites)]
    content = [package.digest, *remaining]
    return replace(
        package,
        passes=passes,
        rewrites=rewrites,
        digest=hashlib.sha256("\n".join(content).encode()).hexdigest(),
    )


def _compiles_apart(count: int) -> AbstractContextManager[None]:
    """Let Dynamo compile so many sides of one model: beyond its limit for one function it runs eager."""
    limit = torch._dynamo.config.recompile_limit * count
    return torch._dynamo.config.patch(recompile_limit=limit, accumulated_recompile_limit=32 * limit)  # type: ignore[no-any-return]


def _compiled(model: Model, mode: str, packages: Sequence[Package], is_frozen: bool = False) -> Call:
    function = compile_model(model.module, packages, mode, is_frozen)
    return lambda: function(*model.args, **model.kwargs)


def _frozen(model: Model, mode: str) -> Call:
    """Compile the model with its parameters as constants. Nobody can load other weights into that."""
    return _compiled(model, mode, [], is_frozen=True)


def _channels_last(model: Model, mode: str) -> Call | None:
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
    return _compiled(replace(model, module=module, args=args, kwargs=kwargs), mode, [])


_RIVALS: dict[str, Callable[[Model, str], Call | None]] = {
    "frozen": _frozen,
    "channels_last": _channels_last,
}
"""Ways to compile a model that a user has without passes."""


def _add_graph(sides: dict[str, Call]) -> list[str]:
    """Add eager's replay in a CUDA graph to the sides; why there is none where it cannot be captured."""
    call = sides["eager"]
    try:
        graph, outputs = hostless.record(lambda: [call() for _ in range(_WARM_UP)], call)
    except RuntimeError as error:
        return [f"{_GRAPHED}: {error}"]

    def replay() -> Any:
        graph.replay()
        return outputs

    sides[_GRAPHED] = replay
    return []


def _times(sides: dict[str, Call], is_cuda: bool, share: Callable[[], float]) -> dict[str, list[list[int]]]:
    """Nanoseconds of the calls of each side's blocks. Sides take turns, each time in another order."""
    wait = torch.cuda.synchronize if is_cuda else lambda: None
    calls = {}
    for name, call in sides.items():
        took = [_timed(call, wait) for _ in range(_WARM_UP)]
        calls[name] = max(2, min(_MOST_CALLS, int(_BLOCK_S * 1e9 / min(took))))
    random, times = np.random.default_rng(0), dict[str, list[list[int]]]()
    for _ in range(_BLOCKS):
        for name in random.permutation(list(sides)).tolist():
            sides[name]()
            block = [_timed(sides[name], wait) for _ in range(calls[name])]
            times.setdefault(name, []).append(block)
            share()
    return {name: times[name] for name in sides}


def _timed(call: Call, wait: Callable[[], None]) -> int:
    wait()
    begun = time.perf_counter_ns()
    call()
    wait()
    return time.perf_counter_ns() - begun


def _ratio(slow: list[list[int]], fast: list[list[int]]) -> Ratio:
    logs = estimate.log_ratios(slow, fast)
    return Ratio(estimate.ratio(logs), *estimate.interval(logs))


def _faster(mode: str, times: dict[str, list[list[int]]], is_cuda: bool) -> str:
    """The faster of Inductor and eager, called as a mode calls: in a CUDA graph or not."""
    from torch._inductor import list_mode_options

    eager = _GRAPHED if is_cuda and list_mode_options(mode).get("triton.cudagraphs") else "eager"
    return min(
        (side for side in (mode, eager) if side in times),
        key=lambda side: _ratio(times[side], times[f"{mode} + passes"]).ratio,
    )
