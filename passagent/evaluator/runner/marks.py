"""When the calls of a block began and ended, as the kernel saw it: no native code of a worker changes that.

A worker sends a message at the beginning and at the end of a call, and the kernel stamps each with its time
as it is sent. What a message itself takes is seen at the beginning of the first calls, which send one more:
the median is taken off each call.
"""

from __future__ import annotations

import functools
import socket
import struct
from collections.abc import Callable
from statistics import median

GAPS = 16
"""Calls of a block before which one more message is sent."""
MOST_CALLS = 120
"""Of a block that is marked: a socket holds some 270 messages."""
_SO_TIMESTAMPNS = 35
_TIME = struct.Struct("qq")

Mark = Callable[[], object]


class Marks:
    """The referee's side: `fd` is for the worker, `times` tells afterwards."""

    def __init__(self, calls: int) -> None:
        """Raises OSError where the kernel does not stamp."""
        self._calls = calls
        self._own, self._given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._own.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            self._own.setblocking(False)
        except OSError:
            self.close()
            raise

    @property
    def fd(self) -> int:
        """The descriptor that the worker marks by."""
        return self._given.fileno()

    def times(self) -> list[int]:
        """What each call took, ns. Raises ValueError for other marks than those of so many calls."""
        stamps = []
        while True:
            try:
                said, beside, _, _ = self._own.recvmsg(8, 64)
            except BlockingIOError:
                break
            if not said or not beside:
                raise ValueError("calls are not marked")
            seconds, ns = _TIME.unpack(beside[0][2][: _TIME.size])
            stamps.append(seconds * 10**9 + ns)
        gaps = min(GAPS, self._calls)
        if len(stamps) != 2 * self._calls + gaps:
            raise ValueError(f"{len(stamps)} marks of {self._calls} calls")
        first, rest = stamps[: 3 * gaps], stamps[3 * gaps :]
        starts, ends = first[1::3] + rest[::2], first[2::3] + rest[1::2]
        own = round(median(start - before for before, start in zip(first[::3], first[1::3], strict=True)))
        return [max(1, end - start - own) for start, end in zip(starts, ends, strict=True)]

    def close(self) -> None:
        """Close both ends."""
        self._own.close()
        self._given.close()


def mark_by(fd: int) -> tuple[Mark, socket.socket]:
    """In a worker: the function that marks, and the socket to close."""
    sock = socket.socket(fileno=fd)
    return functools.partial(sock.send, b"."), sock
