"""`passagent experiment memory`: does what was learned help? Table, picture and raw results."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from passagent.benchmark.memory_experiment import ARMS, Compared, Course, Experiment, Protocol, conduct
from passagent.commands.signals import Interrupted
from passagent.config import load_config
from passagent.confine.environment import describe
from passagent.errors import UsageError, nearest
from passagent.report.curves import COLOURS, STYLE, check_matplotlib, save
from passagent.report.text import interval, table
from passagent.tasks.tasklist import find_tasks

SETTINGS: dict[str, Any] = {"search.islands": 1, "search.finalists": 0, "search.expert_seeds": 0}


def memory(
    tasks: Sequence[str],
    arms: str,
    seeds: int,
    out: str,
    preset: str | None,
    settings: dict[str, Any],
    as_json: bool,
) -> None:
    """Run the experiment, or go on with it. Raises UsageError; Interrupted after Ctrl-C."""
    check_matplotlib("experiment")
    chosen = tuple(dict.fromkeys(arms.split(",")))
    for arm in chosen:
        if arm not in ARMS:
            raise UsageError(f"--arms {arms}: no arm '{arm}'{nearest(arm, list(ARMS))}")
    if "off" not in chosen or len(chosen) < 2:
        raise UsageError(f"--arms {arms}: name off, and at least one of {', '.join(ARMS[1:])}")
    paths = tuple(str(path) for path in find_tasks(tasks))
    if len(paths) < 2:
        raise UsageError("--tasks: name at least two; half of them are learned from, half are compared on")
    config = load_config(preset, SETTINGS | settings)
    place = Path(out)
    protocol = Protocol(paths, chosen, seeds, config.model_dump_json())
    experiment = Experiment(place, protocol, config, lambda line: print(line, file=sys.stderr, flush=True))
    try:
        found = conduct(experiment)
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted; what was run is kept, the same command goes on") from error
    names = [Path(path).name for path in protocol.tasks]
    data = {
        "protocol": asdict(protocol) | {"tasks": names, "config": json.loads(protocol.config)},
        "environment": describe(config.evaluator.device, config.evaluator.threads or 0),
        "compared": [asdict(one) for one in found],
        "courses": [one._asdict() for one in experiment.courses],
    }
    (place / "result.json").write_text(json.dumps(data, indent=1) + "\n")
    draw(experiment.courses, chosen, place / "best.svg")
    if as_json:
        print(json.dumps(data))
        return
    print(table(HEADERS, [_row(one) for one in found]))
    print(f"{place / 'result.json'}, {place / 'best.svg'}")


HEADERS = [
    "arm against off",
    ">pairs",
    ">left out",
    ">iterations to 95%, ratio [95%]",
    ">mean log AS, gain [95%]",
]


def _row(one: Compared) -> list[str]:
    ratio = interval(one.ratio, one.low, one.high)
    return [
        one.arm,
        str(one.pairs),
        str(one.left_out),
        ratio,
        interval(one.area, one.area_low, one.area_high),
    ]


def draw(courses: Sequence[Course], arms: Sequence[str], path: Path) -> None:
    """The best AS so far by episode, the geometric mean of each arm's runs. Raises UsageError."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        for arm, colour in zip(arms, COLOURS, strict=False):
            own = [one.best for one in courses if one.arm == arm]
            if own:
                means = [math.exp(sum(scores) / len(own)) for scores in zip(*own, strict=True)]
                axes.step(range(1, len(means) + 1), means, where="post", color=colour, label=arm)
        axes.set_xlabel("episode")
        axes.set_ylabel("best AS so far, geometric mean")
        axes.legend()
        save(figure, path, "--out")
