"""Processes that drive a run, for the tests of the queue: forked from one that has imported everything.

They are `passagent run` and `passagent resume` with the model and the evaluator of tiny_search.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import tiny_search

from passagent.search import remeasure
from passagent.store import Store, episodes, evaluations, nodes, runs, sessions

FORKS = multiprocessing.get_context("forkserver")
PRELOAD = ["many", "paid_run", "openai", "anthropic"]


@pytest.fixture(scope="module")
def forks() -> Iterator[None]:
    """Whoever is first in this session starts the process that the others are forked from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{Path(__file__).parents[1]}")
        patch.setenv("MANY_WARM_UP", "1")
        FORKS.set_forkserver_preload(PRELOAD)
        yield


def warm_up() -> None:
    """A first search, so that those of the forked processes find all loaded and read."""
    from passagent.cli import running
    from passagent.search import setup

    setup.load_hints = functools.cache(setup.load_hints)
    with tempfile.TemporaryDirectory() as root, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        task = tiny_search.write_task(Path(root) / "task")
        settings = tiny_search.settings(4, 2, 1)
        running.run(str(task), {"settings": settings, "runs_dir": f"{root}/runs"}, True, tiny_search.parts())


def child(
    log: str, verb: str, target: str, runs_dir: str, settings: dict[str, Any], how: dict[str, Any]
) -> None:
    """`passagent run TASK` or `passagent resume RUN`, its output in the file `log`.

    `how`: `seconds` of every answer, `gate`, the path of its Gate, and `prepare`, a function that is called
    first.
    """
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if prepare := how.get("prepare"):
        prepare()
    from passagent.cli import guarded, running

    parts = tiny_search.parts(how.get("seconds", 0.0), tiny_search.Gate(how["gate"]))
    sys.argv = ["passagent"]
    if verb == "run":
        guarded(lambda: running.run(target, {"settings": settings, "runs_dir": runs_dir}, True, parts))
    else:
        guarded(lambda: running.resume(target, {"settings": settings, "runs_dir": runs_dir}, True, parts))


class Runs:
    """A task, a runs directory and the processes that work there."""

    def __init__(self, root: Path, iters: int = 12, islands: int = 3, seed: int = 1, **settings: Any) -> None:
        self.task, self.dir, self.log = root / "task", root / "runs", root / "log"
        if not self.task.exists():
            tiny_search.write_task(self.task)
        self.settings = tiny_search.settings(iters, islands, seed)
        # without migrations an island's tree does not depend on how fast the others are
        self.settings |= {"search.stagnation": 1000}
        self.settings |= {f"search.{name}": value for name, value in settings.items()}
        self.iters = iters
        self.gate = tiny_search.Gate(root / "hold")

    def start(self, verb: str = "run", settings: dict[str, Any] | None = None, **how: Any) -> BaseProcess:
        """A process at work; `resume` takes up the last run."""
        target = str(self.task) if verb == "run" else "last"
        chosen = self.settings if settings is None and verb == "run" else settings or {}
        how.setdefault("gate", self.gate.path)
        process = FORKS.Process(target=child, args=(str(self.log), verb, target, str(self.dir), chosen, how))
        process.start()
        return process

    def whole(self, root: Path) -> list[tuple[object, ...]]:
        """The tree of an undisturbed run of one process, beside this one."""
        other = Runs.__new__(Runs)
        other.__dict__ = self.__dict__ | {"dir": root / "whole"}
        finish(other.start(), other)
        return other.tree()

    def wait(self, condition: Callable[[Store], object], seconds: float = 600.0) -> None:
        """Return when `condition` holds of the store."""
        until = time.monotonic() + seconds
        while not (self.dir / "passagent.db-wal").exists() and time.monotonic() < until:
            time.sleep(0.01)
        with Store.open(self.dir) as store:
            while time.monotonic() < until:
                if store.row("SELECT 1 FROM runs") and condition(store):
                    return
                time.sleep(0.02)
        raise AssertionError(f"it did not come about; {self.said()[-2000:]}")

    def steps(self) -> int:
        """Messages stored so far."""
        if not (self.dir / "passagent.db").exists():
            return 0
        with Store.open(self.dir) as store:
            return steps_of(store)

    def said(self) -> str:
        """What the processes printed."""
        return self.log.read_text() if self.log.exists() else ""

    def wait_for_words(self, words: str, seconds: float = 600.0) -> None:
        """Return when a process has printed them."""
        until = time.monotonic() + seconds
        while words not in self.said():
            assert time.monotonic() < until, f"{words}: not in {self.said()[-2000:]}"
            time.sleep(0.02)

    def run(self, store: Store) -> runs.Run:
        """The last run."""
        return runs.find_run(store, "last")

    def tree(self) -> list[tuple[object, ...]]:
        """The shape of the last run."""
        with Store.open(self.dir) as store:
            return tiny_search.shape(store, self.run(store).id)

    def check(self) -> None:
        """All episodes are done once, all nodes are evaluated once, all calls are counted once."""
        with Store.open(self.dir) as store:
            run = self.run(store)
            assert run.state == "finished", self.said()[-2000:]
            assert not sessions.is_driven(store, run.id)
            assert nodes.unfinished(store, run.id) == []
            rows = store.rows("SELECT number, state, steps FROM episodes ORDER BY number")
            assert rows == [
                {"number": number, "state": "done", "steps": 5} for number in range(1, self.iters + 1)
            ]
            made = nodes.of_run(store, run.id)
            assert len(made) == 2 * self.iters and all(
                nodes.get_files(store, node)["Fused.py"] for node in made
            )
            keys = [row["candidate_key"] for row in store.rows("SELECT candidate_key FROM evaluations")]
            again, pooled = confirmed(store), count_pooled(store)
            assert len(keys) == len(set(keys)) + len(again) + pooled
            assert len(set(keys)) <= run.evaluations <= len(keys)
            states = {
                row["state"]: row["n"]
                for row in store.rows("SELECT state, count(*) AS n FROM calls GROUP BY 1")
            }
            assert states["done"] == 5 * self.iters == run.output_tokens and "started" not in states
            assert sum(island.episodes for island in runs.islands(store, run.id)) == self.iters


