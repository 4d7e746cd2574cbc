"""A captured graph as a task holds it, written as a subgraph directory in GraphNet's layout.

Constants become inputs, names become in_0 and tmp_0. `graph_net.json` is written last.
"""

from __future__ import annotations

import ast
import json
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import fx

from passagent.errors import TaskError
from passagent.tasks.constraints import unknown_operator
from passagent.tasks.extract.structural_hash import StructuralHash, structural_hash
from passagent.tasks.meta import LIMIT, TensorMeta, meta_source

_SILENT = ("_log_api_usage_once", "lazy_load_decompositions")


@dataclass(frozen=True)
class CleanGraph:
    """A graph of placeholders, operators and one output."""

    graph: fx.Graph
    names: list[str]
    """Name of each placeholder in the model: `L_self_modules_0_parameters_weight_`."""
    values: list[Any]
    """Value of each placeholder, from a real call."""

    @property
    def graph_module(self) -> fx.GraphModule:
        """The graph as a module that can be called."""
        return fx.GraphModule(torch.nn.Module(), self.graph)


def clean_graph(graph_module: fx.GraphModule, values: list[Any], is_training: bool = False) -> CleanGraph:
    """The graph of a capture as a task holds it; `values`: of its placeholders. The capture is not changed.

    Raises TaskError for what a task cannot hold: a custom operator, autocast inside the graph, a call of a
    module.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    value_of = dict(zip(graph_module.graph.find_nodes(op="placeholder"), values, strict=True))
    named = [(node, str(node.target), value) for node, value in value_of.items() if node.users]
    for node in graph_module.graph.find_nodes(op="get_attr"):
        constant = operator.attrgetter(str(node.target))(graph_module)
        if not isinstance(constant, torch.Tensor):
            raise TaskError(
                f"the graph holds {node.target}, a {type(constant).__name__}, which a task cannot hold"
            )
        named.append((node, f"constant_{node.target}", constant))
    for number, (node, _, _) in enumerate(named):
        copies[node] = graph.placeholder(f"in_{number}")
        copies[node].meta = dict(node.meta)
    dropped = _without_effect(graph_module.graph, is_training)
    count = 0
    for node in graph_module.graph.nodes:
        if node in copies or node in dropped or node.op == "placeholder":
            continue
        if node.op != "output" and (reason := unknown_operator(node)):
            raise TaskError(f"operator {node.name}: {reason}")
        copy = graph.node_copy(node, copies.__getitem__)
        copy.type = None
        if node.op != "output":
            copy._rename(f"tmp_{count}")
            count += 1
        copies[node] = copy
    graph.lint()
    return CleanGraph(graph, [name for _, name, _ in named], [value for *_, value in named])


def _without_effect(graph: fx.Graph, is_training: bool) -> set[fx.Node]:
    """Nodes that change nothing where a task runs. Raises TaskError for autocast that does."""
    silent = set()
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "")
        if name in _SILENT or (name == "_set_grad_enabled" and not is_training):
            silent.add(node)
        elif name == "_enter_autocast":
            if node.args[2]:
                raise TaskError(
                    "the graph turns autocast on; extract the model in the dtype that it is to run in"
                )
            silent |= {node, *node.users}
    return silent


def model_text(graph: fx.Graph) -> str:
    """The text of a model.py."""
    code = graph.python_code("self")
    imports = ["import torch"]
    used = {node.id for node in ast.walk(ast.parse(code.src)) if isinstance(node, ast.Name)}
    for name, value in code.globals.items():
        if name == "torch" or name not in used:
            continue
        if isinstance(value, ModuleType):
            imports.append(f"import {value.__name__}" + (f" as {name}" if value.__name__ != name else ""))
        elif name in ("inf", "nan"):
            imports.append(f"from math import {name}")
        elif value is torch.device:
            imports.append("from torch import device")
        elif value is not None and getattr(value, "__module__", None):
            imports.append(f"from {value.__module__} import {value.__name__} as {name}")
    lines = [f"    {line}" if line.strip() else "" for line in code.src.strip().splitlines()]
    head = "\n".join(dict.fromkeys(imports))
    return f"{head}\n\n\nclass GraphModule(torch.nn.Module):\n" + "\n".join(lines) + "\n"


LITERAL = 64
"""Elements up to which an input that is no weight is kept as values."""
BUFFER = 4096
"""Elements up to which a buffer is: position ids, rope tables, masks."""
LEVELS = 4
"""So few different values of a larger float input are kept as such: 0 and -inf of a mask."""


def input_metas(names: Sequence[str], values: Sequence[Any]) -> list[TensorMeta]:
    """The metadata of in_0, in_1, ...; `names`: of each in the model."""
    metas: list[TensorMeta] = []
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        if not isinstance(value, torch.Tensor):
            dtype = "float" if isinstance(value, float) else "int"
            metas.append(TensorMeta(f"in_{number}", name, (), dtype, "cpu", data=value))
            continue
        metas.append(_meta(f"in_{number}", name, value.detach(), value.requires_grad))
    return metas


def _meta(name: str, original: str, value: torch.Tensor, requires_grad: bool) -> TensorMeta:
    is_weight = "_parameters_" in original
    facts: dict[str, Any] = {}
    most = (
        0 if is_weight else BUFFER if "_buffers_" in original or original.startswith("constant_") else LITERAL
    )
    if value.layout == torch.strided and not value.is_contiguous():
        facts["stride"] = tuple(value.stride())
    if 0 < value.numel() <= most and not value.is_complex():
        facts["data"] = value.cpu().reshape(-1).tolist()
    elif value.numel():
        facts |= _statistics(value, is_weight)
    return TensorMeta(
        name=name,
        original_name=original,
        shape=tuple(value.shape),
        dtype=str(value.dtype).removeprefix("torch."),
        device=str(value.device),
        requires_grad=requires_grad,
        **facts,
    )


def _statistics(value: torch.Tensor, is_weight: bool) -> dict[str, Any]:
    if value.dtype == torch.bool or value.is_complex():
        return {}
    if not value.is_floating_point():
        return {"min_val": int(value.min()), "max_val": int(value.max())}
    wide = value.float() if value.dtype != torch.float64 else value
    distinct = wide.reshape(-1)[: 64 * LEVELS].unique()
    if not is_weight and 1 < len(distinct) <= LEVELS:
        distinct = wide.unique()
        if len(distinct) <= LEVELS:
            return {"levels": tuple(distinct.tolist())}
    # Taking elements out needs 8 bytes of each for each of its indices: a large tensor has no room for it.
    usual = wide if all(abs(end) < LIMIT for end in wide.aminmax()) else wide[wide.abs() < LIMIT]
    if not usual.numel():
        return {"levels": tuple(wide.unique().tolist()[:LEVELS])}
    low, high = float(usual.min()), float(usual.max())
    std = float(usual.std()) if usual.numel() > 1 else 0.0
    facts = {"mean": float(usual.mean()), "std": std if math.isfinite(std) else 0.0}
    if low >= 0 and low != high and not is_weight:
        facts["min_val"] = low  # what is never negative stays so, and a probability below 1
        if high <= 1:
            facts["max_val"] = high
    return facts


_FIXED = """from sympy import Symbol, symbols

