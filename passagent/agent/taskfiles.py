"""The task as an episode sees it, under `task/`: without answers, and nothing that lies elsewhere."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from passagent.errors import PassagentError

MAX_BYTES = 256 * 1024
TASK = "task"
ANSWERS = "pass_dir"
"""Directories in a task that hold answers; also a prefix that a model may put before its own paths."""
_SUFFIXES = {".py", ".json", ".txt"}


class ToolError(PassagentError):
    """A tool call that cannot be done as asked; the message is what the model reads."""


def read_task_files(directory: str | Path) -> dict[str, str]:
    """Read a task's files: relative name, which begins with `task/`, to text.

    Only regular UTF-8 files of at most MAX_BYTES are there. No link is followed but a task's own `graphs`,
    which may lead to where PassNet keeps them.
    """
    top, texts = Path(directory).resolve(), dict[str, str]()
    places = {top: TASK}
    if (graphs := top / "graphs").is_symlink():
        places[graphs.resolve()] = f"{TASK}/graphs"
    for place, name in places.items():
        for root, folders, files in os.walk(place):
            folders[:] = [f for f in folders if f != "__pycache__" and f.casefold() != ANSWERS]
            for path in (Path(root, file) for file in files if Path(file).suffix in _SUFFIXES):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES:
                    with contextlib.suppress(UnicodeDecodeError):
                        texts[f"{name}/{path.relative_to(place).as_posix()}"] = path.read_text("utf-8")
    return {name: text for name, text in texts.items() if "\0" not in text}
