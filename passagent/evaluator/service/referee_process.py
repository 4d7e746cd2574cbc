"""One device's owner: the referee process (serve.py) that alone measures on it, seen from the pool."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

from passagent.config import EvaluatorConfig
from passagent.errors import MachineFault, PassagentError, TaskError, UsageError
from passagent.evaluator.hardware import health
from passagent.evaluator.hardware.devices import Device
from passagent.evaluator.runner.starting import StartedReferee, start_referee
from passagent.evaluator.service.device_owner import Lost
from passagent.system.faults import NO_MEMORY
from passagent.system.machine_memory import memory_kills

log = logging.getLogger("passagent.evaluator")

_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 10.0
_LINE_LIMIT = 256 << 20
_LOG_TAIL = 4000
KINDS: dict[str, type[PassagentError]] = {
    "task": TaskError,
    "usage": UsageError,
    "failed": PassagentError,
    "machine": MachineFault,
}
"""Errors of a referee, by their names in plain data; anything else is Lost."""


Connection = tuple[StartedReferee, asyncio.StreamReader, asyncio.StreamWriter]


class RefereeProcess:
    """Starts its process, on `cores`, when it is first asked (or takes `ahead`), and again after `stop`."""

    def __init__(
        self,
        device: Device,
        config: EvaluatorConfig,
        cores: list[int],
        ahead: StartedReferee | None = None,
        notify: Callable[[str], None] = log.warning,
    ) -> None:
        """`notify` gets the lines for people that come before an answer."""
        self.device, self._config, self._cores, self._ahead = device, config, cores, ahead
        self._tell = notify
        self._started: StartedReferee | None = None
        self._connection: Connection | None = None
        self._memory_kills = memory_kills()

    @property
    def pid(self) -> int | None:
        """The process's id while there is one."""
        started = self._started or self._ahead
        return started.process.pid if started else None

    async def ask(self, request: dict[str, Any]) -> Any:
        """Ask the referee, as DeviceOwner.ask says."""
        connection = self._connection or await self._start()
        answer = self._unwrap(await self._exchange(*connection, request))
        return answer["result"]

    async def foresee(self, request: dict[str, Any]) -> None:
        """Announce the next request, as DeviceOwner.foresee says."""
        if self._connection is not None:
            self._connection[2].write(json.dumps({"next": request}).encode() + b"\n")

    async def _start(self) -> Connection:
        ahead, self._ahead = self._ahead, None
        started = self._started = ahead or start_referee(self.device.name, self._config, self._cores)
        reader, writer = await asyncio.open_unix_connection(sock=started.socket, limit=_LINE_LIMIT)
        self._connection = started, reader, writer
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                ready = await self._exchange(started, reader, writer)
            self._unwrap(ready)
        except TimeoutError as error:
            raise Lost(f"not ready within {_START_TIMEOUT_S:.0f} s", starting=True) from error
        except MachineFault:
            raise
        except (Lost, PassagentError) as error:
            # the device was here when the pool was made: a usage error, too, means that it is gone
            raise Lost(str(error), starting=True) from error
        return started, reader, writer

    async def _exchange(
        self,
        started: StartedReferee,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        request: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Send a request, if any, and read the next answer. Raises Lost."""
        try:
            if request is not None:
                writer.write(json.dumps(request).encode() + b"\n")
                await writer.drain()
            while line := await reader.readline():
                message: dict[str, Any] = json.loads(line)
                if "note" not in message:
                    return message
                self._tell(message["note"])
        except (ConnectionError, asyncio.IncompleteReadError, ValueError) as error:
            log.info("%s: %s", self.device.name, error)
        ended = await _end_of(started.process)
        if started.process.returncode == -signal.SIGKILL and memory_kills() > self._memory_kills:
            raise MachineFault(f"the kernel killed the evaluator's process: {NO_MEMORY}")
        raise Lost(f"the evaluator's process {ended}{self._last_line()}")

    def _unwrap(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "error" not in answer:
            return answer
        if answer["error"] in KINDS:
            raise KINDS[answer["error"]](answer["message"])
        self._last_line()
        raise Lost(answer["message"])

    def _last_line(self) -> str:
        """`": LINE"` of the last line that the process wrote to stderr; all of it goes to the log."""
        if self._started is None:
            return ""
        written = self._started.log.fileno()
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
        started, self._started = self._started or self._ahead, None
        connection, self._connection, self._ahead = self._connection, None, None
        if connection is not None:
            connection[2].close()
        if started is None:
            return
        try:
            await asyncio.to_thread(started.end)
        except subprocess.TimeoutExpired:
            log.warning(
                "%s: pid %d does not end; the driver may hold it", self.device.name, started.process.pid
            )
        started.log.close()


async def _end_of(process: subprocess.Popen[bytes]) -> str:
    """How a process that no longer answers ended, in words."""
    try:
        code = await asyncio.to_thread(process.wait, _STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "no longer answers"
    return f"died with {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
