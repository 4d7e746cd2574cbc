"""Devices: which ones `--device` means, and whether they are here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from passagent.errors import UsageError
from passagent.sandbox.environment import device_name

FORMS = "cpu, cuda, cuda:N, cuda:N,cuda:M or cuda:all"


@dataclass(frozen=True)
class Device:
    """A device of this machine."""

    name: str
    """The name that torch uses: `cpu` or `cuda:N`."""
    uuid: str
    """`cpu`, or the GPU's as NVML writes it, the same under whatever number it is seen. Names the lease."""
    model: str
    """The GPU's or the CPU's model."""


def find_devices(text: str) -> list[Device]:
    """The devices that `--device TEXT` means, in order.

    Raises UsageError for another form, for a device that is not on this machine, and for GPUs of different
    models, whose results could not be compared.
    """
    if text == "cpu":
        return [Device("cpu", "cpu", device_name("cpu"))]
    numbers = gpu_numbers(text)
    if text != "cuda:all" and not numbers:
        raise UsageError(f"--device {text}: write {FORMS}")
    import torch

    if not (torch.version.cuda or torch.version.hip):
        what = f"this torch ({torch.__version__}) is built for the CPU alone"
        raise UsageError(f"--device {text}: {what}; install one for CUDA, or use --device cpu")
    count = torch.cuda.device_count()
    indices = list(range(count)) if text == "cuda:all" else numbers
    if not indices or max(indices) >= count:
        raise UsageError(f"--device {text}: this machine has {count} CUDA device(s); use --device cpu")
    if len(set(indices)) < len(indices):
        raise UsageError(f"--device {text}: names a device twice")
    devices = []
    for number in indices:
        properties = torch.cuda.get_device_properties(number)
        devices.append(Device(f"cuda:{number}", f"GPU-{properties.uuid}", properties.name))
    models = sorted({device.model for device in devices})
    if len(models) > 1:
        raise UsageError(
            f"--device {text}: {' and '.join(models)} measure differently; name GPUs of one model"
        )
    return devices


def gpu_numbers(text: str) -> list[int]:
    """The numbers of the GPUs that `text` names, in order; none for another form; without torch."""
    matches = [re.fullmatch(r"cuda(?::(\d+))?", word.strip()) for word in text.split(",")]
    return [int(number.group(1) or 0) for number in matches if number] if all(matches) else []


def find_device(text: str) -> Device:
    """The one device that `text` means. Raises UsageError as find_devices does, and for several."""
    devices = find_devices(text)
    if len(devices) > 1:
        raise UsageError(f"--device {text}: one device is needed here; write cpu, cuda or cuda:N")
    return devices[0]


def first_device(text: str) -> str:
    """The name of the first device that `text` means; the others are of its model. Raises UsageError."""
    return find_devices(text)[0].name
