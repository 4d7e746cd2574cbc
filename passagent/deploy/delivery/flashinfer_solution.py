"""`best --format flashinfer`: a definition's `run` with passes in place, a Solution of flashinfer-bench."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from passagent.deploy.delivery.rewritten_graph import FIRST, Placed, join_files, rewritten
from passagent.errors import UsageError
from passagent.plan.model import Recording
from passagent.plan.record import subgraphs_of
from passagent.tasks.extract.graph_text import model_text
from passagent.tasks.reader import Task
from passagent.tasks.suites.problems import PROBLEM

_ENTRY = "main.py"


def definition_of(task: Task) -> str:
    """The definition that a task was made of. Raises UsageError for a task of another origin."""
    file = task.subgraphs[0].path / "graph_net.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if known.get("origin", {}).get("suite") != "flashinfer":
        raise UsageError(f"--format flashinfer: {task.name} was not imported from a definition of flashinfer")
    if not (task.path / PROBLEM).is_file() or known.get("graph_breaks"):
        raise UsageError(
            f"--format flashinfer: {task.path} holds no {PROBLEM}, or has graph breaks; import it again"
        )
    return str(known["group"])


def solution(task: Task, recording: Recording, files: dict[str, str], run: str) -> dict[str, Any]:
    """The Solution as plain data; its `run` computes for the shapes of the task's subgraphs.

    `files`: the candidate as it stands without passagent, `recording` what was recorded of it on `task`.
    Raises UsageError for what is not said in one file.
    """
    name = definition_of(task)
    given = _parameters((task.path / PROBLEM).read_text(encoding="utf-8"))
    functions, heads, choices, pass_files = [FIRST], ["import torch"], list[str](), dict[str, None]()
    for number, subgraph in enumerate(subgraphs_of(task, recording.device.partition(":")[0])):
        graph, used = rewritten(subgraph, recording, files)
        tree = ast.parse(model_text(graph))
        heads += [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        metas = [task.subgraphs[number].inputs[place] for place in subgraph.order]
        names = [re.sub(r"^L_(.*)_$", r"\1", meta.original_name) for meta in metas]
        if sorted(names) != sorted(given):
            taken = ", ".join(sorted({*given} ^ {*names}))
            raise UsageError(
                f"--format flashinfer: {name}: {taken} is no tensor that the captured graph takes"
            )
        functions.append(_function(tree, f"_call_{number}", names))
        pass_files |= dict.fromkeys(used)
        shapes = " and ".join(
            f"{one}.shape == {meta.shape!r}" for one, meta in zip(names, metas, strict=True)
        )
        choices.append(f"    if {shapes}:\n        return _call_{number}({', '.join(names)})")
    message = "this solution computes for the shapes that its passes were measured on"
    functions.append(
        f"def run({', '.join(given)}):\n" + "\n".join(choices) + f"\n    raise ValueError({message!r})\n"
    )
    passes = ", ".join(one.name for one in recording.passes)
    about = (
        f"Definition {name} with {passes} in place. What it holds of passagent\n"
        "is under the Apache License 2.0 (https://www.apache.org/licenses/LICENSE-2.0).\n"
    )
    text = join_files(about, pass_files, files, "\n\n".join(["\n".join(heads), *functions]))
    kernels = (kernel for one in recording.passes for plan in one.plans for kernel in plan.kernels.values())
    return {
        "name": f"{name}_passagent_{run}",
        "definition": name,
        "author": "passagent",
        "spec": {
            "language": "triton" if any(one.kind == "triton" for one in kernels) else "python",
            "target_hardware": ["cpu" if recording.device == "cpu" else "cuda"],
            "entry_point": f"{_ENTRY}::run",
            "dependencies": [],
            "destination_passing_style": False,
        },
        "sources": [{"path": _ENTRY, "content": text}],
        "description": f"run {run} of passagent",
    }


def _parameters(text: str) -> list[str]:
    """The parameters of the definition's `run`, in order."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == "run":
            return [one.arg for one in [*node.args.posonlyargs, *node.args.args]]
    raise UsageError("--format flashinfer: the definition defines no run")


def _function(tree: ast.Module, name: str, parameters: list[str]) -> str:
    """The graph's forward as a function of the definition's tensors."""
    [graph] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    [forward] = [node for node in graph.body if isinstance(node, ast.FunctionDef)]
    places: dict[str, Any] = {
        one.arg: ast.Name(parameter, ast.Load())
        for one, parameter in zip(forward.args.args[1:], parameters, strict=True)
    }
    body = list(filter(None, map(Placed(places).visit, forward.body)))
    returned = body[-1]
    assert isinstance(returned, ast.Return) and isinstance(returned.value, ast.Tuple)
    if len(returned.value.elts) == 1:
        returned.value = returned.value.elts[0]
    forward.name, forward.body, forward.returns = name, body, None
    forward.args.args = [ast.arg(parameter) for parameter in parameters]
    return ast.unparse(ast.fix_missing_locations(forward))
