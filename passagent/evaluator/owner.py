"""One device's owner: the referee process (serve.py) that alone measures on it, seen from the pool."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
from typing import IO, Any

from passagent.config import EvaluatorConfig
from passagent.errors import PassagentError, TaskError, UsageError
from passagent.evaluator.devices import Device
from passagent.evaluator.environment import import_path

log = logging.getLogger("passagent.evaluator")

_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 10.0
_LINE_LIMIT = 256 << 20
_LOG_TAIL = 4000
_KINDS: dict[str, type[PassagentError]] = {"task": TaskError, "usage": UsageError, "failed": PassagentError}


class Lost(Exception):
    """The machine failed: the process ended, or says so itself. `starting`: before it had any request."""

    def __init__(self, message: str, starting: bool = False) -> None:
        super().__init__(message)
        self.starting = starting


class Owner:
    """Starts its process, on `cores`, when it is first asked, and again after `stop`."""

    def __init__(self, device: Device, config: EvaluatorConfig, cores: list[int]) -> None:
        self.device, self._cores = device, cores
        self._config = config.model_copy(update={"device": device.name})
        self._process: asyncio.subprocess.Process | None = None
        self._log: IO[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process's id while there is one."""
        return self._process.pid if self._process else None

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The evaluation as plain data. Raises what the referee raises, and Lost: `stop` must follow."""
        process = await self._start()
        answer = self._unwrap(await self._exchange(process, request))
        return answer["evaluation"]  # type: ignore[no-any-return]

    async def _start(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "passagent.evaluator.serve", self._config.model_dump_json()),
                json.dumps(self._cores),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._log,
                limit=_LINE_LIMIT,
                start_new_session=True,  # Ctrl-C is for the search, which then closes the pool
                env=os.environ | import_path(),
            )
            try:
                ready = await asyncio.wait_for(self._exchange(self._process, None), _START_TIMEOUT_S)
                self._unwrap(ready)
            except TimeoutError as error:
                raise Lost(f"not ready within {_START_TIMEOUT_S:.0f} s", starting=True) from error
            except (Lost, PassagentError) as error:
                # the device was here when the pool was made: a usage error, too, means that it is gone
                raise Lost(str(error), starting=True) from error
        return self._process

    async def _exchange(
        self, process: asyncio.subprocess.Process, request: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Send a request, if any, and read the next answer. Raises Lost."""
        assert process.stdin is not None and process.stdout is not None
        try:
            if request is not None:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                await process.stdin.drain()
            line = await process.stdout.readline()
            if line:
                return json.loads(line)  # type: ignore[no-any-return]
        except (ConnectionError, asyncio.IncompleteReadError, ValueError) as error:
            log.info("%s: %s", self.device.name, error)
        raise Lost(f"the evaluator's process {await self._end_of(process)}{self._last_line()}")

    async def _end_of(self, process: asyncio.subprocess.Process) -> str:
        """How a process that no longer answers ended, in words."""
        try:
            code = await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
        except TimeoutError:
            return "no longer answers"
        return f"died with {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _unwrap(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "error" not in answer:
            return answer
        if answer["error"] in _KINDS:
            raise _KINDS[answer["error"]](answer["message"])
        self._last_line()
        raise Lost(answer["message"])

    def _last_line(self) -> str:
        """`": LINE"` of the last line that the process wrote to stderr; all of it goes to the log."""
        if self._log is None:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        # not by seek: the process writes through the same open file
        text = (
            os.pread(self._log.fileno(), _LOG_TAIL, max(0, size - _LOG_TAIL)).decode(errors="replace").strip()
        )
        if text:
            log.info("%s: stderr of the evaluator's process:\n%s", self.device.name, text)
        return f": {text.splitlines()[-1][:300]}" if text else ""

    async def stop(self) -> None:
        """End the process and its workers, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            try:
                await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
            except TimeoutError:
                log.warning("%s: pid %d does not end; the driver may hold it", self.device.name, process.pid)
        if self._log is not None:
            self._log.close()
            self._log = None
