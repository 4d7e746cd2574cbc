"""A search of eight islands on two GPUs: is each kept busy? And is a candidate judged alike on both?

    python benchmarks/two_devices.py [TASK] --seconds 100 --device cuda:0,cuda:1

The search is a real one. Its model takes `--think` seconds for each candidate and writes the expert's, in
turn eight of different plans, with kernels that are not built yet. The share of the time in which a device
is busy is the sum of its evaluations' seconds over the time from `--warm` seconds after its first evaluation
to the last one. Then the expert's first candidate is evaluated `--rounds` times on each device,
in turn and alone.

Raw results go to benchmarks/results/two-devices-cuda-<date>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import defaultdict
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from evaluator_repeatability import ROOT, expert_candidates, keep
from leases import anew

import passagent
from passagent.config import ModelConfig
from passagent.evaluator.result import Evaluation
from passagent.models.scripted import as_reply, calling
from passagent.models.types import Message, Reply, ToolSpec
from passagent.sandbox.environment import describe
from passagent.store import Store, evaluations
from passagent.tasks import load_task

TASK = ROOT / "examples/tasks/add_layer_norm"
_numbers = count()


class Author:
    """Thinks for a while, then evaluates a candidate that nobody has seen."""

    def __init__(self, config: ModelConfig) -> None:
        self.name = config.name
        self._think_s = float(os.environ["THINK_S"])
        self._candidates = expert_candidates(load_task(os.environ["TASK"]), "cuda", 8)

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        if messages[-1]["role"] == "tool":
            return as_reply("Nothing more to gain.")
        await asyncio.sleep(self._think_s)
        number = next(_numbers)
        files = anew(self._candidates[number % len(self._candidates)], number).files
        writes = [
            ("file_editor", {"command": "create", "path": name, "file_text": text})
            for name, text in files.items()
        ]
        return as_reply(calling(*writes, ("pass_evaluator", {})))

    async def close(self) -> None:
        pass


def searched(args: argparse.Namespace, runs: Path) -> dict[str, Any]:
    """Of each device its evaluations, and the share of the time in which it was busy."""
    settings = {"search.expert_seeds": 0, "search.finalists": 0}
    how = {"model": "two_devices:Author", "device": args.device, "islands": 8, "iters": 10_000}
    passagent.run(
        args.task, runs_dir=runs, new=True, settings=settings, max_time=args.seconds, library="off", **how
    )
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with Store.open(runs, create=False) as store:
        for row in store.rows("SELECT id, seconds, created_at FROM evaluations"):
            found = Evaluation.model_validate(evaluations.get_evaluation(store, row["id"]))
            ended = datetime.fromisoformat(row["created_at"]).timestamp()
            spans[found.device].append((ended - row["seconds"], ended))
    end = max(ended for each in spans.values() for _, ended in each)
    devices = {}
    for name, each in sorted(spans.items()):
        begin = min(begun for begun, _ in each) + args.warm
        busy = sum(max(0.0, ended - max(begun, begin)) for begun, ended in each)
        devices[name] = {"evaluations": len(each), "busy": busy / (end - begin), "window_s": end - begin}
    return devices


def judged(args: argparse.Namespace) -> list[dict[str, Any]]:
    """AS of one candidate on each device, in turn."""
    first = expert_candidates(load_task(args.task), "cuda", 1)[0]
    rows = []
    for _ in range(args.rounds):
        row = {}
        for device in args.device.split(","):
            with passagent.Evaluator(device=device) as evaluator:
                found = evaluator.evaluate(args.task, first.files)
            whole = found.evaluation
            row[device] = {"as": whole.as_score, "low": whole.as_low, "high": whole.as_high}
        rows.append(row)
        print(
            *(f"{name} AS {one['as']:.4f} [{one['low']:.4f}, {one['high']:.4f}]" for name, one in row.items())
        )
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", nargs="?", default=str(TASK))
    parser.add_argument("--device", default="cuda:0,cuda:1")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--think", type=float, default=5.0)
    parser.add_argument("--warm", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ.update(THINK_S=str(args.think), TASK=args.task)
    sys.path.insert(0, str(Path(__file__).parent))
    with tempfile.TemporaryDirectory() as place:
        search = searched(args, Path(place))
    for name, one in search.items():
        print(f"{name}: {one['evaluations']} evaluations, busy {one['busy']:.1%} of {one['window_s']:.0f} s")
    data = {"environment": describe("cuda", 1), "search": search, "fixed": judged(args)}
    print(keep("two-devices", "cuda", args.out, data))


if __name__ == "__main__":
    main()
