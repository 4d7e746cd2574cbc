"""How long the page takes over a run of 100,000 nodes: in the server, and until a browser has painted it.

    python benchmarks/page.py --work PLACE

PLACE keeps the run, which is made there once: 1,000 nodes really searched, then copied (search_overhead.py).
For each page: the time of an answer over HTTP on this machine, the best and the median of `--times`,
the CPU time that the server took for one, and its size as sent (gzip). `poll`: what a page asks every two
seconds, answered with 304 where nothing changed; `poll, changed`: after another process has committed, with
the page anew. `paint`: chromium's first contentful paint of the run's page, and until its charts are drawn,
each in a fresh browser context. Other programs slow all but the CPU time: the load of the machine is stored.

Raw results go to benchmarks/results/page-cpu-<date>.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from evaluator_repeatability import keep
from search_overhead import ROOT, SEEDED, ask, summary

from passagent.store import Store, confirmations, runs

TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def make(work: Path, nodes: int, islands: int = 8) -> None:
    """The run in `work`, unless it is there."""
    if (work / "runs/passagent.db").exists():
        return
    work.mkdir(parents=True, exist_ok=True)
    task = str(ROOT / "examples/tasks/add_rms_norm")
    fixed = {"preset": "default", "set": [], "episodes": 0, "kill": 0, "past": 0, "until": 0}
    args = argparse.Namespace(task=task, islands=islands, work=work, **fixed)
    ask(args, "prepare")
    ask(args, "search", episodes=islands)
    ask(args, "search", episodes=SEEDED - islands)
    ask(args, "grow", nodes=nodes)


def cpu_ms(pid: int) -> float:
    """CPU time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_MS


def fetch(address: str, tag: str | None = None) -> tuple[int, int, str | None]:
    """Status, bytes sent and ETag."""
    headers = {"Accept-Encoding": "gzip"} | ({"If-None-Match": tag} if tag else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
            return answer.status, len(answer.read()), answer.headers["ETag"]
    except urllib.error.HTTPError as error:
        return error.code, 0, error.headers["ETag"]


def timed(pid: int, times: int, address: str, before: Any = None, tag: str | None = None) -> dict[str, Any]:
    """The times of an address, with `before` called before each."""
    taken, size, status = [], 0, 0
    began = cpu_ms(pid)
    for _ in range(times):
        if before:
            before()
        start = time.perf_counter()
        status, size, _ = fetch(address, tag)
        taken.append((time.perf_counter() - start) * 1e3)
    cpu = (cpu_ms(pid) - began) / times
    return {"best_ms": min(taken), "median_ms": statistics.median(taken), "cpu_ms": cpu, "bytes": size,
            "status": status, "times_ms": taken}  # fmt: skip


def painted(address: str, times: int) -> dict[str, Any]:
    """What a browser sees of the run's page."""
    sys.path.insert(0, str(ROOT / "checks"))
    from browser import browser

    paints, charts = [], []
    first = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    with browser() as chromium:
        for _ in range(times):
            with chromium.page() as page:
                page.goto(address)
                paints.append(page.wait_for_function(first).json_value())
                page.wait_for_selector("#figures svg.chart")
                charts.append(page.evaluate("performance.now()"))
    return {"first_paint_ms": paints, "charts_ms": charts}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="where the run is made; kept")
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    make(args.work, args.nodes)
    place = args.work / "runs"
    with Store.open(place, create=False) as store:
        run = next(run for run in runs.list_runs(store) if run.model != "past")
        best = confirmations.winner(store, run.id)
        assert best is not None
        command = [str(Path(sys.executable).with_name("passagent")), "view", str(place), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            at = server.stdout.readline().strip().rstrip("/")
            page = f"{at}/run/{run.id}"

            def commit() -> None:
                store.execute("UPDATE runs SET elapsed_s = elapsed_s + 1 WHERE id = :run", {"run": run.id})

            found = {"load": os.getloadavg()}
            for name, address in (
                ("runs", f"{at}/"), ("run", page), ("run, now", f"{page}/now"), ("tree", f"{page}/tree"),
                ("run, charts and tables", f"{page}/figures"), ("node", f"{at}/node/{best.id}"),
            ):  # fmt: skip
                fetch(address)
                found[name] = timed(server.pid, args.times, address, commit)
            tag = fetch(f"{page}/now")[2]
            found["poll"] = timed(server.pid, args.times * 10, f"{page}/now", None, tag)
            found["poll, changed"] = timed(server.pid, args.times * 5, f"{page}/now", commit)
            found["paint"] = painted(page, max(3, args.times // 4))
            server.terminate()
    for name, one in found.items():
        if isinstance(one, dict) and "best_ms" in one:
            print(
                f"{name:24} {one['best_ms']:8.1f} {one['median_ms']:8.1f} ms  {one['cpu_ms']:7.1f} ms CPU "
                f"{one['bytes'] / 1e3:7.1f} kB  {one['status']}"
            )
    for name, values in found["paint"].items():
        print(f"{name:24} {min(values):8.0f} {statistics.median(values):8.0f} ms")
    arguments = {"nodes": args.nodes, "times": args.times}
    print(keep("page", "cpu", args.out, summary({"arguments": arguments, "page": found})))


if __name__ == "__main__":
    main()
