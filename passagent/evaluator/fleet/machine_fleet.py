"""The devices that machines offer to a pool: kept by signs of life, added when they come."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence

from passagent.config import EvaluatorConfig
from passagent.errors import PassagentError
from passagent.evaluator.fleet.remote_owner import Asker, Link, RemoteOwner, Silent, Unreachable
from passagent.evaluator.fleet.survey import Surveyed, kind_wanted, mixed, offered
from passagent.evaluator.service.device_owner import DeviceOwner

BEAT_S = 5.0
"""Between two signs of life, s; a machine ends the referees of who has been silent for host.SILENT_S."""


class MachineFleet:
    """A Fleet over links to machines. Subclasses make the links, and release what carries them in `close`."""

    def __init__(
        self,
        config: EvaluatorConfig,
        notify: Callable[[str], None],
        links: Sequence[Link],
        surveyed: Surveyed,
    ) -> None:
        self.reference, self._said = surveyed.reference, surveyed.notes
        self._kind, self._tell, self._links = kind_wanted(config), notify, links
        self._asker = Asker(config, notify, uuid.uuid4().hex)
        self._refused: set[str] = set()
        """Lines that were printed about devices which are not used."""
        self._taken = {offered.as_device().name for offered in surveyed.devices}
        by_name = {link.name: link for link in links}
        self.owners: list[DeviceOwner] = [
            RemoteOwner(offered.as_device(), offered.device.name, by_name[offered.place], self._asker)
            for offered in surveyed.devices
            if offered.device.words == self.reference.words
        ]

    async def attend(self, add: Callable[[DeviceOwner], None]) -> None:
        """Send a sign of life to each machine every BEAT_S, as Fleet.attend says."""
        for line in self._said:  # not before: who opens a pool may not be ready to hear
            self._tell(line)
        while True:
            await self.find_links()
            await asyncio.gather(*(self._greet(link, add) for link in self._links))
            await asyncio.sleep(BEAT_S)

    async def find_links(self) -> None:
        """Add links to machines that have come."""

    async def _greet(self, link: Link, add: Callable[[DeviceOwner], None]) -> None:
        """Say that this pool lives; take up devices that are new."""
        try:
            answer = await link.call("hello", {"session": self._asker.session})
            devices = offered(link.name, answer, self._kind)
        except (Silent, Unreachable):
            return
        except PassagentError as error:
            self._refuse(str(error))
            return
        for device in devices:
            name = device.as_device().name
            if name in self._taken:
                continue
            self._taken.add(name)
            if text := mixed([device], self.reference):
                self._refuse(text)
                continue
            self._tell(f"{name} ({device.device.label}) joins")
            add(RemoteOwner(device.as_device(), device.device.name, link, self._asker))

    def _refuse(self, text: str) -> None:
        if text not in self._refused:
            self._refused.add(text)
            self._tell(text)
