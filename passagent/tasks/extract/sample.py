"""Write a graph as a subgraph directory in GraphNet's layout; `graph_net.json` comes last."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import SymInt, fx

from passagent.errors import UsageError
from passagent.system.faults import os_fault
from passagent.tasks.extract.graph_text import CleanGraph, model_text
from passagent.tasks.extract.structural_hash import StructuralHash, structural_hash
from passagent.tasks.meta import TensorMeta, meta_source
from passagent.tasks.reader import GRAPH_LIST

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
        metas.append(_meta(f"in_{number}", name, value.detach(), values[:number], value.requires_grad))
    return metas


def _meta(
    name: str, original: str, value: torch.Tensor, before: Sequence[Any], requires_grad: bool
) -> TensorMeta:
    is_weight = "_parameters_" in original
    facts: dict[str, Any] = {}
    most = (
        0 if is_weight else BUFFER if "_buffers_" in original or original.startswith("constant_") else LITERAL
    )
    if value.layout == torch.strided and not value.is_contiguous():
        facts["stride"] = tuple(value.stride())
    if shared := _shared(value, before):
        facts["shares"], facts["storage_offset"] = shared
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
    finite = wide if all(math.isfinite(end) for end in wide.aminmax()) else wide[wide.isfinite()]
    if not finite.numel():
        return {"levels": tuple(wide.unique().tolist()[:LEVELS])}
    low, high = float(finite.min()), float(finite.max())
    std = float(finite.std()) if finite.numel() > 1 else 0.0
    found = {"mean": float(finite.mean()), "std": std if math.isfinite(std) else 0.0}
    if low >= 0 and low != high and not is_weight:
        found["min_val"] = low  # what is never negative stays so, and a probability below 1
        if high <= 1:
            found["max_val"] = high
    return found


def _shared(value: torch.Tensor, before: Sequence[Any]) -> tuple[str, int] | None:
    """The first input before it whose memory holds all of `value`, and where in it."""
    if value.layout != torch.strided or not value.numel():
        return None
    for number, other in enumerate(before):
        if not isinstance(other, torch.Tensor) or other.layout != torch.strided or other.dtype != value.dtype:
            continue
        offset = int(value.storage_offset()) - int(other.storage_offset())
        is_inside = offset >= 0 and offset + _extent(value) <= _extent(other)
        if other.untyped_storage()._cdata == value.untyped_storage()._cdata and is_inside:
            return f"in_{number}", offset
    return None


def _extent(value: torch.Tensor) -> int:
    """Elements from the first to the last one."""
    return 1 + sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))


def laid_out(metas: Sequence[TensorMeta], values: Sequence[Any]) -> list[Any]:
    """Rebuilt inputs (tasks/inputs.py) with recorded strides, shared memory and requires_grad."""
    made: dict[str, Any] = {}
    for meta, value in zip(metas, values, strict=True):
        if not isinstance(value, torch.Tensor):
            made[meta.name] = value
            continue
        if meta.shares:
            base = made[meta.shares].detach()
            stride = meta.stride or torch.empty(meta.shape, device="meta").stride()
            own = base.as_strided(meta.shape, stride, base.storage_offset() + meta.storage_offset)
        else:
            own = value if meta.stride is None else _strided(value, meta.stride)
        made[meta.name] = own.requires_grad_(meta.requires_grad)
    return list(made.values())


def _strided(value: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The values with these strides; along a dimension of stride 0 all elements are one."""
    single = value
    for dim, step in enumerate(stride):
        if step == 0 and value.shape[dim] > 1:
            single = single.narrow(dim, 0, 1)
    own = torch.empty_strided(single.shape, stride, dtype=value.dtype, device=value.device).copy_(single)
    return own.as_strided(value.shape, stride)


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
    extra = {"dynamic": constraints is not None, **extra}
    return write_files(path, clean.graph, metas, name, extra, _constraints(clean, constraints))


def write_files(
    path: Path,
    graph: fx.Graph,
    metas: Sequence[TensorMeta],
    name: str,
    extra: dict[str, Any],
    constraints: str = _FIXED,
) -> StructuralHash:
    """Write the subgraph directory of a graph whose inputs' metadata are known."""
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
        "dynamic": False,
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
    """Return the sizes of an input, symbols where they are symbolic."""
    example = node.meta.get("example_value")
    return example.shape if example is not None and hasattr(example, "shape") else value.shape
