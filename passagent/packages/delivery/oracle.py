"""`test_passes.py`: each pass against its own pattern, which eager runs on values like those of the task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import black
import torch
from torch import fx

from passagent.errors import UsageError
from passagent.evaluator.candidate import TESTS
from passagent.evaluator.result import EXACT_T
from passagent.evaluator.score import tolerance
from passagent.packages.loading import never_called
from passagent.plan.messages import Subgraph
from passagent.plan.model import Recording
from passagent.plan.recorded_pattern import Bindings, planned_passes, replace_calls
from passagent.tasks.graphio import load_graph
from passagent.tasks.inputs import make_inputs
from passagent.tasks.reader import Task

_TOLERANT = ("bfloat16", "complex64", "float16", "float32", "float64")
Cases = dict[str, dict[str, str]]
"""For each pass and case the parameters of its pattern, as Python text."""


class Described(str):
    """A tensor that eager computed, as the text that draws one like it in the test."""


def read_cases(recording: Recording, subgraphs: Sequence[Subgraph], task: Task, device: str) -> Cases:
    """Return for every pass the values that each match gives it, those that read alike once.

    `subgraphs` are those of `task`; eager runs on `device`. Raises UsageError where it cannot, ValueError for
    what cannot be written as Python.
    """
    passes = planned_passes(recording)
    cases: Cases = {recorded.name: {} for recorded in passes}
    for subgraph, source in zip(subgraphs, task.subgraphs, strict=True):
        graph_module = load_graph(subgraph.nodes)
        inputs = make_inputs(source, device, 0)
        try:
            _Describing(graph_module).run(*(inputs[place] for place in subgraph.order))
        except (RuntimeError, NotImplementedError) as error:
            why = str(error).splitlines()[0][:200]
            raise UsageError(f"{subgraph.name}: eager does not run on {device} here: {why}") from error
        calls = recording.calls_of(subgraph.name)

        def keep(position: int, bindings: Bindings, calls: Any = calls, case: str = subgraph.name) -> Any:
            planned = passes[calls[position].number]
            parameters = (str(node.target) for node in planned.pattern_graph.find_nodes(op="placeholder"))
            text, kept = _written({name: bindings[name] for name in parameters}), cases[planned.name]
            if text not in kept.values():
                while case in kept:
                    case += " again"
                kept[case] = text
            return never_called, tuple(bindings.values())

        replace_calls(graph_module.graph, passes, calls, keep)
    return cases


class _Describing(fx.Interpreter):
    """Runs a graph; each node then knows what its value is like, and a call in its place inherits that."""

    def run_node(self, n: fx.Node) -> Any:
        """The node's value."""
        value = super().run_node(n)
        n.meta["example_value"] = describe(value)
        return value


def describe(value: Any) -> Any:
    """Return a tensor as Described, also inside lists and tuples, and anything else as it is."""
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    shape, stride = tuple(value.shape), value.stride()
    overlaps = any(not step and size > 1 for size, step in zip(shape, stride, strict=True))
    is_plain = overlaps or stride == torch.empty(shape, device="meta").stride()
    fields = [repr(shape), str(value.dtype), *_distribution(value.detach().reshape(-1))]
    return Described(f"Input({', '.join([*fields, *([] if is_plain else [f'stride={stride!r}'])])})")


def _distribution(flat: torch.Tensor) -> list[str]:
    """Return the fields of the test's Input for elements like these."""
    is_float = flat.is_floating_point()
    if flat.dtype == torch.bool or flat.is_complex() or bool(flat.isnan().any()):
        return []
    if not flat.numel():
        return [] if is_float else ["least=0", "most=0"]
    low, high = (end.item() for end in flat.aminmax())
    if is_float and low == high and flat.numel() > 1 and math.isfinite(low):
        # a weight of ones or a bias of zeros: a pass that leaves it out is to be found
        return [_number(field) for field in (low, 0.2, low - 0.5, low + 0.5)]
    if bool(((flat == low) | (flat == high)).all()):
        return [f"either=({', '.join(map(_number, dict.fromkeys((low, high))))},)"]
    if not is_float:
        return [f"least={low}", f"most={high}"]
    finite = flat[flat.isfinite()].float()
    moments = (finite.mean(), finite.std(correction=0), finite.min(), finite.max())
    return [_number(float(f"{float(moment):.3g}")) for moment in moments]


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'


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


def test_text(cases: Cases, device: str, needs: str, levels: Iterable[int | None]) -> str:
    """Return the text of the test.

    `needs`: what it takes, in words. `levels`: the smallest t at which each subgraph was right; the
    loosest of them and t = -5 is the test's.
    """
    level = max([EXACT_T, *(t for t in levels if t is not None)])
    kind = device.partition(":")[0]
    tolerances = ", ".join(
        f"torch.{dtype}: ({atol:.3g}, {rtol:.3g})"
        for dtype in _TOLERANT
        for atol, rtol in [tolerance(dtype, level)]
    )
    table = ", ".join(
        f"{name!r}: {{{', '.join(f'{case!r}: {text}' for case, text in texts.items())}}}"
        for name, texts in cases.items()
        if texts
    )
    head = _HEAD.format(needs=needs, name=TESTS, device=kind, tolerances=f"{{{tolerances}}}", level=level)
    explained = '"""For each pass and subgraph what the parameters of the pattern are given."""'
    gpu = _ON_A_GPU if kind == "cuda" else ""
    text = f"{head}{gpu}{_INPUT}\n\nCASES = {{{table}}}\n{explained}\n{_TAIL}"
    return black.format_str(text, mode=black.Mode())


def _written(value: Any) -> str:
    """Return a value as Python text. Raises ValueError if it has none."""
    match value:
        case fx.Node():
            return _written(value.meta["example_value"])
        case Described():
            return str(value)
        case dict():
            return f"{{{', '.join(f'{key!r}: {_written(item)}' for key, item in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(_written(item) for item in value)}]"
        case torch.device():
            return "torch.device(DEVICE)"
        case float():
            return _number(value)
        case slice():
            bounds = (value.start, value.stop, value.step)
            return f"slice({', '.join(_written(bound) for bound in bounds)})"
        case torch.dtype() | torch.memory_format() | torch.layout():
            return str(value)
        case None | bool() | int() | str() | complex():
            return repr(value)
    raise ValueError(f"a pattern is given a {type(value).__name__}")
