"""Hide from a worker what it may not know before it needs it: windows and number of timed calls, input
values.

Native code of a candidate reads all memory of its worker, but makes no system calls. So what is to come lies
in files in memory that the worker does not map: before a call it reads that call's windows and values.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

_WORD = 8
_CALL = 1
"""Precedes the windows of a call: a graph without inputs has none."""
_PART = 1 << 14
"""Elements that are mixed at a time: torch takes one thread for so few."""


def hidden(windows: Sequence[Sequence[int]]) -> int:
    """A descriptor of the windows of calls, which a worker reads as `Unseen`, without their number."""
    words = [word for row in windows for word in (_CALL, *row)]
    fd = os.memfd_create("passagent-calls", os.MFD_CLOEXEC)
    try:
        os.pwrite(fd, b"".join(word.to_bytes(_WORD, "little") for word in words), 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Unseen:
    """The windows of a block's calls, of which those of a call are read when they are asked for."""

    def __init__(self, fd: int, inputs: int) -> None:
        """Takes the descriptor over; `inputs`: of a call."""
        self._fd, self._row = fd, _WORD * (1 + inputs)

    def of(self, call: int) -> list[int] | None:
        """The windows of a call; None if there is no such call."""
        row = os.pread(self._fd, self._row, call * self._row)
        if not row:
            return None
        return [int.from_bytes(row[at : at + _WORD], "little") for at in range(_WORD, len(row), _WORD)]

    def __iter__(self) -> Iterator[list[int]]:
        call = 0
        while (windows := self.of(call)) is not None:
            yield windows
            call += 1

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class Reservoir:
    """Values of an input, flat, in memory that is not mapped here; read like a tensor."""

    def __init__(self, fd: int, offset: int, dtype: torch.dtype, count: int) -> None:
        self._fd, self._offset, self.dtype, self._count = fd, offset, dtype, count

    def numel(self) -> int:
        """How many."""
        return self._count

    def narrow(self, _: int, start: int, count: int) -> torch.Tensor:
        """A copy of some."""
        values = torch.empty(count, dtype=self.dtype)
        if count:
            self.read(bytes_of(values), start)
        return values

    def __getitem__(self, which: slice) -> torch.Tensor:
        start, stop, _ = which.indices(self._count)
        return self.narrow(0, start, max(0, stop - start))

    def read(self, into: Any, start: int) -> None:
        """Copy so many bytes from element `start` on."""
        done, buffer = 0, memoryview(into)
        while done < len(buffer):
            got = os.preadv(self._fd, [buffer[done:]], self._offset + start * self.dtype.itemsize + done)
            if not got:
                raise ValueError("a window outside of its arena")
            done += got


class Filling:
    """Puts windows of a reservoir into a tensor, flat, by one thread, which leaves nothing else behind."""

    def __init__(self, target: torch.Tensor, reservoir: Reservoir, mix: float) -> None:
        self._reservoir, self._mix, self._into = reservoir, mix, bytes_of(target)
        buffer = torch.empty(min(_PART, target.numel()), dtype=target.dtype)
        self._parts = []
        for start, part in zip(range(0, target.numel(), _PART), target.split(_PART), strict=True):
            other = buffer[: part.numel()]
            self._parts.append((start, part, other, bytes_of(other)))

    def put(self, start: int, partner: int | None) -> None:
        """The window that starts at `start`, mixed with the one at `beside` if there is one."""
        self._reservoir.read(self._into, start)
        if partner is not None:
            for at, part, other, into in self._parts:
                self._reservoir.read(into, partner + at)
                torch.lerp(part, other, self._mix, out=part)


def bytes_of(tensor: torch.Tensor) -> Any:
    """The memory of a contiguous tensor, to be read into; it must outlive this."""
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
