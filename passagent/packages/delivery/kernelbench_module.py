"""`best --format kernelbench`: the passes in place, as KernelBench's `ModelNew`."""

from __future__ import annotations

import ast
import functools
import re
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from passagent.errors import UsageError
from passagent.packages.delivery.linker import link
from passagent.plan.convert import bound_argument
from passagent.plan.messages import Subgraph
from passagent.plan.model import Recording
from passagent.plan.record import subgraphs_of
from passagent.plan.recorded_pattern import Bindings, planned_passes, replace_calls
from passagent.tasks.extract.sample import model_text
from passagent.tasks.graphio import load_graph
from passagent.tasks.reader import Task
from passagent.tasks.suites.problems import PROBLEM

_NUMBERED = re.compile(r"KernelBench/level(\d+)/(\d+)_|level(\d+)/(\d+)_")


def file_name(task: Task) -> str:
    """Return the name of the file that KernelBench's scripts look for. Raises UsageError as read_problem."""
    file = read_problem(task)[1]["origin"]["file"]
    match = _NUMBERED.search(file)
    if match is None:
        raise UsageError(f"{file}: is not named levelN/NUMBER_NAME.py, as KernelBench's problems are")
    level, number = match[1] or match[3], match[2] or match[4]
    return f"level_{level}_problem_{number}_sample_0_kernel.py"


def read_problem(task: Task) -> tuple[str, dict[str, Any]]:
    """Return the problem's text, with the sizes that the task has, and the task's facts.

    Raises UsageError for a task that was not imported from KernelBench, and for a part of a problem.
    """
    facts, asked = task.subgraphs[0].facts, "--format kernelbench"
    if facts.get("origin", {}).get("suite") != "kernelbench":
        raise UsageError(f"{asked}: {task.name} was not imported from KernelBench")
    if not (task.path / PROBLEM).is_file() or "returns" not in facts:
        raise UsageError(f"{asked}: {task.path} holds no {PROBLEM}; import it again into another --out")
    if facts.get("graph_breaks") or len(task.subgraphs) > 1:
        raise UsageError(f"{asked}: {task.name} is a part of its problem; it has graph breaks")
    return (task.path / PROBLEM).read_text(encoding="utf-8"), facts


_MAIN = "the graph"
"""Stands for the module that calls the passes, in errors."""
_FIRST = '''
def first_of(value):
    """The only output of a pass whose pattern returns a tuple of one."""
    return value if isinstance(value, torch.Tensor) else value[0]
'''


def _call_text(subgraph: Subgraph, recording: Recording, files: dict[str, str]) -> str:
    """Return imports and a function `call_graph` of a subgraph's inputs, which returns a tuple.

    In it a pass's function stands for each match. Raises UsageError where no pass matches.
    """
    calls = recording.calls_of(subgraph.name)
    if not calls:
        raise UsageError(f"no pass matches {subgraph.name}: there is nothing to write")
    imports = dict[str, None]()

    def replacement(position: int, bindings: Bindings) -> tuple[Any, tuple[Any, ...]]:
        call = calls[position]
        file = recording.passes[call.number].file
        name = _function(files[file], file)
        imports[f"from {Path(file).stem} import {name}"] = None
        return _named(name), tuple(bound_argument(part, bindings) for part in call.arguments)

    graph = load_graph(subgraph.nodes).graph
    replace_calls(graph, planned_passes(recording), calls, replacement)
    for position, node in enumerate(graph.nodes):
        if getattr(node.target, "__name__", "") == "_getitem":
            node.target = _named("first_of")
        if getattr(node.target, "__module__", "") == _HERE:
            node._rename(f"out_{position}")  # a variable of a function's name would hide it
    text = model_text(graph).replace(f"{_HERE}_", "")
    outer = [line for line in text.splitlines() if line.startswith(("import", "from")) and _HERE not in line]
    forward = ast.parse(text[text.index("class GraphModule") :]).body[0].body[0]  # type: ignore[attr-defined]
    forward.name, forward.args.args = "call_graph", forward.args.args[1:]
    return "\n".join([*outer, *imports, ast.unparse(forward)])