dynamic_dim_constraint_symbols = []
dynamic_dim_constraint_symbol2example_value = {}
dynamic_dim_constraint_relations = []
dynamic_dim_constraint_input_shapes = []
"""


def write_sample(
    path: Path, graph: fx.Graph, metas: Sequence[TensorMeta], name: str, extra: dict[str, Any]
) -> StructuralHash:
    """Write the subgraph directory `path`, and return the graph's hash.

    `metas`: of the placeholders; `extra`: further facts for graph_net.json.
    """
    path.mkdir(parents=True)
    hashes = structural_hash(graph, metas)
    files = {
        "model.py": model_text(graph),
        "weight_meta.py": meta_source(metas),
        "input_meta.py": "",
        "graph_hash.txt": f"{hashes.instance}\n",
    }
    if not extra.get("dynamic"):
        files["input_tensor_constraints.py"] = _FIXED
    for file, text in files.items():
        (path / file).write_text(text, encoding="utf-8")
    facts = {
        "framework": "torch",
        "num_devices_required": 1,
        "num_nodes_required": 1,
        "dynamic": False,
        "model_name": name,
        "structure_hash": hashes.structure,
        **extra,
    }
    (path / "graph_net.json").write_text(json.dumps(facts, indent=4) + "\n", encoding="utf-8")
    return hashes
