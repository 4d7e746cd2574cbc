"""`passagent optimize`, `extract`, `package`, `explain` and `measure`."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from passagent.cli.commands.running import Interrupted
from passagent.errors import PassagentError
from passagent.options import OptimizeOptions
from passagent.view.text import clock, table


def optimize(spec: str, options: OptimizeOptions, as_json: bool) -> None:
    """Optimize the model of `FILE.py:factory`. Raises PassagentError; Interrupted after Ctrl-C or SIGTERM."""
    from passagent.deploy import optimizing
    from passagent.tasks.extract.model_capture import load_model

    begun, stream = time.monotonic(), sys.stderr if as_json else sys.stdout

    def say(text: str) -> None:
        print(f"[{clock(time.monotonic() - begun):>5}] {text}", file=stream, flush=True)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what a batch system sends is as Ctrl-C
    try:
        optimized = optimizing.optimize(options, load_model(spec, options["inputs"]), say)
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted; what was found is stored, the same command goes on") from error
    print(json.dumps(optimized.data(), default=str) if as_json else optimized)
    if not as_json:
        print(f"report: {optimized.state / 'report.md'}")
    if not optimized.is_judged:
        raise PassagentError(optimized.headline())


def extract(spec: str, inputs: str | None, dynamic: bool, out: str, as_json: bool) -> None:
    """Extract the model of `FILE.py:factory` into `out`. Raises PassagentError if a graph is not in order."""
    from passagent.tasks.extract.extracting import extract_model
    from passagent.tasks.extract.model_capture import load_model

    extracted = extract_model(load_model(spec, inputs), Path(out), dynamic)
    if as_json:
        graphs = [
            {
                "name": graph.name,
                "operators": graph.operators,
                "runs": graph.runs,
                "structure": graph.hash and graph.hash.structure,
                "instance": graph.hash and graph.hash.instance,
                "problems": graph.problems,
                "is_exact": graph.is_exact,
            }
            for graph in extracted.graphs
        ]
        data = {"path": out, "ok": extracted.ok, "breaks": extracted.breaks, "graphs": graphs}
        print(json.dumps(data))
    else:
        rows = []
        for graph in extracted.graphs:
            outputs = "the model's, bit for bit" if graph.is_exact else "close to the model's"
            outputs = "not validated" if graph.problems else outputs
            rows.append([graph.name, str(graph.operators), str(graph.runs), outputs])
        print(table(["graph", ">operators", ">runs", "outputs"], rows))
        for line in (*(f"graph break at {place}" for place in extracted.breaks), *extracted.problems):
            print(line)
        print(f"wrote {extracted.path}")
    if not extracted.ok:
        raise PassagentError(f"{out}: {extracted.problems[0]}")


def extract_regions(spec: str, inputs: str | None, out: str, as_json: bool) -> None:
    """Cut the model of `FILE.py:factory` into tasks below `out`. Raises PassagentError if one is wrong."""
    from passagent.tasks.extract.extracting import extract_regions as extracted
    from passagent.tasks.extract.model_capture import load_model

    regions = extracted(load_model(spec, inputs), Path(out))
    problems = [f"{task.name}: {problem}" for task in regions.tasks for problem in task.problems]
    if as_json:
        print(json.dumps({"path": out, "ok": not problems, **regions.data()}))
    else:
        rows = [
            [
                task.name,
                str(task.count),
                f"{task.share:.1%}",
                f"{task.seconds * 1e6:.0f}",
                str(len(task.instances)),
            ]
            for task in regions.tasks
        ]
        print(table(["task", ">runs", ">share", ">us", ">subgraphs"], rows))
        for line in (*(f"left out: {refused}" for refused in regions.refused), *problems):
            print(line)
        print(f"wrote {len(rows)} tasks below {out}, of {regions.seconds * 1e6:.0f} us of operators")
    if problems:
        raise PassagentError(f"{out}: {problems[0]}")


def package(sources: Sequence[str], tasks: Sequence[str], out: str, runs_dir: str, as_json: bool) -> None:
    """Write the package `out` of runs' best passes and of directories. Raises PassagentError."""
    from passagent.deploy.package_writing import pack, read_sources

    packed = pack(list(read_sources(sources, tasks, runs_dir)), Path(out))
    if as_json:
        print(json.dumps({"path": out, "operators": packed.operators, "left_out": packed.left_out}))
        return
    for operator, name in packed.operators.items():
        print(f"{name}: torch.ops.passagent.{operator}")
    for name, why in packed.left_out:
        print(f"left out: {name}: {why}")
    print(f'use it: torch.compile(model, backend="passagent", options={{"passes": "{out}"}})')


def measure(
    spec: str, inputs: str | None, passes: str, modes: Sequence[str], out: str | None, as_json: bool
) -> None:
    """Time a model with and without passes; `out`: write the package without those that do not pay.

    Raises PassagentError, also where outputs are not eager's.
    """
    from passagent.deploy.loading import load_packages
    from passagent.deploy.model_timing import measure_model
    from passagent.deploy.package_writing import drop
    from passagent.tasks.extract.model_capture import load_model

    packages = load_packages(passes)
    measured = measure_model(load_model(spec, inputs), packages, modes or None)
    if out is not None:
        drop(packages[0], [*measured.losers, *measured.unused], Path(out))
    print(json.dumps(measured.data()) if as_json else measured)
    if measured.unequal:
        raise PassagentError(f"outputs are not eager's: {measured.unequal[0]}")


def explain(passes: str, spec: str, inputs: str | None, as_json: bool) -> None:
    """Print which pass fits where in a model, and which does not and why. Raises PassagentError."""
    from passagent.deploy.loading import load_packages
    from passagent.deploy.rewriting import explain_model
    from passagent.tasks.extract.model_capture import load_model

    explained = explain_model(load_model(spec, inputs), load_packages(passes))
    print(json.dumps(explained.data()) if as_json else explained)
