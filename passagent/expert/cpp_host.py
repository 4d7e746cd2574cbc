"""The host side of a pass for the CPU: a plan and a cpp_kernel for each kernel."""

from __future__ import annotations

import re

from passagent.expert.cuda_host import alike, arguments, complaint, guards, made, output_names
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
    shapes, dtypes = [f"s{k}" for k in v.kernel.inputs], [f"d{k}" for k in v.kernel.inputs]
    checks = []
    if len(route.variants) == 1 and shapes:
        tests = [*guards(v, v.kernel.inputs), *alike(v, v.kernel.inputs)]
        checks = [f"    if not {enclosed(tests)}:"]
        checks.append(f"        raise RuntimeError({complaint(route.name, shapes, dtypes)})")
    outputs = ", ".join(f'"{out}": {made(route, v, k)}' for k, out in enumerate(output_names(v)))
    sizes = ", ".join(f'"n{k}": {text}' for k, text in enumerate(v.kernel.sizes))
    body = [*checks, f"    return {{{outputs}}}, {{{sizes}}}"]
    spoken = set(re.findall(r"\b[sd]\d+\b", "\n".join(body)))
    for names, what in ((shapes, "shape"), (dtypes, "dtype")):
        used = {name: f"{x}.{what}" for name, x in zip(names, inputs, strict=True) if name in spoken}
        lines += [f"    {', '.join(used)} = {', '.join(used.values())}"] if used else []
    return [*lines, *body]
