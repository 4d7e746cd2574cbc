"""When the calls of a block began and ended, as the kernel saw it: no native code of a worker changes that.

A worker sends a message at the beginning and at the end of a call, and where its outputs are copied one more
when that is done. The kernel stamps each with its time as it is sent. What a message itself takes is seen at
the beginning of the first calls, which send one more: the median is taken off each time.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import socket
import struct
from collections.abc import Callable
from statistics import median

GAPS = 16
"""Calls of a block before which one more message is sent."""
_MOST = 256
"""Messages that a socket holds, at least."""
_SO_TIMESTAMPNS = 35
_TIME = struct.Struct("qq")

Mark = Callable[[], int]


class Marks:
    """The referee's side: `fd` is for the worker, `times` tells afterwards."""

    def __init__(self, calls: int, is_copied: bool) -> None:
        """`is_copied`: each call's outputs are. Raises OSError where the kernel does not stamp so many."""
        self._calls, self._each = calls, 2 + is_copied
        self._gaps = min(GAPS, calls)
        if self._count > _MOST:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
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

    @property
    def _count(self) -> int:
        return self._each * self._calls + self._gaps

    def times(self) -> tuple[list[int], list[int]]:
        """The time of each call, and of copying its outputs where they are, ns.

        Raises ValueError for other marks than those of so many calls.
        """
        stamps = []
        while True:
            try:
                data, ancillary, _, _ = self._own.recvmsg(8, 64)
            except BlockingIOError:
                break
            if not data or not ancillary:
                raise ValueError("calls are not marked")
            seconds, ns = _TIME.unpack(ancillary[0][2][: _TIME.size])
            stamps.append(seconds * 10**9 + ns)
        if len(stamps) != self._count:
            raise ValueError(f"{len(stamps)} marks of {self._calls} calls")
        wide = self._each + 1
        first, rest = stamps[: wide * self._gaps], stamps[wide * self._gaps :]
        rows = [first[k::wide] + rest[k - 1 :: self._each] for k in range(1, wide)]
        cost = round(median(start - before for before, start in zip(first[::wide], rows[0], strict=False)))
        took, *copying = (
            [max(1, later - earlier - cost) for earlier, later in zip(*both, strict=True)]
            for both in itertools.pairwise(rows)
        )
        return took, copying[0] if copying else []

    def close(self) -> None:
        """Close both ends."""
        self._own.close()
        self._given.close()


def mark_by(fd: int) -> tuple[Mark, socket.socket]:
    """In a worker: the function that marks, and the socket to close."""
    sock = socket.socket(fileno=fd)
    return functools.partial(sock.send, b"."), sock