_HERE = "written_here"
"""The module of functions that the file itself holds."""


@functools.cache
def _named(name: str) -> Any:
    """A function that a graph prints as `written_here_NAME`; one for each name, or the graph numbers them."""
    function = types.FunctionType((lambda *_: None).__code__, {}, name)
    function.__module__, function.__qualname__ = _HERE, name
    return function


def _function(text: str, file: str) -> str:
    """The name of the function that a pass's `replacement_func` returns. Raises UsageError."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == "replacement_func":
            last = node.body[-1]
            if isinstance(last, ast.Return) and isinstance(last.value, ast.Name):
                return last.value.id
    raise UsageError(f"{file}: its replacement_func must end with `return NAME`")


def kernelbench_module(task: Task, recording: Recording, files: dict[str, str]) -> str:
    """The text of a file with `ModelNew`, whose forward calls the passes' kernels.

    `files`: the candidate as it stands without passagent (standalone.py), `recording` what was recorded of it
    on `task`. Raises UsageError for what is not said in one file.
    """
    text, facts = read_problem(task)
    file, returns = facts["origin"]["file"], facts["returns"]
    [subgraph] = subgraphs_of(task, recording.device.partition(":")[0])
    tree = ast.parse(text)
    [model] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"]
    model.body = [node for node in model.body if not isinstance(node, ast.Expr)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "Model":
            node.id = "ModelNew"
    model.name = "ModelNew"
    [forward] = [node for node in model.body if isinstance(node, ast.FunctionDef) and node.name == "forward"]
    arguments = _parameters(forward)[1:]
    metas = [task.subgraphs[0].inputs[place] for place in subgraph.order]
    shapes = {_place(meta.original_name, arguments): meta.shape for meta in metas}
    checks = [f"{place}.shape != {shape!r}" for place, shape in shapes.items() if place in arguments]
    forms = {"Tensor": "{}[0]", "list": "list({})", "tuple": "{}"}
    if returns not in forms:
        raise UsageError(f"--format kernelbench: {file}: a call returns a {returns}")
    lines = ["return " + forms[returns].format(f"call_graph({', '.join(shapes)})")]
    if checks:
        what = "ModelNew computes for the shapes that its passes were written for"
        lines.insert(0, f"if {' or '.join(checks)}:\n    raise ValueError({what!r})")
    forward.body, forward.returns = ast.parse("\n".join(lines)).body, None
    passes = ", ".join(recorded.name for recorded in recording.passes)
    about = (
        f"{Path(file).name} of KernelBench (MIT) with {passes} in place. What it holds of passagent\n"
        "is under the Apache License 2.0 (https://www.apache.org/licenses/LICENSE-2.0).\n"
    )
    modules = {Path(name).stem: text for name, text in files.items() if name.endswith(".py")}
    written = ast.unparse(ast.fix_missing_locations(tree))
    main = "\n".join(["import torch", _FIRST, _call_text(subgraph, recording, files), written])
    return link(f'"""{about}"""', modules | {_MAIN: main}, _MAIN, ["ModelNew"])


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [parameter.arg for parameter in [*function.args.posonlyargs, *function.args.args]]


_WEIGHT = re.compile(r"L_self_(?:modules_(?P<path>.+?)_)?(?:parameters|buffers)_(?P<name>.+?)_?")


def _place(original: str, arguments: Sequence[str]) -> str:
    """`L_x_`: x. `L_self_modules_net_modules_0_parameters_weight_`: self.net[0].weight. Raises UsageError."""
    plain = original.removeprefix("L_").removesuffix("_")
    if plain in arguments:
        return plain
    match = _WEIGHT.fullmatch(original)
    if match is None:
        raise UsageError(f"--format kernelbench: {original} is neither an argument nor a weight of Model")
    path = [*(match["path"].split("_modules_") if match["path"] else ()), match["name"]]
    return "self" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path)
