"""A machine with devices for others, as plain data: versions, devices, and what measurements depend on.

Found out in a process of its own, so that a worker imports no torch and holds no GPU memory.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from passagent import __version__
from passagent.errors import InfrastructureError, PassagentError, UsageError
from passagent.evaluator.hardware.devices import Device, find_devices
from passagent.evaluator.hardware.machine import measure_machine
from passagent.evaluator.service.known import machine_words
from passagent.sandbox.environment import device_name, evaluator_version, import_path, package_version

FIND_S = 180.0
"""For finding it out, most of which is torch's import on a busy machine, s."""


@dataclass(frozen=True)
class OfferedDevice:
    """A device of a worker."""

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

    @property
    def device(self) -> Device:
        """The device as the referee names it."""
        return Device(self.name, self.uuid, self.model)


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
    done = subprocess.run(
        [sys.executable, "-m", "passagent.evaluator.fleet.machine_facts", devices],
        capture_output=True,
        text=True,
        env=os.environ | import_path(),
        timeout=FIND_S,
        check=False,
    )
    try:
        facts: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise InfrastructureError(
            f"the devices of this machine could not be read: {lines[-1][:300]}"
        ) from error
    if "usage" in facts:
        raise UsageError(facts["usage"])
    return facts


def read_devices(records: list[dict[str, Any]]) -> list[OfferedDevice]:
    """The devices in what a worker says."""
    return [OfferedDevice(**record) for record in records]


def main() -> None:
    """`python -m passagent.evaluator.fleet.machine_facts DEVICES`: one JSON object on stdout."""
    try:
        devices = [
            OfferedDevice(
                device.name,
                device.uuid,
                device.model,
                device_name(device.name),
                machine_words(device.name),
                asdict(measure_machine(device.name)),
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
