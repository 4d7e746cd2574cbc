"""The process that forks a throw-away process for each recording, and that process.

It starts with a clean environment, imports torch once, and runs nobody's code. A fork shuts itself in
(confine/sandbox.py) before it reads a byte of its request, answers on the same socket, and is killed.
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
from pathlib import Path
from typing import Any

from passagent.confine import sandbox
from passagent.confine.channel import Channel, ChannelClosed


def main() -> None:
    """Serve on the socket whose descriptor is the first argument, until it closes.

    `{"op": "fork", "triton": bool, "limits": {...}}` with a socket beside it forks; the reply has the `pid`.
    `{"op": "end", "pid": n}` kills and reaps it; the reply has its exit `status` and `cpu_s`.
    """
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    import torch

    for module in ("passagent.plan.recording", "torch.fx.experimental.symbolic_shapes"):
        importlib.import_module(module)
    torch.set_num_threads(1)
    _warm_up()
    sandbox.readable()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: dict[int, Path] = {}
    try:
        while True:
            message, fds = channel.receive(max_fds=1)
            if message["op"] == "fork":
                if message["triton"]:
                    _load_triton()
                scratch = Path(tempfile.mkdtemp(prefix="passagent-record-"))
                pid = os.fork()
                if pid == 0:
                    _become_recorder(fds[0], scratch, sandbox.Limits(**message["limits"]))
                os.close(fds[0])
                children[pid] = scratch
                channel.send({"pid": pid})
            else:
                channel.send(_end(message["pid"], children))
    except ChannelClosed:
        pass
    finally:
        for pid in list(children):
            _end(pid, children)


def _warm_up() -> None:
    """Do once what every fork would do: torch's own caches fill."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        torch.empty(2, 3).transpose(0, 1).contiguous().clone()


def _load_triton() -> None:
    if "triton" not in sys.modules:
        importlib.import_module("passagent.plan.launches")
        sandbox.readable.cache_clear()
        sandbox.readable()
        gc.freeze()


def _become_recorder(fd: int, scratch: Path, limits: sandbox.Limits) -> None:
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
        sandbox.limit(limits)
        _, listener = sandbox.enter(scratch, limits, {fd}, cuda=False)
        if listener is not None:
            os.close(listener)
        _answer(socket.socket(fileno=fd), scratch)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _answer(stream: socket.socket, scratch: Path) -> None:
    from passagent.plan.messages import Answer, Request
    from passagent.plan.recording import record

    with stream.makefile("rb") as source:
        request = Request.model_validate_json(source.read())
    answer: Any = record(request, scratch / "candidate")
    stream.sendall(Answer(answer=answer).canonical())


def _end(pid: int, children: dict[int, Path]) -> dict[str, Any]:
    """Kill a fork, which may have ended, with all that it started; how it ended."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    _, status, usage = os.wait4(pid, 0)
    shutil.rmtree(children.pop(pid), ignore_errors=True)
    return {"status": os.waitstatus_to_exitcode(status), "cpu_s": usage.ru_utime + usage.ru_stime}


if __name__ == "__main__":
    main()
