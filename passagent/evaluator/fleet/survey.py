"""Choose the devices that a run uses of those on offer: the ones like its reference device."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from passagent.config import EvaluatorConfig
from passagent.errors import UsageError
from passagent.evaluator.fleet.machine_facts import OfferedDevice, read_devices, unlike
from passagent.evaluator.hardware.devices import Device


@dataclass(frozen=True)
class Reference:
    """The device that a run's evaluations are made on."""

    device: str
    """`cpu` or `cuda`."""
    label: str
    """For people."""
    words: str
    """The words of machine_facts.OfferedDevice."""
    machine: dict[str, Any]


@dataclass(frozen=True)
class Offered:
    """A device, and which machine offers it: `http://host:8700`, or an actor, `ray:0`."""

    place: str
    device: OfferedDevice

    def as_device(self) -> Device:
        """Under a name that no other machine's device has."""
        where = self.place.partition("://")[2] or self.place
        return Device(f"{where}/{self.device.name}", self.device.uuid, self.device.model)


@dataclass(frozen=True)
class Surveyed:
    """The devices that the machines of a pool offer."""

    reference: Reference
    devices: list[Offered]
    notes: list[str]
    """Lines for people: machines that do not answer, devices that are not used."""


def kind_wanted(config: EvaluatorConfig) -> str:
    """`cpu` or `cuda`. Raises UsageError for one device among those of other machines."""
    if config.device not in ("cpu", "cuda", "cuda:all"):
        raise UsageError(f"--device {config.device}: with --pool {config.pool} write cpu or cuda, the kind")
    if config.isolation != "sandboxed":
        raise UsageError("evaluator.isolation: in-process evaluates in this very process; use --pool local")
    return "cpu" if config.device == "cpu" else "cuda"


def offered(place: str, hello: dict[str, Any], kind: str) -> list[Offered]:
    """The devices of a kind that a machine offers. Raises UsageError for unlike versions."""
    if problem := unlike(hello["versions"]):
        raise UsageError(f"{place}: {problem}")
    return [Offered(place, d) for d in read_devices(hello["devices"]) if d.name.partition(":")[0] == kind]


def reference_of(devices: list[Offered], kind: str) -> Reference:
    """The kind of device that there is most of; the first by its words of equally many."""
    count = Counter(offered.device.words for offered in devices)
    words = min(count, key=lambda text: (-count[text], text))
    device = next(offered.device for offered in devices if offered.device.words == words)
    return Reference(kind, device.label, words, device.machine)


def survey_answers(
    config: EvaluatorConfig, answers: list[tuple[str, dict[str, Any]]], notes: list[str]
) -> Surveyed:
    """Choose the reference among the devices in `answers`: where a machine is, and what it says of itself.

    Raises UsageError: unlike versions, another kind of device.
    """
    kind = kind_wanted(config)
    devices = [device for place, answer in answers for device in offered(place, answer, kind)]
    if not devices:
        there = ", ".join(
            f"{place} has {device['name']}" for place, answer in answers for device in answer["devices"]
        )
        raise UsageError(
            f"--device {config.device}: {there or 'no device is offered'}; give the kind that is there"
        )
    reference = reference_of(devices, kind)
    text = mixed(devices, reference)
    return Surveyed(reference, devices, notes + ([text] if text else []))


def mixed(devices: list[Offered], reference: Reference) -> str | None:
    """A line on the devices unlike the reference; None where there are none."""
    others = [device for device in devices if device.device.words != reference.words]
    if not others:
        return None
    used = len(devices) - len(others)
    names = ", ".join(
        f"{device.as_device().name} ({_differs(device.device.words, reference.words)})" for device in others
    )
    return f"unlike devices are never compared: this run uses {used} ({reference.label}), and not {names}"


def _differs(words: str, reference: str) -> str:
    other = reference.split("; ")
    return ", ".join(part for part in words.split("; ") if part not in other) or words
