"""The only one that measures on a device, wherever that is: its requests, and how losses are reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from passagent.errors import InfrastructureError, MachineFault, PassagentError, TaskError, UsageError
from passagent.evaluator.hardware.devices import Device


class Lost(Exception):
    """The machine failed: the process ended, or says so itself. `starting`: before it had any request.

    `machine`: the whole machine was lost, or cannot be reached: the subject had no part in it.
    """

    def __init__(self, message: str, starting: bool = False, machine: bool = False) -> None:
        super().__init__(message)
        self.starting, self.machine = starting, machine


_KINDS: dict[type[Exception], str] = {
    TaskError: "task",
    UsageError: "usage",
    MachineFault: "machine",
    InfrastructureError: "lost",
    Lost: "lost",
    PassagentError: "failed",
}
"""Errors of a referee, with their names in plain data: the first kind that an error is of."""


def failed(error: PassagentError | Lost) -> dict[str, Any]:
    """An error as plain data, which `result_of` raises."""
    kind = next(name for kind, name in _KINDS.items() if isinstance(error, kind))
    return {"error": kind, "message": str(error), "starting": getattr(error, "starting", False)}


def result_of(answer: dict[str, Any]) -> Any:
    """The result in a referee's answer. Raises what failed, Lost included."""
    if "error" not in answer:
        return answer["result"]
    message = str(answer["message"])
    for kind, name in _KINDS.items():
        if name == answer["error"] != "lost":
            raise kind(message)
    raise Lost(message, bool(answer.get("starting")))


class DeviceOwner(Protocol):
    """A referee process of this machine, or of another one."""

    device: Device

    @property
    def pid(self) -> int | None:
        """The process of this machine that measures, while there is one."""
        ...

    async def ask(self, request: dict[str, Any]) -> Any:
        """The evaluation, or what else is asked for, as plain data. Raises what the referee raises, and Lost.

        After Lost and MachineFault `stop` must follow.
        """
        ...

    async def foresee(self, request: dict[str, Any]) -> None:
        """Tell it what it may be asked next: a candidate's host work needs no device, and can be done beside
        the evaluation that is under way. Nothing depends on it.
        """
        ...

    async def check(self, quick: bool = False) -> str | None:
        """Name the fault of the device, in a line; None if it is healthy. `quick` launches no kernel."""
        ...

    async def stop(self) -> None:
        """End the process and its workers, if there is one; the next `ask` starts another."""
        ...


class Fleet(Protocol):
    """The owners of a pool, and where they come from."""

    @property
    def owners(self) -> Sequence[DeviceOwner]:
        """The owners that are there at the beginning."""
        ...

    async def attend(self, add: Callable[[DeviceOwner], None]) -> None:
        """Runs as long as the pool does; `add` gets the owners that come later."""
        ...

    async def close(self) -> None:
        """Release what the owners share, when they have stopped."""
        ...
