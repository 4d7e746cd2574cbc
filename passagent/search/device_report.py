"""What the devices of a run's processes do, beside its log: for `status` and `doctor`, from any terminal."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from passagent.cache import write_whole
from passagent.cluster.machine_facts import versions
from passagent.store.participants import BEAT_S

_PREFIX = "devices-"


async def report(evaluator: object, run_dir: Path) -> None:
    """Write this process's devices every BEAT_S, as long as it runs; nothing for an evaluator without any.

    With the versions there, which are those here: a worker with others is refused.
    """
    figures = getattr(evaluator, "figures", None)
    same = {"versions": versions()} if figures is not None else {}
    while figures is not None:
        with suppress(OSError):  # a full disk ends the search elsewhere
            write_whole(
                run_dir / f"{_PREFIX}{os.getpid()}.json", json.dumps([one | same for one in figures()])
            )
        await asyncio.sleep(BEAT_S)


def devices_of(run_dir: Path, pids: list[int] | None = None) -> list[dict[str, Any]]:
    """The devices of these processes; None: of the one that reported last."""
    files = sorted(run_dir.glob(f"{_PREFIX}*.json"), key=lambda file: file.stat().st_mtime)
    if pids is not None:
        files = [file for file in files if int(file.stem.removeprefix(_PREFIX)) in pids]
    found: list[dict[str, Any]] = []
    for file in files if pids is not None else files[-1:]:
        with suppress(OSError, ValueError):
            found += json.loads(file.read_text())
    return found


def are_worth_a_line(devices: list[dict[str, Any]]) -> bool:
    """Whether there is more to tell than that this machine's one device is used."""
    return len(devices) > 1 or any("/" in one["device"] for one in devices)
