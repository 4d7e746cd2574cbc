"""Inductor's own code on the evaluator's special values: where its outputs would be refused is counted.

    python benchmarks/special_values_fairness.py TASK... --out FILE.json

Each task is a directory, or one of tasks. The input sets and the judgement are the evaluator's; nothing is
timed. A refusal is a fault of Inductor's or of the judgement: each is
explained in docs/evaluator.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import secrets
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from passagent.errors import PassagentError
from passagent.evaluator.captures import KeptGraph, without_dynamo
from passagent.evaluator.correctness.settled import first_beyond, settle
from passagent.evaluator.reference.drawing import begin_wider, draw_sets
from passagent.evaluator.runner.fresh import Rotation
from passagent.evaluator.score import SETS
from passagent.sandbox.environment import device_name, evaluator_version
from passagent.tasks.capture import capture
from passagent.tasks.graphio import dump_graph, load_graph
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph, load_task


def main() -> None:
    """Judge each subgraph, print a line for each refusal, and keep all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--subgraphs", type=int, default=1 << 16, help="of each task, at most")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side, a task each")
    parser.add_argument("--most-s", type=float, default=3600.0, help="begin no further task after this long")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    paths = [
        one
        for path in args.tasks
        for one in ([path] if is_task(path) else sorted(filter(Path.is_dir, path.iterdir())))
    ]
    rows: list[dict[str, Any]] = []
    judge = partial(judged, device=args.device, subgraphs=args.subgraphs, until=time.time() + args.most_s)
    with multiprocessing.get_context("spawn").Pool(args.jobs, start_worker) as pool:
        for task_rows in pool.imap_unordered(judge, paths):
            rows += task_rows
            for row in task_rows:
                for line in [*row.get("refused", []), *([row["error"]] if "error" in row else [])]:
                    print(f"{row['task']} {row['dtype']}: {line}", flush=True)
            if args.out is not None:
                head = {"device": device_name(args.device), "evaluator": evaluator_version()}
                kept = sorted(rows, key=lambda row: (row["task"], row["subgraph"]))
                args.out.write_text(
                    json.dumps(head | {"torch": str(torch.__version__), "rows": kept}, indent=1)
                )
    refused = sum(bool(row.get("refused")) for row in rows)
    failed = sum("error" in row for row in rows)
    tasks = len({row["task"] for row in rows})
    print(
        f"{tasks} tasks of {len(paths)}, {len(rows)} subgraphs: {len(rows) - refused - failed} accepted, "
        f"{refused} refused, {failed} not judged"
    )


def start_worker() -> None:
    """One thread a process; compilers start no processes of their own, and wait for no other one's lock."""
    torch.set_num_threads(1)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


def judged(path: Path, device: str, subgraphs: int, until: float) -> list[dict[str, Any]]:
    """A row for each subgraph of a task: its refusals, or the error; none where the time is over."""
    rows: list[dict[str, Any]] = []
    for subgraph in load_task(path).subgraphs[:subgraphs] if time.time() < until else ():
        torch._dynamo.reset()
        row = {"task": path.name, "subgraph": subgraph.name, "dtype": subgraph.dtype}
        try:
            row |= {"refused": refusals(subgraph, device)}
        except (PassagentError, RuntimeError, ValueError, TypeError, IndexError) as error:
            row |= {"error": f"{type(error).__name__}: {error}"[:300]}
        rows.append(row)
    return rows


def refusals(subgraph: Subgraph, device: str) -> list[str]:
    """What Inductor's code would be refused for, on each set that is not compared at every t."""
    module = load_module(subgraph, device)
    captured = without_dynamo(subgraph, device)
    if captured is None:
        caught = capture(module, make_inputs(subgraph, device, 0))
        captured = KeptGraph(dump_graph(caught.graph_module.graph), caught.order)
    graph, wider = load_graph(captured.nodes), begin_wider(subgraph, captured).subgraph
    arena, sets = draw_sets(subgraph, wider, Rotation.of(wider), captured)
    compiled = torch.compile(module, dynamic=False)
    found = []
    for kind in list(sets)[SETS:]:

        def inputs(kind: str = kind) -> list[Any]:
            return [
                given.value
                if given.tensor is None
                else arena.view(given.tensor)[: meta.numel].reshape(meta.shape).clone().to(device)
                for given, meta in zip(sets[kind], subgraph.inputs, strict=True)
            ]

        def ordered(kind: str = kind) -> list[Any]:
            values = inputs(kind)
            return [values[i] for i in captured.order]

        with torch.no_grad():
            eager, got = tensors(graph.forward(*ordered())), tensors(compiled(*inputs()))
            rooms = settle(graph, ordered(), [], secrets.randbits(40))
        for position, (want, room, have) in enumerate(zip(eager, cpu(rooms), got, strict=True)):
            if (worst := first_beyond(position, want, room, have)) is not None:
                values = f"{worst.got!r}, eager's is {worst.expected!r}"
                found.append(f"output {position} at {worst.index} is {values}, for inputs {kind}")
    arena.close()
    return found


def tensors(out: Any) -> list[torch.Tensor]:
    """Those that a call returned, on the CPU."""
    return cpu([value for value in pytree.tree_leaves(out) if isinstance(value, torch.Tensor)])


def cpu(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same there."""
    return [value.detach().cpu() for value in values]


def is_task(path: Path) -> bool:
    """Whether a directory is a task, or a subgraph, and not one of tasks."""
    return (path / "graph_list.txt").exists() or (path / "model.py").exists()


if __name__ == "__main__":
    main()
