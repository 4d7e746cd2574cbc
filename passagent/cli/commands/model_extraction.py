"""`passagent extract`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passagent.errors import PassagentError

if TYPE_CHECKING:
    from passagent.tasks.extract.extracting import Extracted


def extract(spec: str, inputs: str | None, dynamic: bool, out: str, as_json: bool) -> None:
    """Extract the model of `FILE.py:factory` into `out`. Raises PassagentError if a graph is not in order."""
    from passagent.tasks.extract.extracting import extract_model
    from passagent.tasks.extract.factories import load_model

    extracted = extract_model(load_model(spec, inputs), Path(out), dynamic)
    if as_json:
        print(json.dumps(_data(extracted)))
    else:
        print(_text(extracted))
    if not extracted.ok:
        raise PassagentError(f"{out}: {extracted.problems[0]}")


def extract_regions(spec: str, inputs: str | None, out: str, as_json: bool) -> None:
    """Cut the model of `FILE.py:factory` into tasks below `out`. Raises PassagentError if one is wrong."""
    from passagent.tasks.extract.factories import load_model
    from passagent.tasks.extract.region_tasks import extract_regions as extracted
    from passagent.view.text import table

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
        for text in (*(f"left out: {one}" for one in regions.refused), *problems):
            print(text)
        print(f"wrote {len(rows)} tasks below {out}, of {regions.seconds * 1e6:.0f} us of operators")
    if problems:
        raise PassagentError(f"{out}: {problems[0]}")


def _data(extracted: Extracted) -> dict[str, Any]:
    return {
        "path": str(extracted.path),
        "ok": extracted.ok,
        "breaks": extracted.breaks,
        "graphs": [
            {
                "name": graph.name,
                "operators": graph.operators,
                "runs": graph.runs,
                "structure": graph.hash and graph.hash.structure,
                "instance": graph.hash and graph.hash.instance,
                "passed": graph.validation.passed,
                "problems": graph.validation.problems,
                "is_exact": graph.validation.is_exact,
            }
            for graph in extracted.graphs
        ],
    }


def _text(extracted: Extracted) -> str:
    from passagent.tasks.extract.extracting import STAGES
    from passagent.view.text import table

    rows = []
    for graph in extracted.graphs:
        stages = f"{len(graph.validation.passed)} of {len(STAGES)}"
        outputs = "the model's, bit for bit" if graph.validation.is_exact else "close to the model's"
        outputs = outputs if "run" in graph.validation.passed else "not compared"
        rows.append([graph.name, str(graph.operators), str(graph.runs), stages, outputs])
    lines = [table(["graph", ">operators", ">runs", "validated", "outputs"], rows)]
    lines += [f"graph break at {one}" for one in extracted.breaks]
    lines += extracted.problems
    lines.append(f"wrote {extracted.path}")
    return "\n".join(lines)
