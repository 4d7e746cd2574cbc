"""What an export takes at 10,000 episodes: time and the largest memory of `passagent export`, by format.

    python benchmarks/export_throughput.py
    python benchmarks/export_throughput.py --episodes 1000 10000 --formats trl passagent

The episodes are those of search_overhead.py: a search on the defaults whose model and evaluator answer at
once, up to 1,000 episodes, grown by copies of its rows. An episode is one model call that writes two files
and has them evaluated, behind the whole prompt. Each export is a process of its own; beside it stands the
least that any export must do: sqlite3's own dump of the same database.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SEARCHED = 1000
"""Episodes that are really searched before copies are made."""


_CHILD = """
import os, resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Starts a command from a small process: what a new one takes counts from what its parent had."""

AS_JUDGED = """
CREATE TEMP TABLE keys (files PRIMARY KEY, candidate_key);
INSERT OR IGNORE INTO keys SELECT files, candidate_key FROM nodes ORDER BY id;
UPDATE nodes SET candidate_key = (SELECT candidate_key FROM keys WHERE keys.files = nodes.files);
CREATE TEMP TABLE judged (id INTEGER PRIMARY KEY, candidate_key);
INSERT OR IGNORE INTO judged SELECT evaluation_id, candidate_key FROM nodes WHERE evaluation_id IS NOT NULL;
UPDATE evaluations SET candidate_key = (SELECT candidate_key FROM judged WHERE judged.id = evaluations.id)
    WHERE id IN (SELECT id FROM judged);
"""
"""Copies have keys of their own: they get those of their originals again."""


def measured(words: list[str], where: Path) -> dict[str, Any]:
    """Seconds and the largest memory (MB) of a command."""
    began = time.perf_counter()
    command = [sys.executable, "-S", "-c", _CHILD, *words]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    return {"seconds": round(time.perf_counter() - began, 2), "memory_mb": round(int(done.stdout) / 1024)}


def build(work: Path, task: str, sizes: list[int]) -> dict[int, Path]:
    """A runs directory of each size."""
    from instant import grow
    from search_overhead import go_on, open_run, prepare

    from passagent.tasks.examples import locate

    work.mkdir()
    prepare(str(locate(task)), work)
    args = argparse.Namespace(work=work, task=str(locate(task)), islands=8, preset=None, set=[])
    session = open_run(args, {}, lambda event: None)
    go_on(session, SEARCHED)
    session.store.close()
    places = {}
    for size in sizes:
        places[size] = work / str(size) / "runs"
        shutil.copytree(work / "runs", places[size])
        grow(places[size] / "passagent.db", session.run.id, size, lower=0.0)
        with sqlite3.connect(places[size] / "passagent.db") as database:
            database.executescript(AS_JUDGED)
    return places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--task", default="example:add_layer_norm")
    parser.add_argument("--episodes", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--formats", nargs="+", default=["passagent", "trl", "openai", "atif"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    from passagent.sandbox.environment import describe

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    data: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip(),
        "machine": describe("cpu", 1),
        "sizes": {},
    }
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        for size, runs in build(work / "made", args.task, args.episodes).items():
            rows = data["sizes"][size] = {
                "database_mb": round((runs / "passagent.db").stat().st_size / 2**20)
            }
            dump = "import sqlite3, sys\nfor line in sqlite3.connect(sys.argv[1]).iterdump(): print(line)"
            rows["sqlite3 dump"] = measured([sys.executable, "-c", dump, str(runs / "passagent.db")], work)
            for form in args.formats:
                for by in ("episode", "step") if form == "trl" else ("episode",):
                    name = f"{form}, by {by}"
                    out = work / f"{form}-{by}-{size}"
                    command = [sys.executable, "-m", "passagent", "export", "--format", form, "--by", by]
                    rows[name] = measured([*command, "--out", str(out), "--runs-dir", str(runs)], work)
                    rows[name]["examples"] = json.loads((out / "export.manifest").read_text())["examples"]
                    rows[name]["mb"] = round(sum(f.stat().st_size for f in out.iterdir()) / 2**20)
                    shutil.rmtree(out)
            for name, row in rows.items():
                print(f"{size:>6} episodes  {name:22} {row}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
