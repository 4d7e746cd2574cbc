"""How much is measured of a subject, and how much of the machine it takes at a time."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace

from passagent.config import EvaluatorConfig
from passagent.evaluator.compilers import is_compiled
from passagent.evaluator.result import Subject
from passagent.evaluator.target import kind_of
from passagent.evaluator.timing.estimate import Effort
from passagent.sandbox.environment import device_memory_bytes, gpu_memory_bytes
from passagent.tasks.reader import Task, check_room, check_room_on

CANDIDATE_S = 40.0
"""To record, check and build a candidate, and to wait for its calls beyond what eager takes, on all subgraphs
together: honest ones take 2 to 7 s of it for twelve. Whatever one does, its verdict is there within 60 s."""
PAIRS = {"cpu": 2, "cuda": 4}
"""Pairs of workers that time a subject in full, one after the other. On a GPU eager and eager differ by 6%
from one block of calls to the next, and by 0.7% from pair to pair: 1% takes about 150 blocks, of several
pairs."""
ENOUGH_GRAPHS = 6
"""In a search more subgraphs take no more time together than so many."""
_MANY_CORES = 6
"""So many leave room beside two workers that take turns on a GPU."""
_DRAWN, _AUDITED = 5, 3
"""Copies of a large subgraph's inputs in the machine's memory: a set for each variant that is drawn; those of
an audit's call, of the call before and what is read of a set meanwhile."""
_ON_GPU = 2 + 3 + 4
"""Copies on a GPU: beside those that calls are given, one in each worker, the baseline's holds the set of a
request, eager's the two that are timed, and the candidate's in an audit a set and the inputs of two calls."""
_HELD_BYTES = 1 << 29
_HELD_SHARE = 16
"""A worker holds subgraphs of so many bytes, or of this part of the memory of machine and GPU."""


@dataclass
class Allowance:
    """The remaining time that a candidate's own work may take, s."""

    left_s: float


def dispatch_of(config: EvaluatorConfig, subject: Subject | None = None) -> str:
    """How graphs are called, eager's and a subject's: `direct`, `dynamo` or `graph`."""
    return "dynamo" if is_compiled(subject) and config.dispatch != "graph" else config.dispatch


def pairs_of(config: EvaluatorConfig, dispatch: str, bar: float | None) -> int:
    """Pairs of workers that time a subject: what two workers with the same graph differ by averages out.

    A search has one, as its best are measured again. So has Dynamo on the CPU: what it compiles is compiled
    once, which takes longer than measuring.
    """
    is_compiled_here = dispatch == "dynamo" and config.device == "cpu"
    return 1 if bar is not None or is_compiled_here else PAIRS[kind_of(config.device)]


def check_task_room(task: Task, device: str, free_bytes: int | None = None) -> None:
    """Raise TaskError or MachineFault if a subgraph of `task` cannot be judged in this machine's memory.

    On a GPU the machine holds what is drawn. On the CPU it also holds a copy in the worker of the baseline,
    the candidate's and eager's besides, and those of an audit. See tasks.reader.check_room.
    """
    copies = _DRAWN if device != "cpu" else _DRAWN + 2 + PAIRS["cpu"] + _AUDITED
    for subgraph in task.subgraphs:
        check_room(subgraph, copies, free_bytes)


def check_gpu_room(task: Task, device: str) -> None:
    """Raise TaskError if a subgraph of `task` cannot be judged in the memory of the GPU that is `device`.

    A candidate would be charged with what is no fault of its own.
    """
    for subgraph in task.subgraphs if device != "cpu" else ():
        check_room_on(device, gpu_memory_bytes(device), subgraph, _ON_GPU)


def has_room(device: str) -> bool:
    """Tell whether the next candidate may be recorded and built while calls are timed."""
    return device != "cpu" and len(os.sched_getaffinity(0)) >= _MANY_CORES


def held_bytes(device: str) -> int:
    """Subgraphs stay with a worker between their check and their timing while all of them take no more."""
    return _HELD_BYTES if device == "cpu" else max(_HELD_BYTES, device_memory_bytes(device) // _HELD_SHARE)


def effort_of(config: EvaluatorConfig, dispatch: str, bar: float | None, graphs: int) -> Effort:
    """The effort of one pair of workers: its part of the calls and the time; in full on a GPU all of both.

    In a search it is half the time, and half the precision of the AS: each of n subgraphs is known less well
    by sqrt(n) than their mean. More than ENOUGH_GRAPHS share the time of so many.
    """
    whole = Effort(config.device, config.timeout_s, config.budget_s)
    if bar is not None:
        return replace(
            whole,
            interval=whole.interval * 2 * math.sqrt(graphs),
            budget_s=whole.budget_s / (2 * max(1.0, graphs / ENOUGH_GRAPHS)),
            trials=whole.trials // 2,
            most_trials=whole.most_trials // 2,
            patience=1,
            is_brief=True,
        )
    parts = pairs_of(config, dispatch, bar) if config.device == "cpu" else 1
    return replace(
        whole,
        budget_s=whole.budget_s / parts,
        trials=whole.trials // parts,
        most_trials=whole.most_trials // parts,
    )
