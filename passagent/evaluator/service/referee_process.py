"""One device's owner: the referee process (serve.py) that alone measures on it, seen from the pool."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from passagent.config import EvaluatorConfig
from passagent.errors import MachineFault, PassagentError
from passagent.evaluator.hardware import health
from passagent.evaluator.hardware.devices import Device
from passagent.evaluator.service.device_owner import Lost, result_of
from passagent.sandbox.environment import import_path
from passagent.sandbox.faults import NO_MEMORY, named
from passagent.sandbox.machine_memory import memory_kills

log = logging.getLogger("passagent.evaluator")

_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 10.0
_LINE_LIMIT = 256 << 20
_LOG_TAIL = 4000


@dataclass
class _Running:
    """A process, the socket to it, and what it writes to stderr."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    log: IO[bytes]
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    """The socket's, once it is asked whether the process is ready."""

    def end(self) -> None:
        """Kill it, if it still runs, and wait for its end. Raises subprocess.TimeoutExpired."""
        self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(_STOP_TIMEOUT_S)


class RefereeProcess:
    """Starts its process, on `cores`, when it is first asked, and again after `stop`."""

    def __init__(
        self,
        device: Device,
        config: EvaluatorConfig,
        cores: list[int],
        notify: Callable[[str], None] = log.warning,
    ) -> None:
        """`notify` gets the lines for people that come before an answer."""
        self.device, self._cores, self._notify = device, cores, notify
        self._config = config.model_copy(update={"device": device.name})
        self._running: _Running | None = None
        self._memory_kills = memory_kills()

    @property
    def pid(self) -> int | None:
        """The process's id while there is one."""
        return self._running.process.pid if self._running else None

    def start(self) -> None:
        """Start the process, unless it runs, and do not wait until it is ready.

        Raises OSError, InfrastructureError for its log.
        """
        if self._running is not None:
            return
        with named("the evaluator does not start"):
            written = tempfile.TemporaryFile()  # noqa: SIM115
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "passagent.evaluator.service.serve"),
                    *(self._config.model_dump_json(), json.dumps(self._cores)),
                ],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=written,
                start_new_session=True,  # Ctrl-C is for the search, which then closes the pool
                env=os.environ | import_path(),
            )
        self._running = _Running(process, ours, written)

    async def ask(self, request: dict[str, Any]) -> Any:
        """Ask the referee, as DeviceOwner.ask says."""
        if self._running is None or self._running.streams is None:
            await self._connect()
        return await self._exchange(request)

    async def foresee(self, request: dict[str, Any]) -> None:
        """Announce the next request, as DeviceOwner.foresee says."""
        if self._running is not None and self._running.streams is not None:
            self._running.streams[1].write(json.dumps(request | {"foresee": True}).encode() + b"\n")

    async def _connect(self) -> None:
        """Wait until the process, which is started if there is none, is ready. Raises Lost, MachineFault."""
        self.start()
        assert self._running is not None
        streams = await asyncio.open_unix_connection(sock=self._running.socket, limit=_LINE_LIMIT)
        self._running.streams = streams
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self._exchange()
        except TimeoutError as error:
            raise Lost(f"not ready within {_START_TIMEOUT_S:.0f} s", starting=True) from error
        except MachineFault:
            raise
        except (Lost, PassagentError) as error:
            # the device was here when the pool was made: a usage error, too, means that it is gone
            raise Lost(str(error), starting=True) from error

    async def _exchange(self, request: dict[str, Any] | None = None) -> Any:
        """Send a request, if any, and return the next result. Raises what the referee raises, and Lost."""
        running = self._running
        assert running is not None and running.streams is not None
        reader, writer = running.streams
        try:
            if request is not None:
                writer.write(json.dumps(request).encode() + b"\n")
                await writer.drain()
            while line := await reader.readline():
                message: dict[str, Any] = json.loads(line)
                if "note" not in message:
                    return result_of(message)
                self._notify(message["note"])
        except Lost:
            self._last_line()
            raise
        except (ConnectionError, asyncio.IncompleteReadError, ValueError) as error:
            log.info("%s: %s", self.device.name, error)
        ended = await _end_of(running.process)
        if running.process.returncode == -signal.SIGKILL and memory_kills() > self._memory_kills:
            raise MachineFault(f"the kernel killed the evaluator's process: {NO_MEMORY}")
        raise Lost(f"the evaluator's process {ended}{self._last_line()}")

    def _last_line(self) -> str:
        """`": LINE"` of the last line that the process wrote to stderr; all of it goes to the log."""
        if self._running is None:
            return ""
        written = self._running.log.fileno()
        size = os.fstat(written).st_size
        # not by seek: the process writes through the same open file
        text = os.pread(written, _LOG_TAIL, max(0, size - _LOG_TAIL)).decode(errors="replace").strip()
        if text:
            log.info("%s: stderr of the evaluator's process:\n%s", self.device.name, text)
        return f": {text.splitlines()[-1][:300]}" if text else ""

    async def check(self, quick: bool = False) -> str | None:
        """Check the device, as DeviceOwner.check says."""
        return await health.check(self.device, quick)

    async def stop(self) -> None:
        """End the process and its workers, if there is one."""
        running, self._running = self._running, None
        if running is None:
            return
        if running.streams is not None:
            running.streams[1].close()
        try:
            await asyncio.to_thread(running.end)
        except subprocess.TimeoutExpired:
            pid = running.process.pid
            log.warning("%s: pid %d does not end; the driver may hold it", self.device.name, pid)
        running.log.close()


async def _end_of(process: subprocess.Popen[bytes]) -> str:
    """How a process that no longer answers ended, in words."""
    try:
        code = await asyncio.to_thread(process.wait, _STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "no longer answers"
    return f"died with {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
