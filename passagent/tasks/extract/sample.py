"""Write a graph as a subgraph directory in GraphNet's layout; `graph_net.json` comes last."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import SymInt, fx

from passagent.errors import UsageError
from passagent.system.faults import os_fault
from passagent.tasks.extract.graph_text import CleanGraph, model_text
from passagent.tasks.extract.input_metadata import input_metas
from passagent.tasks.extract.structural_hash import StructuralHash, structural_hash
from passagent.tasks.meta import TensorMeta
from passagent.tasks.meta_writer import meta_source
from passagent.tasks.reader import GRAPH_LIST

_FIXED = """from sympy import Symbol, symbols

dynamic_dim_constraint_symbols = []
dynamic_dim_constraint_symbol2example_value = {}
dynamic_dim_constraint_relations = []
dynamic_dim_constraint_input_shapes = []
"""


def write_sample(
    path: Path, clean: CleanGraph, name: str, constraints: Sequence[str] | None, extra: dict[str, Any]
) -> StructuralHash:
    """Write the subgraph directory `path`, and return the graph's hash.

    `constraints`: of symbolic sizes, None where all sizes are fixed. `extra`: further facts for
    graph_net.json.
    """
    metas = input_metas(clean.names, clean.values)
    return write_files(
        path, clean.graph, metas, name, extra, _constraints(clean, constraints), constraints is not None
    )


def write_files(
    path: Path,
    graph: fx.Graph,
    metas: Sequence[TensorMeta],
    name: str,
    extra: dict[str, Any],
    constraints: str = _FIXED,
    is_dynamic: bool = False,
) -> StructuralHash:
    """As `write_sample`, of a graph whose inputs' metadata are known."""
    path.mkdir(parents=True)
    found = structural_hash(graph, metas)
    files = {
        "model.py": model_text(graph),
        "weight_meta.py": meta_source(metas),
        "input_meta.py": "",
        "input_tensor_constraints.py": constraints,
        "graph_hash.txt": f"{found.instance}\n",
    }
    for file, text in files.items():
        (path / file).write_text(text, encoding="utf-8")
    facts = {
        "framework": "torch",
        "num_devices_required": 1,
        "num_nodes_required": 1,
        "dynamic": is_dynamic,
        "model_name": name,
        "structure_hash": found.structure,
        **extra,
    }
    (path / "graph_net.json").write_text(json.dumps(facts, indent=4) + "\n", encoding="utf-8")
    return found


def write_list(path: Path, names: Sequence[str]) -> None:
    """Write the task's graph_list.txt."""
    (path / GRAPH_LIST).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


@contextmanager
def whole_directory(out: Path) -> Iterator[Path]:
    """A directory to write into, which becomes `out` at once when the block ends; nothing stays if it fails.

    Raises UsageError if `out` holds files.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: is there already; name another directory, or remove it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        beside.chmod(0o755)
    except OSError as error:
        raise os_fault(error, out, "--out") from error
    try:
        yield beside
        os.rename(beside, out)
    except OSError as error:
        raise os_fault(error, out, "--out") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _constraints(clean: CleanGraph, constraints: Sequence[str] | None) -> str:
    """GraphNet's record of symbolic sizes."""
    symbols: dict[str, int] = {}
    for node in clean.graph.find_nodes(op="placeholder"):
        example = node.meta.get("example_value")
        sizes = [example] if isinstance(example, SymInt) else getattr(example, "shape", ())
        for size in sizes:
            if isinstance(size, SymInt):
                for symbol in size.node.expr.free_symbols:
                    symbols[str(symbol)] = int(hints(size.node.shape_env).get(symbol, 0))
    shapes = [
        f"    ([{', '.join(map(str, _sizes(node, value)))}], {node.name!r}),"
        for node, value in zip(clean.graph.find_nodes(op="placeholder"), clean.values, strict=True)
        if symbols and hasattr(value, "shape")
    ]
    lines = ["from sympy import Symbol, symbols", ""]
    lines += [f'{name} = Symbol("{name}")' for name in symbols]
    lines += [
        f"dynamic_dim_constraint_symbols = [{', '.join(symbols)}]",
        "dynamic_dim_constraint_symbol2example_value = "
        + "{" + ", ".join(f"{name}: {value}" for name, value in symbols.items()) + "}",
        f"dynamic_dim_constraint_relations = {[text for text in constraints or () if symbols]!r}",
        "dynamic_dim_constraint_input_shapes = [" + ("\n" + "\n".join(shapes) + "\n" if shapes else "") + "]",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def hints(shape_env: Any) -> Any:
    """The example value of each symbol; older versions of torch have another name for it."""
    return getattr(shape_env, "backed_var_to_val", None) or shape_env.var_to_val


def _sizes(node: Any, value: Any) -> Sequence[Any]:
    """Of an input, symbols where they are symbolic."""
    example = node.meta.get("example_value")
    return example.shape if example is not None and hasattr(example, "shape") else value.shape