def finish(process: BaseProcess, of: Runs, code: int = 0, seconds: float = 600.0) -> None:
    """Wait for the process's end, which must be as told."""
    process.join(seconds)
    assert process.exitcode == code, (process.exitcode, of.said()[-3000:])


def kill(process: BaseProcess) -> None:
    """SIGKILL, and nothing else."""
    process.kill()
    process.join()


def is_in(store: Store, process: BaseProcess) -> bool:
    """Whether the process drives the last run."""
    driver = sessions.driver(store, runs.find_run(store, "last").id)
    return driver is not None and driver.pid == process.pid


def is_asking(store: Store) -> bool:
    """Whether a model is being asked; the process that does so takes signals."""
    return store.row("SELECT 1 FROM calls WHERE state = 'started'") is not None


def steps_of(store: Store) -> int:
    """Messages stored so far."""
    row = store.row("SELECT count(*) AS n FROM steps")
    return int(row["n"]) if row else 0


def confirmed(store: Store) -> list[int]:
    """The finalists' second measurements, by node."""
    rows = store.rows("SELECT node_id, evaluation_id FROM confirmations")
    assert len(rows) == len({row["evaluation_id"] for row in rows})
    return [row["node_id"] for row in rows]


def count_pooled(store: Store) -> int:
    """How many evaluations are a finalist's rounds in one."""
    ids = [row["id"] for row in store.rows("SELECT id FROM evaluations")]
    return sum("rounds" in evaluations.get_evaluation(store, found)["protocol"] for found in ids)


def lively() -> None:
    """Store the time searched more often."""
    sessions.SAVE_S = 0.2  # type: ignore[misc]


def stall_in_a_transaction() -> None:
    """The process stops for ever in the middle of the transaction that ends its third episode."""
    whole, count = episodes.finish, []

    def finish_halfway(*arguments: Any, **named: Any) -> Any:
        done = whole(*arguments, **named)
        count.append(done)
        if len(count) == 3:
            print("stalled", flush=True)
            time.sleep(600)
        return done

    episodes.finish = finish_halfway


def wait_with_the_finalists() -> None:
    """Measure one finalist again, and the next ones when `between_finalists` is gone."""
    whole, measured = remeasure.evaluate, []

    async def evaluate(session: Any, candidate: Any, bar: float | None = None) -> Any:
        while measured and between_finalists(session.task.path).exists():
            await asyncio.sleep(0.01)
        measured.append(candidate)
        return await whole(session, candidate)

    remeasure.evaluate = evaluate


def between_finalists(task: Path) -> Path:
    """The file for whose end processes wait then."""
    return task.with_name("between finalists")


def measure_for_real() -> None:
    """Candidates are judged by the real evaluator, which waits until the device is free."""
    whole = tiny_search.parts
    tiny_search.parts = lambda *how: replace(whole(*how), evaluator=None)


if os.environ.pop("MANY_WARM_UP", None) and __name__ == "many" and multiprocessing.parent_process() is None:
    warm_up()
