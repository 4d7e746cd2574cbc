"""Collections whose model is a server's and whose candidates are judged at once, and their `kill -9`."""

from __future__ import annotations

import collections
import hashlib
import json
import multiprocessing
import multiprocessing.process
import os
import random
import re
import threading
import time
from pathlib import Path
from typing import Any

import paid_run
import tiny_search
from wire_server import CHECK, Said, WireServer

from passagent.data.collect import trials
from passagent.store import Store

FORKS = multiprocessing.get_context("forkserver")
MODEL = "openai/m-1"
QUICK = ["--model", MODEL, "--set", "model.max_output_tokens=400"]
STEPS = 3
"""Model calls of a conversation with `brain`: two candidates, and an end."""


def write_tasks(path: Path, count: int) -> list[str]:
    """Variants of one task, each another graph."""
    for number in range(count):
        task = tiny_search.write_task(path / f"task{number:02}")
        model = task / "graphs/g/model.py"
        model.write_text(model.read_text().replace("relu(in_0)", f"relu(in_0 + {number}.5)"))
    return sorted(str(task) for task in path.iterdir())


def brain(body: dict[str, Any]) -> Said:
    """Two candidates in a conversation; all is fixed by the task and the episode's seed."""
    messages = body["messages"]
    text = json.dumps(messages[:2])
    if "# Task" not in text:
        return Said(calls=[("c", "report", '{"word": "ready"}')], key=CHECK)
    task = re.search(r"# Task (\w+)", text)
    seed = re.search(r"Episode seed: (\d+)", text)
    assert task and seed
    step = sum(message["role"] == "assistant" for message in messages)
    words = f"{task.group(1)} {seed.group(1)} {step}"
    digest = hashlib.sha256(words.encode()).digest()
    calls = []
    if step < STEPS - 1:
        for name, content in tiny_search.candidate_files(words).items():
            arguments = {"command": "create", "path": name, "file_text": content}
            if step and name != "Fused.py":
                continue
            if step:
                old = tiny_search.candidate_files(f"{task.group(1)} {seed.group(1)} {step - 1}")[name]
                arguments = {"command": "str_replace", "path": name, "old_str": old, "new_str": content}
            calls.append((f"c{step}_{len(calls)}", "file_editor", json.dumps(arguments)))
        calls.append((f"c{step}_e", "pass_evaluator", "{}"))
    return Said(
        text="" if calls else "That is all. " * 60,  # long enough to be packed against the task
        calls=calls,
        input_tokens=1000 + digest[0],
        output_tokens=100 + digest[1],
        key=(task.group(1), seed.group(1), step),
    )


def preload() -> None:
    """Processes are forked from one that has imported everything: a start takes no time."""
    FORKS.set_forkserver_preload(["paid_run", "passagent.data.collect.campaign", "openai"])


def start(server: WireServer, out: Path, *words: object) -> multiprocessing.process.BaseProcess:
    """`passagent collect WORDS` in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "PASSAGENT"))}
    kept["PASSAGENT_LIBRARY"] = "off"  # it hashes each task in a process that imports torch
    environment = kept | {"OPENAI_BASE_URL": f"{server.url}/v1"} | paid_run.SECRETS
    process = FORKS.Process(
        target=paid_run.child, args=(environment, str(out), ["collect", *map(str, words)])
    )
    process.start()
    return process


def pairs_in(runs_dir: Path) -> collections.Counter[tuple[str, int]]:
    """How often each task and trial is in a database, and that each came to its end."""
    with Store.open(runs_dir, create=False) as store:
        found = trials.outcomes(store)
        assert {outcome.state for outcome in found} <= {"finished"}
    return collections.Counter((one.task, one.trial) for one in found)


def check_ledger(runs_dir: Path, server: WireServer) -> int:
    """The database's calls are the server's, but for what was lost in flight; how many calls were lost."""
    with Store.open(runs_dir) as store:
        rows = store.rows("SELECT state, input_tokens, output_tokens FROM calls")
        sums = store.row("SELECT sum(input_tokens) AS a, sum(output_tokens) AS b, count(*) AS n FROM runs")
        steps = store.row("SELECT sum(steps) AS n FROM episodes")
    assert sums and steps
    states = collections.Counter(row["state"] for row in rows)
    assert set(states) <= {"done", "lost"}
    sent = collections.Counter(entry.key for entry in server.ledger)
    usage = {entry.key: (entry.input_tokens, entry.output_tokens) for entry in server.ledger}
    again = {key: count - 1 for key, count in sent.items() if count > 1}
    assert states["done"] == len(sent) == steps["n"] == STEPS * sums["n"]
    assert sum(again.values()) <= states["lost"]
    extra = [sum(usage[key][i] * n for key, n in again.items()) for i in (0, 1)]
    assert (sums["a"], sums["b"]) == (server.billed[0] - extra[0], server.billed[1] - extra[1])
    assert sums["a"] == sum(row["input_tokens"] for row in rows)
    return states["lost"]


def collect_with_kills(tmp_path: Path, tasks: list[str], count: int, kills: int, seed: int) -> int:
    """Collect with so many `kill -9` at random moments; the lost calls. Each pair is made once."""
    words = [*tasks, "--runs-dir", tmp_path / "runs", "--trials", count, "--parallel", 4, *QUICK]
    rng, change, allowed, answers = random.Random(seed), threading.Condition(), 0, 0
    share = len(tasks) * count * STEPS // (kills + 1)

    def gated(body: dict[str, Any]) -> Said:
        """So many replies between two kills, so that there is work left for after the last one."""
        nonlocal answers
        if (said := brain(body)).key == CHECK:
            return said
        with change:
            change.wait_for(lambda: answers < allowed)
            answers += 1
        return said

    def allow(more: int) -> None:
        nonlocal allowed
        with change:
            allowed = answers + more
            change.notify_all()

    with WireServer(gated, seconds=0.01) as server:
        for _ in range(kills):
            seen = len(server.ledger)
            wanted = rng.randint(1, share)
            allow(wanted)
            process = start(server, tmp_path / "out", *words)
            # the moment: after so many replies of this process, and a little
            while process.exitcode is None and len(server.ledger) < seen + wanted:
                time.sleep(0.005)
            time.sleep(rng.random() * 0.1)
            assert process.exitcode is None, (tmp_path / "out").read_text()[-3000:]
            process.kill()
            process.join()
        allow(10**6)
        process = start(server, tmp_path / "out", *words)
        process.join(300)
        assert process.exitcode == 0, (tmp_path / "out").read_text()[-3000:]
        lost = check_ledger(tmp_path / "runs", server)
    made = pairs_in(tmp_path / "runs")
    assert len(made) == len(tasks) * count and set(made.values()) == {1}
    return lost
