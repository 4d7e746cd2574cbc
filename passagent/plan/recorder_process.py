"""The process that forks recorders (child.py): it sees no GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager

from passagent.sandbox.fork_server import ForkServer, serving
from passagent.sandbox.fork_server import start as start_server


def start() -> ForkServer:
    """Start it and do not wait until it has imported torch."""
    return start_server("passagent.plan.child", "the recording process")


def recording_process() -> AbstractContextManager[ForkServer]:
    """The process, for any number of recordings; it ends with the context."""
    return serving(start())
