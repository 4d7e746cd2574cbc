"""A process that forks throw-away processes, each shut in before it reads a byte of what it is asked.

It starts with a clean environment, imports once what every fork needs, and runs nobody's code itself.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from passagent.sandbox import sandbox
from passagent.sandbox.channel import Channel, ChannelClosed


def serve(
    channel: Channel,
    work: Callable[[socket.socket, Path], None],
    prepare: Callable[[dict[str, Any]], None] = lambda message: None,
) -> None:
    """Fork when asked, until the channel closes; then what was forked is killed.

    `{"op": "fork", "limits": {...}, "cuda": bool}` with a socket attached forks a process, which does `work`
    with that socket and its scratch directory; before that, `prepare` sees the message here. The reply has
    the `pid`. `{"op": "end", "pid": n}` kills and reaps it; the reply has its exit `status` and `cpu_s`.
    """
    sandbox.readable()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: dict[int, Path] = {}
    try:
        while True:
            message, fds = channel.receive(max_fds=1)
            if message["op"] == "fork":
                prepare(message)
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
        shutil.rmtree(os.environ["HOME"], ignore_errors=True)  # the private scratch directory
    finally:
        for pid in list(children):
            _end(pid, children)


def _become(
    fd: int, scratch: Path, message: dict[str, Any], work: Callable[[socket.socket, Path], None]
) -> None:
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.environ |= {
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "TRITON_CACHE_DIR": str(scratch / "triton"),
        }
        tempfile.tempdir = None  # what was looked up before
        limits = sandbox.Limits(**message["limits"])
        sandbox.limit(limits)
        _, listener = sandbox.enter(scratch, limits, {fd}, cuda=message.get("cuda", False))
        if listener is not None:
            os.close(listener)
        work(socket.socket(fileno=fd), scratch)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _end(pid: int, children: dict[int, Path]) -> dict[str, Any]:
    """Kill a fork, which may have ended, with all that it started; how it ended."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    _, status, usage = os.wait4(pid, 0)
    shutil.rmtree(children.pop(pid), ignore_errors=True)
    return {"status": os.waitstatus_to_exitcode(status), "cpu_s": usage.ru_utime + usage.ru_stime}
