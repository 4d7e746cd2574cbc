"""A model and an evaluator that answer at once and depend on what they are asked alone, for search tests.

Also a program: `python tests/tiny_search.py run TASK RUNS_DIR ITERS ISLANDS SEED [SECONDS]` and
`... resume RUN RUNS_DIR [SECONDS]` are `passagent run` and `passagent resume` with these two in place; the
file that HOLD names is its `Gate`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any

from passagent.evaluator.reference.eager import EagerGraph
from passagent.evaluator.result import MANIFEST, Candidate, Evaluation, GraphResult, Speedup
from passagent.experience.diagnosis import Diagnosis
from passagent.models.scripted import ScriptedModel, calling
from passagent.models.types import Message, ToolSpec
from passagent.sandbox.environment import evaluator_version
from passagent.store import Store, evaluations, nodes
from passagent.store.episodes import Episode
from passagent.store.nodes import Node
from passagent.store.runs import Run, create_run

TASK_MODEL = """import torch

class GraphModule(torch.nn.Module):

    def forward(self, in_0):
        tmp_0 = torch.nn.functional.relu(in_0)
        return (tmp_0,)
"""
TASK_META = """class Program_weight_tensor_meta_x:
	name = "in_0"
	original_name = "x"
	shape = [4, 4]
	dtype = "torch.float32"
	device = "cuda:0"
	mean = 0.000
	std = 1.000
"""


def write_task(path: Path) -> Path:
    """A task of one subgraph."""
    graph = path / "graphs" / "g"
    graph.mkdir(parents=True)
    (graph / "model.py").write_text(TASK_MODEL)
    (graph / "weight_meta.py").write_text(TASK_META)
    (path / "graph_list.txt").write_text("graphs/g\n")
    return path


def share(*words: object) -> float:
    """A number in 0..1 that is fixed by `words`."""
    digest = hashlib.sha256(" ".join(map(str, words)).encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


def candidate_files(words: str) -> dict[str, str]:
    """A candidate whose score the evaluator reads from its text."""
    return {"Fused.py": f'"""Attempt {words}."""\n\nWORDS = "{words}"\n', MANIFEST: '["Fused"]'}


class Gate:
    """Where processes wait for the test that started them: it need not be faster than they are.

    While there is a file at `path`, a process gives as many replies in its life as the file says.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.given = 0

    def hold(self, replies: int = 0) -> None:
        """Let no process give more than so many replies from now on."""
        assert self.path is not None
        fresh = self.path.with_name(f"{self.path.name}.new")
        fresh.write_text(str(replies))
        fresh.rename(self.path)

    def go(self) -> None:
        """Let all go on."""
        assert self.path is not None
        self.path.unlink(missing_ok=True)

    async def wait(self) -> None:
        """Return when one more reply may be given."""
        while self.is_shut():
            await asyncio.sleep(0.01)
        self.given += 1

    def is_shut(self) -> bool:
        """Whether this process has given what it may."""
        try:
            return self.path is not None and self.given >= int(self.path.read_text())
        except FileNotFoundError:
            return False


class FastEvaluator:
    """One in four candidates is wrong, the others' AS is between 0.5 and 2.5. Counts what it is asked."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.asked: list[str] = []

    async def evaluate(self, task_path: Path, candidate: Candidate, bar: float | None = None) -> Evaluation:
        self.asked.append(candidate.key)
        await asyncio.sleep(self.seconds)
        return judge(candidate)

    async def describe(self, task_path: Path) -> tuple[EagerGraph, ...]:
        return ()

    async def outline(self, task_path: Path, candidate: Candidate) -> Evaluation | list[str]:
        return []

    async def close(self) -> None:
        pass


def judge(candidate: Candidate) -> Evaluation:
    """The evaluation that a candidate's text leads to."""
    found = re.search(r'WORDS = "(.*)"', candidate.files.get("Fused.py", ""))
    words = found.group(1) if found else candidate.key  # of another model than `reply`
    is_ok = share("status", words) > 0.25
    score = 0.5 + 2 * share("score", words) if is_ok else 0.1
    speedup = Speedup(e2e=score) if is_ok else None
    graph = GraphResult(
        name="g",
        dtype="float32",
        status="ok" if is_ok else "wrong_result",
        speedup=speedup,
        passes_from_t=-10 if is_ok else None,
    )
    return Evaluation(
        task="tiny",
        candidate=candidate.key,
        device="cpu",
        dispatch="direct",
        timing="wall" if is_ok else "none",
        status=graph.status,
        as_score=score,
        es={str(t): score for t in range(-10, 5)},
        graphs=[graph],
        evaluator_version=evaluator_version(),
        seconds=0.0,
    )


