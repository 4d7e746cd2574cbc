"""What the database takes with and without its dictionaries, and how long a run takes to resume then.

    python benchmarks/search_overhead.py --nodes 1000 --queries --processes 1 --work PLACE
    python benchmarks/store_size.py PLACE --nodes 100000

PLACE holds a run that was really searched (see search_overhead.py). Each form is written into a copy of its
database and vacuumed: bytes a node beyond the candidates' files, as search_overhead.py counts them. With
`--nodes` the copies are grown to so many nodes, a process is killed (-9) in the middle of the search, and the
time until its work is resumed is taken, the imports left out.

- as it is: messages and evaluations compressed, each with another one as the dictionary
- zlib alone: the same without dictionaries
- plain JSON: nothing compressed but the candidates' files (passagent cannot search on in it)

Raw results go to benchmarks/results/store-size-cpu-<date>.json.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluator_repeatability import keep
from search_overhead import ROOT, ask, summary

from passagent.store import Store, conversations
from passagent.store.packing import pack, unpack


def rewrite(source: Path, target: Path, written: Callable[[bytes], bytes | str]) -> None:
    """Write a copy of the database with all texts `written` in another way, without dictionaries."""
    with Store.open(source.parent, create=False) as store, sqlite3.connect(target) as copy:
        for row in store.rows("SELECT id, base, body FROM messages"):
            text = unpack(row["body"], conversations.dictionary(store, row["base"]))
            copy.execute("UPDATE messages SET base = NULL, body = ? WHERE id = ?", (written(text), row["id"]))
        for row in store.rows(
            "SELECT evaluations.id, result, samples, example FROM evaluations "
            "JOIN conditions ON conditions.id = conditions_id"
        ):
            result = written(unpack(row["result"], row["example"].encode()))
            samples = written(unpack(row["samples"])) if row["samples"] else None
            copy.execute(
                "UPDATE evaluations SET result = ?, samples = ? WHERE id = ?", (result, samples, row["id"])
            )
        # an empty example: what is found for an evaluation then has nothing in common with it
        copy.execute("UPDATE conditions SET example = '{}'")
    copy.execute("VACUUM")
    copy.close()


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
    parser.add_argument("--nodes", type=int, help="grow copies to so many, and resume")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--islands", type=int, default=8)
    parser.add_argument("--task", default=str(ROOT / "examples/tasks/add_rms_norm"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    source = args.place / "runs/passagent.db"
    forms: dict[str, Any] = {"as it is": None, "zlib alone": pack, "plain JSON": bytes.decode}
    data: dict[str, Any] = {"arguments": {"nodes": args.nodes, "islands": args.islands}, "forms": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for name, written in forms.items():
            place = Path(scratch) / "work"
            shutil.copytree(args.place, place)
            if written:
                rewrite(source, place / "runs/passagent.db", written)
            found: dict[str, Any] = {"bytes_a_node": bytes_a_node(place / "runs/passagent.db")}
            if args.nodes and name != "plain JSON":
                found["resume"] = resume_s(args, place)
            data["forms"][name] = found
            size = f"{name:12} {found['bytes_a_node']:8,.0f} bytes a node"
            print(size, found.get("resume", ""), flush=True)
            shutil.rmtree(place)
    print(keep("store-size", "cpu", args.out, summary(data)))


if __name__ == "__main__":
    main()
