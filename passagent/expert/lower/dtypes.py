"""Names of dtypes in expressions, and in what each is computed."""

from __future__ import annotations

import math

import torch

from passagent.expert.lower.symbolic_sizes import Unsupported

HALF = {torch.float16, torch.bfloat16}
"""Stored in 16 bits, computed in float32; both are `half` in an expression, so one kernel serves the two."""

HALVES = {"half", "float16", "bfloat16"}
"""Names of 16-bit types: the one that the call's inputs have, and those that a literal names."""

FLOATING = {*HALVES, "float32", "float64"}
COMPUTE = {**dict.fromkeys(HALVES, "float32"), "float32": "float32", "float64": "float64", "bool": "bool"}
"""The type that arithmetic on a dtype is done in; integers in int64."""
INTEGERS = {"int64", "int32", "int16", "int8", "uint8"}


def dtype_name(dtype: torch.dtype) -> str:
    """`float16`, `float32`, `int64`, `bool`, ... Raises Unsupported for complex and quantised types."""
    name = str(dtype).removeprefix("torch.")
    if name in {*COMPUTE, *INTEGERS} - {"half"}:
        return name
    raise Unsupported("dtype", name)


def compute_type(dtype: str) -> str:
    return COMPUTE.get(dtype, "int64")


def holds(dtype: str, number: float) -> bool:
    """Tell whether elements of a dtype, `half` being either, hold a number exactly."""
    stored = [torch.tensor(number).to(d) for d in (HALF if dtype in HALVES else [getattr(torch, dtype)])]
    return math.isnan(number) or all(value.item() == number for value in stored)
