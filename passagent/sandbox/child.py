"""Processes that are shut in: a warm process forks each, which enters its sandbox before it reads a request.

`ForkServer` is the view from outside, which imports no torch. `serve` and `serve_forks` run in the warm
process: it starts with a clean environment, imports once what every fork needs, never touches CUDA or an
OpenMP pool (neither survives a fork), and runs nobody's code itself. It ends, and kills what it forked, when
the other side goes away.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passagent.errors import InfrastructureError
from passagent.sandbox import privileges
from passagent.sandbox.environment import import_path, worker_environment
from passagent.sandbox.faults import named

if TYPE_CHECKING:
    from passagent.sandbox.sandbox import Limits

LOG = "fork-server.log"
"""The file in a fork server's scratch directory that takes what it prints."""
START_S = 120.0
"""For a fork server to start, most of which is torch's import, and to answer, s."""
_EXIT_S = 60.0
"""For the kernel to take a process down, which takes seconds where a GPU's memory is freed for many."""
_PF_EXITING = 0x4  # include/linux/sched.h

Work = Callable[[socket.socket, Path, dict[str, str]], None]
"""The program of a fork: its stream, its scratch directory, and the layers of its sandbox, if it has one."""


@dataclass(frozen=True)
class Ending:
    """How a process ended: its exit code (negative: the signal), and the processor time it had taken, s."""

    code: int
    cpu_s: float


@dataclass(frozen=True)
class Fork:
    """A forked process, the stream to it, and its scratch directory with its `log`."""

    pid: int
    stream: socket.socket
    scratch: Path
    parent: subprocess.Popen[bytes]

    def kill(self) -> None:
        """Kill it with all that it started, unless it is gone."""
        privileges.kill_group(self.pid)


