"""Make the exemplars that the wheel ships: the expert's passes for tasks, each evaluated on this machine.

    python benchmarks/make_exemplars.py TASKS... [--work exemplars.jsonl] [--max-minutes 20] [--out FILE]

Goes on where it was left: what was evaluated is in --work. A pass is shipped if it is correct on every graph
of its task and the lower end of its AS's interval is above 1. The file holds hashes and passes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from importlib.metadata import version
from pathlib import Path

import passagent as pa
from passagent.errors import PassagentError
from passagent.experience.exemplars import shape_class
from passagent.expert.choices import start
from passagent.expert.expert_model import candidate
from passagent.sandbox.environment import device_name
from passagent.store.pass_library import licence_of
from passagent.tasks.extract.structural_hash import hash_subgraph
from passagent.tasks.tasklist import find_tasks

OUT = Path(__file__).resolve().parents[1] / "knowledge" / "exemplars" / "expert-cpu.jsonl.gz"
ROLES = ("fusion", "launch")
SETTINGS = {"evaluator.budget_s": 0.1}
NAMES = (
    "task", "instances", "structures", "operators", "shapes", "files", "target", "device", "as_score",
    "as_low", "as_high", "author", "licence",
)  # fmt: skip


def evaluated(path: Path, evaluator: pa.Evaluator) -> dict[str, object]:
    """A task's best pass of the expert as an exemplar, or why there is none."""
    task = pa.load_task(path)
    best = None
    for role in ROLES:
        files, _ = candidate(str(path), "cpu", start("cpu", role))
        if not files:
            return {"task": task.name, "why": "the expert fuses nothing"}
        found = evaluator.evaluate(path, files).evaluation
        score = found.as_score or 0.0
        if found.status == "ok" and (best is None or score > best[0].as_score):
            best = found, files
        if best is None or (best[0].as_low or 0) > 1:
            break
    if best is None:
        return {"task": task.name, "why": f"not correct: {found.status}"}
    found, files = best
    hashes = [hash_subgraph(one) for one in task.subgraphs]
    return {
        "task": task.name,
        "instances": sorted({one.instance for one in hashes}),
        "structures": sorted({one.structure for one in hashes}),
        "operators": list(task.operators),
        "shapes": sorted({shape_class(one.inputs) for one in task.subgraphs}),
        "files": files,
        "target": "cpu",
        "device": f"{device_name('cpu')}, torch {version('torch')}",
        "as_score": round(found.as_score or 0.0, 4),
        "as_low": round(found.as_low or 0.0, 4),
        "as_high": round(found.as_high or 0.0, 4),
        "author": "expert",
        "licence": licence_of("expert"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--work", type=Path, default=Path("exemplars.jsonl"))
    parser.add_argument("--max-minutes", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    lines = given.work.read_text().splitlines() if given.work.is_file() else []
    done = {json.loads(line)["task"] for line in lines}
    until = time.monotonic() + 60 * given.max_minutes
    paths = [Path(path) for path in find_tasks(given.tasks, None)] if given.tasks else []
    paths = [path for path in paths if path.name not in done]
    paths.sort(key=lambda path: sum(file.stat().st_size for file in path.rglob("*.py")))
    with pa.Evaluator(device="cpu", settings=SETTINGS) as evaluator, given.work.open("a") as work:
        for path in paths:
            if time.monotonic() > until:
                break
            begun = time.monotonic()
            try:
                row = evaluated(path, evaluator)
            except PassagentError as error:
                row = {"task": path.name, "why": str(error)}
            row["task"] = path.name
            work.write(json.dumps(row) + "\n")
            work.flush()
            print(f"{path.name}: {row.get('why') or row['as_score']} ({time.monotonic() - begun:.0f} s)")
    rows = [json.loads(line) for line in given.work.read_text().splitlines()]
    good = [row for row in rows if "why" not in row and row["as_low"] > 1]
    text = "".join(json.dumps({name: row[name] for name in NAMES}) + "\n" for row in good)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{len(good)} of {len(rows)} tasks: {given.out}, {given.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
