"""The one function that starts a compiler or another tool: shut in, within limits, its output cut.

A small process of its own (tool_server.py) starts them, since what is forked from a process with threads, as
those with torch are, cannot shut itself in. It is started with the first tool, and ends with this process.
"""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from passagent.errors import InfrastructureError
from passagent.sandbox.limits import ASK, ToolLimits, crowding

SYSTEM = """
/usr/bin /usr/lib /usr/lib32 /usr/lib64 /usr/libx32 /usr/libexec /usr/include /usr/local/include
/usr/local/lib /bin /lib /lib32 /lib64 /libx32 /nix/store /gnu/store
"""
_CONFIGURATION = """
/etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d /etc/alternatives /proc/cpuinfo /proc/meminfo /proc/stat
/sys/devices/system/cpu
"""
_START_S = 60.0
_GRACE_S = 20.0
"""For the kernel to take down a tool that is killed."""
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")
_SERVER = Path(__file__).with_name("tool_server.py")
_STARTING = threading.Lock()
END: ContextVar[float] = ContextVar("end", default=math.inf)
"""When the tools of a candidate that a thread runs are killed, by time.monotonic."""


@dataclass(frozen=True)
class Done:
    """How a tool ended: its exit code (negative: the signal), and what it printed."""

    code: int
    output: str
    errors: str
    timed_out: bool = False
    is_crowd: bool = False
    """It had more processes than it may, and was killed."""

    @property
    def why(self) -> str:
        """In words: which limit or signal ended it, or its exit code."""
        if self.is_crowd:
            return "started too many processes"
        if self.timed_out or self.code in (-signal.SIGXCPU, -signal.SIGKILL):
            return "took too long"
        if self.code == -signal.SIGXFSZ:
            return "wrote too much"
        return f"ended with {self.code}"


@dataclass(frozen=True)
class Access:
    """The access of a tool beyond its own files."""

    read: Iterable[Path] = ()
    """Paths beneath which it may read."""
    execute: Iterable[Path] = ()
    """Paths beneath which it may read and run."""
    environment: Mapping[str, str] = field(default_factory=dict)


NO_ACCESS = Access()


def run(
    command: list[str],
    scratch: Path,
    limits: ToolLimits,
    access: Access = NO_ACCESS,
    stdin: str = "",
) -> Done:
    """Run a tool in the directory `scratch`, which is all that it may write.

    It has no network, and opens its own files (where it is installed, and the system's headers and
    libraries), and what `access` names. Its environment is a clean one.

    Raises InfrastructureError where tools cannot be started.
    """
    wall_s = limits.wall_s
    if limits.is_candidates:
        wall_s = min(limits.wall_s * crowding(), END.get() - time.monotonic())
    if wall_s <= 0:
        return Done(-signal.SIGKILL, "", "", timed_out=True)
    env = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    clean = {"PATH": os.defpath, **env, "TMPDIR": str(scratch), "LC_ALL": "C.UTF-8", "CCACHE_DISABLE": "1"}
    request = {
        "command": command,
        "scratch": str(scratch),
        "limits": asdict(limits),
        "environment": clean | dict(access.environment),
        "read": [*_CONFIGURATION.split(), *map(str, access.read)],
        "execute": [*SYSTEM.split(), *_installed(command[0]), *map(str, access.execute)],
    }
    try:
        with ExitStack() as opened:
            files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(stdin.encode())
            files[0].seek(0)
            ours, theirs = map(opened.enter_context, socket.socketpair(type=socket.SOCK_SEQPACKET))
            fds = [*(file.fileno() for file in files), theirs.fileno()]
            socket.send_fds(_server(os.getpid()).socket, [json.dumps(request).encode()], fds)
            theirs.close()
            ended, timed_out = _ending(ours, wall_s)
            texts = []
            for file in files[1:]:
                file.seek(0)
                texts.append(file.read(limits.file).decode(errors="replace"))
    except OSError as error:
        if isinstance(error, ConnectionError):  # its end is not yet known: the next tool needs another server
            with _STARTING:
                _started.cache_clear()
        raise InfrastructureError(f"{command[0]} cannot be started: {error.strerror or error}") from error
    if "failed" in ended:
        raise InfrastructureError(f"{command[0]} cannot be started: {ended['failed']}")
    return Done(ended["code"], texts[0], texts[1], timed_out, ended["crowd"])


def ask(*command: str) -> Done:
    """Run a tool that prints about itself, such as its version. Raises InfrastructureError as `run` does."""
    with tempfile.TemporaryDirectory() as scratch:
        return run([*command], Path(scratch), ASK)


def protections() -> dict[str, str]:
    """The layers that shut tools in on this machine: for each "on" or "off: REASON".

    Raises InfrastructureError where tools cannot be started.
    """
    return {f"tools_{name}": state for name, state in _server(os.getpid()).protections.items()}


def _ending(ours: socket.socket, wall_s: float) -> tuple[dict[str, Any], bool]:
    """The server's report of a tool's end, and whether it had to be killed for the time that it took."""
    timed_out = False
    ours.settimeout(wall_s)
    try:
        answer = ours.recv(1 << 16)
    except TimeoutError:
        timed_out = True
        ours.shutdown(socket.SHUT_WR)  # the server kills the tool
        ours.settimeout(_GRACE_S)
        answer = ours.recv(1 << 16)
    if not answer:
        raise ConnectionResetError("the process that starts tools was lost")
    return json.loads(answer), timed_out


@functools.cache
def _installed(tool: str) -> list[str]:
    """Where a tool is installed, if it is not where the system's are."""
    program = Path(shutil.which(tool) or tool).resolve()
    if any(program.is_relative_to(place) for place in SYSTEM.split()):
        return [str(place) for place in sorted(Path("/usr").glob("*-linux-gnu*"))]
    places = [program, program.parent, program.parent.parent]  # as in PREFIX/bin/g++
    return [str(place) for place in places if place not in (Path("/"), Path.home(), Path("/usr"))]


@dataclass(frozen=True)
class _Server:
    process: subprocess.Popen[bytes]
    socket: socket.socket
    protections: dict[str, str]


def _server(pid: int) -> _Server:
    """The process that starts tools for the process `pid`, this one; started unless it runs."""
    with _STARTING:
        if _started.cache_info().currsize and _started(pid).process.poll() is not None:
            _started.cache_clear()
        return _started(pid)


@functools.lru_cache(1)
def _started(pid: int) -> _Server:
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SERVER), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
        theirs.close()
        ours.settimeout(_START_S)
        try:
            answer = ours.recv(1 << 16)
        except OSError:
            answer = b""
        if not answer:
            process.kill()
            process.wait()
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines()
            raise InfrastructureError(f"compilers cannot be started: {lines[-1] if lines else 'no answer'}")
        ours.settimeout(None)
    return _Server(process, ours, json.loads(answer))
