"""The devices of other machines, as the pool asks them. What carries the calls is a Link (HTTP, Ray).

A job has a ticket: a call without a whole answer is made again and finds the job, not a second one. An answer
of another ticket, or of a machine that was restarted since, is no answer to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from passagent.config import EvaluatorConfig
from passagent.errors import MachineFault, PassagentError
from passagent.evaluator.fleet import contents
from passagent.evaluator.fleet.offers import Offer, Survey, kind_wanted, mixed, read_offers, unlike
from passagent.evaluator.hardware.health import CHECK_TIMEOUT_S
from passagent.evaluator.service.device_owner import DeviceOwner, Lost, result_of

log = logging.getLogger("passagent.evaluator.fleet")

ANSWER_S = 10.0
"""For a whole answer, beyond what the call itself may take, s."""
PATIENCE_S = 30.0
"""A machine may give no whole answer for so long, s; then what it evaluates is lost."""
AGAIN_S = 0.5
WAIT_S = 5.0
"""The machine is asked to wait so long for a result before it says that there is none yet, s."""
BEAT_S = 5.0
"""Between two signs of life, s; a machine ends the referees of who has been silent for host.SILENT_S."""
NOTE_AFTER_S = 2.0
"""A wait for others who use the device is reported after this time, s."""


class Silent(Exception):
    """No whole answer came; another call may get one."""


class Unreachable(Exception):
    """There is nobody to answer: the process or the machine is gone."""


class Link(Protocol):
    """A machine, as calls reach it."""

    name: str
    incarnation: str | None
    """The one that is talked to; None: not known, ask by `hello`."""

    async def call(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a call. Raises Silent, Unreachable; it is cancelled when it takes too long."""
        ...

    def refuse(self) -> None:
        """Give back the machine, whose device is not used."""
        ...


async def called(link: Link, name: str, body: dict[str, Any], wait_s: float = 0.0) -> dict[str, Any]:
    """The answer to a call, which may take `wait_s` more than others. Raises Silent, Unreachable."""
    try:
        # the whole answer in time, not only the next piece of it
        async with asyncio.timeout(wait_s + ANSWER_S):
            return await link.call(name, body)
    except TimeoutError as error:
        raise Silent(f"no answer within {wait_s + ANSWER_S:.0f} s") from error


