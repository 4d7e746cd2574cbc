"""A benchmark's pictures: ES(t) (PassNet 3.5), S(t) and violins of speedups (GraphNet, Figures 2 and 6).

Each is written as PNG and SVG. They need matplotlib, which `passagent[report]` brings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passagent.data.bench.results import Row
from passagent.data.bench.summary import Estimate, Summary
from passagent.errors import PassagentError, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
"""Okabe and Ito's palette: told apart by colour-blind people."""
_MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
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
_FEW = 5
"""Fewer distinct values make no density worth drawing: they are shown as points."""


def check_matplotlib(what: str = "--plots") -> None:
    """Raise UsageError if matplotlib, which `what` needs, is not installed."""
    if find_spec("matplotlib") is None:
        raise UsageError(
            f"{what} needs matplotlib, which is not installed; run: pip install 'passagent[report]'"
        )


def save(figure: Figure, path: Path, option: str) -> None:
    """Write a figure in the form of the file's suffix. Raises UsageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written ({error.strerror})") from error


def draw_all(directory: Path, summaries: Sequence[Summary], rows: Sequence[Row]) -> list[Path]:
    """Write es, s and speedups as .png and .svg into `directory`; their paths. Raises PassagentError."""
    import matplotlib
    from matplotlib.figure import Figure

    if not summaries:
        raise PassagentError("nothing was measured: there is nothing to draw")
    pictures: dict[str, Callable[[Figure], None]] = {
        "es": lambda figure: _es(figure, summaries),
        "s": lambda figure: _s(figure, summaries),
        "speedups": lambda figure: _speedups(figure, [summary.compiler for summary in summaries], rows),
    }
    written = []
    with matplotlib.rc_context(STYLE):
        for name, draw in pictures.items():
            figure = Figure(figsize=(8.0, 4.4), layout="constrained")
            draw(figure)
            for suffix in ("png", "svg"):
                path = directory / f"{name}.{suffix}"
                save(figure, path, "--plots")
                written.append(path)
    return written


def _es(figure: Figure, summaries: Sequence[Summary]) -> None:
    axes = figure.subplots()
    _curves(axes, summaries, [summary.es for summary in summaries], "Error-aware speedup score", "ES(t)")
    axes.set_ylim(top=axes.get_ylim()[1] * 1.15)  # room for the two remarks
    for start, shade, words in ((0.5, "#f4f4f4", "accuracy"), (2.5, "#e8e8e8", "failures")):
        axes.axvspan(start, start + 2, color=shade, linewidth=0, zorder=0)
        at = (start + 1, 0.985)
        system = ("data", "axes fraction")
        axes.annotate(f"{words}\nforgiven", at, xycoords=system, ha="center", va="top", fontsize=9)
    axes.set_xlim(-10.5, 4.5)


def _s(figure: Figure, summaries: Sequence[Summary]) -> None:
    axes = figure.subplots()
    _curves(axes, summaries, [summary.s for summary in summaries], "Speedup score", "S(t)")


def _curves(
    axes: Axes, summaries: Sequence[Summary], curves: list[dict[int, Estimate]], name: str, symbol: str
) -> None:
    """A line for each compiler over t, with its 95% interval as a band."""
    for number, (summary, curve) in enumerate(zip(summaries, curves, strict=True)):
        colour, marker = COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)]
        levels, values = list(curve), [_drawn(curve[t].value) for t in curve]
        axes.plot(levels, values, color=colour, marker=marker, markersize=4.5, label=_label(summary))
        has_bands = curve[levels[0]].low is not None
        if has_bands:
            low, high = [_drawn(curve[t].low) for t in levels], [_drawn(curve[t].high) for t in levels]
            axes.fill_between(levels, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.axhline(1.0, color="#444444", linewidth=0.9, linestyle="--")
    axes.set_xticks(levels)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tolerance level t (strict to relaxed)")
    axes.set_ylabel(f"{symbol}, eager = 1")
    axes.set_title(f"{name} {symbol}{', with 95% intervals over tasks' if has_bands else ''}")
    _legend(axes, None)


def _speedups(figure: Figure, compilers: list[str], rows: Sequence[Row]) -> None:
    """Violins of log2 speedup of the subgraphs that are correct at t = 1, for each compiler, by dtype."""
    axes = figure.subplots()
    values = {compiler: log2_by_dtype(compiler, rows) for compiler in compilers}
    dtypes = sorted({dtype for by_dtype in values.values() for dtype in by_dtype})
    width = 0.8 / max(1, len(dtypes))
    for group, compiler in enumerate(compilers):
        for number, dtype in enumerate(dtypes):
            found = values[compiler].get(dtype, [])
            if found:
                position = group + (number - (len(dtypes) - 1) / 2) * width
                _violin(axes, found, position, width * 0.9, COLOURS[number % len(COLOURS)])
    for number, dtype in enumerate(dtypes):
        axes.plot([], [], color=COLOURS[number % len(COLOURS)], marker="s", linestyle="", label=dtype)
    axes.axhline(0.0, color="#444444", linewidth=0.9, linestyle="--")
    counts = [sum(map(len, values[compiler].values())) for compiler in compilers]
    labels = [f"{compiler}\n{count} subgraphs" for compiler, count in zip(compilers, counts, strict=True)]
    axes.set_xticks(range(len(compilers)), labels)
    axes.set_xlim(-0.6, len(compilers) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("log2(speedup over eager)")
    axes.set_title("Speedups of the subgraphs that are correct at t = 1")
    if dtypes:
        _legend(axes, "dtype")


def _violin(axes: Axes, values: list[float], position: float, width: float, colour: str) -> None:
    """A density with its quartiles; of few values the points."""
    if len(set(values)) < _FEW:
        axes.plot([position] * len(values), values, "o", color=colour, markersize=4.5, alpha=0.7)
        return
    body: dict[str, Any] = axes.violinplot(values, [position], widths=width, showextrema=False)
    for part in body["bodies"]:
        part.set(facecolor=colour, edgecolor=colour, alpha=0.45)
    ordered = sorted(values)
    low, middle, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.25, 0.5, 0.75))
    axes.vlines(position, low, high, color=colour, linewidth=3)
    axes.plot([position], [middle], "o", color="white", markeredgecolor=colour, markersize=5, zorder=3)


def log2_by_dtype(compiler: str, rows: Sequence[Row]) -> dict[str, list[float]]:
    """log2 of the speedups of a compiler's subgraphs that are correct at t = 1."""
    from passagent.evaluator.judging.verdict import graph_score

    found: dict[str, list[float]] = {}
    graphs = (g for row in rows if row.compiler == compiler and row.evaluation for g in row.evaluation.graphs)
    for graph in graphs:
        if graph.speedup is not None and graph_score(graph).correct(1):
            found.setdefault(graph.dtype, []).append(math.log2(graph.speedup.e2e))
    return found


def _legend(axes: Axes, title: str | None) -> None:
    """Beside the axes: it hides nothing there."""
    axes.legend(title=title, loc="center left", bbox_to_anchor=(1.0, 0.5), alignment="left")


def _drawn(value: float | None) -> float:
    return math.nan if value is None else value


def _label(summary: Summary) -> str:
    return f"{summary.compiler}\nAS {summary.as_score.value:.3f}"
