"""What the framework costs: a search whose model and evaluator answer at once, at 100 to 100,000 nodes.

    python benchmarks/search_overhead.py
    python benchmarks/search_overhead.py --model-seconds 20 --evaluation-seconds 3 --scale 20

Everything but these two is the real thing, on the default settings: controller, store, policies, prompt,
agent loop, tools and workspace, hints, diagnosis. An iteration is an episode of one model call (it writes two
files and calls the evaluator) that leaves one new node. instant.py says what the two stand-ins answer.

First part. A run is really searched up to 1,000 nodes, then grown by copies of its rows to each size. In
`--rounds` over the sizes a process of its own opens a copy and makes `--window` real iterations, in blocks
of 100: iterations/s of the best and of the median block, and the same of CPU time, which other work on the
machine disturbs less. Then a process is killed (-9) in the middle of a search and the time until its work is
resumed is taken. At the sizes of `--queries` every context query is timed.

Second part (`--model-seconds`): 8 islands and one device, each reply and each evaluation takes its time,
divided by `--scale`; the share of the time in which the device is busy.

Raw results go to benchmarks/results/search-overhead-<date>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BORN = time.time()
ROOT = Path(__file__).resolve().parents[1]
BLOCK = 100
SEEDED = 1000
"""Nodes that are really searched before copies are made."""
QUERIES = 200
"""Times that each query is asked, with other arguments."""


def prepare(task_path: str, work: Path) -> None:
    """The expert's first candidate and its real evaluation, kept in `work`."""
    from evaluator_repeatability import expert_candidates

    from passagent.config import EvaluatorConfig
    from passagent.evaluator.judging.referee import Referee
    from passagent.tasks import load_task

    task = load_task(task_path)
    [candidate] = expert_candidates(task, "cpu", 1)
    with Referee(EvaluatorConfig()) as referee:
        evaluation = referee.evaluate(task, candidate)
    data = {"files": candidate.files, "evaluation": evaluation.model_dump(mode="json")}
    (work / "material.json").write_text(json.dumps(data))


def open_run(args: argparse.Namespace, times: dict[str, float], on_event: Any) -> Any:
    """The session of the run in `args.work` (a new one, or to go on), and the two stand-ins."""
    began = time.perf_counter()
    from instant import Author, InstantEvaluator, InstantModel, variants

    from passagent.config import load_config
    from passagent.evaluator.result import Evaluation
    from passagent.search.setup import Parts, new_run, open_session, stored_config, stored_task
    from passagent.store import Store, runs
    from passagent.tasks import load_task

    material = json.loads((args.work / "material.json").read_text())
    evaluator = InstantEvaluator(variants(Evaluation.model_validate(material["evaluation"])))
    model = InstantModel(Author(material["files"]))
    times["imports and stand-ins"] = time.perf_counter() - began
    began = time.perf_counter()
    store = Store.open(args.work / "runs")
    times["open"] = time.perf_counter() - began
    began = time.perf_counter()
    found = [run for run in runs.list_runs(store) if run.model != "past"]
    if found:
        run = found[0]
        config, task = stored_config(run), stored_task(run)
    else:
        settings = {"search.islands": args.islands, "search.iters": 1, "agent.max_evaluations": 1}
        settings["experience.library"] = "off"
        task = load_task(args.task)
        config = load_config(args.preset, settings | dict(pair.split("=") for pair in args.set))
        run = new_run(store, task, config)
    times["run, config and task"] = time.perf_counter() - began
    began = time.perf_counter()
    session = open_session(store, run, task, config, Parts(model, evaluator), on_event)
    times["session (measures the machine)"] = time.perf_counter() - began
    return session


def go_on(session: Any, episodes: int) -> None:
    """Search so many episodes more."""
    from passagent.config import override
    from passagent.search.controller import search
    from passagent.store import runs

    made = sum(island.episodes for island in runs.islands(session.store, session.run.id))
    config = session.config
    if episodes:
        config = override(config, {"search.iters": made + episodes})
    runs.update_run(
        session.store,
        session.run.id,
        config=config.model_dump_json(),
        iters=config.search.iters,
        model=session.run.model,
        device=session.run.device,
    )
    session.run, session.config = runs.get_run(session.store, session.run.id), config
    session.__post_init__()
    asyncio.run(search(session))


