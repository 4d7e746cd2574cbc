"""An episode whose process is killed -9 after every single step: nothing is asked, paid or evaluated twice.

The processes that are killed die as soon as they have stored one message, or one evaluated node.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tiny_search
from many import FORKS, forks  # noqa: F401

from passagent.config import EvaluatorConfig
from passagent.evaluator.result import Violation
from passagent.search.setup import Parts
from passagent.store import Store, nodes, runs
from passagent.store.trajectories import Trajectory, find_episode, trajectory
from passagent.tasks import load_task

pytestmark = pytest.mark.usefixtures("forks")
SETTINGS = tiny_search.settings(1, 1, 5) | {"search.reuse": False}


class Model(tiny_search.PacedModel):
    """Writes down for which reply it is asked."""

    async def complete(self, messages: Any, tools: Any) -> Any:
        step = sum(message["role"] == "assistant" for message in messages)
        note(f"reply {step}")
        reply = await super().complete(messages, tools)
        if "REFUSED" in os.environ and step == 0:  # the first version gives no plan
            call = next(call for call in reply.message["tool_calls"] if "Fused.py" in call["arguments"])
            call["arguments"] = call["arguments"].replace("WORDS", "import socket\\n\\nWORDS", 1)
        return reply


class Evaluator(tiny_search.FastEvaluator):
    """Writes down what it is asked."""

    async def evaluate(self, task_path: Path, candidate: Any, bar: float | None = None) -> Any:
        note(f"evaluation {candidate.key}")
        if any("import socket" in text for text in candidate.files.values()):
            from passagent.evaluator.judging import verdict  # imports torch

            broken = Violation(rule="recording", file="Fused.py", line=1, message="no plan; write one")
            return verdict.evaluate_refused(load_task(task_path), candidate, EvaluatorConfig(), [broken])
        return await super().evaluate(task_path, candidate)


def note(line: str) -> None:
    with Path(os.environ["NOTES"]).open("a") as file:
        file.write(line + "\n")


def die_after_one_step() -> None:
    """Make this process end, as by kill -9, behind the commit of its first message or evaluated node."""
    committed = Store.transaction
    count = "SELECT (SELECT count(*) FROM steps) + (SELECT count(*) FROM nodes WHERE state = 'done') AS n"
    begun: list[int] = []

    @contextmanager
    def transaction(store: Store) -> Iterator[None]:
        if not store.version:  # the first transaction makes the tables
            with committed(store):
                yield
            return
        if not begun:
            begun.append(store.rows(count)[0]["n"])
        with committed(store):
            yield
        if not store.connection.in_transaction and store.rows(count)[0]["n"] > begun[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    Store.transaction = transaction  # type: ignore[method-assign]


def child(environment: dict[str, str], verb: str, *words: str) -> None:
    """`passagent run TASK` with a runs directory, or `passagent resume last`."""
    from passagent.cli import running

    os.environ |= environment
    parts = Parts(Model(), Evaluator(), tiny_search.diagnose)
    if "DIE" in os.environ:
        die_after_one_step()
    if verb == "run":
        running.run(words[0], {"settings": SETTINGS, "runs_dir": words[1]}, True, parts)
    else:
        running.resume("last", {"settings": {}, "runs_dir": words[0]}, True, parts)


def start(notes: Path, *words: object, die: bool) -> int:
    """How a process ended that ran, or resumed, with these words."""
    environment = os.environ | {"NOTES": str(notes)} | ({"DIE": "1"} if die else {})
    process = FORKS.Process(target=child, args=(dict(environment), *map(str, words)))
    process.start()
    process.join(300)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode


def episode_of(runs_dir: Path) -> Trajectory:
    with Store.open(runs_dir) as store:
        run = runs.find_run(store, "last")
        assert nodes.unfinished(store, run.id) == []
        return trajectory(store, run, find_episode(store, run, 1))


@pytest.mark.long
@pytest.mark.parametrize("is_refused", [False, True], ids=["evaluated", "refused"])
def test_killed_after_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_refused: bool) -> None:
    """A version that gives no plan survives like any other result, and costs no evaluation."""
    if is_refused:
        monkeypatch.setenv("REFUSED", "1")
    task = tiny_search.write_task(tmp_path / "task")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    start(tmp_path / "whole.txt", "run", task, whole, die=False)
    expected = episode_of(whole)
    # the first two messages; each other message, and each evaluation
    steps = 1 + len(expected.messages[2:]) + len(expected.nodes)

    notes, deaths = tmp_path / "killed.txt", 0
    code = start(notes, "run", task, killed, die=True)
    while code == -signal.SIGKILL:
        deaths += 1
        assert deaths <= steps
        code = start(notes, "resume", killed, die=True)
    assert deaths == steps
    found = episode_of(killed)
    assert notes.read_text() == (tmp_path / "whole.txt").read_text()
    assert [turn.message for turn in found.messages[2:]] == [turn.message for turn in expected.messages[2:]]
    assert [(n.call_id, n.status, n.as_score) for n in found.nodes] == [
        (n.call_id, n.status, n.as_score) for n in expected.nodes
    ]
    assert (found.state, found.steps, found.input_tokens) == ("done", 5, expected.input_tokens)
    assert (found.nodes[0].status == "refused") == is_refused
    with Store.open(killed) as store:
        assert runs.find_run(store, "last").evaluations == (1 if is_refused else 2)
