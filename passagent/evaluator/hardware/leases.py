"""Leases: timing has a device, or its cores, to itself for a moment; other steps share it.

A GPU has a file, and all cores of the machine have one together. Who wants a lease draws a ticket there, a
number, and locks the byte of that number, for each core anew, until the lease ends. It is granted when no
smaller number is locked in a way that conflicts: shared leases conflict with exclusive ones only. So it is
first come, first served, for all users of the machine, and what dies leaves no lock behind.
"""

from __future__ import annotations

import fcntl
import logging
import os
import pwd
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path

from passagent.errors import InfrastructureError
from passagent.evaluator.hardware.devices import Device

log = logging.getLogger("passagent.evaluator")

SLICE_S = 0.5
"""An exclusive lease that another program waits for goes to it after so long, at the end of a block, s."""
TELL_AFTER_S, TELL_EVERY_S = 2.0, 60.0
"""A program that waits for so long prints its place, and no more often than that, s."""
_POLL_S = 0.005
_NUMBERS = 1 << 40
"""Tickets of a core, or GPU: their bytes lie at its number times this."""
_LOCK = struct.Struct("hhqqi4x")
"""The C library's `struct flock`: kind, whence, start, length, pid."""
_ROW = struct.Struct("<QQ8x")
"""The content of a ticket: its number and the program's pid."""
_ROWS, _ROWS_AT = 4096, 4096


class DeviceLease:
    """One referee's access to a device; its threads share it."""

    def __init__(
        self,
        device: Device,
        cores: Sequence[int] | None = None,
        tell: Callable[[str], None] = log.warning,
        pid: int | None = None,
        is_heard: Callable[[], bool] = lambda: True,
    ) -> None:
        """`cores`: of a CPU, those that all its work runs on; None: this process's. `pid`: the program that
        others are shown, None: this process. `tell` gets a line when a wait is long, if somebody waits for
        this program meanwhile (`is_heard`).
        """
        self._device, self._tell, self._pid = device, tell, pid or os.getpid()
        self._is_heard = is_heard
        self._is_cpu = device.name == "cpu"
        self._units = sorted(cores or os.sched_getaffinity(0)) if self._is_cpu else [0]
        self._path = lease_directory() / f"passagent-{device.uuid}.lease"
        self._mine = threading.local()
        self._is_exclusive = False
        self._told = -TELL_EVERY_S

    @contextmanager
    def exclusive(self) -> Iterator[Callable[[], float]]:
        """Have the device alone. What is yielded is to be called between two blocks of timing.

        It gives the lease to who waits for it, if it was held for SLICE_S, and waits for its next turn; it
        returns for how many seconds others had the device, 0 if they did not. Raises InfrastructureError.
        """
        ticket = self._granted(fcntl.F_WRLCK)

        def share() -> float:
            nonlocal ticket
            if time.monotonic() - ticket.granted < SLICE_S or not ticket.is_awaited():
                return 0.0
            handed_over = time.monotonic()
            self._end(ticket)
            ticket = self._granted(fcntl.F_WRLCK)
            return time.monotonic() - handed_over

        try:
            yield share
        finally:
            self._end(ticket)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Use the device for one step while nobody times on it but this referee. Raises InfrastructureError.

        Meanwhile the thread waits for no other one that needs a lease.
        """
        if self._is_exclusive or getattr(self._mine, "ticket", None) is not None:
            yield
            return
        self._mine.ticket = ticket = self._granted(fcntl.F_RDLCK)
        try:
            yield
        finally:
            self._mine.ticket = None
            self._end(ticket)

    def host(self) -> AbstractContextManager[None]:
        """`shared` for a step that needs the host's cores only: beside a GPU nothing waits for it."""
        return self.shared() if self._is_cpu else nullcontext()

    def _granted(self, kind: int) -> _Ticket:
        """A ticket whose turn it is."""
        ticket = _Ticket(self._path, self._units, kind, self._pid)
        try:
            drawn = time.monotonic()
            # one of timing's own steps, in another thread, waits behind it for nothing
            while ticket.is_preceded() and not (kind == fcntl.F_RDLCK and self._is_exclusive):
                now = time.monotonic()
                is_long = now - drawn > TELL_AFTER_S and now - self._told > TELL_EVERY_S
                if is_long and self._is_heard():
                    self._told = now
                    self._tell(f"waiting for {self._device.name}, {ticket.place()}")
                time.sleep(_POLL_S)
        except BaseException:
            ticket.close()
            raise
        ticket.granted = time.monotonic()
        self._is_exclusive = self._is_exclusive or kind == fcntl.F_WRLCK
        return ticket

    def _end(self, ticket: _Ticket) -> None:
        if ticket.kind == fcntl.F_WRLCK:
            self._is_exclusive = False
        ticket.close()


