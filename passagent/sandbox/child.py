"""Throw-away processes: a warm process forks one for each piece of work, shut in before it reads of it.

`ForkServer` is the view from outside, which imports no torch. `serve` runs in the warm process: it starts
with a clean environment, imports once what every fork needs, and runs nobody's code itself.
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
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passagent.errors import InfrastructureError
from passagent.sandbox.environment import import_path, worker_environment

if TYPE_CHECKING:
    from passagent.sandbox.sandbox import Limits

_START_S = 120.0


class ForkServer:
    """The process `python -m MODULE FD`, which serves there, until the context or `end`.

    Nobody waits until it has imported torch. It has no environment or data of ours.
    """

    def __init__(self, module: str, name: str, threads: int = 1, device: str = "cpu") -> None:
        """Start it; `name` is the name that errors use."""
        self.name = name
        self.scratch = Path(tempfile.mkdtemp(prefix="passagent-"))
        self.socket, theirs = socket.socketpair()
        with theirs, open(self.scratch / "log", "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=worker_environment(self.scratch, threads, device) | import_path(),
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

    def run(
        self, request: bytes, limits: Limits, wall_s: float, most: int, **more: Any
    ) -> tuple[bytes | None, dict[str, Any]]:
        """Send a request to a new fork. Return its answer and how it ended; it is killed then.

        None if no answer came in `wall_s`; at most a little over `most` bytes are read. `more`: see `serve`.
        Raises InfrastructureError if the server is gone.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                fork = {"op": "fork", "limits": asdict(limits), **more}
                pid = self._ask(fork, (theirs.fileno(),))["pid"]
            try:
                answer = _exchange(ours, request, wall_s, most)
            finally:
                ended = self._ask({"op": "end", "pid": pid})
        return answer, ended

    def _ask(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        from passagent.sandbox.channel import Channel, ChannelClosed, ChannelTimeout

        channel = Channel(self.socket)
        try:
            channel.send(message, fds)
            return channel.receive(_START_S)[0]
        except (ChannelClosed, ChannelTimeout, ValueError) as error:
            log = list[str]()
            with suppress(OSError):
                log = (self.scratch / "log").read_text(errors="replace").strip().splitlines()
            why = f": {log[-1][:300]}" if log else ""
            raise InfrastructureError(f"{self.name} ended{why}") from error


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


def serve(work: Callable[[bytes, Path], bytes], modules: Sequence[str]) -> None:
    """Fork when asked on the socket that is the first argument, until it closes; kill what was forked then.

    `{"op": "fork", "limits": {...}, "cuda": bool, "modules": [...]}` with a socket attached forks a process
    that answers the request there with `work(request, scratch directory)`. `modules` are imported before it,
    here. The reply has the `pid`. `{"op": "end", "pid": n}` kills and reaps it; the reply has its exit
    `status` and `cpu_s`.
    """
    import torch

    from passagent.sandbox.channel import Channel, ChannelClosed

    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    torch.set_num_threads(1)  # a fork has none of the threads of its parent
    _import(modules)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: dict[int, Path] = {}
    try:
        while True:
            message, fds = channel.receive(max_fds=1)
            if message["op"] == "fork":
                _import(message.get("modules", ()))
                scratch = Path(tempfile.mkdtemp(prefix="passagent-fork-"))
                pid = os.fork()
                if pid == 0:
                    _become(fds[0], scratch, message, work)
                os.close(fds[0])
                children[pid] = scratch
                channel.send({"pid": pid})
            else:
                channel.send(_end(message["pid"], children))
    except ChannelClosed:
        shutil.rmtree(os.environ["HOME"], ignore_errors=True)  # its own scratch directory
    finally:
        for pid in list(children):
            _end(pid, children)


def _import(modules: Sequence[str]) -> None:
    """Import what forks need, and look up what they may read."""
    from passagent.sandbox import sandbox

    if any(module not in sys.modules for module in modules):
        for module in modules:
            importlib.import_module(module)
        sandbox.readable.cache_clear()
        sandbox.readable()
        gc.freeze()


def _become(fd: int, scratch: Path, message: dict[str, Any], work: Callable[[bytes, Path], bytes]) -> None:
    from passagent.sandbox import sandbox

    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        private = {"HOME": scratch, "TMPDIR": scratch, "TRITON_CACHE_DIR": scratch / "triton"}
        os.environ |= {name: str(path) for name, path in private.items()}
        tempfile.tempdir = None  # what was looked up before
        limits = sandbox.Limits(**message["limits"])
        sandbox.limit(limits)
        sandbox.enter(scratch, limits, {fd}, cuda=message.get("cuda", False))
        stream = socket.socket(fileno=fd)
        with stream.makefile("rb") as source:
            request = source.read()
        stream.sendall(work(request, scratch))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _end(pid: int, children: dict[int, Path]) -> dict[str, Any]:
    """Kill a fork, which may have ended, with all that it started; how it ended."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    shutil.rmtree(children.pop(pid), ignore_errors=True)
    return {"status": os.waitstatus_to_exitcode(status), "cpu_s": usage.ru_utime + usage.ru_stime}
