"""Whether a set of examples shares something with the tasks that a student will be judged on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from passagent.errors import PassagentError
from passagent.tasks import Task

SHOWN = 3
"""Overlaps that are named; the others are counted."""


class Overlap(PassagentError):
    """Training examples and evaluation tasks are not apart."""


class EvaluationTasks:
    """What a training example must not have been made on."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._keys = dict[str, str]()
        self._sequences = dict[tuple[str, ...], str]()
        self._files = dict[str, str]()
        for task in tasks:
            self._keys[task.key] = task.name
            self._sequences[tuple(task.operators)] = task.name
            self._files |= {graph.source_key: f"{task.name}/{graph.name}" for graph in task.subgraphs}

    def shared(self, columns: dict[str, Any]) -> str | None:
        """What an example (its `task`, `task_key`, `operators`, `subgraphs`) shares with one, in words."""
        own = columns["task"]
        if name := self._keys.get(columns["task_key"]):
            return f"{own} is the task {name}"
        if name := self._sequences.get(tuple(columns["operators"])):
            return f"{own} has the operator sequence of {name}"
        for key in columns["subgraphs"]:
            if name := self._files.get(key):
                return f"{own} has the subgraph {name}"
        return None

    def check(self, examples: Iterable[dict[str, Any]]) -> None:
        """Raise Overlap, naming the tasks, if one of the examples shares something."""
        found = list(dict.fromkeys(filter(None, map(self.shared, examples))))
        if found:
            more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            raise Overlap(
                f"training and evaluation tasks overlap: {'; '.join(found[:SHOWN])}{more}; leave them out, "
                "such as with --keep \"task != '...'\""
            )
