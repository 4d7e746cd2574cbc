"""The measurement of a whole model: times of its sides, gains, and whose outputs are not eager's."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Ratio:
    """How much faster the second side is, with its 95% interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f}x ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class InputTimes:
    """A model's times on one of several inputs."""

    shapes: str
    weight: float
    us: dict[str, float]
    gains: dict[str, Ratio]
    """By mode."""


@dataclass(frozen=True)
class Measurement:
    """A model's times."""

    device: str
    us: dict[str, float]
    """Microseconds of a call of each side: the median over the blocks. With passes: that without, divided by
    the gain, which compares blocks that were timed one after the other."""
    gains: dict[str, Ratio]
    """Gains by mode: the faster of Inductor and eager, called in that way, over Inductor with passes."""
    passes: dict[str, Ratio]
    """For each pass that is used: all passes but this one against all of them; below 1 it does not pay."""
    unequal: list[str]
    """Sides whose outputs are not eager's, and where."""
    baselines: dict[str, str] = field(default_factory=dict)
    """For each mode the side that its gain is over."""
    left_out: list[str] = field(default_factory=list)
    """Sides that are not timed, and why."""
    best: str = ""
    """The fastest side without passes, whatever its mode."""
    over_best: Ratio | None = None
    """How much faster the fastest side with passes is than that."""
    unused: list[str] = field(default_factory=list)
    """Rewrites that fit nowhere in the model."""
    inputs: list[InputTimes] = field(default_factory=list)
    """A row for each of several inputs; the other figures are of all, by their weights."""

    def baseline(self, mode: str) -> str:
        """Return the side that the gain of a mode is over, in words."""
        side = self.baselines.get(mode, mode)
        return f"Inductor ({mode})" if side == mode else side

    @property
    def losers(self) -> list[str]:
        """Passes without which the model is faster: the whole interval says so."""
        return [name for name, ratio in self.passes.items() if ratio.high < 1]

    def data(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "losers": self.losers}

    def __str__(self) -> str:
        lines = [f"{name:<36} {us:>10.1f} us" for name, us in self.us.items()]
        return "\n".join([*lines, *self.comparisons()])

    def comparisons(self) -> list[str]:
        """Lines: what is not timed, the gain of each mode, what each pass pays, whose outputs differ."""
        lines = [f"not timed: {side}" for side in self.left_out]
        lines += [f"{mode}: with passes {r} of {self.baseline(mode)}" for mode, r in self.gains.items()]
        if self.over_best is not None:
            lines.append(f"with passes {self.over_best} of the best without them: {self.best}")
        lines += [f"{name}: pays {ratio}" for name, ratio in self.passes.items()]
        for row in self.inputs:
            gains = (f"{mode} with passes {ratio}" for mode, ratio in row.gains.items())
            lines.append(f"{row.shapes}, weight {row.weight:g}: {', '.join(gains)}")
        return lines + [f"outputs are not eager's: {difference}" for difference in self.unequal]
