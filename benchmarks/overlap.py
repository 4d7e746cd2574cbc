"""What it saves not to wait for an evaluation: an episode with and without `wait: false`.

    python benchmarks/overlap.py

The model sleeps, each of its replies writes the next version and has it evaluated; the evaluator, one device,
sleeps, too. Loop, tools and workspace are the real thing, and so is how late results are told. Both times are
multiplied by `--scale`, so that it takes about a minute; the seconds printed are divided by it again. In each
of `--rounds` both ways are measured, in turn.

Raw results go to benchmarks/results/overlap-cpu-<date>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

from evaluator_repeatability import keep

from passagent.agent.editor import file_editor
from passagent.agent.episode import evaluations, run_episode
from passagent.agent.evaluator_tool import pass_evaluator
from passagent.agent.tool_specs import ToolAnswer
from passagent.agent.workspace import Workspace
from passagent.config import AgentConfig
from passagent.evaluator.result import MANIFEST
from passagent.models.scripted import as_reply, calling
from passagent.models.types import Message, Reply

START: list[Message] = [{"role": "system", "content": ""}, {"role": "user", "content": ""}]


class SleepingModel:
    """Writes a version a reply."""

    name = "sleeping"

    def __init__(self, seconds: float, waits: bool) -> None:
        self.seconds, self.waits = seconds, waits

    async def complete(self, messages: list[Message], tools: Any) -> Reply:
        """See Model.complete."""
        await asyncio.sleep(self.seconds)
        edit = {"command": "create", "path": "A.py", "file_text": f"x = {len(messages)}\n"}
        return as_reply(calling(("file_editor", edit), ("pass_evaluator", {"wait": self.waits})))

    async def close(self) -> None:
        """See Model.close."""


async def episode_s(model_s: float, evaluation_s: float, count: int, waits: bool) -> float:
    """Wall time of an episode of so many evaluations, s."""
    device = asyncio.Lock()

    async def submit(files: dict[str, str], call_id: str) -> ToolAnswer:
        async with device:
            await asyncio.sleep(evaluation_s)
        verdict = {"status": "ok", "as_score": 1.0, "is_run": True}
        return ToolAnswer("status: ok\nAS: 1.0000", {"evaluation": verdict})

    messages, limits = [*START], AgentConfig(max_evaluations=count, max_steps=2 * count)
    workspace = Workspace({}, {"A.py": "x = 0\n", MANIFEST: '["A"]'})
    tools = [file_editor(workspace), pass_evaluator(workspace, submit)]
    begun = time.perf_counter()
    reason = await run_episode(
        SleepingModel(model_s, waits), messages, tools, lambda message, usage: None, limits
    )
    seconds = time.perf_counter() - begun
    assert (reason, evaluations(messages)) == ("max_evaluations", count)
    return seconds


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-seconds", type=float, default=20.0, help="of a reply")
    parser.add_argument("--evaluation-seconds", type=float, default=3.0)
    parser.add_argument("--evaluations", type=int, default=8, help="of an episode")
    parser.add_argument("--scale", type=float, default=0.05, help="of a second, how much is slept")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: dict[str, list[float]] = {"waits": [], "goes on": []}
    for _ in range(args.rounds):
        for name, seconds in found.items():
            slept = (args.scale * args.model_seconds, args.scale * args.evaluation_seconds)
            taken = asyncio.run(episode_s(*slept, args.evaluations, name == "waits"))
            seconds.append(taken / args.scale)
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    for name, seconds in medians.items():
        print(f"{name:8} {seconds:6.1f} s an episode (slept at a scale of {args.scale:g})")
    ratio = medians["waits"] / medians["goes on"]
    print(f"ratio {ratio:.3f}")
    data = {
        "arguments": {name: value for name, value in vars(args).items() if name != "out"},
        "machine": {
            "cores": os.cpu_count(),
            "load_1m": os.getloadavg()[0],
            "python": platform.python_version(),
        },
        "seconds divided by scale": found,
        "medians": medians,
        "ratio": ratio,
    }
    print(keep("overlap", "cpu", args.out, data))


if __name__ == "__main__":
    main()