def search_part(args: argparse.Namespace) -> dict[str, Any]:
    """Make `args.episodes` iterations; the times of its blocks, memory, and the stand-ins' own time."""
    from passagent.search import controller
    from passagent.store.events import EpisodeBegun, EpisodeContinued

    marks: list[tuple[float, float]] = []
    first: list[float] = []

    def on_event(event: Any) -> None:
        if isinstance(event, EpisodeBegun | EpisodeContinued) and not first:
            first.append(time.perf_counter())

    async def expand(*given: Any) -> None:
        await run_episode(*given)
        marks.append((time.perf_counter(), time.process_time()))
        if args.kill and len(marks) == args.kill:
            os.kill(os.getpid(), signal.SIGKILL)

    run_episode, controller.expand = controller.expand, expand
    times: dict[str, float] = {}
    session = open_run(args, times, on_event)
    begun, memory = time.perf_counter(), rss()
    go_on(session, args.episodes)
    times["first claim"] = first[0] - begun
    times["the whole process"] = first[0] - time.perf_counter() + time.time() - BORN
    session.store.close()
    marks = marks[args.islands :]  # the first of each island warm the caches
    blocks = [
        {"wall_s": marks[i + BLOCK][0] - marks[i][0], "cpu_s": marks[i + BLOCK][1] - marks[i][1]}
        for i in range(0, len(marks) - BLOCK, BLOCK)
    ]
    share = (session.model.spent_s + session.evaluator.spent_s) / max(len(marks), 1)
    return {
        "blocks": blocks,
        "start_s": times,
        "resume_s": times["open"] + times["run, config and task"] + times["first claim"],
        "rss_before_mb": memory,
        "rss_mb": rss(),
        "stand_ins_ms": share * 1e3,
    }


def rss() -> float:
    """Resident memory of this process, MB."""
    status = Path("/proc/self/status").read_text()
    return round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1)


def query_part(args: argparse.Namespace) -> dict[str, Any]:
    """Times of each context query, ms."""
    from passagent.search.candidates import best_before
    from passagent.search.episode_context import attempts
    from passagent.search.islands import IslandView
    from passagent.search.setup import stored_config, stored_task
    from passagent.store import Store, episodes, nodes, runs

    store = Store.open(args.work / "runs")
    run = next(run for run in runs.list_runs(store) if run.model != "past")
    config, task = stored_config(run), stored_task(run)
    rng = random.Random(1)
    span = store.row("SELECT min(id) AS low, max(id) AS high FROM nodes WHERE run_id = :r", {"r": run.id})
    assert span
    chosen = [nodes.get_node(store, rng.randint(span["low"], span["high"])) for _ in range(QUERIES)]

    class Known:
        pass

    known = Known()
    known.__dict__.update(store=store, run=run, config=config, task=task, told={})
    asked = {
        "ancestors": lambda node: nodes.ancestors(store, node, 8),
        "siblings": lambda node: nodes.newest_before(
            store, episodes.get_episode(store, node.episode_id), 8, same_start=True
        ),
        "best of island": lambda node: nodes.best_of_island(store, run.id, node.island, 3),
        "elites with migrants": lambda node: IslandView(store, run.id, node.island).elites(3),
        "newest of the island": lambda node: nodes.newest_before(
            store, episodes.get_episode(store, node.episode_id), 4
        ),
        "best that an island knows of": lambda node: IslandView(store, run.id, node.island).best_before(
            node.number
        ),
        "best when a node was made": lambda node: best_before(store, node),
        "newest failures": lambda node: nodes.latest_failures(store, run.id, node.island, 4),
        "attempts shown in a prompt": lambda node: attempts(
            known,
            episodes.get_episode(store, node.episode_id),
            nodes.get_node(store, node.parent_id or node.id),
            node.number,
        ),
        "equal candidate before": lambda node: store.row(
            f"SELECT min(id) FROM nodes WHERE run_id = :r AND {nodes.SAME_PROGRAM} AND island = :i",
            {"r": run.id, "program": node.canonical_key, "i": node.island},
        ),
        "standing of the run": lambda node: runs.get_run(store, run.id),
    }
    found = {}
    for name, ask in asked.items():
        times = []
        for node in chosen:
            began = time.perf_counter()
            ask(node)
            times.append((time.perf_counter() - began) * 1e3)
        times.sort()
        found[name] = {
            "median_ms": statistics.median(times),
            "p95_ms": times[int(len(times) * 0.95)],
            "max_ms": times[-1],
        }
    return found


