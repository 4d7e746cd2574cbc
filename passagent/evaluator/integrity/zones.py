"""Memory between guard zones, which holds ordinary values: a kernel cannot tell where it was placed.

Inputs lie between zones in audits and in timed calls alike. Zones look like the values beside them.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import torch

ZONE = 1 << 16
"""Bytes of each guard zone: a wrong stride leads far."""
_DRAWN = 1 << 13
"""Bytes of them that are drawn; the others repeat these."""


@dataclass(frozen=True)
class Zoned:
    """Bytes between two zones, and what these were filled with."""

    raw: torch.Tensor
    zones: torch.Tensor
    like: torch.Tensor
    """A tensor of their shape and dtype."""

    def overrun(self) -> str:
        """Name the element of a tensor that the first write into a zone would be; empty without one."""
        now = torch.cat([self.raw[:ZONE], self.raw[-ZONE:]])
        if torch.equal(now, self.zones):
            return ""
        first = int((now != self.zones).nonzero()[0])
        inside = len(self.raw) - 2 * ZONE
        offset = (first - ZONE if first < ZONE else inside + first - ZONE) // self.like.itemsize
        kind = f"{str(self.like.dtype).removeprefix('torch.')}{list(self.like.shape)}"
        return f"element {offset} of a {kind} tensor, which has 0 to {inside // self.like.itemsize - 1}"


def between_zones(like: torch.Tensor, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh bytes on `device` with room for the storage of `like` (which may be on `meta`, without memory)
    between two zones, and a tensor like it in there.

    The tensor does not own its memory: the bytes must outlive it. Nothing is written.
    """
    nbytes = like.untyped_storage().nbytes()
    raw = torch.empty(nbytes + 2 * ZONE, dtype=torch.uint8, device=device)
    storage = torch._C._construct_storage_from_data_pointer(raw.data_ptr() + ZONE, raw.device, nbytes)
    tensor = torch.empty(0, dtype=like.dtype, device=raw.device)
    tensor.set_(storage, like.storage_offset(), like.size(), like.stride())
    return raw, tensor


def fill_zones(raw: torch.Tensor, ordinary: torch.Tensor) -> None:
    """Write `ordinary` (see ordinary_bytes) into both zones around the bytes of a block."""
    raw[:ZONE] = ordinary[:ZONE]
    raw[-ZONE:] = ordinary[ZONE:]


def ordinary_bytes(
    values: torch.Tensor | None, like: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """2 * ZONE bytes, on the device of `like`, that read as values of its dtype such as `values` holds.

    They stand in another order and are smaller by chance. Where there are no values but zeros: normal noise.
    """
    count = _DRAWN // like.itemsize
    wide = _wide(like.dtype)
    sample = None if values is None else _sample(values, count, wide, generator)
    if sample is None or not bool(sample.any()):
        sample = torch.randn(count, generator=generator).mul(4).abs().to(wide)
        if like.is_floating_point() or like.is_complex():
            sample = torch.randn(count, generator=generator, dtype=wide)
    chosen = sample[torch.randint(len(sample), (count,), generator=generator)]
    chance = torch.rand(count, generator=generator)
    if like.dtype == torch.bool:
        chosen = chosen ^ (chance < 0.5)
    elif like.is_floating_point() or like.is_complex():
        chosen = chosen * (0.5 + chance / 2)
    else:
        chosen = torch.where(chance < 0.5, chosen, chosen // 2)
    return chosen.to(like.dtype).view(torch.uint8).to(like.device).repeat(2 * ZONE // _DRAWN)


def _sample(
    values: torch.Tensor, count: int, wide: torch.dtype, generator: torch.Generator
) -> torch.Tensor | None:
    """Up to `count` neighbouring elements from anywhere in `values`; on the CPU."""
    flat = values.reshape(-1)
    if flat.numel() == 0:
        return None
    start = int(torch.randint(max(1, flat.numel() - count + 1), (), generator=generator))
    return flat[start : start + count].cpu().to(wide)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """In which values of `dtype` are drawn."""
    if dtype.is_complex:
        return torch.complex128 if dtype == torch.complex128 else torch.complex64
    if dtype.is_floating_point:
        return torch.float64 if dtype == torch.float64 else torch.float32
    return torch.bool if dtype == torch.bool else torch.int64


def unpredictable() -> torch.Generator:
    """A generator of its own: workers are forked with one state of torch's."""
    return torch.Generator().manual_seed(secrets.randbits(63))
