"""Files that a run's process writes beside the database: its log, its devices."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from passagent.evaluator.fleet.offers import versions
from passagent.sandbox.cache import write_whole
from passagent.sandbox.faults import writing
from passagent.store.redaction import redact
from passagent.store.sessions import SAVE_S

_log: ContextVar[Path | None] = ContextVar("run log", default=None)


class Redacting(logging.Formatter):
    """Takes secrets out of every line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, secrets replaced."""
        return redact(super().format(record))


class _LogFile(logging.FileHandler):
    """A log that cannot be written (a full disk) must not hide the error that is being logged."""

    is_told = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Say it once on stderr."""
        if not self.is_told:
            self.is_told = True
            print(f"passagent: {self.baseFilename} cannot be written: {sys.exc_info()[1]}", file=sys.stderr)

    def close(self) -> None:
        """Close the file, whatever can no longer be written."""
        with suppress(OSError):
            super().close()


@contextmanager
def run_log(directory: Path) -> Iterator[Path]:
    """Log everything of `passagent` to `directory/run.log` meanwhile. Raises PassagentError.

    Where several runs go on at once, each in a task of its own, what is said in another's is left out.
    """
    path = directory / "run.log"
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(Redacting("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("passagent")
    level = logger.level
    handler.addFilter(lambda _: _log.get() in (None, path))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    before = _log.set(path)
    try:
        yield path
    finally:
        _log.reset(before)
        logger.removeHandler(handler)
        if not any(isinstance(handler, _LogFile) for handler in logger.handlers):
            logger.setLevel(level)
        handler.close()


_FILE = "devices.json"


async def report(evaluator: object, run_dir: Path) -> None:
    """Write this process's devices every SAVE_S, as long as it runs; nothing for an evaluator without any.

    With the versions there, which are those here: a worker with others is refused.
    """
    figures = getattr(evaluator, "figures", None)
    same = {"versions": versions()} if figures is not None else {}
    while figures is not None:
        with suppress(OSError):  # a full disk ends the search elsewhere
            write_whole(run_dir / _FILE, json.dumps([device | same for device in figures()]))
        await asyncio.sleep(SAVE_S)


def devices_of(run_dir: Path) -> list[dict[str, Any]]:
    """The devices of the process that drives the run, or drove it last."""
    try:
        devices: list[dict[str, Any]] = json.loads((run_dir / _FILE).read_text())
    except FileNotFoundError:
        return []
    return devices
