"""A process that has imported torch and forks workers: milliseconds for each in place of seconds.

It is started with a clean environment, never touches CUDA or an OpenMP pool (neither survives a fork), runs
no candidate's code, and kills what it forked when the referee goes away. A sandboxed worker shuts itself in
before it reads a byte from the referee.
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
from contextlib import suppress
from pathlib import Path
from typing import Any

from passagent.sandbox import sandbox
from passagent.sandbox.channel import Channel, ChannelClosed, ChannelTimeout

_ENTER_S = 20.0


def main() -> None:
    """Serve fork requests on the socket whose descriptor is the first argument; the second is the device."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    cuda = sys.argv[2] != "cpu"
    importlib.import_module("passagent.evaluator.runner.worker")
    sandbox.readable()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: set[int] = set()
    with suppress(ChannelClosed):  # a referee that is gone by now: the next receive tells
        channel.send({"ready": True})
    while True:
        try:
            message, fds = channel.receive(max_fds=2)
            if message["op"] == "fork":
                reply = _fork(message, fds, cuda)
                if "pid" in reply:
                    children.add(reply["pid"])
            elif message["op"] == "dynamo":
                _load_dynamo(cuda, message["compiler"])
                reply = {}
            else:
                reply = _reap(int(message["pid"]), children)
            channel.send(reply)
        except ChannelClosed:
            break
    for pid in children:
        _kill_group(pid)
    shutil.rmtree(os.environ["HOME"], ignore_errors=True)  # the private scratch directory


def _load_dynamo(cuda: bool, compiler: bool) -> None:
    """Import Dynamo, and TorchInductor for a `compiler`, once for all workers that are forked from now on."""
    from passagent.evaluator.runner import worker

    worker.warm_up_dynamo(cuda)
    if compiler:
        importlib.import_module("torch._inductor.compile_fx")
    gc.freeze()


def _fork(message: dict[str, Any], fds: list[int], cuda: bool) -> dict[str, Any]:
    """Fork a worker and hear from it what protects the machine from it; the reply to the referee."""
    ours, theirs = socket.socketpair()
    try:
        pid = os.fork()
    except OSError as error:
        return {"error": f"no worker can be forked: {error.strerror}", "errno": error.errno}
    if pid == 0:
        _become_worker(Channel(theirs), message, fds, cuda)
    theirs.close()
    report = Channel(ours)
    try:
        entered, _ = report.receive(_ENTER_S)
        reply = {"pid": pid, "protections": entered["protections"]}
    except (ChannelClosed, ChannelTimeout):
        _kill_group(pid)
        reply = {"pid": pid, "error": "a worker died before it was ready; see its log"}
    for fd in fds:
        os.close(fd)
    report.close()
    return reply


def _become_worker(report: Channel, message: dict[str, Any], fds: list[int], cuda: bool) -> None:
    code = 1
    try:
        os.setsid()
        worker_fd, log_fd = fds
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.environ.clear()
        os.environ.update(message["env"])
        tempfile.tempdir = None  # what was looked up in the fork server's environment
        scratch, limits = Path(message["env"]["HOME"]), sandbox.Limits(**message["limits"])
        needed = {worker_fd, report.socket.fileno()}
        sandbox.limit(limits)
        if message["sandboxed"]:
            protections = sandbox.enter(scratch, limits, needed, cuda=cuda)
        else:
            sandbox.close_others(needed)
            sandbox.follow_parent()
            os.chdir(scratch)
            protections = {}
        report.send({"protections": protections})
        report.close()
        from passagent.evaluator.runner.worker import serve

        serve(Channel(socket.socket(fileno=worker_fd)), protections, scratch)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _reap(pid: int, children: set[int]) -> dict[str, Any]:
    """A child's exit code (negative: the signal; None while it lives) and the processor time it took, s."""
    try:
        done, status, usage = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:
        return {"status": None}
    if done == 0:
        return {"status": None}
    children.discard(pid)
    return {"status": os.waitstatus_to_exitcode(status), "cpu_s": usage.ru_utime + usage.ru_stime}


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    main()
