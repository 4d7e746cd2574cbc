"""What regions and passes are called."""

from __future__ import annotations

import re

from passagent.expert import wrapper
from passagent.expert.graph import op_name
from passagent.expert.lower import Region

_QUIET = {
    "getitem",
    "view",
    "reshape",
    "contiguous",
    "to",
    "dropout",
    "unsqueeze",
    "squeeze",
    "expand",
    "float",
    "flatten",
}
_QUIET |= {"type_as", "permute", "transpose", "detach", "expand_as"}
_SPOKEN = {
    "iadd": "add",
    "imul": "mul",
    "isub": "sub",
    "truediv": "div",
    "itruediv": "div",
    "adaptive_avg_pool2d": "pool",
}


def title(region: Region) -> str:
    """The operators that say what a region does, such as `add + layer_norm`."""
    spoken = [
        _SPOKEN.get(op_name(n), op_name(n).strip("_")) for n in region.nodes if op_name(n) not in _QUIET
    ]
    spoken = spoken or [op_name(n) for n in region.nodes]
    short = [w for k, w in enumerate(spoken) if k == 0 or spoken[k - 1] != w]
    return " + ".join(short if len(short) <= 6 else [*short[:3], "...", *short[-2:]])


def kind(route: wrapper.Route | wrapper.ViewRoute) -> str:
    if not isinstance(route, wrapper.Route):
        return "as views, without a kernel"
    most = 1 + max(len(v.before) for v in route.variants)
    return "in one kernel" if most == 1 else f"in {most} kernels"


def identifier(region: Region) -> str:
    words = [w for w in re.sub(r"\W+", " ", title(region)).split() if w]
    return "_".join(["fused", *words])


def pass_name(name: str) -> str:
    return "Fuse" + "".join(w.capitalize() for w in name.removeprefix("fused_").split("_"))
