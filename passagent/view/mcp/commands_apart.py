"""Commands that import torch or run a person's file: each in a process of its own, by the command line."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from passagent.agent.taskfiles import ToolError
from passagent.view.mcp.jobs import PROGRESS_S, Report

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", re.A)


def new_directory(place: Path, name: str) -> Path:
    """The directory `name` in `place`, not there yet. Raises ToolError."""
    if not _NAME.fullmatch(name):
        raise ToolError(f"name '{name[:80]}': write letters, digits, - and _")
    if (place / name).exists():
        raise ToolError(f"{name}: is there already; take another name")
    place.mkdir(parents=True, exist_ok=True)
    return place / name


async def package_apart(run_ids: Sequence[str], out: Path, runs_dir: Path) -> dict[str, Any]:
    """What `passagent package` says. Raises ToolError."""
    words = ["package", *run_ids, "--out", str(out), "--runs-dir", str(runs_dir), "--json"]
    told: dict[str, Any] = json.loads(await _run(words))
    return told


async def extract_apart(factory: str, out: Path, regions: bool) -> str:
    """What `passagent extract` says. Raises ToolError."""
    return await _run(["extract", factory, "--out", str(out), *(["--regions"] if regions else [])])


async def waited(work: asyncio.Task[Any], seconds: float, report: Report, line: str) -> bool:
    """Whether `work` is done within so many seconds; progress is told meanwhile."""
    begun = time.monotonic()
    while not work.done() and (passed := time.monotonic() - begun) < seconds:
        await report(passed, line)
        await asyncio.wait({work}, timeout=min(PROGRESS_S, seconds - passed))
    return work.done()


async def _run(words: Sequence[str]) -> str:
    """What the command prints. Its process ends with this call. Raises ToolError with its error line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "passagent",
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = err.decode("utf-8", "replace").strip().splitlines() or ["it failed"]
        raise ToolError(f"passagent {words[0]}: {lines[-1].removeprefix('passagent: error: ')[:1000]}")
    return out.decode("utf-8", "replace")
