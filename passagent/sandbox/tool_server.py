"""Start tools, each shut in, for the process at the other end of a socket (tools.py); end when that ends.

    python -I -S tool_server.py FD

It has no threads and imports little, so that a tool costs a fork of a small process. What the kernel offers
is tried out first, in a child, and sent: {"LAYER": "on" or "off: REASON"}.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from passagent.sandbox import landlock, privileges, seccomp

_DEVICES = [Path("/dev") / name for name in ("null", "zero", "full", "random", "urandom")]
_MOST_FDS = 4
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

_LOOK_S = 0.02
"""How often the processes of a running tool are counted."""

Request = dict[str, Any]


def main(fd: int) -> None:
    """Serve until the other end of the socket is closed."""
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)
    layers = _tried()
    for name, enter in _shared().items():
        if layers[name] == "on":
            enter()
    control.send(json.dumps(layers).encode())
    gc.freeze()  # what is forked copies less
    gc.disable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that watch tools
    server = os.getpid()
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(control, 1 << 20, _MOST_FDS)
        except OSError:
            return
        if not data:
            return
        for attached in fds:
            os.set_inheritable(attached, False)
        status = socket.socket(fileno=fds[3])
        try:
            if os.fork() == 0:
                control.close()
                _watch(json.loads(data), fds, status, layers, server)
        except OSError as error:
            status.send(json.dumps({"failed": str(error)}).encode())
        status.close()
        for attached in fds[:3]:
            os.close(attached)


def _watch(
    request: Request, fds: list[int], status: socket.socket, layers: dict[str, str], server: int
) -> None:
    """In a child: start the tool that is asked for, and say how it ended. What it leaves running is killed.

    So is the tool when nobody waits for it any more, or it has more processes and threads than it may.
    """
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        others, is_crowd = _threads_of_all(), False
        pid = os.fork()
        if pid == 0:
            _become(request, fds, status, layers)
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            is_crowd = is_crowd or _is_crowd(pid, request["limits"]["processes"], others)
            if is_crowd or os.getppid() != server or select.select([status], [], [], 0)[0]:
                privileges.kill_group(pid)
            signal.sigtimedwait([signal.SIGCHLD], _LOOK_S)
        privileges.kill_group(pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        status.send(json.dumps({"code": code, "crowd": is_crowd}).encode())
    except OSError as error:
        with suppress(OSError):  # nobody waits for it
            status.send(json.dumps({"failed": str(error)}).encode())
    finally:
        os._exit(0)


def _become(request: Request, fds: list[int], status: socket.socket, layers: dict[str, str]) -> None:
    """In the child: shut it in, and run the tool in its place."""
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        for kind in _IGNORED_BY_PYTHON:
            signal.signal(kind, signal.SIG_DFL)
        for target, fd in enumerate(fds[:3]):
            os.dup2(fd, target)
        os.chdir(request["scratch"])
        for name, put in _own(request).items():
            if layers[name] == "on":
                put()
        os.execvpe(request["command"][0], request["command"], request["environment"])
    except BaseException as error:  # nothing of this process may go on in the child
        status.send(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
    finally:
        os._exit(127)


def _shared() -> dict[str, Callable[[], object]]:
    """Layers that this process enters, and its tools with it."""
    return {
        "user_namespace": privileges.own_users,
        "network_namespace": lambda: privileges.unshare(privileges.NEWNET),
        "ipc_namespace": lambda: privileges.unshare(privileges.NEWIPC),
    }


def _own(request: Request) -> dict[str, Callable[[], object]]:
    """Layers that each tool enters."""
    read, execute = ([Path(name) for name in request[key]] for key in ("read", "execute"))
    return {
        "resource_limits": lambda: _limit(request["limits"]),
        "no_new_privileges": lambda: privileges.prctl(privileges.SET_NO_NEW_PRIVS, 1),
        "no_capabilities": privileges.drop_capabilities,
        "landlock": lambda: landlock.restrict(read, [Path(request["scratch"])], _DEVICES, execute),
        "seccomp": seccomp.deny_tool,
    }


def _limit(limits: dict[str, Any]) -> None:
    privileges.lower(resource.RLIMIT_CORE, 0)
    privileges.lower(resource.RLIMIT_CPU, limits["cpu_s"])
    privileges.lower(resource.RLIMIT_AS, limits["memory"])
    privileges.lower(resource.RLIMIT_FSIZE, limits["file"])
    privileges.lower(resource.RLIMIT_NOFILE, limits["descriptors"])


def _tried() -> dict[str, str]:
    """Find out which layers the kernel offers, in a child that enters them all."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        report = dict[str, str]()
        no_limits = {"cpu_s": 60, "memory": 1 << 40, "file": 1 << 40, "descriptors": 64}
        request = {"read": [], "execute": [], "scratch": "/nonexistent", "limits": no_limits}
        for name, put in {**_shared(), **_own(request)}.items():
            privileges.enter(report, name, put)
        os.write(write, json.dumps(report).encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return dict(json.loads(answer))


def _is_crowd(pid: int, most: int, others: int) -> bool:
    """Tell whether a tool has more than `most` processes and threads.

    The kernel's own limit does not hold for root, nor apart from the user's other processes. All of /proc is
    read only where the machine has so many more threads than the `others` when the tool began.
    """
    if _threads_of_all() - others <= most:
        return False
    count = 0
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
                count += int(fields[17]) if int(fields[2]) == pid else 0  # num_threads, pgrp
    return count > most


def _threads_of_all() -> int:
    """How many threads the machine has."""
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].partition("/")[2])


if __name__ == "__main__":
    main(int(sys.argv[1]))
