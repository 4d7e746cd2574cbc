"""Ctrl-C and SIGTERM while something long works: the first stops it cleanly, the second at once."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from typing import Protocol

from passagent.errors import EXIT_INTERRUPTED, PassagentError
from passagent.search.thread import Stoppable

ECHO_S = 0.1
"""Two signals within this time are one: `timeout` sends its own to the process, then to its group."""


class Interrupted(PassagentError):
    """A person stopped the work; what was made is stored."""

    exit_code = EXIT_INTERRUPTED


class Speaker(Protocol):
    """What a person sees of it."""

    def say(self, text: str) -> None:
        """A line."""
        ...

    def close(self) -> None:
        """Nothing comes any more."""
        ...


def stop_on_signals(work: Stoppable, progress: Speaker, go_on: str) -> None:
    """Take both signals in the running loop. `go_on` says how to go on, to one who stops at once."""
    loop = asyncio.get_running_loop()
    asked = -math.inf

    def on_signal() -> None:
        nonlocal asked
        before, asked = asked, loop.time()
        if asked - before < ECHO_S:
            return
        if work.is_interrupted:
            progress.close()
            print(f"passagent: killed; everything is stored, {go_on}", file=sys.stderr, flush=True)
            os._exit(EXIT_INTERRUPTED)  # the evaluator ends with its parent
        progress.say("stopping: model calls in flight are finished and stored; Ctrl-C again stops at once")
        work.stop("interrupted", interrupted=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
