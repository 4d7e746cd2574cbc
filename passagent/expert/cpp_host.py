"""The host side of a pass for the CPU: a plan and a cpp_kernel for each kernel."""

from __future__ import annotations

import re

from passagent.expert.cuda_host import arguments, complaint, guards, made, output_names
from passagent.expert.wrapper import Route, Variant, enclosed, order_text


def kernel_lines(route: Route, v: Variant, name: str) -> list[str]:
    """The plan `_plan<name>` and the kernel `name` of a variant."""
    lines = _plan(route, v, f"_plan{name}")
    order = order_text(route, arguments(route, v))
    source = v.kernel.source.rstrip().splitlines()
    return [
        *lines,
        "",
        "",
        f"{name} = cpp_kernel(",
        '    r"""',
        *source,
        '""",',
        f'    "{v.kernel.name}",',
        f"    _plan{name},",
        *([f"    {order},"] if order else []),
        ")",
    ]


def _plan(route: Route, v: Variant, name: str) -> list[str]:
    inputs = [route.inputs[k] for k in v.kernel.inputs]
    lines = ["", "", f"def {name}({', '.join(arguments(route, v))}):"]
    lines.append('    """Outputs and sizes for these shapes; called once for each."""')
    shapes = [f"s{k}" for k in v.kernel.inputs]
    checks = []
    if len(route.variants) == 1 and shapes:
        checks = [f"    if not {enclosed(guards(v, v.kernel.inputs))}:"]
        checks.append(f"        raise RuntimeError({complaint(route.name, shapes)})")
    outputs = ", ".join(f'"{out}": {made(route, v, k)}' for k, out in enumerate(output_names(v)))
    sizes = ", ".join(f'"n{k}": {text}' for k, text in enumerate(v.kernel.sizes))
    body = [*checks, f"    return {{{outputs}}}, {{{sizes}}}"]
    spoken = set(re.findall(r"\bs\d+\b", "\n".join(body)))
    used = {s: f"{x}.shape" for s, x in zip(shapes, inputs, strict=True) if s in spoken}
    return [*lines, *([f"    {', '.join(used)} = {', '.join(used.values())}"] if used else []), *body]
