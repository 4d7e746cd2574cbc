"""`passagent optimize`: from your model to the package that makes it faster."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from passagent.cli.commands.signals import Interrupted, stop_on_signals
from passagent.deploy.optimizing import Begun, Request
from passagent.errors import PassagentError
from passagent.view.text import clock

_GO_ON = "the same command goes on"


class _Lines:
    """What happens, a line each, with the time since the beginning."""

    def __init__(self, as_json: bool) -> None:
        self._stream = sys.stderr if as_json else sys.stdout
        self._begun = time.monotonic()

    def say(self, text: str) -> None:
        """A line."""
        print(f"[{clock(time.monotonic() - self._begun):>5}] {text}", file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is held."""


def optimize(
    spec: str,
    inputs: str | None,
    out: str,
    state: str | None,
    library: str | None,
    max_time: float | None,
    preset: str | None,
    settings: dict[str, Any],
    as_json: bool,
) -> None:
    """Optimize the model of `FILE.py:factory`. Raises PassagentError; Interrupted after Ctrl-C."""
    from passagent.deploy import optimizing
    from passagent.tasks.extract.factories import load_model

    lines, request = (
        _Lines(as_json),
        Request(
            Path(out),
            settings,
            preset,
            Path(state) if state else None,
            max_time,
            library,
        ),
    )

    def conduct(work: Callable[[Begun], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(work(lambda searches: stop_on_signals(searches, lines, _GO_ON)))

    try:
        found = optimizing.optimize(request, load_model(spec, inputs), conduct, lines.say)
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted; what was found is stored, {_GO_ON}") from error
    if found.stopped == "interrupted":
        raise Interrupted(f"interrupted; what was found is stored in {found.state}, {_GO_ON}")
    print(json.dumps(found.data(), default=str) if as_json else found)
    if not as_json:
        print(f"report: {found.state / 'report.md'}")
    if not found.is_judged:
        raise PassagentError(found.headline())