def grow_part(args: argparse.Namespace) -> dict[str, Any]:
    """Grow the run to `args.nodes`."""
    from instant import grow, past_runs

    from passagent.store import Store, runs

    with Store.open(args.work / "runs") as store:
        run = next(run for run in runs.list_runs(store) if run.model != "past")
        if args.past:
            past_runs(store, args.past)
    began = time.perf_counter()
    grow(args.work / "runs/passagent.db", run.id, args.nodes)
    return {"seconds": time.perf_counter() - began}


def busy_part(args: argparse.Namespace) -> dict[str, Any]:
    """Share of the time in which the one device is busy, after each island's first reply."""
    from passagent.store.events import EpisodeEnded

    done: list[float] = []
    times: dict[str, float] = {}
    session = open_run(
        args, times, lambda event: isinstance(event, EpisodeEnded) and done.append(time.time())
    )
    session.model.seconds = args.model_seconds / args.scale
    session.model.jitter = args.jitter
    session.evaluator.seconds = args.evaluation_seconds / args.scale
    began = time.monotonic()
    cpu = time.process_time()
    go_on(session, args.episodes)
    wall = time.monotonic() - began
    first = session.model.seconds
    return {
        "scale": args.scale,
        "jitter": args.jitter,
        "wall_s": wall,
        "busy_s": session.evaluator.busy_s,
        "busy": session.evaluator.busy_s / wall,
        "busy_after_first_replies": session.evaluator.busy_s / (wall - first),
        "cpu_s": time.process_time() - cpu,
        "episodes": len(done),
    }


def disk(work: Path) -> dict[str, int]:
    """Bytes of the candidates' files, as they lie in the database, and of all else in it (at rest)."""
    from passagent.store import Store

    with Store.open(work / "runs") as store:
        [row] = store.rows("SELECT sum(length(content)) AS files FROM files")
    whole = sum(path.stat().st_size for path in (work / "runs").glob("passagent.db*"))
    return {"database": whole - row["files"], "files": row["files"]}


def measure(args: argparse.Namespace, data: dict[str, Any], keep: Callable[[], None]) -> None:
    """The first part."""
    places = made(args, data)
    data["queries"], data["sizes"] = {}, {size: [] for size in args.nodes}
    for size in args.queries:
        data["queries"][size] = asked = ask(args, "queries", work=places[size])
        for name, times in asked.items():
            print(f"{size:>9,} {name:30} {times['median_ms']:7.3f} ms (95%: {times['p95_ms']:.3f})")
    for _ in range(args.rounds):
        for size in args.nodes:  # in turn: the machine is not as fast from one minute to the next
            place = args.work.with_name(f"{args.work.name}-measured")
            shutil.copytree(places[size], place)
            found = ask(args, "search", work=place, episodes=args.window + args.islands + 1)
            ask(args, "search", work=place, episodes=args.window, kill=args.islands)
            found["after_kill"] = ask(args, "search", work=place, episodes=0)
            shutil.rmtree(place)
            data["sizes"][size].append(found)
            keep()
    for place in places.values():
        shutil.rmtree(place)
    for size, rounds in data["sizes"].items():
        print(line(size, rounds))
    keep()


