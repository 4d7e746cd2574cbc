"""A model and an evaluator that answer at once, and rows by the hundred thousand: for search_overhead.py.

What they answer is made from one real candidate and its one real evaluation: the expert's first pass for the
task, judged by the real evaluator. The model writes that pass with other figures and comments (another one
each time) and says a paragraph; the evaluator gives back the real evaluation with other samples, as many as
were measured (under the bar: by the first pair of workers), and lets one candidate in four fail.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
import re
import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from passagent.evaluator.reference.eager import EagerGraph
from passagent.evaluator.result import MANIFEST, Candidate, Evaluation, GraphResult, Mismatch, Worst
from passagent.models.scripted import calling
from passagent.models.types import TOOLS, Message, Reply, ToolSpec, Usage
from passagent.store import Store, runs
from passagent.tasks import resources

VARIANTS = 256
"""Different evaluations that are given out."""
WRONG = 0.25
_SEED = re.compile(r"^Episode seed: (\d+)$", re.M)


def share(*words: object) -> float:
    """A number in 0..1 that is fixed by `words`."""
    digest = hashlib.sha256(" ".join(map(str, words)).encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


class Author:
    """Candidates: variations of a real one."""

    def __init__(self, files: dict[str, str]) -> None:
        self.manifest = files[MANIFEST]
        [self.name] = [name for name in files if name != MANIFEST]
        self.lines = files[self.name].split("\n")
        code = [i for i, line in enumerate(self.lines) if line.strip().endswith((";", "{"))]
        self.places = code or list(range(len(self.lines)))
        text = resources.find("knowledge/index.md").read_text(encoding="utf-8")
        self.words = sorted(set(re.findall(r"[a-z]{3,}", text)))

    def files(self, seed: int, step: int) -> dict[str, str]:
        """Another candidate for every seed and step: its own note, figures and twelve comments."""
        rng = random.Random(f"{seed} {step}")
        lines = list(self.lines)
        lines[0] = f'"""{self.sentence(rng, 8)}; block {rng.choice((64, 128, 256, 512))}, try {seed}."""'
        for place in rng.sample(self.places, min(12, len(self.places))):
            lines[place] += f"  // {self.sentence(rng, 4)} {rng.randrange(4096)}"
        return {self.name: "\n".join(lines), MANIFEST: self.manifest}

    def sentence(self, rng: random.Random, count: int) -> str:
        """So many words."""
        return " ".join(rng.choices(self.words, k=count))


@dataclass
class InstantModel:
    """Writes a pass and its manifest with file_editor and evaluates it, all in one reply."""

    author: Author
    seconds: float = 0.0
    jitter: float = 0.0
    """Standard deviation of the logarithm of the time that a reply takes."""
    name: str = "instant"
    spent_s: float = 0.0
    """What the stand-in itself took."""

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        """See Model.complete."""
        began = time.perf_counter()
        found = _SEED.search(messages[1]["content"])
        assert found
        step = sum(message["role"] == "assistant" for message in messages)
        seed = int(found.group(1))
        files = self.author.files(seed, step)
        texts = [
            ("file_editor", {"command": "create", "path": name, "file_text": text})
            for name, text in files.items()
        ]
        rng = random.Random(seed + step)
        ids = [f"toolu_{rng.getrandbits(96):024x}" for _ in range(3)]
        said = f"{self.author.sentence(rng, 60)}."
        message = calling(*texts, ("pass_evaluator", {}), content=said, ids=ids)
        size = sum(len(str(message["content"])) for message in messages) // 4
        self.spent_s += time.perf_counter() - began
        if self.seconds:
            factor = math.exp(rng.gauss(0, self.jitter)) if self.jitter else 1.0
            await asyncio.sleep(self.seconds * factor)
        return Reply(message, Usage(size, 1200, size * 3 // 4), TOOLS)

    async def close(self) -> None:
        """See Model.close."""


@dataclass
class InstantEvaluator:
    """Gives out prepared evaluations; with `seconds` it is one device that takes so long for each."""

    variants: list[Evaluation]
    seconds: float = 0.0
    busy_s: float = 0.0
    spent_s: float = 0.0
    device: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def evaluate(self, task_path: Path, candidate: Candidate, bar: float | None = None) -> Evaluation:
        """See search.session.Evaluator."""
        if self.seconds:
            async with self.device:
                began = time.monotonic()
                await asyncio.sleep(self.seconds)
                self.busy_s += time.monotonic() - began
        began = time.perf_counter()
        key = candidate.key
        found = self.variants[int(key[:8], 16) % len(self.variants)]
        if bar is not None and found.status == "ok" and (found.as_high or math.inf) < bar:
            found = cut_short(found, bar)
        score = None if found.as_score is None else found.as_score * (1 + 1e-3 * share(key))
        es = None if found.es is None or score is None else dict.fromkeys(found.es, score)  # whose mean it is
        found = found.model_copy(update={"candidate": key, "as_score": score, "es": es})
        self.spent_s += time.perf_counter() - began
        return found

    async def describe(self, task_path: Path) -> tuple[EagerGraph, ...]:
        """See search.session.Evaluator."""
        return ()

    async def close(self) -> None:
        """See search.session.Evaluator."""


def variants(real: Evaluation, count: int = VARIANTS) -> list[Evaluation]:
    """Evaluations like `real`: as many samples, a spread of scores, one in four a failure of some kind."""
    rng = random.Random(0)
    found = []
    for number in range(count):
        factor = math.exp(rng.gauss(0, 0.15))
        graphs = [_noisy(graph, factor, rng) for graph in real.graphs]
        ends = {name: (getattr(real, name) or 1.0) / factor for name in ("as_score", "as_low", "as_high")}
        changes: dict[str, Any] = {"graphs": graphs, **ends}
        if number < WRONG * count:
            kind = ("wrong_result", "mismatch", "runtime_error")[number % 3]
            changes = {"graphs": [_failed(graph, kind) for graph in graphs], "as_score": 0.1, "status": kind}
            changes |= {"as_low": None, "as_high": None}
        found.append(real.model_copy(update=changes))
    return found


def cut_short(evaluation: Evaluation, bar: float) -> Evaluation:
    """What the evaluator would have made of it under `bar`: the part of the first pair of workers."""
    limit = f"its AS, at most {evaluation.as_high:.3f}, is under {bar:.3f}"
    graphs = []
    for graph in evaluation.graphs:
        blocks = graph.blocks[: graph.pairs[0]]
        made = sum(blocks)
        changes: dict[str, Any] = {"blocks": blocks, "pairs": graph.pairs[:1], "trials": made}
        changes["eager_samples_ms"] = graph.eager_samples_ms[:made]
        changes["compiled_samples_ms"] = graph.compiled_samples_ms[:made]
        graphs.append(graph.model_copy(update=changes))
    text = f"timed by one of 2 pairs of workers: {limit}"
    return evaluation.model_copy(update={"graphs": graphs, "stopped_early": text})


def _noisy(graph: GraphResult, factor: float, rng: random.Random) -> GraphResult:
    def samples(times: list[float], scale: float) -> list[float]:
        return [float(f"{time * scale * math.exp(abs(rng.gauss(0, 0.03))):.4g}") for time in times]

    assert graph.speedup and graph.compiled_ms
    speedup = graph.speedup.model_copy(update={"e2e": graph.speedup.e2e / factor})
    return graph.model_copy(
        update={
            "speedup": speedup,
            "compiled_ms": round(graph.compiled_ms * factor, 6),
            "eager_samples_ms": samples(graph.eager_samples_ms, 1.0),
            "compiled_samples_ms": samples(graph.compiled_samples_ms, factor),
        }
    )


def _failed(graph: GraphResult, kind: str) -> GraphResult:
    nothing: dict[str, Any] = {"speedup": None, "eager_ms": None, "compiled_ms": None, "blocks": []}
    nothing |= {"eager_samples_ms": [], "compiled_samples_ms": [], "status": kind, "passes_from_t": None}
    if kind == "wrong_result":
        nothing["worst"] = Worst(output=0, index=[0, 3, 17], expected=1.25, got=1.5)
    elif kind == "mismatch":
        reason = "the graph's node has another target"
        nothing["mismatches"] = [
            Mismatch(
                pass_name="Fused",
                matched_nodes=4,
                pattern_nodes=9,
                pattern_node="%mul : call_function[target=operator.mul](args = (%add, %rsqrt))",
                graph_node="%add_1 : call_function[target=operator.add](args = (%mean, 1e-06))",
                reason=reason,
            )
        ]
    else:
        nothing["error"] = "RuntimeError: fused does not take tensors of shapes [2, 3], [2, 3], [3]"
    return graph.model_copy(update=nothing)


def past_runs(store: Store, count: int) -> None:
    """So many finished runs of other tasks, of operators such as GraphNet's tasks have."""
    words = ["add", "mul", "sub", "relu", "gelu", "silu", "layer_norm", "softmax", "matmul", "conv2d"]
    words += ["mean", "sum", "pow", "rsqrt", "sigmoid", "tanh", "dropout", "transpose", "view", "reshape"]
    words += ["permute", "cat", "split", "getitem", "to", "float", "contiguous", "expand", "embedding"]
    rng = random.Random(2)
    with store.transaction():
        for number in range(count):
            common = [1 / (rank + 1) for rank in range(len(words))]
            operators = rng.choices(words, weights=common, k=rng.randint(2, 14))
            run = runs.create_run(
                store, roles=["fusion"], operators=operators, task=f"past_{number}", task_path="past",
                task_key=hashlib.sha256(str(number).encode()).hexdigest(), model="past", device="cpu",
                seed=0, iters=1, config="{}", version="0",
            )  # fmt: skip
            store.execute(
                "UPDATE islands SET best_as = :score, best_node = 1 WHERE run_id = :run",
                {"score": 1 + rng.random(), "run": run.id},
            )


