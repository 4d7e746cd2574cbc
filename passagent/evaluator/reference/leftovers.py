"""Remove what evaluators left on this machine: scratch directories of dead ones, kernels unused for long.

Other processes work in the same places: what is there at one look may be gone at the next.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from passagent.sandbox.cache import cache_dir
from passagent.sandbox.child import LOG

DEAD_S = 24 * 3600.0
"""Without a change for this long, a scratch directory that no process has is a dead one's, s."""
UNUSED_S = 30 * 24 * 3600.0
"""A kernel that was not read for this long is built again if it is ever needed, s."""

_BUILT = (
    *("cpp", "cuda", "triton", "launch", "replay", "standalone"),
    *("graphs", "machine", "eager"),
)


def dead_scratch() -> Iterator[Path]:
    """This user's scratch directories of evaluators (sandbox.child.ForkServer) that no longer run."""
    homes = _homes()
    for path in Path(tempfile.gettempdir()).glob("passagent-*"):
        if path.is_symlink() or not (path / LOG).is_file() or str(path) in homes:
            continue
        state = _state(path)
        if state and state.st_uid == os.getuid() and _age_s(path, state) > DEAD_S:
            yield path


def unused_builds() -> Iterator[Path]:
    """Built kernels and captured graphs, and what builds left behind, that were not touched for long."""
    root = cache_dir()
    built = (path for place in _BUILT for path in root.glob(f"{place}/*"))
    compiled = (Path(place, name) for place, _, names in os.walk(root / "inductor") for name in names)
    for path in itertools.chain(built, compiled):
        state = _state(path)
        if state and _age_s(path, state) > UNUSED_S:
            yield path


def _state(path: Path) -> os.stat_result | None:
    """None if it is gone."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _age_s(path: Path, state: os.stat_result) -> float:
    """Since it was last read or written, s."""
    return time.time() - max(state.st_atime if not path.is_dir() else 0.0, state.st_mtime)


def _homes() -> set[str]:
    """HOME of every process of this user: a fork server's is its scratch directory."""
    homes = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        homes |= {os.fsdecode(variable[5:]) for variable in variables if variable.startswith(b"HOME=")}
    return homes
