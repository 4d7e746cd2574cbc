"""The user's cache: what is made once and found again, where no candidate can write."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_dir() -> Path:
    """`$PASSAGENT_CACHE`, else `$XDG_CACHE_HOME/passagent`, else `~/.cache/passagent`."""
    root = os.environ.get("PASSAGENT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(root) if root else (Path(base) if base else Path.home() / ".cache") / "passagent"


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all; makes its directory. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, written = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with open(fd, "w") as file:
            file.write(text)
        os.replace(written, path)
    except BaseException:
        os.unlink(written)
        raise
