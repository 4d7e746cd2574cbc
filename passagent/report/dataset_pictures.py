"""A data set's pictures: operators of its tasks, elements of its subgraphs' inputs, and the funnel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from passagent.report.curves import check_matplotlib


def draw_dataset(directory: Path, stats: dict[str, Any]) -> list[Path]:
    """Write operators, sizes and funnel as .png and .svg into `directory`; their paths. Raises UsageError."""
    check_matplotlib()
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, label in (
        ("operators", "operators of a task"),
        ("elements", "elements of a subgraph's inputs"),
    ):
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        for one in stats["lists"]:
            values = one[name]
            share = [(i + 1) / len(values) for i in range(len(values))]
            axes.step(values, share, where="post", label=f"{one['list']} ({len(values)})")
        axes.set(xlabel=label, ylabel="share", xscale="log")
        axes.legend()
        paths += _saved(figure, directory / name)
    steps = stats["funnel"]
    figure = Figure(figsize=(7, 0.4 * len(steps) + 1), layout="constrained")
    axes = figure.subplots()
    places = range(len(steps))
    axes.barh(places, [step["in"] for step in steps], color="#dddddd", label="in")
    axes.barh(places, [step["out"] for step in steps], color="#0072B2", label="out", height=0.5)
    axes.set_yticks(places, [step["step"] for step in steps])
    axes.invert_yaxis()
    axes.set_xscale("symlog")
    axes.legend()
    return paths + _saved(figure, directory / "funnel")


def _saved(figure: Any, path: Path) -> list[Path]:
    paths = [path.with_suffix(".png"), path.with_suffix(".svg")]
    for one in paths:
        figure.savefig(one)
    return paths
