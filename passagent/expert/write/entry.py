"""The files of passes: families of regions with one pattern, and a region's function, which calls kernels."""

from __future__ import annotations

import copy
import json
import operator
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from passagent.evaluator.matching.loaded_passes import PlannedPass
from passagent.evaluator.matching.matcher import first_match
from passagent.evaluator.matching.pattern import trace_pattern
from passagent.evaluator.matching.rewrite import replace_match
from passagent.evaluator.result import MANIFEST
from passagent.expert.choices import Plan
from passagent.expert.graph import arguments, example, op_name, words
from passagent.expert.lower import Parameter, Region
from passagent.expert.read import pattern_text
from passagent.expert.read.fusible_regions import does_nothing
from passagent.expert.read.pattern_text import write_pattern
from passagent.expert.write.cuda_grid import helpers
from passagent.expert.write.routes import (
    Route,
    accepted,
    complaint,
    cpp_kernel_lines,
    dtype_test,
    guards,
    joined,
    kernel_arguments,
    kernel_lines,
    output_names,
    taken,
    tuple_text,
)


@dataclass
class Family:
    """Regions of several graphs that one pattern matches."""

    regions: list[Region]
    parameters: list[Parameter]
    names: dict[fx.Node, str]
    """Names of the first region's inputs and nodes."""


def named(region: Region, family: Family) -> dict[str, Any]:
    """The arguments of a family's region: shapes of its inputs, values of the pattern's parameters."""
    args: dict[str, Any] = {p.name: dict(arguments(region.nodes[p.node]))[p.path] for p in family.parameters}
    for first, node in zip(family.regions[0].inputs, region.inputs, strict=True):
        value = example(node)
        args[family.names[first]] = tuple(value.shape) if isinstance(value, torch.Tensor) else value
    return args


def view_lines(family: Family) -> list[str]:
    """The operators of a region that computes nothing, without those that do nothing."""
    region, names = family.regions[0], dict(family.names)
    skipped = list(filter(does_nothing, region.nodes))
    for node in skipped:
        names[node] = names[node.all_input_nodes[0]]
    lines = pattern_text.operator_lines(region, family.parameters, names, skipped)
    return [*lines, f"    return {', '.join(names[o] for o in region.outputs)}"]


def matching(families: Sequence[Family], graphs: Sequence[fx.Graph]) -> list[bool]:
    """Tell for each family whether its pass matches in a graph, after the passes before it."""
    passes = []
    for number, family in enumerate(families):
        text = "\n".join(write_pattern(family.regions[0], family.parameters, family.names))
        names: dict[str, Any] = {"torch": torch, "operator": operator}
        exec(text, names)
        passes.append(PlannedPass(str(number), "", trace_pattern(names["pattern"], text, "pattern")))
    matches = [False] * len(passes)
    for graph in map(copy.deepcopy, graphs):
        for number, loaded in enumerate(passes):
            while (match := first_match(loaded.pattern_graph, graph)) is not None:
                replace_match(graph, loaded, match, _replaced, tuple(match.bindings.values()))
                matches[number] = True
    return matches


def _replaced(*_: Any) -> None:
    """Stands in a graph for a pass's function."""


_QUIET = words("""
    getitem view reshape flatten contiguous to float type_as dropout detach
    unsqueeze squeeze expand expand_as permute transpose
""")
_SPOKEN = {"iadd": "add", "imul": "mul", "isub": "sub", "truediv": "div", "itruediv": "div"}
_SPOKEN["adaptive_avg_pool2d"] = "pool"


def title(region: Region) -> str:
    """The operators that say what a region does, such as `add + layer_norm`."""
    names = list(map(op_name, region.nodes))
    spoken = [_SPOKEN.get(name, name.strip("_")) for name in names if name not in _QUIET] or names
    short = [w for k, w in enumerate(spoken) if k == 0 or spoken[k - 1] != w]
    return " + ".join(short if len(short) <= 6 else [*short[:3], "...", *short[-2:]])


def identifier(region: Region) -> str:
    return "_".join(["fused", *re.findall(r"\w+", title(region))])


def module_lines(routes: Sequence[Route], plan: Plan, entry: str, target: str) -> list[str]:
    """All kernels, and `entry`: the region's function; where there are several, a name chooses."""
    calls: dict[str, list[str]] = {}
    lines: list[str] = []
    for route in routes:
        name = f"_{route.name}_kernel"
        calls[route.name] = []
        if target == "cuda" and route.variants:  # one kernel for all: its plan chooses
            lines += kernel_lines(route, name)
            calls[route.name].append(f"{name}({', '.join(taken(route))})")
            continue
        for k, v in enumerate(route.variants):
            own_name = f"{name}{k + 1}" if len(route.variants) > 1 else name
            lines += cpp_kernel_lines(route, v, own_name)
            calls[route.name].append(f"{own_name}({', '.join(kernel_arguments(route, v))})")
    lines = [*helpers("\n".join(lines), plan.block, plan.warps), *lines]
    if len(routes) == 1:
        return [*lines, *entry_lines(routes[0], calls[entry], entry, public=True)]
    direct: dict[str, str] = {}
    for route in routes:
        plain = not (route.moves or route.library or any(_returned(route)))
        if plain and len(calls[route.name]) == 1:
            direct[route.name] = calls[route.name][0].partition("(")[0]
        else:
            direct[route.name] = f"_{route.name}"
            lines += entry_lines(route, calls[route.name], f"_{route.name}", public=False)
    lines += ["", "", "@torch.fx.wrap", f"def {entry}(route, *args):"]
    lines.append('    """The region that `route` names."""')
    for name, function in list(direct.items())[:-1]:
        lines += [f'    if route == "{name}":', f"        return {function}(*args)"]
    return [*lines, f"    return {list(direct.values())[-1]}(*args)"]


