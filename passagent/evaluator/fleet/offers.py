"""The devices that machines offer, and which of them a run uses: the ones like its reference device.

A machine finds out what it offers in a process of its own, so that a worker imports no torch and holds no GPU
memory.
"""

from __future__ import annotations

import json
import platform
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from passagent import __version__
from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError, PassagentError, UsageError
from passagent.evaluator.hardware.devices import Device, find_devices
from passagent.evaluator.hardware.machine import measure_machine
from passagent.evaluator.service.known import machine_words
from passagent.sandbox.environment import ask_module, device_name, evaluator_version, package_version

FIND_S = 180.0
"""For finding out what a machine offers, most of which is torch's import on a busy machine, s."""


@dataclass(frozen=True)
class Offer:
    """A device that a machine offers."""

    name: str
    """The name that torch uses there."""
    uuid: str
    model: str
    label: str
    """For people: the GPU's name, or the CPU's with its cores."""
    words: str
    """Model, driver, libraries, compiler: devices that differ in them are never compared."""
    machine: dict[str, Any]
    """Measured bandwidths and issue cost, see hardware.machine.Machine."""
    place: str = ""
    """The machine, as a pool names it: `http://host:8700`, or an actor, `ray:0`; empty on itself."""

    @property
    def device(self) -> Device:
        """The device as the referee names it; in a pool under a name that no other machine's device has."""
        where = self.place.partition("://")[2] or self.place
        return Device(f"{where}/{self.name}" if where else self.name, self.uuid, self.model)


@dataclass(frozen=True)
class Survey:
    """The devices that the machines of a pool offer."""

    reference: Offer
    """One of the devices that the run's evaluations are made on."""
    offers: list[Offer]
    notes: list[str]
    """Lines for people: machines that do not answer, devices that are not used."""


def versions() -> dict[str, str]:
    """Versions that must be equal on both sides. torch without its build: a controller needs no GPU."""
    return {
        "passagent": __version__,
        "evaluator": evaluator_version(),
        **{name: (package_version(name) or "none").partition("+")[0] for name in ("torch", "triton")},
    }


def unlike(theirs: dict[str, str]) -> str | None:
    """How a worker's versions differ from those here, in words; None if they do not."""
    ours = versions()
    differ = [
        f"{name} {theirs.get(name)} there, {ours[name]} here"
        for name in ours
        if theirs.get(name) != ours[name]
    ]
    return f"unlike versions: {', '.join(differ)}; install the same on both" if differ else None


def find_machine(devices: str) -> dict[str, Any]:
    """Find what this machine offers of `devices`, as `--device` names them. Raises PassagentError."""
    try:
        facts: dict[str, Any] = ask_module("passagent.evaluator.fleet.offers", devices, timeout_s=FIND_S)
    except InfrastructureError as error:
        raise InfrastructureError(f"the devices of this machine could not be read: {error}") from error
    if "usage" in facts:
        raise UsageError(facts["usage"])
    return facts


def kind_wanted(config: EvaluatorConfig) -> str:
    """`cpu` or `cuda`. Raises UsageError for one device among those of other machines."""
    if config.device not in ("cpu", "cuda", "cuda:all"):
        raise UsageError(f"--device {config.device}: with --pool {config.pool} write cpu or cuda, the kind")
    return "cpu" if config.device == "cpu" else "cuda"


def read_offers(hello: dict[str, Any], place: str, kind: str) -> list[Offer]:
    """The devices of a kind that the machine at `place` offers. Raises UsageError for unlike versions."""
    if problem := unlike(hello["versions"]):
        raise UsageError(f"{place}: {problem}")
    offers = [Offer(**record | {"place": place}) for record in hello["devices"]]
    return [offer for offer in offers if offer.name.partition(":")[0] == kind]


def make_survey(config: EvaluatorConfig, answers: dict[str, dict[str, Any]], notes: list[str]) -> Survey:
    """The devices in `answers`, by the machines' places. The reference is of the kind that there is most of.

    Of equally many it is the first by its words. Raises UsageError: unlike versions, another kind of device.
    """
    kind = kind_wanted(config)
    offers = [offer for place, answer in answers.items() for offer in read_offers(answer, place, kind)]
    if not offers:
        everything = [(place, device) for place in answers for device in answers[place]["devices"]]
        there = ", ".join(f"{place} has {device['name']}" for place, device in everything)
        raise UsageError(
            f"--device {config.device}: {there or 'no device is offered'}; give the kind that is there"
        )
    count = Counter(offer.words for offer in offers)
    reference = min(offers, key=lambda offer: (-count[offer.words], offer.words))
    text = mixed(offers, reference)
    return Survey(reference, offers, notes + ([text] if text else []))


def mixed(offers: list[Offer], reference: Offer) -> str | None:
    """A line on the devices unlike the reference; None where there are none."""
    others = [offer for offer in offers if offer.words != reference.words]
    if not others:
        return None
    parts = reference.words.split("; ")
    names = []
    for offer in others:
        differs = ", ".join(part for part in offer.words.split("; ") if part not in parts)
        names.append(f"{offer.device.name} ({differs or offer.words})")
    used = f"this run uses {len(offers) - len(others)} ({reference.label})"
    return f"unlike devices are never compared: {used}, and not {', '.join(names)}"


def main() -> None:
    """`python -m passagent.evaluator.fleet.offers DEVICES`: one JSON object on stdout."""
    try:
        devices = [
            Offer(
                **asdict(device),
                label=device_name(device.name),
                words=machine_words(device.name),
                machine=asdict(measure_machine(device.name)),
            )
            for device in find_devices(sys.argv[1])
        ]
    except PassagentError as error:
        print(json.dumps({"usage": str(error)}))
        return
    facts = {"host": platform.node(), "versions": versions(), "devices": [asdict(d) for d in devices]}
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
