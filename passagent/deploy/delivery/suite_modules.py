"""`best --format`: the passes in place as KernelBench's `ModelNew` or as a Solution of flashinfer-bench."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from passagent.deploy.delivery.rewritten_graph import FIRST, join_files, rewritten
from passagent.errors import UsageError
from passagent.plan.model import Recording
from passagent.plan.record import subgraphs_of
from passagent.tasks.reader import Task
from passagent.tasks.suites.problems import PROBLEM

_SUITES = {"kernelbench": "KernelBench", "flashinfer": "a definition of flashinfer"}
_NUMBERED = re.compile(r"KernelBench/level(\d+)/(\d+)_|level(\d+)/(\d+)_")


def file_name(task: Task, suite: str, run: str) -> str:
    """Return the name of the file that a suite's scripts look for. Raises UsageError as read_problem."""
    facts = read_problem(task, suite)[1]
    if suite == "flashinfer":
        return f"{facts['group']}_{run}.json"
    file = facts["origin"]["file"]
    match = _NUMBERED.search(file)
    if match is None:
        raise UsageError(f"{file}: is not named levelN/NUMBER_NAME.py, as KernelBench's problems are")
    level, number = match[1] or match[3], match[2] or match[4]
    return f"level_{level}_problem_{number}_sample_0_kernel.py"


def read_problem(task: Task, suite: str) -> tuple[str, dict[str, Any]]:
    """Return the problem's text, with the sizes that the task has, and the task's facts.

    Raises UsageError for a task that was not imported from `suite`, and for a part of a problem.
    """
    file = task.subgraphs[0].path / "graph_net.json"
    facts = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if facts.get("origin", {}).get("suite") != suite:
        raise UsageError(f"--format {suite}: {task.name} was not imported from {_SUITES[suite]}")
    if not (task.path / PROBLEM).is_file() or "returns" not in facts:
        raise UsageError(
            f"--format {suite}: {task.path} holds no {PROBLEM}; import it again into another --out"
        )
    if facts.get("graph_breaks") or (suite == "kernelbench" and len(task.subgraphs) > 1):
        raise UsageError(f"--format {suite}: {task.name} is a part of its problem; it has graph breaks")
    return (task.path / PROBLEM).read_text(encoding="utf-8"), facts


def kernelbench_module(task: Task, recording: Recording, files: dict[str, str]) -> str:
    """The text of a file with `ModelNew`, whose forward calls the passes' kernels.

    `files`: the candidate as it stands without passagent (standalone.py), `recording` what was recorded of it
    on `task`. Raises UsageError for what is not said in one file.
    """
    text, facts = read_problem(task, "kernelbench")
    file, returns = facts["origin"]["file"], facts["returns"]
    [subgraph] = subgraphs_of(task, recording.device.partition(":")[0])
    [forward] = [
        node
        for model in ast.parse(text).body
        if isinstance(model, ast.ClassDef) and model.name == "Model"
        for node in model.body
        if isinstance(node, ast.FunctionDef) and node.name == "forward"
    ]
    arguments = _parameters(forward)[1:]
    metas = [task.subgraphs[0].inputs[place] for place in subgraph.order]
    places = [_place(meta.original_name, arguments) for meta in metas]
    body = rewritten(subgraph, recording, files, places)
    checks = [
        f"{place}.shape != {tuple(meta.shape)!r}"
        for place, meta in zip(places, metas, strict=True)
        if place in arguments
    ]
    if checks:
        what = "ModelNew computes for the shapes that its passes were written for"
        body.statements[:0] = ast.parse(f"if {' or '.join(checks)}:\n    raise ValueError({what!r})").body
    result: ast.expr = ast.Tuple(body.results, ast.Load())
    if returns == "Tensor" and len(body.results) == 1:
        result = body.results[0]
    elif returns == "list":
        result = ast.List(body.results, ast.Load())
    elif returns != "tuple":
        raise UsageError(f"--format kernelbench: {file}: a call returns a {returns}")
    forward.body, forward.returns = [*body.statements, ast.Return(result)], None
    main = "\n".join([*body.imports, "import torch", FIRST, _model(text, forward)])
    about = _about(f"{Path(file).name} of KernelBench (MIT)", recording)
    return join_files(about, body.files, files, main)