def reply(messages: list[Message], tools: list[ToolSpec]) -> Message | str:
    """Two candidates an episode, a function of its seed; one pair in three is the same everywhere."""
    seed = int(re.search(r"^Episode seed: (\d+)$", messages[1]["content"], re.M).group(1))  # type: ignore[union-attr]
    step = sum(message["role"] == "assistant" for message in messages)
    words = f"{seed if seed % 3 else 'known'} {step // 2}"
    if step in (0, 2):
        files = candidate_files(words)
        return calling(
            *(
                ("file_editor", {"command": "create", "path": name, "file_text": text})
                for name, text in files.items()
            )
        )
    return calling(("pass_evaluator", {})) if step in (1, 3) else "Nothing more to gain."


class PacedModel(ScriptedModel):
    """`reply`, after some seconds and when the gate is open."""

    def __init__(self, seconds: float = 0.0, gate: Gate | None = None) -> None:
        super().__init__(reply)
        self.seconds = seconds
        self.gate = gate or Gate()

    async def complete(self, messages, tools):  # type: ignore[no-untyped-def]
        await asyncio.sleep(self.seconds)
        await self.gate.wait()
        return await super().complete(messages, tools)


def diagnose(evaluation: Evaluation) -> Diagnosis:
    """No machine is measured."""
    return Diagnosis("latency_bound" if evaluation.status == "ok" else evaluation.status, "As it is.")


def parts(seconds: float = 0.0, gate: Gate | None = None):  # type: ignore[no-untyped-def]
    """The stand-ins for `commands.searching`."""
    from passagent.search.setup import Parts

    return Parts(PacedModel(seconds, gate), FastEvaluator(seconds), diagnose)


def settings(iters: int, islands: int, seed: int) -> dict[str, object]:
    """The settings of a tiny run."""
    fixed = {"search.stagnation": 1, "search.finalists": 0, "search.expert_seeds": 0}
    return fixed | {"search.iters": iters, "search.islands": islands, "search.seed": seed}


def program() -> None:
    """The entry behind `main`, so that its errors and exit codes are those of the command line."""
    from passagent.cli import running

    verb, target, runs_dir, *rest = sys.argv[1:]
    made = parts(float(rest[-1]), Gate(Path(os.environ["HOLD"])) if "HOLD" in os.environ else None)
    if verb == "run":
        iters, islands, seed = map(int, rest[:3])
        running.run(target, {"settings": settings(iters, islands, seed), "runs_dir": runs_dir}, True, made)
    else:
        running.resume(target, {"settings": {}, "runs_dir": runs_dir}, True, made)


if __name__ == "__main__":
    from passagent.cli import guarded

    guarded(program)


def make_run(store: Store, **values: object) -> Run:
    """A run of nothing, stored."""
    columns = {
        "task": "t", "task_path": "/t", "task_key": "k", "model": "m", "device": "cpu", "seed": 1, "iters": 4,
        "config": "{}", "version": "0",
    }  # fmt: skip
    return create_run(store, roles=["fusion", "memory"], operators=["add"], **(columns | values))


def shape(store: Store, run_id: str) -> list[tuple[object, ...]]:
    """The tree by episode and place in it: no ids, no times, nothing of who was faster."""
    made = nodes.of_run(store, run_id)
    migrations = {episode.id: episode.migration or "" for episode in all_episodes(store, run_id)}
    names = {node.id: (node.number, node.call_id) for node in made}
    return sorted(
        (
            *names[node.id],
            names.get(node.parent_id or 0, ()),
            migrations[node.episode_id],
            node.island,
            node.candidate_key,
            node.status or "",
            node.as_score or 0.0,
        )
        for node in made
    )


def episode_of(store: Store, run_id: str, number: int) -> Episode:
    """The run's episode of this number."""
    return next(one for one in all_episodes(store, run_id) if one.number == number)


def nodes_of(store: Store, run_id: str, number: int) -> list[Node]:
    """The nodes of the run's episode of this number; none where there is none."""
    found = [one.id for one in all_episodes(store, run_id) if one.number == number]
    return [node for one in found for node in nodes.of_episode(store, one)]


def all_episodes(store: Store, run_id: str) -> list[Episode]:
    """The run's episodes in order, those of seeds first."""
    return store.all(Episode, "SELECT * FROM episodes WHERE run_id = :run ORDER BY number", {"run": run_id})


def node_of(node_id: int, **fields: object) -> Node:
    """A node that is done, of a run that is not in a store."""
    usual: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Node))
    usual |= {"id": node_id, "run_id": "1a", "state": "done", "status": "ok", "note": "", "number": 1}
    return Node(**usual | fields)


def give_evaluation(store: Store, node: Node, result: dict[str, Any]) -> None:
    """All evaluations of the node's candidate have this result from now on."""
    store.execute(
        "UPDATE evaluations SET result = :result WHERE candidate_key = :key",
        {"result": evaluations.pack_result(result), "key": node.candidate_key},
    )
