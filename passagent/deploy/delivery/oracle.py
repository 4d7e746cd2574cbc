"""`test_passes.py`: each pass against its own pattern, which eager runs on values like those of the task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import black
import torch
from torch import fx

from passagent.errors import UsageError
from passagent.evaluator.candidate import TESTS
from passagent.evaluator.matching.rewrite import PlannedPass, apply_passes
from passagent.evaluator.result import EXACT_T
from passagent.evaluator.score import tolerance
from passagent.plan.messages import Subgraph
from passagent.plan.model import Recording
from passagent.plan.recorded_pattern import pattern_graph
from passagent.tasks.graphio import load_graph
from passagent.tasks.inputs import make_inputs
from passagent.tasks.reader import Subgraph as TaskSubgraph


@dataclass(frozen=True)
class Like:
    """A tensor like one that eager computed."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """In elements."""
    dtype: str
    mean: float = 0.0
    deviation: float = 0.0
    least: float = 0.0
    most: float = 0.0
    """The largest of the finite values."""
    either: tuple[float, ...] = ()
    """Its values, if there are no more than two: a mask."""


@dataclass(frozen=True)
class Sample:
    """Values that a match binds to a pattern's parameters: tensors (`Like`), lists of them, constants."""

    name: str
    """Name of the pass."""
    subgraph: str
    given: dict[str, Any]


def samples(
    recording: Recording, subgraphs: Sequence[Subgraph], sources: Sequence[TaskSubgraph], device: str
) -> list[Sample]:
    """For every pass, each combination of shapes and dtypes that it is given, once, and where that was.

    `subgraphs` and `sources` are the same ones; eager runs on `device`. Raises UsageError where it cannot.
    """
    passes = [PlannedPass(one.name, one.file, pattern_graph(one.pattern)) for one in recording.passes]
    found: dict[str, Sample] = {}
    for subgraph, source in zip(subgraphs, sources, strict=True):
        bound = _bound(subgraph, passes)
        wanted = {name for _, bindings in bound for value in bindings.values() for name in _names(value)}
        watching = _Watching(load_graph(subgraph.nodes), wanted)
        inputs = make_inputs(source, device, 0)
        try:
            watching.run(*(inputs[place] for place in subgraph.order))
        except (RuntimeError, NotImplementedError) as error:
            why = str(error).splitlines()[0][:200]
            raise UsageError(f"{subgraph.name}: eager does not run on {device} here: {why}") from error
        for pass_name, bindings in bound:
            given = {name: _told(value, watching.seen) for name, value in bindings.items()}
            found.setdefault(repr((pass_name, _shapes(given))), Sample(pass_name, subgraph.name, given))
    order = [one.name for one in passes]
    return sorted(found.values(), key=lambda sample: order.index(sample.name))


@dataclass(frozen=True)
class _Of:
    """The value of a node of the captured graph."""

    node: str


def _bound(subgraph: Subgraph, passes: Sequence[PlannedPass]) -> list[tuple[str, dict[str, Any]]]:
    """For every match its pass, and what the parameters of the pattern are bound to, nodes as `_Of`."""
    graph_module = load_graph(subgraph.nodes)
    for node in graph_module.graph.nodes:
        node.meta["example_value"] = _Of(node.name)  # what replaces a node is given its
    found: list[tuple[str, dict[str, Any]]] = []
    for one in passes:
        parameters = [str(node.target) for node in one.pattern_graph.find_nodes(op="placeholder")]

        def kept(bindings: dict[str, Any], name: str = one.name, order: list[str] = parameters) -> Any:
            found.append((name, {parameter: _nodes_as_names(bindings[parameter]) for parameter in order}))
            return _stands_for_a_call, tuple(bindings.values())

        apply_passes(graph_module, [one], replacement=kept)
    return found


def _stands_for_a_call(*_: Any) -> None:
    raise AssertionError("a rewritten graph is not run here")


