"""Float32 arithmetic on CUDA in the cheapest form that keeps t = -5 (1.3e-6 of a value, plus 1e-5).

An error of a few units in the last place is inside that tolerance, but not where a value decides something:
below a comparison, a rounding to integers, a position. Nor in a mean, from which equal elements must differ
by nothing. There and in float64 operations are eager's own, as in what is computed once a row.
`tests/test_expert_arithmetic.py` holds the cheap forms against eager's with the errors that PTX states.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from passagent.expert.graph import example, op_name
from passagent.expert.lower.call import FLOATING
from passagent.expert.lower.expressions import Expr, parts
from passagent.expert.lower.region import Region

EXACT = {"div": "tl.div_rn({0}, {1})", "exp_added": "libdevice.exp({0})"}
"""Rounded to nearest (exp: two units), by ten instructions or so."""

CHEAP = {"div": "{0} / {1}", "exp_added": "tl.exp({0})"}
"""One or two instructions. div.full.f32: two units; exp: a power of two, which is off by 2^-24 of the value
for each unit of its argument. So it is taken only where it is added to something larger (a sum of powers,
1 + exp(-x)), which is then as exact as ever. A cheap square root, which makes 0 of small numbers, is not."""

_DECIDING = {"bits", "floor", "ceil", "rint", "eq", "ne", "lt", "le", "gt", "ge"}
_ROUNDING = {"floor", "ceil", "round", "trunc", "fix", "frac", "remainder", "fmod", "mod", "floordiv"}
_ROUNDING |= {"sign", "sgn"}


def deciding(exprs: Iterable[Expr]) -> set[Expr]:
    """Find the parts of comparisons, roundings and integers: their last place can change a whole result."""
    deciding_parts: dict[Expr, None] = {}
    for e in parts(*exprs):
        to_integer = e.data == "cast" and e.dtype not in FLOATING and e.args[0].dtype in FLOATING
        if e.kind == "op" and (e.data in _DECIDING or to_integer):
            deciding_parts |= parts(*e.args)
    return set(deciding_parts)


def is_mean(e: Expr) -> bool:
    """Tell whether an expression is a mean: a sum that is divided."""
    above = e.args[0]
    while above.data in {"cast", "as_half"}:
        above = above.args[0]
    return e.data == "div" and above.kind == "reduce"


def decides_later(region: Region) -> bool:
    """Tell whether something that the graph computes from a region's results rounds or chooses by them."""
    waiting, visited = [*region.outputs], set[fx.Node](region.outputs)
    while waiting:
        for user in waiting.pop().users:
            if user.op == "output" or user in visited:
                continue
            visited.add(user)
            waiting.append(user)
            dtype = getattr(example(user), "dtype", None)
            if op_name(user) in _ROUNDING or (dtype is not None and not dtype.is_floating_point):
                return True
    return False
