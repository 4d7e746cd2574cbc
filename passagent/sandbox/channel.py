"""Messages between the referee and a worker: framed JSON, and tensors as bytes in shared memory.

The channel carries plain data only: no pickle, so nothing that a worker sends can run on the other side.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import socket
import struct
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from passagent.sandbox.pieces import copy
from passagent.sandbox.unseen import Reservoir, bytes_of

MAX_MESSAGE = 16 << 20
"""Bytes of one message, at most."""
_ALIGN = 64
_WRITTEN = 64 << 20
"""Where in an arena what is written ends, at most: well below the limit on files (sandbox.py), bytes."""
_HEADER = struct.Struct("!I")
_LEAST_S = 1e-3
"""A message that the socket has room for is sent, however little time is left, s."""


class ChannelClosed(Exception):
    """The other side is gone."""


class ChannelTimeout(Exception):
    """No complete message came in time."""


class Channel:
    """A stream socket that carries JSON objects, each with a four-byte length, and descriptors beside."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def send(
        self, message: dict[str, Any], fds: tuple[int, ...] = (), timeout_s: float | None = None
    ) -> None:
        """Send one object (and descriptors). Raises ChannelClosed, ChannelTimeout if nobody takes it."""
        data = json.dumps(message).encode()
        try:
            self.socket.settimeout(None if timeout_s is None else max(timeout_s, _LEAST_S))
            if fds:
                socket.send_fds(self.socket, [_HEADER.pack(len(data))], list(fds))
                self.socket.sendall(data)
            else:
                self.socket.sendall(_HEADER.pack(len(data)) + data)
        except TimeoutError as error:
            raise ChannelTimeout from error
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None, max_fds: int = 0) -> tuple[dict[str, Any], list[int]]:
        """The next object and its descriptors.

        Raises ChannelClosed, ChannelTimeout, ValueError if it is malformed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        header, fds = self._read(_HEADER.size, deadline, max_fds)
        (length,) = _HEADER.unpack(header)
        if length > MAX_MESSAGE:
            raise ValueError(f"a message of {length} bytes")
        body, _ = self._read(length, deadline, 0)
        message = json.loads(body)
        if not isinstance(message, dict):
            raise ValueError("a message that is no object")
        return message, fds

    def _read(self, size: int, deadline: float | None, max_fds: int) -> tuple[bytes, list[int]]:
        data, fds = bytearray(), []
        while len(data) < size:
            seconds = None if deadline is None else deadline - time.monotonic()
            if seconds is not None and seconds <= 0:
                raise ChannelTimeout
            try:
                self.socket.settimeout(seconds)
                if max_fds:
                    part, received, _, _ = socket.recv_fds(self.socket, size - len(data), max_fds)
                    fds.extend(received)
                else:
                    part = self.socket.recv(size - len(data))
            except TimeoutError as error:
                raise ChannelTimeout from error
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not part:
                raise ChannelClosed
            data += part
        return bytes(data), fds

    def close(self) -> None:
        self.socket.close()


class Described(Protocol):
    """Where a tensor lies in an arena, whoever says so."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def offset(self) -> int: ...


@dataclass(frozen=True)
class Placed:
    """A tensor in an arena: its dtype's name, its shape, and its offset, bytes."""

    dtype: str
    shape: list[int]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor, offset: int) -> Placed:
        """Where `tensor` lies."""
        return cls(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), offset)


