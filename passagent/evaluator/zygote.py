"""A process that has imported torch and forks workers: milliseconds for each in place of seconds.

It is started with a clean environment, never touches CUDA or an OpenMP pool (neither survives a fork), runs
no candidate's code, and kills what it forked when the referee goes away.
"""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import socket
import sys
from typing import Any

from passagent.evaluator.channel import Channel, ChannelClosed


def main() -> None:
    """Serve fork requests on the socket whose descriptor is the first argument; the second is the device."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    import passagent.evaluator.worker

    if sys.argv[2] == "cpu":
        passagent.evaluator.worker.warm_up()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: set[int] = set()
    channel.send({"ready": True})
    while True:
        try:
            message, fds = channel.receive(max_fds=2)
        except ChannelClosed:
            break
        if message["op"] == "fork":
            pid = os.fork()
            if pid == 0:
                _become_worker(channel, message, fds)
            for fd in fds:
                os.close(fd)
            children.add(pid)
            channel.send({"pid": pid})
        else:
            channel.send({"status": _reap(int(message["pid"]), children)})
    for pid in children:
        _kill_group(pid)
    shutil.rmtree(os.environ["HOME"], ignore_errors=True)  # the private scratch directory


def _become_worker(channel: Channel, message: dict[str, Any], fds: list[int]) -> None:
    channel.close()
    os.setsid()
    worker_fd, log_fd = fds
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.environ.clear()
    os.environ.update(message["env"])
    os.chdir(message["env"]["HOME"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (message["file_bytes"],) * 2)
    if message["memory_bytes"]:
        resource.setrlimit(resource.RLIMIT_AS, (message["memory_bytes"],) * 2)
    from passagent.evaluator.worker import serve

    code = 1
    try:
        serve(Channel(socket.socket(fileno=worker_fd)))
        code = 0
    finally:
        os._exit(code)


def _reap(pid: int, children: set[int]) -> int | None:
    """The wait status of a child (negative: the signal), None while it lives."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    if done == 0:
        return None
    children.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    main()