def _about(subject: str, recording: Recording) -> str:
    passes = ", ".join(recorded.name for recorded in recording.passes)
    return (
        f"{subject} with {passes} in place. What it holds of passagent\n"
        "is under the Apache License 2.0 (https://www.apache.org/licenses/LICENSE-2.0).\n"
    )


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


def _model(text: str, forward: ast.FunctionDef) -> str:
    """The problem's text with `ModelNew` for `Model`, and another forward."""

    class Renamed(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:
            return ast.Name("ModelNew", node.ctx) if node.id == "Model" else node

    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            node.name = "ModelNew"
            node.body = [
                forward
                if isinstance(statement, ast.FunctionDef) and statement.name == "forward"
                else statement
                for statement in node.body
                if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
            ]
    return ast.unparse(ast.fix_missing_locations(Renamed().visit(tree)))


_ENTRY = "main.py"


def solution(task: Task, recording: Recording, files: dict[str, str], run: str) -> dict[str, Any]:
    """The Solution as plain data; its `run` computes for the shapes of the task's subgraphs.

    `files`: the candidate as it stands without passagent, `recording` what was recorded of it on `task`.
    Raises UsageError for what is not said in one file.
    """
    text, facts = read_problem(task, "flashinfer")
    [run_function] = [
        node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == "run"
    ]
    name, parameters = str(facts["group"]), _parameters(run_function)
    functions, heads, choices, pass_files = [FIRST], ["import torch"], list[str](), dict[str, None]()
    for number, subgraph in enumerate(subgraphs_of(task, recording.device.partition(":")[0])):
        metas = [task.subgraphs[number].inputs[place] for place in subgraph.order]
        names = [re.sub(r"^L_(.*)_$", r"\1", meta.original_name) for meta in metas]
        if sorted(names) != sorted(parameters):
            taken = ", ".join(sorted({*parameters} ^ {*names}))
            raise UsageError(
                f"--format flashinfer: {name}: {taken} is no tensor that the captured graph takes"
            )
        body = rewritten(subgraph, recording, files, names)
        heads += body.imports
        pass_files |= dict.fromkeys(body.files)
        [function] = ast.parse(f"def _call_{number}({', '.join(names)}):\n    pass").body
        assert isinstance(function, ast.FunctionDef)
        single = len(body.results) == 1
        result = body.results[0] if single else ast.Tuple(body.results, ast.Load())
        function.body = [*body.statements, ast.Return(result)]
        functions.append(ast.unparse(ast.fix_missing_locations(function)))
        shapes = " and ".join(
            f"{name}.shape == {meta.shape!r}" for name, meta in zip(names, metas, strict=True)
        )
        choices.append(f"    if {shapes}:\n        return _call_{number}({', '.join(names)})")
    message = "this solution computes for the shapes that its passes were measured on"
    functions.append(
        f"def run({', '.join(parameters)}):\n" + "\n".join(choices) + f"\n    raise ValueError({message!r})\n"
    )
    about, main = _about(f"Definition {name}", recording), "\n\n".join(["\n".join(heads), *functions])
    kernels = (
        kernel for recorded in recording.passes for plan in recorded.plans for kernel in plan.kernels.values()
    )
    return {
        "name": f"{name}_passagent_{run}",
        "definition": name,
        "author": "passagent",
        "spec": {
            "language": "triton" if any(recorded.kind == "triton" for recorded in kernels) else "python",
            "target_hardware": ["cpu" if recording.device == "cpu" else "cuda"],
            "entry_point": f"{_ENTRY}::run",
            "dependencies": [],
            "destination_passing_style": False,
        },
        "sources": [{"path": _ENTRY, "content": join_files(about, pass_files, files, main)}],
        "description": f"run {run} of passagent",
    }
