"""`best --format kernelbench`: a problem's module with its passes in place, as a `ModelNew` in one file."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from passagent.deploy.delivery.rewritten_graph import FIRST, HERE, Placed, join_files, rewritten
from passagent.errors import UsageError
from passagent.plan.model import Recording
from passagent.plan.record import subgraphs_of
from passagent.tasks.extract.graph_text import model_text
from passagent.tasks.meta import TensorMeta
from passagent.tasks.reader import Task
from passagent.tasks.suites.problems import PROBLEM

_NUMBERED = re.compile(r"KernelBench/level(\d+)/(\d+)_|level(\d+)/(\d+)_")


@dataclass(frozen=True)
class Problem:
    """What KernelBench's evaluator is given beside a `ModelNew`."""

    text: str
    """Of the problem, with the sizes that the task has."""
    file: str
    """In the suite."""
    returns: str
    """Type of what a call returns: `Tensor`, `tuple`, `list`."""

    @property
    def name(self) -> str:
        """Of the file that KernelBench's scripts look for in a run's directory."""
        found = _NUMBERED.search(self.file)
        if found is None:
            raise UsageError(
                f"{self.file}: is not named levelN/NUMBER_NAME.py, as KernelBench's problems are"
            )
        level, number = found[1] or found[3], found[2] or found[4]
        return f"level_{level}_problem_{number}_sample_0_kernel.py"


def problem_of(task: Task) -> Problem:
    """The problem that a task was made of. Raises UsageError for another task, or a part of a problem."""
    path = task.path / PROBLEM
    facts = task.subgraphs[0].path / "graph_net.json"
    known = json.loads(facts.read_text(encoding="utf-8")) if facts.is_file() else {}
    if known.get("origin", {}).get("suite") != "kernelbench":
        raise UsageError(f"--format kernelbench: {task.name} was not imported from KernelBench")
    if not path.is_file() or "returns" not in known:
        raise UsageError(
            f"--format kernelbench: {task.path} holds no {PROBLEM}; import it again into another --out"
        )
    if len(task.subgraphs) > 1 or known.get("graph_breaks"):
        raise UsageError(f"--format kernelbench: {task.name} is a part of its problem; it has graph breaks")
    return Problem(path.read_text(encoding="utf-8"), known["origin"]["file"], known["returns"])


def kernelbench_module(task: Task, problem: Problem, recording: Recording, files: dict[str, str]) -> str:
    """The text of a file with `ModelNew`.

    `files`: the candidate as it stands without passagent (standalone.py), `recording` what was recorded of it
    on `task`. The passes are in the graph already; what is written calls
    their kernels. Raises UsageError for what is not said in one file.
    """
    [subgraph] = subgraphs_of(task, recording.device.partition(":")[0])
    graph, used = rewritten(subgraph, recording, files)
    body = model_text(graph)
    tree = ast.parse(body)
    forward = _forward(tree, [task.subgraphs[0].inputs[place] for place in subgraph.order], problem)
    imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    heads = [line for line in imports if HERE not in line]
    helper = [FIRST] if "first_of" in body else []
    main = "\n".join([*heads, "import torch", *helper, _model(problem, forward)])
    passes = ", ".join(one.name for one in recording.passes)
    about = (
        f"{Path(problem.file).name} of KernelBench (MIT) with {passes} in place. What it holds of passagent\n"
        "is under the Apache License 2.0 (https://www.apache.org/licenses/LICENSE-2.0).\n"
    )
    return join_files(about, used, files, main)


def _forward(tree: ast.Module, inputs: Sequence[TensorMeta], problem: Problem) -> ast.FunctionDef:
    """The graph's forward as the problem's: its own arguments, weights by their places in the module."""
    [graph] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    [forward] = [node for node in graph.body if isinstance(node, ast.FunctionDef)]
    [given] = [
        node
        for one in ast.parse(problem.text).body
        if isinstance(one, ast.ClassDef) and one.name == "Model"
        for node in one.body
        if isinstance(node, ast.FunctionDef) and node.name == "forward"
    ]
    own = [one.arg for one in [*given.args.posonlyargs, *given.args.args]]
    places = {}
    checks = []
    for parameter, meta in zip(forward.args.args[1:], inputs, strict=True):
        place = _place(meta.original_name, own[1:])
        places[parameter.arg] = ast.parse(place, mode="eval").body
        if place in own:
            checks.append(f"{place}.shape != {tuple(meta.shape)!r}")
    body = list(filter(None, map(Placed(places).visit, forward.body)))
    returned = body[-1]
    assert isinstance(returned, ast.Return)
    assert isinstance(returned.value, ast.Tuple)
    values = returned.value.elts
    if problem.returns == "Tensor" and len(values) == 1:
        returned.value = values[0]
    elif problem.returns == "list":
        returned.value = ast.List(values, ast.Load())
    elif problem.returns != "tuple":
        raise UsageError(f"--format kernelbench: {problem.file}: a call returns a {problem.returns}")
    if checks:
        what = "ModelNew computes for the shapes that its passes were written for"
        body[:0] = ast.parse(f"if {' or '.join(checks)}:\n    raise ValueError({what!r})").body
    given.body = body
    given.returns = None
    return ast.fix_missing_locations(given)


_WEIGHT = re.compile(r"L_self_(?:modules_(?P<path>.+?)_)?(?:parameters|buffers)_(?P<name>.+?)_?")


def _place(original: str, arguments: Sequence[str]) -> str:
    """`L_x_`: x. `L_self_modules_net_modules_0_parameters_weight_`: self.net[0].weight. Raises UsageError."""
    plain = original.removeprefix("L_").removesuffix("_")
    if plain in arguments:
        return plain
    found = _WEIGHT.fullmatch(original)
    if found is None:
        raise UsageError(f"--format kernelbench: {original} is neither an argument nor a weight of Model")
    path = [*(found["path"].split("_modules_") if found["path"] else ()), found["name"]]
    return "self" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path)


def _model(problem: Problem, forward: ast.FunctionDef) -> str:
    """The problem's text with `ModelNew` for `Model`, and another forward."""

    class Renamed(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:
            return ast.Name("ModelNew", node.ctx) if node.id == "Model" else node

    tree = ast.parse(problem.text)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            node.name = "ModelNew"
            node.body = [
                forward if isinstance(one, ast.FunctionDef) and one.name == "forward" else one
                for one in node.body
                if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            ]
    return ast.unparse(ast.fix_missing_locations(Renamed().visit(tree)))
