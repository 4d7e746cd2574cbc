"""Hold the expert's first pass of every task against eager, untimed, in this process.

    python benchmarks/expert_sweep.py TASKS --device cpu --elements 4194304 --out benchmarks/results/NAME.json

For each task: seconds to read it and to write the pass, what was fused, and of each subgraph whether it
matched and whether it equals eager on two input sets: within t = -5, or else as near to float64 as eager is.
Subgraphs with more input elements than `--elements` are skipped.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from passagent import __version__
from passagent.evaluator.correctness.double import in_float64
from passagent.evaluator.correctness.exactness import Expected, as_exact
from passagent.evaluator.matching.passes import LoadedPass, load_passes
from passagent.evaluator.matching.rewrite import apply_passes
from passagent.evaluator.result import Candidate
from passagent.evaluator.score import tolerance
from passagent.expert.author import author
from passagent.expert.choices import default
from passagent.expert.read.reading import graphs
from passagent.tasks import load_task
from passagent.tasks.capture import capture
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph
from passagent.tasks.tasklist import find_tasks


def equal(eager: list[torch.Tensor], ours: list[torch.Tensor]) -> str | None:
    """What differs at t = -5; None: nothing."""
    for position, (want, have) in enumerate(zip(eager, ours, strict=True)):
        if (want.dtype, want.shape) != (have.dtype, have.shape):
            return (
                f"output {position} is {have.dtype} {list(have.shape)}, not {want.dtype} {list(want.shape)}"
            )
        atol, rtol = tolerance(str(want.dtype).removeprefix("torch."), -5)
        close = torch.isclose(have, want, atol=atol, rtol=rtol, equal_nan=True)
        if not bool(close.all()):
            return f"output {position} differs in {int((~close).sum())} of {want.numel()} elements"
    return None


def check(subgraph: Subgraph, passes: Any, device: str) -> dict[str, Any]:
    """Status of one subgraph: ok, mismatch, wrong_result, or error."""
    rewritten = None
    for variant in (0, 1):
        inputs = make_inputs(subgraph, device, 0, variant)
        if rewritten is None:
            captured = capture(load_module(subgraph, device), inputs)
            rewritten = apply_passes(copy.deepcopy(captured.graph_module), passes)
            if not rewritten.applied:
                return {"status": "mismatch", "why": [m.reason for m in rewritten.mismatches]}

        def fresh(inputs: list[Any] = inputs, order: list[int] = captured.order) -> list[Any]:
            return [inputs[i].clone() if isinstance(inputs[i], torch.Tensor) else inputs[i] for i in order]

        eager, ours = (
            [t for t in pytree.tree_leaves(module(*fresh())) if isinstance(t, torch.Tensor)]
            for module in (captured.graph_module, rewritten.graph_module)
        )
        problem = equal(eager, ours)
        if problem and not as_exact(Expected(eager, [], in_float64(captured.graph_module, fresh())), ours):
            return {"status": "wrong_result", "why": problem, "variant": variant}
    return {"status": "ok"}


def sweep(path: Path, device: str, elements: int) -> dict[str, Any]:
    """One task."""
    target = device.partition(":")[0]
    begun = time.monotonic()
    captured = graphs(str(path))
    read = time.monotonic()
    authored = author(list(captured), target, default(target))
    row = {"task": path.name, "read_s": read - begun, "author_s": time.monotonic() - read}
    row |= {"fused": authored.fused, "uncovered": len(authored.uncovered), "subgraphs": []}
    if not authored.files:
        return row
    with tempfile.TemporaryDirectory() as scratch:
        passes = load_passes(Candidate(authored.files), Path(scratch))
        row["subgraphs"] = checked(path, passes, device, elements)
    return row


def checked(path: Path, passes: list[LoadedPass], device: str, elements: int) -> list[dict[str, Any]]:
    """What became of each subgraph."""
    rows = []
    for subgraph in load_task(path).subgraphs:
        large = sum(meta.numel for meta in subgraph.inputs if not meta.is_python_scalar) > elements
        try:
            with torch.no_grad():
                found = {"status": "skipped"} if large else check(subgraph, passes, device)
        except Exception as error:  # a task that fails is a result here
            found = {"status": "error", "why": f"{type(error).__name__}: {error}"}
        rows.append({"name": subgraph.name, **found})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--elements", type=int, default=1 << 22)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    rows, counts = [], Counter[str]()
    for path in find_tasks(args.tasks):
        rows.append(sweep(path, args.device, args.elements))
        counts.update(found["status"] for found in rows[-1]["subgraphs"])
        wrong = [f for f in rows[-1]["subgraphs"] if f["status"] not in {"ok", "skipped"}]
        print(path.name, Counter(f["status"] for f in rows[-1]["subgraphs"]), wrong[:1], flush=True)
        head = {"passagent": __version__, "torch": torch.__version__, "device": args.device}
        Path(args.out).write_text(json.dumps(head | {"elements": args.elements, "tasks": rows}, indent=1))
    print(dict(counts))


if __name__ == "__main__":
    main()