def _nodes_as_names(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return value.meta["example_value"]
    return [_nodes_as_names(item) for item in value] if isinstance(value, list | tuple) else value


def _names(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for item in value for name in _names(item)]
    return [value.node] if isinstance(value, _Of) else []


class _Watching(fx.Interpreter):
    """Runs a graph and notes what the values of some nodes are like when they are made."""

    def __init__(self, graph_module: fx.GraphModule, wanted: set[str]) -> None:
        super().__init__(graph_module)
        self.wanted = wanted
        self.seen: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """The node's value."""
        value = super().run_node(n)
        if n.name in self.wanted:
            self.seen[n.name] = like(value)
        return value


def like(value: Any) -> Any:
    """A tensor as `Like`, also inside lists and tuples; anything else as it is."""
    if isinstance(value, list | tuple):
        return [like(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    dtype = str(value.dtype).removeprefix("torch.")
    shape, stride = tuple(value.shape), tuple(value.stride())
    flat = value.detach().reshape(-1)
    if value.is_complex() or not flat.numel() or flat.isnan().any():
        return Like(shape, stride, dtype, deviation=1.0)
    if value.dtype == torch.bool:
        return Like(shape, stride, dtype)
    least, most = flat.aminmax()
    low, high = least.item(), most.item()
    if low == high and flat.numel() > 1 and value.is_floating_point() and math.isfinite(low):
        # a weight of ones or a bias of zeros: a pass that leaves it out is to be found
        return Like(shape, stride, dtype, low, 0.2, low - 0.5, low + 0.5)
    if bool(((flat == least) | (flat == most)).all()):
        return Like(shape, stride, dtype, either=tuple(dict.fromkeys((low, high))))
    finite = flat[flat.isfinite()].float()
    mean, spread = float(finite.mean()), float(finite.std(correction=0))
    if value.is_floating_point():
        low, high = _short(float(finite.min())), _short(float(finite.max()))
    return Like(shape, stride, dtype, _short(mean), _short(spread), low, high)


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def _told(value: Any, seen: dict[str, Any]) -> Any:
    """Return a parameter's value, nodes by what eager made there."""
    if isinstance(value, list):
        return [_told(item, seen) for item in value]
    return seen[value.node] if isinstance(value, _Of) else value


def _shapes(given: Any) -> Any:
    if isinstance(given, Like):
        return given.shape, given.stride, given.dtype
    if isinstance(given, dict):
        return {name: _shapes(value) for name, value in given.items()}
    return [_shapes(item) for item in given] if isinstance(given, list) else given


NAME = TESTS

_HEAD = '''\
"""Each pass against its own pattern, which eager runs: shapes, dtypes and values are those of the task.

It takes {needs}: `pytest {name}`.
"""

import importlib
import zlib
from typing import NamedTuple

import pytest
import torch

DEVICE = "{device}"
TOLERANCES = {tolerances}
"""(atol, rtol) for each dtype: PassNet's at t = {level}. Other dtypes must be equal.

In 16 bits eager rounds between its operators: one rounding of the largest value is allowed.
"""
'''

_INPUT = '''

class Input(NamedTuple):
    """A tensor to draw: normal, within bounds; or one of the values of `either` for each element."""

    shape: tuple
    dtype: torch.dtype
    mean: float = 0.0
    deviation: float = 1.0
    least: float = -float("inf")
    most: float = float("inf")
    either: tuple = ()
    stride: tuple | None = None
'''

_TAIL = '''

def drawn(given, generator):
    """The tensor, number or list that a parameter of a pattern is given."""
    if isinstance(given, list):
        return [drawn(one, generator) for one in given]
    if not isinstance(given, Input):
        return given
    if given.either:
        values = torch.tensor(given.either, dtype=given.dtype)
        tensor = values[torch.randint(len(values), given.shape, generator=generator)]
    elif given.dtype.is_floating_point or given.dtype.is_complex:
        dtype = torch.complex64 if given.dtype.is_complex else torch.float32
        tensor = torch.randn(given.shape, generator=generator, dtype=dtype)
        tensor = tensor * given.deviation + given.mean
        if not given.dtype.is_complex:
            tensor = tensor.clamp(given.least, given.most)
    elif given.dtype == torch.bool:
        tensor = torch.randint(2, given.shape, generator=generator)
    else:
        least, most = int(given.least), int(given.most)
        tensor = torch.randint(least, most + 1, given.shape, generator=generator)
    tensor = tensor.to(DEVICE, given.dtype)
    if given.stride is None:
        return tensor
    laid = torch.empty_strided(
        given.shape, given.stride, dtype=given.dtype, device=DEVICE
    )
    return laid.copy_(tensor)


def given_to(name, case):
    """The parameters of the pass's pattern; equal at every call."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {case}".encode()))
    return {
        parameter: drawn(one, generator) for parameter, one in CASES[name][case].items()
    }


def allowed(want):
    """(atol, rtol) of a result."""
    atol, rtol = TOLERANCES.get(want.dtype, (0.0, 0.0))
    if want.dtype in (torch.float16, torch.bfloat16) and want.numel():
        largest = want.nan_to_num(posinf=0.0, neginf=0.0).abs().max().item()
        atol = max(atol, torch.finfo(want.dtype).eps * largest)
    return atol, rtol


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name in CASES for case in CASES[name]]
)
def test_a_pass_computes_what_its_pattern_does(name, case):
    module = importlib.import_module(name)
    with torch.no_grad():
        expected = module.pattern(**given_to(name, case))
        arguments = module.replacement_args(**given_to(name, case))
        got = module.replacement_func()(*arguments)
    expected = expected if isinstance(expected, (tuple, list)) else (expected,)
    got = got if isinstance(got, (tuple, list)) else (got,)
    assert len(got) == len(expected)
    for have, want in zip(got, expected):
        atol, rtol = allowed(want)
        torch.testing.assert_close(have, want, atol=atol, rtol=rtol, equal_nan=True)
'''

_ON_A_GPU = """

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="the kernels run on a CUDA GPU"
)
"""


def test_text(samples: Sequence[Sample], device: str, needs: str, levels: Iterable[int | None]) -> str:
    """The test file.

    `needs`: what it takes, in words. `levels`: the smallest t at which each subgraph was right; the
    loosest of them and t = -5 is the test's.
    """
    level = max([EXACT_T, *(one for one in levels if one is not None)])
    kind = device.partition(":")[0]
    cases: dict[str, dict[str, str]] = {}
    dtypes: set[str] = set()
    for sample in samples:
        own = cases.setdefault(sample.name, {})
        name = sample.subgraph
        while name in own:
            name += " again"
        own[name] = _written(sample.given)
        dtypes |= set(_dtypes(sample.given))
    tolerances = ", ".join(
        f"torch.{dtype}: ({atol:.3g}, {rtol:.3g})"
        for dtype in sorted(dtypes | {"float32"})
        for atol, rtol in [tolerance(dtype, level)]
        if atol
    )
    table = ", ".join(
        f"{name!r}: {{{', '.join(f'{case!r}: {text}' for case, text in own.items())}}}"
        for name, own in cases.items()
    )
    head = _HEAD.format(needs=needs, name=NAME, device=kind, tolerances=f"{{{tolerances}}}", level=level)
    explained = '"""For each pass and subgraph what the parameters of the pattern are given."""'
    gpu = _ON_A_GPU if kind == "cuda" else ""
    text = f"{head}{gpu}{_INPUT}\n\nCASES = {{{table}}}\n{explained}\n{_TAIL}"
    return black.format_str(text, mode=black.Mode())


def _written(value: Any) -> str:
    """A value as Python text. Raises ValueError for what has none."""
    match value:
        case Like():
            return f"Input({', '.join(_fields(value))})"
        case dict():
            return f"{{{', '.join(f'{key!r}: {_written(one)}' for key, one in value.items())}}}"
        case list():
            return f"[{', '.join(map(_written, value))}]"
        case torch.device():
            return "torch.device(DEVICE)"
        case float():
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        case slice():
            return f"slice({_written(value.start)}, {_written(value.stop)}, {_written(value.step)})"
        case torch.dtype() | torch.memory_format() | torch.layout():
            return str(value)
        case None | bool() | int() | str() | complex():
            return repr(value)
    raise ValueError(f"a pattern is given a {type(value).__name__}")


def _fields(value: Like) -> list[str]:
    fields = [repr(value.shape), f"torch.{value.dtype}"]
    dtype = getattr(torch, value.dtype)
    if value.either:
        fields.append(f"either=({', '.join(map(_written, value.either))},)")
    elif dtype.is_floating_point:
        fields += map(_written, (value.mean, value.deviation, value.least, value.most))
    elif dtype != torch.bool:
        fields += [f"least={int(value.least)}", f"most={int(value.most)}"]
    overlaps = any(not step and n > 1 for n, step in zip(value.shape, value.stride, strict=True))
    if value.stride != _dense(value.shape) and not overlaps:
        fields.append(f"stride={value.stride!r}")
    return fields


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    step, strides = 1, list[int]()
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


def _dtypes(value: Any) -> list[str]:
    if isinstance(value, Like):
        return [value.dtype]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [dtype for one in inner for dtype in _dtypes(one)]
