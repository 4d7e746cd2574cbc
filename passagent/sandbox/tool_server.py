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
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from passagent.sandbox import landlock, privileges, seccomp

_DEVICES = [Path("/dev") / name for name in ("null", "zero", "full", "random", "urandom")]
_MOST_FDS = 4
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

_LOOK_MS = 20
"""How often the processes of running tools are counted."""

Request = dict[str, Any]


@dataclass
class _Tool:
    """A tool that runs: the leader of its process group."""

    pid: int
    status: socket.socket
    most: int
    """Processes and threads that it may have."""
    others: int
    """Threads of the machine when it began."""
    is_crowd: bool = False
    """It had more than `most`, and was killed for that."""


def main(fd: int) -> None:
    """Serve until the other end of the socket is closed."""
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)
    layers = _tried()
    for name, enter in _shared().items():
        if layers[name] == "on":
            enter()
    control.send(json.dumps(layers).encode())
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    poll, running = select.poll(), dict[int, _Tool]()
    poll.register(control, select.POLLIN)
    poll.register(woken, select.POLLIN)
    gc.freeze()  # what is forked copies less
    gc.disable()
    while True:
        ready = {number for number, _ in poll.poll(_LOOK_MS if running else None)}
        for given_up in ready & running.keys():  # nobody waits for it any more
            poll.unregister(given_up)
            _kill(running[given_up].pid)
        _stop_crowds(running)
        if woken in ready:
            os.read(woken, 1 << 16)
            _reap(running, poll)
        if control.fileno() in ready and not _start(control, layers, running, poll):
            for tool in running.values():
                _kill(tool.pid)
            return


def _start(
    control: socket.socket,
    layers: dict[str, str],
    running: dict[int, _Tool],
    poll: select.poll,
) -> bool:
    """Start the tool that is asked for next; False if nobody asks any more."""
    try:
        data, fds, _, _ = socket.recv_fds(control, 1 << 20, _MOST_FDS)
    except OSError:
        return False
    if not data:
        return False
    for fd in fds:
        os.set_inheritable(fd, False)
    status = socket.socket(fileno=fds[3])
    try:
        pid = os.fork()
    except OSError as error:
        status.send(json.dumps({"failed": str(error)}).encode())
        status.close()
    else:
        request = json.loads(data)
        if pid == 0:
            _become(request, fds, status, layers)
        running[status.fileno()] = _Tool(pid, status, request["limits"]["processes"], _threads_of_all())
        poll.register(status, select.POLLIN)
    for fd in fds[:3]:
        os.close(fd)
    return True


def _become(request: Request, fds: list[int], status: socket.socket, layers: dict[str, str]) -> None:
    """In the child: shut it in, and run the tool in its place."""
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        for kind in (signal.SIGCHLD, *_IGNORED_BY_PYTHON):
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
        report = {}
        no_limits = {"cpu_s": 60, "memory": 1 << 40, "file": 1 << 40, "descriptors": 64}
        request = {"read": [], "execute": [], "scratch": "/nonexistent", "limits": no_limits}
        for name, put in {**_shared(), **_own(request)}.items():
            try:
                put()
                report[name] = "on"
            except OSError as error:
                report[name] = f"off: {error.strerror or error}"
        os.write(write, json.dumps(report).encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return dict(json.loads(answer))


def _stop_crowds(running: dict[int, _Tool]) -> None:
    """Kill each tool that has more processes and threads than it may.

    The kernel's own limit does not hold for root, nor apart from the user's other processes. All of /proc is
    read only where the machine has so many more threads than when the tool began.
    """
    if not running:
        return
    all_threads = _threads_of_all()
    if all(all_threads - tool.others <= tool.most for tool in running.values()):
        return
    of_group = Counter[int]()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
                of_group[int(fields[2])] += int(fields[17])  # pgrp, num_threads
    for tool in running.values():
        if of_group[tool.pid] > tool.most:
            tool.is_crowd = True
            _kill(tool.pid)


def _threads_of_all() -> int:
    """How many threads the machine has."""
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].partition("/")[2])


def _reap(running: dict[int, _Tool], poll: select.poll) -> None:
    """Tell of each tool that ended; what it left running is killed."""
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            _kill(ended.si_pid)
            _, code = os.waitpid(ended.si_pid, 0)
            for fd, tool in list(running.items()):
                if tool.pid == ended.si_pid:
                    with suppress(KeyError):
                        poll.unregister(fd)
                    del running[fd]
                    with suppress(OSError):  # nobody waits for it
                        ending = {"code": os.waitstatus_to_exitcode(code), "crowd": tool.is_crowd}
                        tool.status.send(json.dumps(ending).encode())
                    tool.status.close()


def _kill(pid: int) -> None:
    """Kill a tool with all that it started."""
    for kill in (os.killpg, os.kill):  # it has no group yet where it has just been forked
        with suppress(OSError):
            kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
