"""What the database takes a node, and how long a run takes to resume.

    python benchmarks/search_overhead.py --nodes 1000 --queries --work PLACE
    python benchmarks/store_size.py PLACE --nodes 100000

PLACE holds a run that was really searched (see search_overhead.py). A copy of its database is vacuumed: bytes
a node beyond the candidates' files, as search_overhead.py counts them; at most 16 kB. With `--nodes` the copy
is grown to so many nodes, a process is killed (-9) in the middle of the search, and the time until its work
is resumed is taken, the imports left out.

Raw results go to benchmarks/results/store-size-cpu-<date>.json.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from evaluator_repeatability import keep
from search_overhead import ROOT, ask, summary


def bytes_a_node(database: Path) -> float:
    """Of the database at rest, beyond the candidates' files."""
    connection = sqlite3.connect(database)
    connection.execute("VACUUM")
    [(files, nodes)] = connection.execute(
        "SELECT (SELECT sum(length(content)) FROM files), (SELECT count(*) FROM nodes)"
    )
    connection.close()
    return (database.stat().st_size - files) / nodes


def resume_s(args: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Seconds until a run of `args.nodes` nodes goes on after kill -9, and the size of its database, MB."""
    given = {"task": args.task, "preset": "default", "set": [], "islands": args.islands, "episodes": 0}
    asked = argparse.Namespace(**given, work=place, kill=0, past=0, until=0)
    ask(asked, "grow", nodes=args.nodes)
    times = []
    for _ in range(args.rounds):
        ask(asked, "search", episodes=50, kill=args.islands)
        times.append(ask(asked, "search")["resume_s"])
    size = sum(path.stat().st_size for path in (place / "runs").glob("passagent.db*")) / 1e6
    return {"seconds": times, "mb": size}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("place", type=Path, help="`--work` of search_overhead.py")
    parser.add_argument("--nodes", type=int, help="grow a copy to so many, and resume")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--islands", type=int, default=8)
    parser.add_argument("--task", default=str(ROOT / "examples/tasks/add_rms_norm"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data: dict[str, Any] = {"arguments": {"nodes": args.nodes, "islands": args.islands}}
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "work"
        shutil.copytree(args.place, place)
        data["bytes_a_node"] = bytes_a_node(place / "runs/passagent.db")
        print(f"{data['bytes_a_node']:,.0f} bytes a node", flush=True)
        if args.nodes:
            data["resume"] = resume_s(args, place)
            print(data["resume"], flush=True)
    print(keep("store-size", "cpu", args.out, summary(data)))


if __name__ == "__main__":
    main()