def made(args: argparse.Namespace, data: dict[str, Any]) -> dict[int, Path]:
    """Runs of the sizes that are asked for, each in a place of its own: searched up to SEEDED, then grown."""
    work, places, searched = args.work, {}, args.islands
    ask(args, "search", episodes=args.islands)
    for size in sorted({*args.nodes, *args.queries}):
        more = min(size, SEEDED) - searched
        if more:
            ask(args, "search", episodes=more)
            searched += more
        places[size] = work.with_name(f"{work.name}-{size}")
        shutil.copytree(work, places[size])
        if size > SEEDED:
            ask(args, "grow", work=places[size], nodes=size, past=size // 100)
    data["disk"] = {"nodes": searched, **disk(work)}
    one = data["disk"]["database"] / searched
    print(f"{one:,.0f} bytes of database a node (at {searched:,} really searched ones)", flush=True)
    return places


def line(size: int, rounds: list[dict[str, Any]]) -> str:
    """A row of the table."""
    blocks = [block for found in rounds for block in found["blocks"]]
    wall = [BLOCK / block["wall_s"] for block in blocks]
    cpu = [block["cpu_s"] / BLOCK * 1e3 for block in blocks]
    stand_ins, resume, whole = (
        statistics.median(times)
        for times in (
            [found["stand_ins_ms"] for found in rounds],
            [found["after_kill"]["resume_s"] for found in rounds],
            [found["after_kill"]["start_s"]["the whole process"] for found in rounds],
        )
    )
    return (
        f"{size:>9,} {max(wall):7.1f} {statistics.median(wall):7.1f} it/s  {min(cpu):6.2f} "
        f"{statistics.median(cpu):6.2f} ms CPU (stand-ins {stand_ins:.2f} ms)  "
        f"RSS {rounds[-1]['rss_before_mb']:.0f} -> {rounds[-1]['rss_mb']:.0f} MB  "
        f"resume {resume:.2f} s (whole process {whole:.2f} s)"
    )


def ask(args: argparse.Namespace, part: str, **options: Any) -> dict[str, Any]:
    """Run one part in a process of its own."""
    told = {**vars(args), **options, "part": part}
    told = {key: str(value) if isinstance(value, Path) else value for key, value in told.items()}
    command = [sys.executable, __file__, "--told", json.dumps(told)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if process.returncode == -signal.SIGKILL and options.get("kill"):
        return {}
    if process.returncode:
        raise SystemExit(f"{part}: ended with {process.returncode}")
    return json.loads(process.stdout.splitlines()[-1])


PARTS = {"search": search_part, "queries": query_part, "grow": grow_part, "busy": busy_part}


def told(text: str) -> None:
    """A part, in its own process."""
    args = argparse.Namespace(**json.loads(text))
    args.work = Path(args.work)
    if args.part == "prepare":
        prepare(args.task, args.work)
        print("{}")
    else:
        print(json.dumps(PARTS[args.part](args)))


def summary(data: dict[str, Any]) -> dict[str, Any]:
    """The machine and the versions."""
    import sqlite3

    from passagent.sandbox.environment import describe

    return {"environment": describe("cpu", 1) | {"sqlite": sqlite3.sqlite_version}, **data}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default=str(ROOT / "examples/tasks/add_rms_norm"))
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", nargs="*", default=[], help="settings, as passagent run takes them")
    parser.add_argument("--islands", type=int, default=8)
    parser.add_argument("--nodes", type=int, nargs="*", default=[104, 1000, 10_000, 100_000])
    parser.add_argument("--queries", type=int, nargs="*", default=[1000, 100_000, 1_000_000])
    parser.add_argument("--window", type=int, default=500, help="iterations at each size")
    parser.add_argument("--rounds", type=int, default=3, help="over the sizes")
    parser.add_argument("--model-seconds", type=float)
    parser.add_argument("--evaluation-seconds", type=float, default=3.0)
    parser.add_argument("--scale", type=float, default=20.0, help="divides both")
    parser.add_argument("--jitter", type=float, default=0.0, help="sd of the log of a reply's time")
    parser.add_argument("--episodes", type=int, default=240, help="of the second part")
    parser.add_argument("--work", type=Path, help="where the runs are made; kept")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--told", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.told:
        told(args.told)
        return
    from evaluator_repeatability import keep

    args.kill = args.past = 0
    # directories by their names: a machine's paths do not belong in the results
    given = {key: value.name if isinstance(value, Path) else value for key, value in vars(args).items()}
    arguments = {key: str(value).removeprefix(f"{ROOT}/") for key, value in given.items()}
    data: dict[str, Any] = {"arguments": arguments}
    name = "search-busy" if args.model_seconds else "search-overhead"
    with tempfile.TemporaryDirectory() as place:
        args.work = args.work or Path(place) / "work"
        args.work.mkdir(parents=True, exist_ok=True)
        if not (args.work / "material.json").exists():
            ask(args, "prepare")
        if args.model_seconds:
            data["busy"] = found = ask(args, "busy")
            print(
                f"device busy {found['busy']:.1%} ({found['busy_after_first_replies']:.1%} after the first "
                f"replies), {found['episodes']} episodes in {found['wall_s']:.0f} s"
            )
        else:
            measure(args, data, lambda: keep(name, "cpu", args.out, summary(data)) and None)
        print(keep(name, "cpu", args.out, summary(data)))


if __name__ == "__main__":
    main()
