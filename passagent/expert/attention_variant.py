"""A region of attention as a kernel with what its host code computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from passagent.expert.attention_lower import lower_attention
from passagent.expert.attention_text import attention_kernel
from passagent.expert.choices import Plan
from passagent.expert.expressions import Unsupported
from passagent.expert.graph import example
from passagent.expert.lower import Parameter, Region, Types
from passagent.expert.wording import conditions, simplified
from passagent.expert.wrapper import Variant
from passagent.kernels.layout import Order


@dataclass(frozen=True)
class Layout:
    """How the inputs lie in memory, and how eager's output does."""

    inputs: list[Order]
    output: Order


def variant(
    region: Region,
    name: str,
    names: list[str],
    parameters: Sequence[Parameter],
    types: list[Types],
    layout: Layout,
    plan: Plan,
) -> Variant:
    """The kernel of an attention. Raises Unsupported."""
    low = lower_attention(region, parameters, types, layout.inputs)
    told = [p.name for p in parameters]
    kernel, shape = attention_kernel(low, name, names, told, layout.output, plan.stages)
    count = len(region.inputs)
    input_dtypes = tuple(low.trace.dtypes[:count])
    generic = next((k for k in kernel.inputs if input_dtypes[k] == "half"), None)
    dtype = low.output.dtype
    if generic is None and dtype == "half":
        raise Unsupported("dtype", "no input tells the 16-bit type of the result")
    kernel.sizes = [simplified(size) for size in kernel.sizes]
    given = "" if generic is None else str(example(region.inputs[generic]).dtype).removeprefix("torch.")
    return Variant(
        kernel,
        conditions(low.trace.guards),
        [[simplified(size) for size in shape]],
        [dtype],
        [None],
        generic,
        input_dtypes,
        (given,) if given else (),
        tuple(len(sizes) for sizes in low.trace.inputs[:count]),
        [layout.output],
        [""],
    )
