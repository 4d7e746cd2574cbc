"""What the devices of a run's process do, beside its log: for `status` and `doctor`, from any terminal."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from passagent.evaluator.fleet.machine_facts import versions
from passagent.store.sessions import SAVE_S
from passagent.system.cache import write_whole

_FILE = "devices.json"


async def report(evaluator: object, run_dir: Path) -> None:
    """Write this process's devices every SAVE_S, as long as it runs; nothing for an evaluator without any.

    With the versions there, which are those here: a worker with others is refused.
    """
    figures = getattr(evaluator, "figures", None)
    same = {"versions": versions()} if figures is not None else {}
    while figures is not None:
        with suppress(OSError):  # a full disk ends the search elsewhere
            write_whole(run_dir / _FILE, json.dumps([one | same for one in figures()]))
        await asyncio.sleep(SAVE_S)


def devices_of(run_dir: Path) -> list[dict[str, Any]]:
    """The devices of the process that drives the run, or drove it last."""
    try:
        found: list[dict[str, Any]] = json.loads((run_dir / _FILE).read_text())
    except FileNotFoundError:
        return []
    return found


def are_worth_a_line(devices: list[dict[str, Any]]) -> bool:
    """Whether there is more to tell than that this machine's one device is used."""
    return len(devices) > 1 or any("/" in one["device"] for one in devices)
