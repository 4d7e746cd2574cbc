"""A small real task in PassNet's layout, and candidates for it, for tests that need many."""

from __future__ import annotations

import json
from pathlib import Path

from passagent.evaluator.result import MANIFEST, Candidate

MODEL = """import torch

class GraphModule(torch.nn.Module):

    def forward(self, in_0, in_1):
        tmp_0 = torch.nn.functional.silu(in_0)
        tmp_1 = tmp_0 * in_1
        tmp_0 = None
        tmp_2 = tmp_1 + 1.0
        tmp_1 = None
        return (tmp_2,)
"""
CONSTRAINTS = """from sympy import Symbol

dynamic_dim_constraint_symbols = []

dynamic_dim_constraint_symbol2example_value = {}

dynamic_dim_constraint_relations = []

dynamic_dim_constraint_input_shapes = []
"""


def write_subgraph(path: Path, shape: list[int], dtype: str = "float32", model: str = MODEL) -> Path:
    """A subgraph directory with two inputs of `shape`."""
    path.mkdir(parents=True)
    (path / "model.py").write_text(model)
    metas = [
        f"class Program_weight_tensor_meta_x_{i}:\n"
        f'\tname = "in_{i}"\n\toriginal_name = "x_{i}"\n\tshape = {shape}\n\tdtype = "torch.{dtype}"\n'
        f'\tdevice = "cuda:0"\n\tmean = 0.000\n\tstd = 1.000\n'
        for i in range(2)
    ]
    (path / "weight_meta.py").write_text("\n\n".join(metas))
    (path / "input_meta.py").write_text("")
    (path / "input_tensor_constraints.py").write_text(CONSTRAINTS)
    (path / "graph_net.json").write_text(
        json.dumps(
            {"framework": "torch", "num_devices_required": 1, "num_nodes_required": 1, "dynamic": False}
        )
    )
    (path / "graph_hash.txt").write_text("0" * 64)
    return path


def write_task(path: Path, model: str = MODEL) -> Path:
    """A task of three subgraphs: two shapes, two dtypes."""
    kinds = [([4, 64], "float32"), ([2, 3, 40], "float32"), ([4, 64], "bfloat16")]
    names = [f"graphs/g{number}_{dtype}" for number, (_, dtype) in enumerate(kinds)]
    for name, (shape, dtype) in zip(names, kinds, strict=True):
        write_subgraph(path / name, shape, dtype, model)
    (path / "graph_list.txt").write_text("\n".join(names) + "\n")
    return path


PASS = '''"""Fuse silu, mul and add."""

import torch
{imports}

{setup}


def pattern(a, b):
    return torch.nn.functional.silu(a) * b + 1.0


def replacement_args(a, b):
    return (a, b)


@torch.fx.wrap
def fused(a, b):
{body}


def replacement_func():
    return fused
'''
KERNEL = '''kernel = cpp_kernel(
    """
template <class T> void silu_mul_add(T* out, const T* a, const T* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = a[i], y = b[i];
    const float s = round_to<T>(x / (1.0f + std::exp(-x)));
    out[i] = T(round_to<T>(s * y) + 1.0f);
  }
}""",
    "silu_mul_add",
)'''
HONEST = "    out = torch.empty_like(a)\n    kernel(out, a, b, a.numel())\n    return out"


def candidate(body: str = HONEST, setup: str = KERNEL, imports: str = "", **others: str) -> Candidate:
    """A pass_dir with one pass; `body` is the wrapper's, `setup` the module's, `others` further files."""
    imports = imports or "from passagent.kernels import cpp_kernel"
    files = {"Fused.py": PASS.format(imports=imports, setup=setup, body=body), MANIFEST: '["Fused"]'}
    return Candidate(files | others)
