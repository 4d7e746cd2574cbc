"""Devices: which ones `--device` means, whether they are here, and a lock for each while it measures."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from passagent.confine.environment import device_name
from passagent.errors import InfrastructureError, UsageError

log = logging.getLogger("passagent.evaluator")

FORMS = "cpu, cuda, cuda:N, cuda:N,cuda:M or cuda:all"
POLL_S = 0.05
"""Between two looks at a lock that another process holds, s."""


@dataclass(frozen=True)
class Device:
    """A device of this machine."""

    name: str
    """As torch calls it: `cpu` or `cuda:N`."""
    uuid: str
    """`cpu`, or the GPU's as NVML writes it, the same under whatever number it is seen. Names the lock."""
    model: str
    """The GPU's or the CPU's model."""


def find_devices(text: str) -> list[Device]:
    """The devices that `--device TEXT` means, in order.

    Raises UsageError for another form, for a device that is not on this machine, and for GPUs of different
    models, whose results could not be compared.
    """
    if text == "cpu":
        return [Device("cpu", "cpu", device_name("cpu"))]
    numbers = gpu_numbers(text)
    if text != "cuda:all" and not numbers:
        raise UsageError(f"--device {text}: write {FORMS}")
    import torch

    count = torch.cuda.device_count()
    wanted = list(range(count)) if text == "cuda:all" else numbers
    if not wanted or max(wanted) >= count:
        raise UsageError(f"--device {text}: this machine has {count} CUDA device(s); use --device cpu")
    if len(set(wanted)) < len(wanted):
        raise UsageError(f"--device {text}: names a device twice")
    devices = []
    for number in wanted:
        properties = torch.cuda.get_device_properties(number)
        devices.append(Device(f"cuda:{number}", f"GPU-{properties.uuid}", properties.name))
    models = sorted({device.model for device in devices})
    if len(models) > 1:
        raise UsageError(
            f"--device {text}: {' and '.join(models)} measure differently; name GPUs of one model"
        )
    return devices


def gpu_numbers(text: str) -> list[int]:
    """The numbers of the GPUs that `text` names, in order; none for another form; without torch."""
    found = [re.fullmatch(r"cuda(?::(\d+))?", word.strip()) for word in text.split(",")]
    return [int(number.group(1) or 0) for number in found if number] if all(found) else []


def find_device(text: str) -> Device:
    """The one device that `text` means. Raises UsageError as find_devices does, and for several."""
    devices = find_devices(text)
    if len(devices) > 1:
        raise UsageError(f"--device {text}: one device is needed here; write cpu, cuda or cuda:N")
    return devices[0]


def first_device(text: str) -> str:
    """The name of the first device that `text` means; the others are of its model. Raises UsageError."""
    return find_devices(text)[0].name


class DeviceLock:
    """The right to measure on a device, among all processes of this machine; it ends with the process.

    Two files in `$XDG_RUNTIME_DIR` or /tmp: who measures holds `.lock`, who is next holds `.queue`, without
    which a process with much to measure would take the device again before others can.
    """

    def __init__(self, device: Device, holder: str | None = None) -> None:
        """`holder`: what others who wait are told that this process is, if not its command."""
        self._name = holder
        place = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")
        self.path = place / f"passagent-{device.uuid}.lock"
        self._queue_path = self.path.with_suffix(".queue")
        self._lock: int | None = None
        self._queue: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if it is free, else be next if no other process is; ask again soon, or `release`.

        Raises InfrastructureError if its file cannot be opened.
        """
        if self._queue is None:
            self._queue = _flock(self._queue_path)
        if self._queue is not None and self._lock is None:
            self._lock = _flock(self.path)
            if self._lock is not None:
                os.close(self._queue)
                self._queue = None
                self._sign()
        return self._lock is not None

    def is_waited_for(self) -> bool:
        """Whether somebody waits for this lock, which is held here."""
        queue = _flock(self._queue_path)
        if queue is not None:
            os.close(queue)
        return queue is None

    def release(self) -> None:
        """Give up the lock, or the place in the queue."""
        if self._lock is not None:
            self._write("")  # who waits for the next one is not to be told of this process
        for fd in (self._lock, self._queue):
            if fd is not None:
                os.close(fd)
        self._lock = self._queue = None

    def holder(self) -> str:
        """Who holds the lock, for people, such as `pid 12 (passagent run tasks/x) since 10:31:05`."""
        try:
            text = self.path.read_text(errors="replace")[:200]
        except OSError:
            text = ""
        return "".join(c for c in text if c.isprintable()) or "another process"

    def holder_pid(self) -> int | None:
        """The process that holds the lock; None if it does not say."""
        found = re.match(r"pid (\d+) ", self.holder())
        return int(found.group(1)) if found else None

    def _sign(self) -> None:
        program = Path(sys.argv[0] or "python")
        name = program.parent.name if program.name == "__main__.py" else program.name
        command = self._name or " ".join([name, *sys.argv[1:3]])
        self._write(f"pid {os.getpid()} ({command}) since {time.strftime('%H:%M:%S')}")

    def _write(self, text: str) -> None:
        """Let the file of the lock, which is held, say this."""
        assert self._lock is not None
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, text.encode(errors="replace")[:200], 0)
        except OSError:
            pass  # a full disk: the lock holds all the same


def _flock(path: Path) -> int | None:
    """A descriptor that holds the file's lock; None if another one does. Raises InfrastructureError."""
    try:
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            # O_CREAT only here: it may not open another user's file in a sticky directory
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT, 0o666)
            os.fchmod(fd, 0o666)  # whatever the umask: other users' processes measure here, too
    except OSError as error:
        raise InfrastructureError(f"{path}: the device's lock cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


@contextmanager
def measuring_on(device: Device) -> Iterator[None]:
    """Hold the device's lock meanwhile, having waited for it, for a referee in this very process."""
    lock = DeviceLock(device)
    is_told = False
    try:
        while not lock.try_acquire():
            if not is_told:
                log.warning("waiting: %s is in use by %s", device.name, lock.holder())
            is_told = True
            time.sleep(POLL_S)
        yield
    finally:
        lock.release()
