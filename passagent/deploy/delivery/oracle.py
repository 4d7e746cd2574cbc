"""`test_passes.py`: each pass against its own pattern, which eager runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import black
import torch

from passagent.deploy.delivery.seen_values import Like, Sample
from passagent.evaluator.candidate import TESTS
from passagent.evaluator.result import EXACT_T
from passagent.evaluator.score import tolerance

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
