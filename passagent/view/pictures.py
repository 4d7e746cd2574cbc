"""Charts of a run (`report --pictures`) and of a benchmark (`bench --plots`) as files.

They need matplotlib, which `passagent[report]` brings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passagent.errors import PassagentError, UsageError
from passagent.search import finalists
from passagent.store import Store
from passagent.store.runs import Run
from passagent.view import charts, tree
from passagent.view.page import views
from passagent.view.text import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from passagent.data.bench.results import Row
    from passagent.data.bench.summary import Summary

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
"""Okabe and Ito's palette, which colour-blind people can read."""
GREY = "#999999"
STYLE: Any = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "passagent",
}
_MARKS: dict[str, dict[str, Any]] = {
    "points": {"linestyle": "", "marker": "."},
    "step": {"drawstyle": "steps-post"},
    "line": {"marker": "o", "markersize": 4.5},
    "bound": {"linestyle": "--", "linewidth": 0.9},
    "eager": {"linestyle": "--", "linewidth": 0.9},
}
"""How matplotlib draws each kind of line."""
Draw = Callable[["Figure"], None]


def check_matplotlib(option: str) -> None:
    """Raise UsageError if matplotlib, which `option` needs, is not installed."""
    if find_spec("matplotlib") is None:
        raise UsageError(
            f"{option} needs matplotlib, which is not installed; run: pip install 'passagent[report]'"
        )


def draw_run(store: Store, run: Run, directory: Path) -> tuple[list[Path], list[str]]:
    """Write best.svg, islands.svg, cost.svg and tree.svg into `directory`.

    Returns their paths, and why some were left out. Raises UsageError if a file cannot be written.
    """
    figures, nodes = views.figures(store, run.id), charts.made(store, run.id)
    title, pictures, left_out = f"{run.task}, {run.model}, {run.device}", dict[str, Draw](), list[str]()
    for name, key in (("best", "best_chart"), ("islands", "island_chart")):
        if figures["course"].best:
            pictures[name] = _chart(figures[key], title)
        else:
            left_out.append(f"{name}: run {run.id}: nothing correct was timed yet")
    if figures["spending_chart"]:
        pictures["cost"] = _chart(figures["spending_chart"], title)
    else:
        left_out.append(f"cost: run {run.id}: no model was paid")
    if nodes:
        best = finalists.winner(store, run.id)
        layout = tree.layout(nodes, best.id if best else None)
        pictures["tree"] = lambda figure: _tree(figure, layout, best.id if best else None, run.task)
    else:
        left_out.append(f"tree: run {run.id}: has no candidate yet")
    return _write(pictures, directory, ["svg"], "--pictures"), left_out


def draw_bench(directory: Path, summaries: Sequence[Summary], rows: Sequence[Row]) -> list[Path]:
    """Write es, s and speedups as .png and .svg into `directory`; their paths. Raises PassagentError."""
    if not summaries:
        raise PassagentError("nothing was measured: there is nothing to draw")
    violins = charts.violins([summary.compiler for summary in summaries], rows)
    pictures: dict[str, Draw] = {
        "es": _chart(charts.tolerance(summaries, "es", "ES(t)"), "Error-aware speedup score ES(t)"),
        "s": _chart(charts.tolerance(summaries, "s", "S(t)"), "Speedup score S(t)"),
        "speedups": lambda figure: _violins(figure, violins["shapes"] if violins else []),
    }
    return _write(pictures, directory, ["png", "svg"], "--plots")


def _write(pictures: dict[str, Draw], directory: Path, forms: list[str], option: str) -> list[Path]:
    """Draw pictures into files of their names. Raises UsageError."""
    check_matplotlib(option)
    import matplotlib
    from matplotlib.figure import Figure

    written = []
    with matplotlib.rc_context(STYLE):
        for name, draw in pictures.items():
            figure = Figure(figsize=(8.0, 4.4), layout="constrained")
            draw(figure)
            for form in forms:
                path = directory / f"{name}.{form}"
                try:
                    directory.mkdir(parents=True, exist_ok=True)
                    figure.savefig(path, dpi=160, metadata={"Date": None} if form == "svg" else None)
                except OSError as error:
                    raise UsageError(f"{option} {path}: cannot be written ({error.strerror})") from error
                written.append(path)
    return written


