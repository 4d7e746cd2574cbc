"""The result of `passagent optimize`, as data and as a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from passagent.packages.measurement import Measurement, Ratio

KEPT, TRIED, DROPPED, LEFT = "kept", "tried", "dropped", "left"
NOTHING, WAITING, FAILED = "nothing", "waiting", "failed"
"""A region's outcome: its pass is in the package; it was timed, and there is no package with it; it did not
pay; what there is does it as fast; no pass was found; it was not searched (to its end) yet; it could not be
judged."""


@dataclass
class RegionOutcome:
    """A region of the model: what it costs, what was tried, what came of it."""

    name: str
    operators: tuple[str, ...]
    count: int
    """How often one call of the model runs it."""
    eager_us: float
    """Time of its operators in one call of the model, all its runs together."""
    light_us: float = 0.0
    """The least that the device needs for that."""
    outcome: str = WAITING
    why: str = ""
    run: str | None = None
    from_library: bool = False
    passes: list[str] = field(default_factory=list)
    """Names in the package."""
    inductor_us: float | None = None
    """Inductor's kernels for it, of one call of the model; None: not measured."""
    pass_us: float | None = None
    """The pass, likewise."""

    @property
    def vs_inductor(self) -> float | None:
        """How much faster the pass is than Inductor's kernels, the region alone."""
        return self.inductor_us / self.pass_us if self.inductor_us and self.pass_us else None


@dataclass
class Optimized:
    """The result for a model."""

    model: str
    device: str
    state: Path
    """Tasks, runs, package and report."""
    regions: list[RegionOutcome]
    package: Path | None = None
    """The package that pays; None: there is nothing to gain."""
    measurement: Measurement | None = None
    why_not: str = ""
    """Why there is no package."""
    mode: str = "default"
    """Inductor's mode in which `gain` was measured."""
    is_frozen: bool = False
    """Parameters are constants in the model with passes."""
    kept: list[str] = field(default_factory=list)
    """Names of the passes in the package."""
    left_out: list[str] = field(default_factory=list)
    """Operators that are in no region, and passes that cannot be deployed, with the reason."""
    stopped: str | None = None
    """Why it stopped before all regions were searched."""
    rewrites: dict[str, str] = field(default_factory=dict)
    """Passes of library operators that match somewhere, and what came of them."""
    prepared_bytes: int = 0
    """Memory of the values that these prepare of parameters, if all of them are used."""

    @property
    def gain(self) -> Ratio | None:
        """Inductor over Inductor with the package, the whole model."""
        return self.measurement.gains[self.mode] if self.measurement else None

    @property
    def is_judged(self) -> bool:
        """True if the whole model was timed, or any region judged."""
        judged = [region for region in self.regions if region.outcome not in (WAITING, FAILED)]
        return bool(judged) or self.measurement is not None

    def headline(self) -> str:
        """The gain; without a package why there is none, or what is missing to tell."""
        if self.package is not None and self.measurement is not None and self.gain is not None:
            baseline, best = self.measurement.baseline(self.mode), self.measurement.over_best
            others = f"; {best} of the best without passes, {self.measurement.best}" if best else ""
            return f"{self.gain} of {baseline} with the passes in {self.package}{others}"
        missing = [region for region in self.regions if region.outcome in (WAITING, FAILED)]
        if not missing:
            return f"nothing to gain: {self.why_not}"
        why = self.why_not if self.measurement else self.stopped or missing[0].why
        what = "not timed in it" if all(region.run for region in missing) else "not tried"
        of_all = f"{len(missing)} of {len(self.regions)} regions {what}"
        return f"no gain shown yet: {of_all}{f' ({why})' if why else ''}; the same command goes on"

    def data(self) -> dict[str, Any]:
        """Return plain data: the content of report.json."""
        plain = asdict(self) | {"headline": self.headline()}
        plain |= {"state": str(self.state), "package": str(self.package) if self.package else None}
        for region, outcome in zip(plain["regions"], self.regions, strict=True):
            region["vs_inductor"] = outcome.vs_inductor
        return plain | {"measurement": self.measurement.data() if self.measurement else None}

    def __str__(self) -> str:
        lines = [f"{name}: {outcome}" for name, outcome in self.rewrites.items()]
        lines += [f"{region.name}: {_outcome(region)}" for region in self.regions]
        lines += [str(self.measurement)] if self.measurement else []
        lines.append(self.headline())
        if self.package is not None:
            lines.append(f'use it: model = passagent.deploy(model, "{self.package}")')
        return "\n".join(lines)

    def markdown(self) -> str:
        """Return the content of report.md."""
        lines = [f"# {self.model} on {self.device}", "", f"**{self.headline()}**"]
        if self.stopped:
            lines += ["", f"It stopped early: {self.stopped}. The same command goes on."]
        if self.rewrites:
            lines += ["", "## Passes of library operators", ""]
            lines += [f"- {name}: {outcome}" for name, outcome in self.rewrites.items()]
            if self.prepared_bytes:
                lines += ["", f"What they prepare of parameters takes {self.prepared_bytes / 1e6:.1f} MB."]
        lines += ["", "## Regions", "", *_table(_HEADS, [_row(region) for region in self.regions]), ""]
        lines += [_LEGEND]
        if self.left_out:
            lines += ["", "## Left out", "", *(f"- {what}" for what in self.left_out)]
        if self.measurement:
            rows = [[name, f"{us:.1f}"] for name, us in self.measurement.us.items()]
            lines += ["", "## The whole model", "", *_table(["side", "us"], rows), ""]
            lines += [f"- {line}" for line in self.measurement.comparisons()]
        return "\n".join(lines) + "\n"


_HEADS = ["region", "runs", "eager us", "Inductor us", "pass us", "least us", "outcome"]
_LEGEND = (
    "Times are of one call of the model, all runs of the region together. *eager*: its operators inside the "
    "model. *Inductor*, *pass*: the region alone, without what calling it costs. *least*: its inputs and "
    "outputs moved once, its matrix products at the device's pace."
)


def _row(region: RegionOutcome) -> list[str]:
    times = [region.eager_us, region.inductor_us, region.pass_us, region.light_us]
    cells = ["-" if us is None else f"{us:.0f}" for us in times]
    return [region.name, str(region.count), *cells, _outcome(region)]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    aligned = ["---", *["---:"] * (len(heads) - 1)]
    return [f"| {' | '.join(row)} |" for row in (heads, aligned, *rows)]


def _outcome(region: RegionOutcome) -> str:
    source = " (known from the library)" if region.from_library else ""
    ratio = f"{region.vs_inductor:.2f}x of Inductor's kernels" if region.vs_inductor else ""
    words = ", ".join(word for word in (ratio, region.why) if word)
    return f"{region.outcome}{source}{f': {words}' if words else ''}"
