"""A referee in the tests' own process, in place of one of its own, which takes seconds to start."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from passagent.errors import InfrastructureError, MachineFault
from passagent.evaluator.hardware import health
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.service.device_owner import Lost
from passagent.evaluator.service.serve import answer


class RefereeInside:
    """Makes its referee when it is first asked, and again after `stop`; a thread of its own asks it."""

    pid = None

    def __init__(self, device, config, cores, tell):
        self.device, self._tell = device, tell
        self._config = config.model_copy(update={"device": device.name})
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="referee")
        self._referee = None

    def start(self):
        """Nothing: a referee is made when it is asked."""

    async def ask(self, request):
        loop = asyncio.get_running_loop()
        tell = partial(loop.call_soon_threadsafe, self._tell)
        return await loop.run_in_executor(self._thread, self._ask, request, tell)

    async def foresee(self, request):
        """Nothing: its one thread begins nothing ahead."""

    def _ask(self, request, tell):
        try:
            if self._referee is None:
                self._referee = Referee(self._config, lease=DeviceLease(self.device, tell=tell))
            return answer(self._referee, request)["result"]
        except MachineFault:
            raise
        except InfrastructureError as error:
            raise Lost(str(error)) from error

    async def check(self, quick=False):
        return await health.check(self.device, quick)

    async def stop(self):
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)

    def _close(self):
        referee, self._referee = self._referee, None
        if referee is not None:
            referee.close()