class _Ticket:
    """A place in the queue, and the lease itself when nothing before it is left."""

    def __init__(self, path: Path, units: Sequence[int], kind: int, pid: int) -> None:
        self.kind, self._units = kind, units
        self.granted = 0.0
        self._fd = _open(path)
        try:
            _lock(self._fd, fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, 0, 1)
            drawn = os.pread(self._fd, 8, 0)
            self._number = int.from_bytes(drawn, "little") + 1
            for unit in units:
                _lock(self._fd, fcntl.F_OFD_SETLK, kind, (unit + 1) * _NUMBERS + self._number, 1)
            os.pwrite(self._fd, self._number.to_bytes(8, "little"), 0)
            os.pwrite(self._fd, _ROW.pack(self._number, pid), _row_of(self._number))
            _lock(self._fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, 1)
        except OSError as error:
            os.close(self._fd)
            raise _failed(path, error) from error

    def close(self) -> None:
        """Give up the place, or the lease."""
        os.close(self._fd)

    def is_preceded(self) -> bool:
        """Tell whether it must still wait."""
        return any(self._first(unit, 0, self._number) is not None for unit in self._units)

    def is_awaited(self) -> bool:
        """Tell whether a later one waits for it."""
        return any(self._first(unit, self._number + 1, _NUMBERS) is not None for unit in self._units)

    def place(self) -> str:
        """Its place in words: how many are before it, and the program of the first."""
        before = sorted({n for unit in self._units for n in self._all(unit, 0, self._number)})
        rows = [_ROW.unpack(os.pread(self._fd, _ROW.size, _row_of(n))) for n in before]
        holders = [row for n, row in zip(before, rows, strict=True) if row[0] == n]
        first = f" (first: pid {holders[0][1]}{_program(holders[0][1])})" if holders else ""
        return f"{len(before)} before you{first}"

    def _first(self, unit: int, low: int, high: int) -> int | None:
        """A number from `low` to before `high` whose ticket conflicts with this one."""
        start = (unit + 1) * _NUMBERS
        kind, _, offset, _, _ = _lock(self._fd, fcntl.F_OFD_GETLK, self.kind, start + low, high - low)
        return None if kind == fcntl.F_UNLCK else max(offset - start, low)

    def _all(self, unit: int, low: int, high: int) -> list[int]:
        """All such numbers."""
        if low >= high or (locked := self._first(unit, low, high)) is None:
            return []
        return [*self._all(unit, low, locked), locked, *self._all(unit, locked + 1, high)]


def is_in_use(device: Device, cores: Sequence[int]) -> bool:
    """Tell whether a program uses the device, or one of the cores, at this moment."""
    lease = DeviceLease(device, cores)
    with closing(_Ticket(lease._path, lease._units, fcntl.F_WRLCK, os.getpid())) as ticket:
        return ticket.is_preceded()


def lease_directory() -> Path:
    """`$PASSAGENT_LEASES`, else /tmp: the same for all users of a machine."""
    return Path(os.environ.get("PASSAGENT_LEASES") or "/tmp")


def _row_of(number: int) -> int:
    return _ROWS_AT + number % _ROWS * _ROW.size


def _lock(fd: int, operation: int, kind: int, start: int, length: int) -> tuple[int, ...]:
    """A lock of the open file, not of the process: threads have their own. The conflicting one, if asked."""
    return _LOCK.unpack(fcntl.fcntl(fd, operation, _LOCK.pack(kind, os.SEEK_SET, start, length, 0)))


def _open(path: Path) -> int:
    """The file, made if need be for all users, with its directory. Raises InfrastructureError."""
    try:
        try:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.parent.chmod(0o1777)  # as /tmp is
            # O_CREAT only here: it may not open another user's file in a sticky directory
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT | os.O_CLOEXEC, 0o666)
            os.fchmod(fd, 0o666)  # whatever the umask
            return fd
    except OSError as error:
        raise _failed(path, error) from error


def _failed(path: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(f"{path}: the device cannot be leased: {error.strerror}")


def _program(pid: int) -> str:
    """`", COMMAND"` of a program of this user, `", of USER"` of another's, whose command line is not shown.

    Empty if it is not seen from here.
    """
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return ""
    if owner != os.getuid():
        try:
            return f", of {pwd.getpwuid(owner).pw_name}"
        except KeyError:  # a user of a container, or of another machine's directory
            return f", of user {owner}"
    if Path(words[0]).name.startswith("python"):  # as in python /place/passagent run TASK
        words = [word for word in words[1:] if word != "-m"]
    text = " ".join([Path(words[0]).name, *words[1:3]] if words else []).strip()[:80]
    return "".join(c for c in f", {text}" if c.isprintable()) if text else ""
