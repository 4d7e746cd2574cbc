"""Pictures of a run as SVG (`passagent report --pictures`). They need matplotlib (`passagent[report]`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from passagent.errors import PassagentError
from passagent.store import Store, confirmations, runs
from passagent.store.runs import Run
from passagent.view import course, tree_layout
from passagent.view.curves import COLOURS, STYLE, check_matplotlib, save
from passagent.view.run_summary import finalists_data

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from passagent.view.course import Point


class NothingToDraw(PassagentError):
    """The run has nothing yet that this picture shows."""


def draw_all(store: Store, run: Run, directory: Path) -> tuple[list[Path], list[str]]:
    """Write best.svg, islands.svg, cost.svg and tree.svg into `directory`.

    Returns their paths, and why some were left out. Raises UsageError if a file cannot be written.
    """
    check_matplotlib("--pictures")
    import matplotlib
    from matplotlib.figure import Figure

    written, left_out = list[Path](), list[str]()
    with matplotlib.rc_context(STYLE):
        for name, draw in PICTURES.items():
            figure = Figure(figsize=(8.0, 4.4), layout="constrained")
            try:
                draw(figure, store, run)
            except NothingToDraw as error:
                left_out.append(f"{name}: {error}")
                continue
            written.append(directory / f"{name}.svg")
            save(figure, written[-1], "--pictures")
    return written, left_out


def _course(store: Store, run: Run) -> course.Course:
    found = course.course(course.made(store, run.id))
    if not found.best:
        raise NothingToDraw(f"run {run.id}: nothing correct was timed yet")
    return found


def _best(figure: Figure, store: Store, run: Run) -> None:
    """Correct candidates and the best so far on a log axis, with the confirmed interval."""
    found = _course(store, run)
    axes = figure.subplots()
    places = [point.place for point in found.points]
    axes.plot(places, [p.as_score for p in found.points], ".", color="#999999", label="correct candidate")
    _steps(axes, found.best, found.nodes, COLOURS[0], "best so far")
    finalists = finalists_data(store, run)
    if finalists and finalists[0]["as_score"]["low"] is not None:
        score = finalists[0]["as_score"]
        label = "winner, measured again (95%)"
        axes.axhspan(score["low"], score["high"], color=COLOURS[2], alpha=0.2, linewidth=0, label=label)
    _finish(axes, run)


def _islands(figure: Figure, store: Store, run: Run) -> None:
    """The best so far of each island."""
    found = _course(store, run)
    roles = {island.island: f"{island.island} {island.role}" for island in runs.islands(store, run.id)}
    axes = figure.subplots()
    for number, (island, record) in enumerate(sorted(found.by_island.items())):
        colour = COLOURS[number % len(COLOURS)]
        _steps(axes, record, found.nodes, colour, roles.get(island, "seeds"))
    _finish(axes, run)


def _steps(axes: Axes, record: Sequence[Point], end: int, colour: str, label: str) -> None:
    """A record as stairs up to the run's last candidate."""
    places, values = [point.place for point in record], [point.as_score for point in record]
    axes.step([*places, end], [*values, *values[-1:]], where="post", color=colour, label=label)


def _finish(axes: Axes, run: Run) -> None:
    """Axes of AS over candidates."""
    from matplotlib.ticker import LogLocator, ScalarFormatter

    axes.axhline(1.0, color="#444444", linewidth=0.9, linestyle="--")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter("")
    axes.set_xlabel("candidates")
    axes.set_ylabel("AS, eager = 1")
    axes.set_title(f"{run.task}, {run.model}, {run.device}")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _cost(figure: Figure, store: Store, run: Run) -> None:
    """Tokens and money over time."""
    spent = course.spending(store, run.id)
    if not spent or not spent[-1].tokens:
        raise NothingToDraw(f"run {run.id}: no model was paid")
    axes = figure.subplots()
    times = [datetime.fromtimestamp(one.at, UTC) for one in spent]
    axes.step(times, [one.tokens for one in spent], where="post", color=COLOURS[0])  # type: ignore[arg-type]
    axes.set_ylabel("tokens")
    if spent[-1].cost:
        money = axes.twinx()
        money.step(times, [one.cost for one in spent], where="post", color=COLOURS[1])  # type: ignore[arg-type]
        money.set_ylabel("USD", color=COLOURS[1])
    axes.set_xlabel("UTC")
    axes.set_title(f"{run.task}, {run.model}")


def _tree(figure: Figure, store: Store, run: Run) -> None:
    """The tree as the page draws it: the lineage of the best in colour."""
    best = confirmations.winner(store, run.id)
    found = tree_layout.layout(course.made(store, run.id), best.id if best else None)
    if not found.placed:
        raise NothingToDraw(f"run {run.id}: has no candidate yet")
    axes = figure.subplots()
    for one in found.placed:
        x, y = (one.parent.x, -one.parent.depth) if one.parent else (0.5, 0)
        colour, width = (COLOURS[1], 2.2) if one.is_lineage else ("#cccccc", 0.8)
        axes.plot([x, one.x], [y, -one.depth], color=colour, linewidth=width, zorder=1 + one.is_lineage)
        face = COLOURS[one.node.island % len(COLOURS)] if one.node.status == "ok" else "white"
        edge = "#333333" if best and one.node.id == best.id else "#888888"
        size = 14 + 22 * min(one.node.as_score or 0.0, 2.0)
        axes.scatter([one.x], [-one.depth], s=size, color=face, edgecolors=edge, linewidths=0.8, zorder=3)
    axes.axis("off")
    axes.set_title(f"{run.task}: {len(found.placed)} of {found.nodes} nodes, filled: correct, by island")


PICTURES: dict[str, Callable[[Figure, Store, Run], None]] = {
    "best": _best,
    "islands": _islands,
    "cost": _cost,
    "tree": _tree,
}
"""By the name of the file."""