class ForkServer:
    """The process `python -m MODULE FD`, which serves there, until the context or `end`.

    Nobody waits until it has imported torch. It has no environment or data of ours. If it is lost, the next
    fork starts another one. It may be used by several threads.
    """

    def __init__(self, module: str, name: str, threads: int = 1, device: str = "cpu") -> None:
        """Start it; `name` is the name that errors use. Raises InfrastructureError."""
        self.name, self.device = name, device
        self._module, self._threads = module, threads
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        with named(f"{self.name} did not start"):
            self._loaded: set[str] = set()
            self.scratch = Path(tempfile.mkdtemp(prefix="passagent-"))
            self.socket, theirs = socket.socketpair()
            with theirs, open(self.scratch / LOG, "wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", self._module, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env=worker_environment(self.scratch, self._threads, self.device) | import_path(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process, and what it still has forked."""
        self.socket.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def load(self, *names: str) -> None:
        """Import modules, and call functions, written `MODULE:FUNCTION`, for all that is forked from now on.

        Returns when the process runs and is done with that. Raises InfrastructureError.
        """
        self._revive()
        if not names or not self._loaded.issuperset(names):
            self._ask({"op": "load", "names": names})
            self._loaded.update(names)

    def fork(
        self, limits: Limits, is_shut_in: bool = True, environment: Mapping[str, str] | None = None
    ) -> Fork:
        """Fork a process in a group of its own, with `environment` beside the usual one.

        Raises OSError where the machine cannot fork, InfrastructureError if the server is lost.
        """
        self._revive()
        scratch = Path(tempfile.mkdtemp(dir=self.scratch))
        ours, theirs = socket.socketpair()
        request = {
            "op": "fork",
            "scratch": str(scratch),
            "environment": dict(environment or {}),
            "limits": asdict(limits),
            "is_shut_in": is_shut_in,
            "cuda": self.device.startswith("cuda"),
        }
        with theirs, open(scratch / "log", "wb") as log:
            reply = self._ask(request, (theirs.fileno(), log.fileno()))
        if "errno" in reply:
            ours.close()
            raise OSError(reply["errno"], os.strerror(reply["errno"]))
        return Fork(int(reply["pid"]), ours, scratch, self.process)

    def ending(self, fork: Fork) -> Ending | None:
        """How a fork ended; None if it does not begin to within a second, or its server is lost."""
        began = time.monotonic()
        with suppress(InfrastructureError):
            while time.monotonic() < began + (_EXIT_S if _is_exiting(fork.pid) else 1.0):
                if fork.parent.poll() is not None or fork.parent is not self.process:
                    return None
                reply = self._ask({"op": "reap", "pid": fork.pid})
                if reply["code"] is not None:
                    return Ending(int(reply["code"]), float(reply["cpu_s"]))
                time.sleep(0.002)
        return None

    def run(
        self, request: bytes, limits: Limits, wall_s: float, most: int, modules: Sequence[str] = ()
    ) -> tuple[bytes | None, Ending]:
        """Send a request to a new fork, after `modules` are imported. Return its answer and how it ended.

        It is killed then. The answer is None if there is none in `wall_s`; at most a little over `most` bytes
        are read. Raises InfrastructureError if the server is lost or nothing can be forked.
        """
        if modules:
            self.load(*modules)
        with named(f"{self.name} cannot fork"):
            fork = self.fork(limits)
        try:
            with fork.stream:
                answer = _exchange(fork.stream, request, wall_s, most)
        finally:
            fork.kill()
            ending = self.ending(fork)
            shutil.rmtree(fork.scratch, ignore_errors=True)
        if ending is None:
            raise InfrastructureError(f"{self.name} was lost{self._last_line()}")
        return answer, ending

    def _revive(self) -> None:
        """Start it again if it was lost."""
        with self._lock:
            if self.process.poll() is not None:
                self.end()
                self._start()

    def _ask(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        from passagent.sandbox.channel import Channel, ChannelClosed, ChannelTimeout

        try:
            with self._lock:
                channel = Channel(self.socket)
                channel.send(message, fds)
                return channel.receive(START_S)[0]
        except (ChannelClosed, ChannelTimeout, ValueError) as error:
            self.process.kill()  # what does not answer is not asked again
            self.process.wait()
            raise InfrastructureError(f"{self.name} was lost{self._last_line()}") from error

    def _last_line(self) -> str:
        """`": LINE"` of the last line that the process printed."""
        lines = list[str]()
        with suppress(OSError):
            lines = (self.scratch / LOG).read_text(errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""


def _exchange(stream: socket.socket, request: bytes, wall_s: float, most: int) -> bytes | None:
    """Send the request and read the answer until it ends or is too large; None if it is late."""
    deadline, answer = time.monotonic() + wall_s, bytearray()
    stream.settimeout(wall_s)
    with suppress(OSError):  # it is dead already: so the answer tells
        stream.sendall(request)
        stream.shutdown(socket.SHUT_WR)
    while len(answer) <= most:
        if not select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        try:
            part = stream.recv(1 << 20)
        except OSError:
            return b""
        if not part:
            break
        answer += part
    return bytes(answer)


def _is_exiting(pid: int) -> bool:
    """Tell whether the kernel is taking a process down: all that it had is closed, but it is not gone."""
    try:
        flags = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]
    except OSError:
        return False
    return bool(int(flags) & _PF_EXITING)


def serve(work: Callable[[bytes, Path], bytes], names: Sequence[str]) -> None:
    """Serve forks, each of which reads one request, answers `work(request, scratch directory)` and ends."""

    def answer(stream: socket.socket, scratch: Path, _: dict[str, str]) -> None:
        null = os.open(os.devnull, os.O_WRONLY)  # what it prints does not count against its limit on files
        for standard in (1, 2):
            os.dup2(null, standard)
        with stream.makefile("rb") as source:
            request = source.read()
        stream.sendall(work(request, scratch))

    serve_forks(answer, names)


def serve_forks(work: Work, names: Sequence[str]) -> None:
    """Load `names`, and fork what runs `work` when asked on the socket that is the first argument.

    `ForkServer` asks. Returns when the socket closes, and what was forked is killed.
    """
    from passagent.sandbox.channel import Channel, ChannelClosed

    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    _load(names)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pids: set[int] = set()
    with suppress(ChannelClosed):
        while True:
            message, fds = channel.receive(max_fds=2)
            reply: dict[str, Any] = {}
            if message["op"] == "load":
                _load(message["names"])
            elif message["op"] == "fork":
                reply = _fork(message, fds, work)
                pids |= {reply["pid"]} if "pid" in reply else set()
            else:
                reply = _reap(message["pid"], pids)
            channel.send(reply)
    for pid in pids:
        privileges.kill_group(pid)
    shutil.rmtree(os.environ["HOME"], ignore_errors=True)  # its own scratch directory


def _load(names: Sequence[str]) -> None:
    """Import modules and call functions that forks need, and look up what forks may read."""
    from passagent.sandbox import sandbox

    for name in names:
        module, _, function = name.partition(":")
        loaded = importlib.import_module(module)
        if function:
            getattr(loaded, function)()
    sandbox.readable.cache_clear()
    sandbox.readable()
    gc.freeze()


def _fork(message: dict[str, Any], fds: list[int], work: Work) -> dict[str, Any]:
    """The reply to a request for a fork: its pid, or the errno why there is none."""
    try:
        pid = os.fork()
        if pid == 0:
            _become(message, fds, work)
        return {"pid": pid}
    except OSError as error:
        return {"errno": error.errno}
    finally:
        for fd in fds:
            os.close(fd)


def _become(message: dict[str, Any], fds: list[int], work: Work) -> None:
    from passagent.sandbox import sandbox

    code = 1
    try:
        os.setsid()
        stream, log = fds
        null = os.open(os.devnull, os.O_RDONLY)
        for standard, fd in enumerate((null, log, log)):
            os.dup2(fd, standard)
        scratch, limits = Path(message["scratch"]), sandbox.Limits(**message["limits"])
        private = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(scratch))
        os.environ.pop("PYTHONPATH", None)
        os.environ |= private | {"TRITON_CACHE_DIR": str(scratch / "triton")} | message["environment"]
        tempfile.tempdir = None  # what was looked up in the fork server's environment
        sandbox.limit(limits)
        protections: dict[str, str] = {}
        if message["is_shut_in"]:
            protections = sandbox.enter(scratch, limits, {stream}, cuda=message["cuda"])
        else:
            sandbox.close_others({stream})
            sandbox.follow_parent()
            os.chdir(scratch)
        work(socket.socket(fileno=stream), scratch, protections)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _reap(pid: int, pids: set[int]) -> dict[str, Any]:
    """A fork's exit code (negative: the signal; None while it lives) and the processor time it took, s."""
    try:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:
        return {"code": None}
    if not ended:
        return {"code": None}
    pids.discard(pid)
    return {"code": os.waitstatus_to_exitcode(status), "cpu_s": usage.ru_utime + usage.ru_stime}