class RemoteOwner:
    """The owner of a device of another machine, as a DeviceOwner."""

    pid = None

    def __init__(self, offer: Offer, link: Link, fleet: MachineFleet) -> None:
        self.device, self.link = offer.device, link
        self._offer, self._fleet = offer, fleet

    async def ask(self, request: dict[str, Any]) -> Any:
        """Ask the device. A failure of the machine itself is Lost, too: another one may do it."""
        packed, blobs = await asyncio.to_thread(contents.pack, request)
        job = {
            "ticket": uuid.uuid4().hex,
            "device": self._offer.name,
            "config": self._fleet.config.model_dump(mode="json", exclude={"pool"}),
            "request": packed,
        }
        incarnation = await self._greet(PATIENCE_S)
        outcome = await self._outcome(incarnation, job, blobs)
        try:
            result = result_of(outcome)
        except MachineFault as fault:
            raise Lost(str(fault), machine=True) from fault
        if isinstance(result, dict) and "environment" in result:
            result["environment"]["worker"] = self.device.name
        return result

    async def foresee(self, request: dict[str, Any]) -> None:
        """Announce the next request, as DeviceOwner.foresee says."""
        packed, blobs = await asyncio.to_thread(contents.pack, request)
        incarnation = self.link.incarnation
        if incarnation is None:
            return
        body = {"device": self._offer.name, "request": packed}
        with suppress(Lost):  # who asks it next will see
            answer = await self._answer(incarnation, "next", body, patience_s=0.0)
            if answer.get("missing"):
                missing = {key: contents.encode(blobs[key]) for key in answer["missing"]}
                await self._answer(incarnation, "put", {"contents": missing}, patience_s=0.0)
                await self._answer(incarnation, "next", body, patience_s=0.0)

    async def _greet(self, patience_s: float) -> str:
        """The incarnation that is there, with our versions and the device that was offered. Raises Lost."""
        if self.link.incarnation is None:
            answer = await self._answer(None, "hello", {}, patience_s=patience_s)
            if problem := unlike(answer["versions"]):
                raise Lost(problem, machine=True)
            if (self._offer.name, self._offer.words) not in [
                (offer["name"], offer["words"]) for offer in answer["devices"]
            ]:
                raise Lost("it has another device now", machine=True)
            self.link.incarnation = str(answer["incarnation"])
        return self.link.incarnation

    async def _outcome(
        self, incarnation: str, job: dict[str, Any], blobs: dict[str, bytes]
    ) -> dict[str, Any]:
        """The job's outcome, once it has one. Raises Lost."""
        begun, is_told = time.monotonic(), False
        while True:
            answer = await self._answer(incarnation, "job", job, WAIT_S)
            state, note = answer.get("state"), answer.get("note")
            if answer.get("ticket") != job["ticket"]:
                log.info("%s: an answer to another call was left alone", self.link.name)
                await asyncio.sleep(AGAIN_S)
            elif state == "done":
                outcome: dict[str, Any] = answer["outcome"]
                return outcome
            elif state == "missing":
                missing = {key: contents.encode(blobs[key]) for key in answer["missing"]}
                await self._answer(incarnation, "put", {"contents": missing})
            elif state == "draining":
                raise Lost("it is being drained: it takes no new work", machine=True)
            elif note and not is_told and time.monotonic() - begun > NOTE_AFTER_S:
                is_told = True
                self._fleet.notify(f"waiting: {self.device.name}: {note}")

    async def _answer(
        self,
        incarnation: str | None,
        name: str,
        body: dict[str, Any],
        wait_s: float = 0.0,
        patience_s: float = PATIENCE_S,
    ) -> dict[str, Any]:
        """The whole answer of this incarnation; of None, of any. Raises Lost."""
        heard = time.monotonic()
        body = {**body, "session": self._fleet.session, "incarnation": incarnation, "wait_s": wait_s}
        try:
            while True:
                try:
                    answer = await called(self.link, name, body, wait_s)
                    break
                except Silent as silent:
                    silent_s = time.monotonic() - heard
                    if silent_s > patience_s:
                        raise Lost(f"no answer for {silent_s:.0f} s: {silent}", machine=True) from silent
                    log.info("%s: %s; asking again", self.link.name, silent)
                    await asyncio.sleep(AGAIN_S)
                except Unreachable as gone:
                    raise Lost(str(gone), machine=True) from gone
            if incarnation is not None and answer.get("incarnation") != incarnation:
                raise Lost("it was restarted meanwhile", machine=True)
        except Lost:
            if self.link.incarnation == incarnation:
                self.link.incarnation = None
            raise
        if "error" in answer:
            raise Lost(str(answer["error"]), machine=True)
        return answer

    async def check(self, quick: bool = False) -> str | None:
        """Check the device, as DeviceOwner.check says."""
        try:
            incarnation = await self._greet(0.0)
            body = {"device": self._offer.name, "quick": quick}
            answer = await self._answer(incarnation, "check", body, CHECK_TIMEOUT_S, 0.0)
        except Lost as lost:
            return str(lost)
        return None if answer.get("problem") is None else str(answer["problem"])

    async def stop(self) -> None:
        """Stop the device's workers. A machine out of reach ends them when this session is silent."""
        if (incarnation := self.link.incarnation) is None:
            return
        try:
            await self._answer(incarnation, "stop", {"device": self._offer.name}, 10.0, patience_s=0.0)
        except (Lost, PassagentError) as error:
            log.info("%s: not stopped: %s", self.device.name, error)


class MachineFleet:
    """A Fleet over links to machines. Subclasses make the links, and release what carries them in `close`."""

    def __init__(
        self,
        config: EvaluatorConfig,
        notify: Callable[[str], None],
        links: Sequence[Link],
        survey: Survey,
    ) -> None:
        self.reference, self._notes = survey.reference, survey.notes
        self._kind, self._links = kind_wanted(config), links
        self.config, self.notify, self.session = config, notify, uuid.uuid4().hex
        self._refused: set[str] = set()
        """Lines that were printed about devices which are not used."""
        self._known = {offer.device.name for offer in survey.offers}
        by_name = {link.name: link for link in links}
        self.owners: list[DeviceOwner] = []
        for offer in survey.offers:
            if offer.words == self.reference.words:
                self.owners.append(RemoteOwner(offer, by_name[offer.place], self))
            else:
                by_name[offer.place].refuse()

    async def attend(self, add: Callable[[DeviceOwner], None]) -> None:
        """Send a sign of life to each machine every BEAT_S, as Fleet.attend says."""
        for line in self._notes:  # not before: who opens a pool may not be ready to hear
            self.notify(line)
        while True:
            await self.find_links()
            await asyncio.gather(*(self._greet(link, add) for link in self._links))
            await asyncio.sleep(BEAT_S)

    async def find_links(self) -> None:
        """Add links to machines that have come."""

    async def _greet(self, link: Link, add: Callable[[DeviceOwner], None]) -> None:
        """Say that this pool lives; take up devices that are new."""
        try:
            answer = await called(link, "hello", {"session": self.session})
            offers = read_offers(answer, link.name, self._kind)
        except (Silent, Unreachable):
            return
        except PassagentError as error:
            self._refuse(str(error))
            return
        for offer in offers:
            if offer.device.name in self._known:
                continue
            self._known.add(offer.device.name)
            if text := mixed([offer], self.reference):
                self._refuse(text)
                link.refuse()
            else:
                self.notify(f"{offer.device.name} ({offer.label}) joins")
                add(RemoteOwner(offer, link, self))

    def _refuse(self, text: str) -> None:
        if text not in self._refused:
            self._refused.add(text)
            self.notify(text)
