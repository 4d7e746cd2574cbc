"""A built GPU kernel's use of a multiprocessor, by NVIDIA's cuobjdump, which comes with Triton."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from passagent.sandbox import tools
from passagent.sandbox.limits import ASK
from passagent.sandbox.tools import Access

_LINE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")


class ResourceUsage(NamedTuple):
    """The resource usage of one kernel."""

    registers: int
    """Registers of a thread."""
    stack_bytes: int
    """Local memory of a thread."""
    shared_bytes: int
    """Shared memory of a block, known when it is built."""


@functools.lru_cache(maxsize=4096)
def resource_usage(path: Path) -> ResourceUsage | None:
    """Read the usage of the kernel in a file of `build_cuda.unpack`'s form; None without cuobjdump."""
    tool = cuobjdump()
    if tool is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        cubin = Path(scratch) / "kernel.cubin"
        cubin.write_bytes(path.read_bytes().partition(b"\n")[2])
        done = tools.run([tool, "-res-usage", cubin.name], Path(scratch), ASK, Access(execute=[Path(tool)]))
    match = _LINE.search(done.output)
    return ResourceUsage(*map(int, match.groups())) if match else None


@functools.cache
def cuobjdump() -> str | None:
    """Triton's, else the toolkit's."""
    spec = importlib.util.find_spec("triton")
    for place in (spec.submodule_search_locations or []) if spec else []:
        bundled = Path(place) / "backends" / "nvidia" / "bin" / "cuobjdump"
        if bundled.exists():
            return str(bundled)
    return shutil.which("cuobjdump")