class Arena:
    """Anonymous shared memory that holds tensors one after the other, each described by where it lies."""

    def __init__(self, fd: int, size: int, writable: bool = True) -> None:
        self.fd, self.size = fd, size
        self._writable = writable
        self._mapped: mmap.mmap | None = None
        self._used = 0

    @property
    def _map(self) -> mmap.mmap:
        """Its memory, mapped when it is first needed: a worker only writes, and no kernel finds it there."""
        if self._mapped is None:
            prot = mmap.PROT_READ | (mmap.PROT_WRITE if self._writable else 0)
            self._mapped = mmap.mmap(self.fd, self.size, prot=prot)
        return self._mapped

    @classmethod
    def create(cls, size: int) -> Arena:
        """A new arena of `size` bytes; hand `arena.fd` to the other side. Raises OSError."""
        fd = os.memfd_create("passagent-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, max(size, mmap.PAGESIZE))
        return cls(fd, max(size, mmap.PAGESIZE))

    @staticmethod
    def room(tensors: list[torch.Tensor]) -> int:
        """Bytes that `tensors` need."""
        return sum(-(-t.numel() * t.element_size() // _ALIGN) * _ALIGN + _ALIGN for t in tensors)

    def seal(self) -> None:
        """Nobody writes into it any more, this side included: what one worker reads no other can change."""
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None
        self._writable, self.size = False, max(self._used, mmap.PAGESIZE)
        os.ftruncate(self.fd, self.size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)

    def reset(self) -> None:
        """Forget what was written."""
        self._used = 0

    def write(self, tensor: torch.Tensor) -> Placed:
        """Copy a tensor in. Raises ValueError if there is no room."""
        placed = Placed.of(tensor, -(-self._used // _ALIGN) * _ALIGN)
        self._used = self._put(tensor.detach().contiguous().cpu(), placed.offset)
        return placed

    def write_all(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Copy tensors in, from the beginning on, with little ado; their offsets. Raises as `write` does."""
        offsets, at = [], 0
        for tensor in tensors:
            offsets.append(at)
            at = -(-self._put(tensor.contiguous().cpu(), at) // _ALIGN) * _ALIGN
        return offsets

    def _put(self, tensor: torch.Tensor, at: int) -> int:
        """Copy a contiguous tensor's bytes in; where they end.

        Nothing stays mapped: a worker's kernels find no outputs here. Writes meet the limit on the size of a
        worker's files, so that large tensors are copied through windows.
        """
        tensor = tensor.resolve_conj().resolve_neg()
        remaining = memoryview(bytes_of(tensor))
        end = at + len(remaining)
        self._check_room(end)
        while remaining and end <= _WRITTEN:
            written = os.pwrite(self.fd, remaining, at)
            remaining, at = remaining[written:], at + written
        if remaining:
            start = at - at % mmap.ALLOCATIONGRANULARITY
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            with mmap.mmap(self.fd, end - start, flags=flags, offset=start) as window:
                window[at - start : end - start] = remaining
        return end

    def write_flat(self, tensors: list[torch.Tensor]) -> Placed:
        """Copy tensors of one dtype in, one behind the other, as a flat one, by several cores.

        Raises as `write` does.
        """
        parts = [tensor.detach().contiguous().cpu().reshape(-1) for tensor in tensors]
        elements = sum(part.numel() for part in parts)
        count = elements * parts[0].element_size()
        offset = -(-self._used // _ALIGN) * _ALIGN
        self._check_room(offset + count)
        if count:
            whole = torch.frombuffer(self._map, dtype=torch.uint8, count=count, offset=offset)
            places = whole.split([part.numel() * part.element_size() for part in parts])
            for place, part in zip(places, parts, strict=True):
                copy(place, part.view(torch.uint8))
        self._used = offset + count
        return Placed(str(parts[0].dtype).removeprefix("torch."), [elements], offset)

    def _check_room(self, end: int) -> None:
        if end > self.size:
            raise ValueError(f"outputs are larger than eager's: {end} of {self.size} bytes")

    def read(self, description: Described) -> torch.Tensor:
        """A copy of the tensor described. Raises ValueError if the description does not fit the arena."""
        view = self.view(description)
        tensor = torch.empty(view.shape, dtype=view.dtype)
        copy(tensor.view(-1), view.view(-1))
        return tensor

    def view(self, description: Described) -> torch.Tensor:
        """The tensor described, where it lies, to be read only; of a sealed or trusted worker's arena.

        Raises as `read` does.
        """
        dtype, count = self._extent(description)
        if count == 0:
            return torch.empty(description.shape, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # read-only memory
            view = torch.frombuffer(self._map, dtype=dtype, count=count, offset=description.offset)
        return view.reshape(description.shape)

    def unmapped(self, description: Described) -> Reservoir:
        """The flat tensor described, which stays unmapped. Raises as `read` does."""
        return Reservoir(self.fd, description.offset, *self._extent(description))

    def _extent(self, description: Described) -> tuple[torch.dtype, int]:
        """The dtype of the tensor described, and its elements; see `read`."""
        dtype, shape, offset = getattr(torch, description.dtype, None), description.shape, description.offset
        if not isinstance(dtype, torch.dtype) or any(n < 0 for n in shape):
            raise ValueError("a tensor description that makes no sense")
        count = math.prod(shape)
        if count and (offset < 0 or offset + count * dtype.itemsize > self.size):
            raise ValueError("a tensor outside its arena")
        return dtype, count

    def close(self) -> None:
        """Close. Tensors that were read are copies; memory stays mapped as long as a view of it is held."""
        self._mapped = None  # mmap.close() would unmap it under the views
        os.close(self.fd)
