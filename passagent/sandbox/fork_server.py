"""The warm process that forks others (child.py is the view from outside).

    python -m passagent.sandbox.fork_server FD NEED...

It starts with a clean environment, imports once what forks need, never touches CUDA or an OpenMP pool
(neither survives a fork), and runs nobody's code itself. It ends, and kills what it forked, when the other
side goes away.
"""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from passagent.sandbox import privileges, sandbox
from passagent.sandbox.channel import Channel, ChannelClosed


def main() -> None:
    """Serve until the socket closes; then what was forked is killed."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    _load(sys.argv[2:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pids: set[int] = set()
    with suppress(ChannelClosed):
        while True:
            message, fds = channel.receive(max_fds=2)
            reply: dict[str, Any] = {}
            if message["op"] == "load":
                _load(message["names"])
            elif message["op"] == "fork":
                reply = _fork(message, fds)
                pids |= {reply["pid"]} if "pid" in reply else set()
            else:
                reply = _reap(message["pid"], pids)
            channel.send(reply)
    for pid in pids:
        privileges.kill_group(pid)
    shutil.rmtree(os.environ["HOME"], ignore_errors=True)  # its own scratch directory


def _load(names: Sequence[str]) -> None:
    """Import modules and call functions that forks need, and look up what forks may read."""
    for name in names:
        module, _, function = name.partition(":")
        loaded = importlib.import_module(module)
        if function:
            getattr(loaded, function)()
    sandbox.readable.cache_clear()
    sandbox.readable()
    gc.freeze()


def _fork(message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """The reply to a request for a fork: its pid, or the errno why there is none."""
    try:
        pid = os.fork()
        if pid == 0:
            _become(message, fds)
        return {"pid": pid}
    except OSError as error:
        return {"errno": error.errno}
    finally:
        for fd in fds:
            os.close(fd)


def _become(message: dict[str, Any], fds: list[int]) -> None:
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
        module, _, name = message["function"].partition(":")
        work = getattr(importlib.import_module(module), name)
        with socket.socket(fileno=stream) as asked:
            if message["answers"]:
                _answer(asked, scratch, work)
            else:
                work(asked, scratch, protections)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _answer(stream: socket.socket, scratch: Path, work: Callable[[bytes, Path], bytes]) -> None:
    """Read one request to its end, and send the answer."""
    null = os.open(os.devnull, os.O_WRONLY)  # what it prints does not count against its limit on files
    for standard in (1, 2):
        os.dup2(null, standard)
    with stream.makefile("rb") as source:
        request = source.read()
    stream.sendall(work(request, scratch))


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


if __name__ == "__main__":
    main()