def grow(database: Path, run_id: str, nodes: int, lower: float = 1e-6) -> None:
    """Copy the run's rows until it has `nodes` nodes: the same shapes, keys and numbers of their own.

    Copies have the parents of their originals, so that a good node keeps getting children as in a long
    search, and scores that are `lower` by a little. Their candidates' files are the originals'.
    """
    connection = sqlite3.connect(database, isolation_level=None)
    connection.create_function("fresh", 2, _fresh, deterministic=True)
    # nothing to go back to is kept: each page is written once, when the cache is full or at a COMMIT
    for pragma in ("journal_mode = OFF", "synchronous = OFF", "foreign_keys = OFF", "cache_size = -2000000"):
        connection.execute(f"PRAGMA {pragma}")
    made, islands = connection.execute(
        "SELECT (SELECT count(*) FROM nodes WHERE run_id = :run AND number > 0), islands FROM runs "
        "WHERE id = :run",
        {"run": run_id},
    ).fetchone()
    last = connection.execute("SELECT max(number) FROM episodes WHERE run_id = ?", (run_id,)).fetchone()[0]
    seeds = connection.execute(
        "SELECT coalesce(max(id), 0) FROM episodes WHERE run_id = ? AND number < 1", (run_id,)
    ).fetchone()[0]
    # whole rounds only: the island of a copied episode is that of its original
    assert last % islands == 0, f"{last} episodes are not whole rounds of {islands} islands"
    connection.execute(
        "CREATE TEMP TABLE own AS SELECT message_id FROM steps GROUP BY message_id HAVING count(*) = 1"
    )
    connection.execute("CREATE UNIQUE INDEX temp.own_by_id ON own (message_id)")
    steps = {name: _top(connection, name) for name in _COPIED if name not in _OF_OTHERS}
    columns = {name: _columns(connection, name) for name in _COPIED}
    tops = dict(steps)
    done = made
    connection.execute("BEGIN")
    for copy in range(1, -(-nodes // made)):
        part = min(made, nodes - done)
        for name, changes in _COPIED.items():
            chosen = [changes.get(column, column) for column in columns[name]]
            where = _WHERE[name]
            connection.execute(
                f"INSERT INTO {name} ({', '.join(columns[name])}) SELECT {', '.join(chosen)} FROM {name} "
                f"WHERE {where}",
                {
                    "copy": copy,
                    "run": run_id,
                    "last": last,
                    "part": part,
                    "seeds": seeds,
                    "below": 1 - lower * copy,
                    **{f"{table}_up": copy * top for table, top in tops.items()},
                    **{f"{table}_top": top for table, top in tops.items()},
                },
            )
        done += part
    _count(connection, run_id)
    connection.execute("COMMIT")
    connection.execute("ANALYZE") if connection.execute(
        "SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'"
    ).fetchone() else None
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


def _count(connection: sqlite3.Connection, run_id: str) -> None:
    """Set the counters that go with the rows."""
    for column, table in (("episodes", "episodes"), ("nodes", "nodes")):
        connection.execute(
            f"UPDATE islands SET {column} = (SELECT count(*) FROM {table} AS t "
            "WHERE t.run_id = islands.run_id AND t.island = islands.island) WHERE run_id = ?",
            (run_id,),
        )
    connection.execute(
        "UPDATE runs SET evaluations = (SELECT count(*) FROM nodes WHERE run_id = runs.id) WHERE id = ?",
        (run_id,),
    )


def _fresh(key: str, copy: int) -> str:
    return hashlib.sha256(f"{key} {copy}".encode()).hexdigest()


def _top(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()[0])


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    rows = connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
    return [row[1] for row in rows if row[6] == 0]


_COPIED = {
    "episodes": {
        "id": "id + :episodes_up",
        "number": "number + :last * :copy",
        "best_node": "best_node + :nodes_up",
        "best_as": "best_as * :below",
    },
    "evaluations": {
        "id": "id + :evaluations_up",
        "candidate_key": "fresh(candidate_key, :copy)",
        "as_score": "as_score * :below",
    },
    "nodes": {
        "id": "id + :nodes_up",
        "episode_id": "episode_id + :episodes_up",
        "evaluation_id": "evaluation_id + :evaluations_up",
        "number": "number + :last * :copy",
        "canonical_key": "fresh(canonical_key, :copy)",
        "as_score": "as_score * :below",
        "repeat_of": "repeat_of + :nodes_up",
    },
    "messages": {"id": "id + :messages_up"},
    "steps": {
        "episode_id": "episode_id + :episodes_up",
        "message_id": "message_id + :messages_up * (message_id IN (SELECT message_id FROM own))",
    },
    "calls": {"id": "id + :calls_up", "episode_id": "episode_id + :episodes_up"},
}
"""Tables that grow with every iteration, and what is another in a copied row."""
_OF_OTHERS = ("steps",)
"""Those whose keys are of other tables' rows."""
_LAST = "(SELECT min(id) - 1 + :part FROM episodes WHERE run_id = :run AND number > 0)"
_EPISODE = f"> :seeds AND episode_id <= :episodes_top AND episode_id <= {_LAST}"
_WHERE = {
    "episodes": f"run_id = :run AND number > 0 AND id <= {_LAST}",
    "nodes": f"run_id = :run AND number > 0 AND episode_id {_EPISODE}",
    "evaluations": "id IN (SELECT evaluation_id FROM nodes WHERE run_id = :run AND number > 0 "
    f"AND id <= :nodes_top AND episode_id {_EPISODE})",
    "messages": f"id IN (SELECT message_id FROM steps WHERE episode_id {_EPISODE}) "
    "AND id IN (SELECT message_id FROM own)",
    "steps": f"episode_id {_EPISODE}",
    "calls": f"episode_id {_EPISODE}",
}
