"""A referee in this process (`isolation: in-process`), in the place of a RefereeProcess."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError, MachineFault, PassagentError
from passagent.evaluator.hardware import health
from passagent.evaluator.hardware.devices import Device
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.service.device_owner import Lost
from passagent.evaluator.service.serve import answer
from passagent.sandbox.faults import named


class RefereeInside:
    """Makes its referee when it is first asked, and again after `stop`; a thread of its own asks it."""

    pid = None

    def __init__(self, device: Device, config: EvaluatorConfig, notify: Callable[[str], None]) -> None:
        """`tell` gets lines for people, on the event loop."""
        self.device = device
        self._config = config.model_copy(update={"device": device.name})
        self._tell = notify
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="referee")
        self._referee: Referee | None = None

    async def ask(self, request: dict[str, Any]) -> Any:
        """Ask the referee, as DeviceOwner.ask says."""
        loop = asyncio.get_running_loop()

        def tell(text: str) -> None:
            loop.call_soon_threadsafe(self._tell, text)

        return await loop.run_in_executor(self._thread, self._ask, request, tell)

    async def foresee(self, request: dict[str, Any]) -> None:
        """Do nothing: its one thread begins nothing ahead."""

    def _ask(self, request: dict[str, Any], notify: Callable[[str], None]) -> Any:
        is_new = self._referee is None
        try:
            with named("the evaluator"):
                if self._referee is None:
                    self._referee = Referee(self._config, lease=DeviceLease(self.device, tell=notify))
                return answer(self._referee, request)["result"]
        except MachineFault:
            raise
        except InfrastructureError as error:
            raise Lost(str(error), starting=is_new and self._referee is None) from error
        except PassagentError:
            raise
        except Exception as error:
            raise Lost(f"{type(error).__name__}: {error}") from error

    async def check(self, quick: bool = False) -> str | None:
        """Check the device, as DeviceOwner.check says."""
        return await health.check(self.device, quick)

    async def stop(self) -> None:
        """End its workers, when it has answered what it was asked."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)

    def _close(self) -> None:
        referee, self._referee = self._referee, None
        if referee is not None:
            referee.close()
