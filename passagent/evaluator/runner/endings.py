"""How a worker ended, and whose fault that is."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from passagent.errors import InfrastructureError, MachineFault
from passagent.evaluator.result import Status
from passagent.evaluator.runner.worker_messages import Error
from passagent.evaluator.sizes import plain
from passagent.sandbox.faults import NO_MEMORY, machine_fault
from passagent.sandbox.sandbox import Limits

_CPUCLOCK_SCHED = 2  # include/uapi/linux/posix-timers: beside the pid in a clock's number
LIMITS = Limits()
"""The limits of every worker; its address space is limited separately."""


class WorkerDied(Exception):
    """A worker ended by itself, or broke the protocol (`code` is None). `code` is negative for a signal.

    `status` says whose fault it was, as far as that can be known. A sandboxed worker cannot send SIGKILL or
    SIGTERM to itself, so one of these came from the kernel or from outside. It came from the kernel if the
    worker had used up its processor time (SIGXCPU comes first, and a worker may ignore it), or if the count
    of processes killed for want of memory rose while it lived: this control group's count, or where there is
    none the machine's, which another process may have raised. Without seccomp a candidate can end itself as
    if it were killed from outside, and is then not charged. `lost`: its fork server ended before it.
    """

    def __init__(
        self, code: int | None, log: str, *, no_memory: bool = False, cpu_s: float = 0.0, lost: bool = False
    ) -> None:
        super().__init__(code)
        self.code, self.log = code, log
        used_up = code == -signal.SIGKILL and cpu_s >= LIMITS.cpu_s
        self.status: Status = "runtime_error"
        if code == -signal.SIGXCPU or used_up:
            self.status = "timeout"
        elif code == -signal.SIGKILL and no_memory:
            self.status = "out_of_memory"
        elif lost or code in (-signal.SIGKILL, -signal.SIGTERM):
            self.status = "infrastructure"

    def __str__(self) -> str:
        return self.describe()

    @property
    def killed_from_outside(self) -> bool:
        """By the machine or a person, not by a candidate's own fault."""
        return self.status == "infrastructure"

    def describe(self) -> str:
        """In words, such as `died with SIGSEGV` or `exited with code 3`."""
        if self.code is None and self.status == "infrastructure":
            return "was lost with the process that it was forked from"
        if self.code is None:
            return "broke off, or sent what is no answer"
        if self.status == "timeout":
            return f"used more than {LIMITS.cpu_s} s of processor time"
        if self.status == "out_of_memory":
            return "was killed by the kernel: no memory left"
        if self.code == -signal.SIGXFSZ:
            return f"wrote more than {LIMITS.file >> 20} MB to its log or to a file"
        if self.code < 0:
            return f"died with {signal.Signals(-self.code).name}"
        return f"exited with code {self.code}"


class WorkerTimeout(Exception):
    """A worker did not answer in time and was killed."""


def lost(what: str, error: WorkerDied | WorkerTimeout) -> InfrastructureError:
    """The error for a worker with only trusted code that died, or is silent: the machine's fault."""
    if isinstance(error, WorkerDied) and error.status == "out_of_memory":
        return MachineFault(f"{what}: {NO_MEMORY}")
    return InfrastructureError(f"{what}: {error}")


def failed(what: str, error: Error) -> InfrastructureError:
    """The error for such a worker that answered with an `error` where it did not fail before."""
    fault = named_by_worker(what, error)
    if fault is None and error.kind == "out_of_memory":
        fault = MachineFault(f"{what}: {NO_MEMORY}")
    return fault or InfrastructureError(f"{what}: {error.message}")


def named_by_worker(what: str, error: Error) -> MachineFault | None:
    """The machine's fault that the `error` of a worker with none but trusted code is, if it is one."""
    number = error.errno
    return machine_fault(OSError(number, os.strerror(number)), what, error.path) if number else None


def waited_ns(pid: int) -> int:
    """How long a process's first thread was ready to run without a core so far, as the kernel counts it, ns.

    Less what its other threads ran, so that they are not taken for others. 0 where the kernel does not say.
    """
    try:
        times = {task.name: _ran_and_waited(task) for task in Path(f"/proc/{pid}/task").iterdir()}
        return times[str(pid)][1] - sum(ran for name, (ran, _) in times.items() if name != str(pid))
    except (OSError, ValueError, KeyError):
        return 0


def processor_ns(pid: int) -> int:
    """The processor time that a process has taken with all its threads, ns; 0 where the kernel says none."""
    with suppress(OSError):
        return time.clock_gettime_ns(~pid << 3 | _CPUCLOCK_SCHED)
    return 0


def _ran_and_waited(task: Path) -> tuple[int, int]:
    ran, waited, _ = (task / "schedstat").read_text().split()
    return int(ran), int(waited)


def last_line(log: str) -> str:
    """`": LINE"` of the last line of a log, empty if there is none."""
    lines = [line for line in log.strip().splitlines() if line.strip()]
    return f": {plain(lines[-1][:300])}" if lines else ""


def tail(path: Path, limit: int = 2000) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
