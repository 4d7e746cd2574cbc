"""Memory of this machine: how much there is, how much is free, and how often the kernel killed for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By the controller's name in /proc/self/cgroup (version 2 names none): limit, use, and in memory.stat what
of the use is given back when it is needed."""


def memory_bytes() -> int:
    """The memory that this process may use in all: the machine's, or its control groups' limits."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *(limit for limit, _ in _limits())])


def available_bytes() -> int:
    """The memory that this process could still take now, of the machine's and of its control groups'."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    machine = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return max(0, min([machine, *(limit - used for limit, used in _limits())]))


def memory_kills() -> int:
    """Processes killed so far because memory ran out: of this control group, else of the machine."""
    try:
        group = Path("/proc/self/cgroup").read_text().partition("0::")[2].strip().lstrip("/")
        text = (_GROUPS / group / "memory.events").read_text()
    except OSError:
        text = Path("/proc/vmstat").read_text()
    return _counts(text).get("oom_kill", 0)


def _limits() -> Iterator[tuple[int, int]]:
    """Limit and use, bytes, of each control group that this process is in and that has a limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        for controller, files in _FILES.items():
            if controller in controllers.split(","):
                group = _GROUPS / controller / name.lstrip("/")
                # in a container the name may be the host's, and what is seen is the container's own group
                for place in {_GROUPS / controller, group, *group.parents}:
                    if place.is_relative_to(_GROUPS / controller):
                        yield from _limit(place, *files)


def _limit(place: Path, limit_file: str, use_file: str, given_back: str) -> Iterator[tuple[int, int]]:
    try:
        limit = (place / limit_file).read_text().strip()
        used = int((place / use_file).read_text())
        used -= _counts((place / "memory.stat").read_text()).get(given_back, 0)
    except (OSError, ValueError):
        return
    if limit.isdigit():
        yield int(limit), used


def _counts(text: str) -> dict[str, int]:
    return {words[0]: int(words[1]) for words in map(str.split, text.splitlines()) if len(words) == 2}