def entry_lines(route: Route, calls: list[str], entry: str, public: bool) -> list[str]:
    """`def <entry>`: calls the kernel, or the first one that takes the shapes and dtypes."""
    lines = choice_lines(route, entry) if len(calls) > 1 else []
    head = ["", "", *(["@torch.fx.wrap"] if public else []), f"def {entry}({', '.join(accepted(route))}):"]
    if not route.variants:
        return [*head, *route.moves]
    body = [f"    {name} = {text}" for name, text in route.library.items()]
    if route.moves:
        body += [
            f"    if not {route.inputs[0]}.is_contiguous():",
            "        # It may lie as the result is to lie: then eager's views move nothing.",
            *(f"    {line}" for line in route.moves),
        ]
    if len(calls) > 1:
        properties = [f"{name}.shape" for name in route.inputs] + [f"{name}.dtype" for name in route.inputs]
        body.append(f"    variant = _variant{entry}({', '.join([*properties, *route.parameters])})")
    for k, call in enumerate(calls[:-1]):
        body += [f"    if variant == {k}:", *(f"    {line}" for line in _result_lines(route, call))]
    return [*lines, *head, *body, *_result_lines(route, calls[-1])]


def choice_lines(route: Route, entry: str) -> list[str]:
    """`_variant<entry>`: which kernel takes given shapes and dtypes."""
    inputs = range(len(route.inputs))
    shapes, types = [f"s{k}" for k in inputs], [f"d{k}" for k in inputs]
    used = ", ".join([*shapes, *types, *route.parameters])
    lines = ["", "", "@functools.cache", f"def _variant{entry}({used}):"]
    lines.append(f'    """Which kernel takes these shapes and dtypes of {", ".join(route.inputs)}."""')
    for k, v in enumerate(route.variants):
        tests = [*(dtype_test(v, j) for j in inputs), *guards(v, inputs)]
        lines += [f"    if {joined(tests)}:", f"        return {k}"]
    return [*lines, f"    raise RuntimeError({complaint(entry, shapes)})"]


def _returned(route: Route) -> list[str]:
    """The input that each result is, or an empty text."""
    return route.variants[0].returned if route.variants else []


def _result_lines(route: Route, call: str) -> list[str]:
    """The call, and what is returned: its outputs, and inputs that it has written in place."""
    if not any(_returned(route)):
        return [f"    return {call}"]
    names = iter(output_names(route.variants[0]))
    results = ", ".join(name or next(names) for name in _returned(route))
    outputs = ", ".join(output_names(route.variants[0]))
    return [f"    {outputs} = {call}" if outputs else f"    {call}", f"    return {results}"]


def pass_files(routes: list[tuple[Family, Route]], plan: Plan, target: str) -> dict[str, str]:
    """The files of a candidate: a pass for each route, and a module of kernels where there are several."""
    counts = Counter[str]()
    for _, route in routes:
        counts[route.name] += 1
        if counts[route.name] > 1:
            route.name = f"{route.name}_{counts[route.name]}"
    entry, is_single, files = routes[0][1].name, len(routes) == 1, dict[str, str]()
    host = module_lines([route for _, route in routes], plan, entry, target)
    imports = ["import functools", ""] if any("@functools." in line for line in host) else []
    imports.append("import torch")
    if any(route.variants for _, route in routes):
        imports += ["import triton", "import triton.language as tl"] if target == "cuda" else []
        imports.append(f"from passagent.kernels import {'triton' if target == 'cuda' else 'cpp'}_kernel")
    if any("libdevice." in line for line in host):
        imports.append("from triton.language.extra import libdevice")
    stems = [route.name.removeprefix("fused_").split("_") for _, route in routes]
    names = ["Fuse" + "".join(map(str.capitalize, stem)) for stem in stems]
    if not is_single:
        doc = f'"""The kernels and the wrapper that the passes {", ".join(names)} share."""'
        files[f"{entry}_kernels.py"] = _file([doc, "", *imports, *host])
    for name, (family, route) in zip(names, routes, strict=True):
        kernels = "in one kernel" if route.variants else "as views, without a kernel"
        doc = f'"""{title(family.regions[0])} {kernels}; {plan.note(target)} [plan: {plan.json()}]"""'
        pattern = write_pattern(family.regions[0], family.parameters, family.names)
        text = "\n".join(pattern)
        heading = ["import operator"] if "operator." in text else []
        if is_single:
            at = imports.index("import torch")
            heading = [*imports[:at], *heading, *imports[at:]]
        else:
            heading += ["import torch"] if "torch." in text else []
            heading += ["", f"from {entry}_kernels import {entry}"]
        taken = [*(family.names[i] for i in family.regions[0].inputs), *(p.name for p in family.parameters)]
        forwarded = accepted(route) if is_single else [f'"{route.name}"', *accepted(route)]
        lines = [doc, "", *heading, "", "", *pattern]
        lines += ["", "", f"def replacement_args({', '.join(taken)}):", f"    return {tuple_text(forwarded)}"]
        lines += [*(host if is_single else []), "", "", "def replacement_func():", f"    return {entry}"]
        files[f"{name}.py"] = _file(lines)
    files[MANIFEST] = json.dumps(names) + "\n"
    return files


def _file(lines: list[str]) -> str:
    return "\n".join(lines).strip("\n") + "\n"
