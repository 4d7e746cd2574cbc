"""The user's cache: what is made once and found again, where no candidate can write."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def cache_dir() -> Path:
    """`$PASSAGENT_CACHE`, else `$XDG_CACHE_HOME/passagent`, else `~/.cache/passagent`."""
    root = os.environ.get("PASSAGENT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(root) if root else (Path(base) if base else Path.home() / ".cache") / "passagent"


def kept_file(place: str, content: list[Any]) -> Path:
    """Where JSON is kept that depends on `content`, which is JSON itself."""
    return cache_dir() / place / f"{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]}.json"


def kept(path: Path, read: Callable[[Any], T], within_s: float = float("inf")) -> T | None:
    """Pass JSON that was kept within `within_s` to `read`; None also for a file that it cannot read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        if time.time() - path.stat().st_mtime < within_s:
            return read(json.loads(path.read_bytes()))
    return None


def keep(path: Path, data: Any) -> None:
    """Keep JSON, if the disk can take it."""
    with suppress(OSError):
        write_whole(path, json.dumps(data))


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that is there whole or not at all; makes its directory. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, written = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with open(fd, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        os.replace(written, path)
    except BaseException:
        os.unlink(written)
        raise