def _chart(chart: dict[str, Any], title: str) -> Draw:
    """Return what draws a chart of charts.py."""

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import LogLocator, ScalarFormatter

        axes = figure.subplots()
        x: Any = [datetime.fromtimestamp(at, UTC) for at in chart["x"]] if chart.get("time") else chart["x"]
        for number, line in enumerate(chart["lines"]):
            hue = line.get("hue", number)
            colour = GREY if hue == -1 else COLOURS[hue % len(COLOURS)]
            place = axes
            if line.get("scale"):
                place = axes.twinx()
                place.set_ylabel(line["label"], color=colour)
            points = [(at, value) for at, value in zip(x, line["values"], strict=True) if value is not None]
            style = _MARKS[line["kind"]]
            place.plot(*zip(*points, strict=True), color=colour, label=line["label"], **style)
            if line.get("low", [None])[0] is not None:
                low, high = (
                    [math.nan if end is None else end for end in line[side]] for side in ("low", "high")
                )
                place.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        if chart.get("log"):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_formatter("")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(chart.get("xlabel", "UTC"))
        axes.set_ylabel(chart["ylabel"])
        axes.set_title(title)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))  # it hides nothing there

    return draw


def _tree(figure: Figure, layout: tree.Layout, best: int | None, task: str) -> None:
    """Draw the tree as the page does: the lineage of the best in colour."""
    axes = figure.subplots()
    for placed in layout.placed:
        x, y = (placed.parent.x, -placed.parent.depth) if placed.parent else (0.5, 0)
        colour, width = (COLOURS[1], 2.2) if placed.is_lineage else ("#cccccc", 0.8)
        line = {"color": colour, "linewidth": width, "zorder": 1 + placed.is_lineage}
        axes.plot([x, placed.x], [y, -placed.depth], **line)  # type: ignore[arg-type]
        node = placed.node
        face = COLOURS[node.island % len(COLOURS)] if node.status == "ok" else "white"
        edge, size = "#333333" if node.id == best else "#888888", 14 + 22 * min(node.as_score or 0.0, 2.0)
        axes.scatter(
            [placed.x], [-placed.depth], s=size, color=face, edgecolors=edge, linewidths=0.8, zorder=3
        )
    axes.axis("off")
    axes.set_title(f"{task}: {len(layout.placed)} of {layout.nodes} nodes, filled: correct, by island")


def _violins(figure: Figure, shapes: list[dict[str, Any]]) -> None:
    """Draw the densities with median and quartiles, and how many subgraphs each is of."""
    axes = figure.subplots()
    for place, shape in enumerate(shapes):
        colour = COLOURS[place % len(COLOURS)]
        density, levels = zip(*shape["half"], strict=True)
        before, behind = ([place + sign * 0.4 * value for value in density] for sign in (-1, 1))
        axes.fill_betweenx(levels, before, behind, color=colour, alpha=0.45, linewidth=0)
        low, middle, high = shape["quartiles"]
        axes.vlines(place, low, high, color=colour, linewidth=3)
        axes.plot([place], [middle], "o", color="white", markeredgecolor=colour, markersize=5, zorder=3)
    axes.axhline(0.0, color="#444444", linewidth=0.9, linestyle="--")
    names = ["\n".join([*shape["name"].split(), counted(shape["count"], "subgraph")]) for shape in shapes]
    axes.set_xticks(range(len(shapes)), names)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("log2(speedup over eager)")
    axes.set_title("Speedups of the subgraphs that are correct at t = 1")
