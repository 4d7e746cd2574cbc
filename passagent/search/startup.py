"""How a search begins: the evaluator's process is on its way before this one imports what takes long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from passagent.config import Config
from passagent.evaluator.fleet.opening import LOCAL, check_devices
from passagent.evaluator.judging.effort import check_task_room
from passagent.evaluator.runner.starting import StartedReferee, owner_ahead
from passagent.tasks.reader import Task

if TYPE_CHECKING:
    from passagent.search.session import Evaluator
    from passagent.search.setup import Diagnose


@dataclass(frozen=True)
class Parts:
    """Stand-ins for the model, evaluator and diagnosis that the configuration names."""

    model: Any = None
    evaluator: Evaluator | None = None
    diagnose: Diagnose | None = None
    ahead: StartedReferee | None = None
    """The evaluator's process, if it is on its way; see `begin`."""
    begun: float = field(default_factory=time.monotonic)
    """When the command began, by time.monotonic(): `search.max_time_s` counts from then."""


@contextmanager
def begin(config: Config, task: Task, parts: Parts) -> Iterator[Parts]:
    """`parts` with the evaluator's process, on its way before this one imports what takes long.

    Raises UsageError for a device that is not here, TaskError or InfrastructureError for a task that is too
    large for this machine's memory, before anything is stored.
    """
    if parts.evaluator is not None:
        yield parts
        return
    if config.evaluator.pool != LOCAL:
        check_devices(config.evaluator)
        yield parts
        return
    check_task_room(task, config.evaluator.device)
    with owner_ahead(config.evaluator, task.path) as ahead:
        check_devices(config.evaluator)
        yield replace(parts, ahead=ahead)
