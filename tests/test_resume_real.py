"""`passagent run` itself, with the expert and the real evaluator: killed, resumed, exported, judged again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny

from passagent.store import Store, nodes, runs, sessions

PASSAGENT = [sys.executable, "-m", "passagent"]
FEW = ["budget_s=0.2"]


@pytest.mark.long
def test_killed_and_resumed(tmp_path: Path) -> None:
    task, runs_dir = tiny.write_task(tmp_path / "task"), tmp_path / "runs"
    environment = os.environ | {"PASSAGENT_RUNS_DIR": str(runs_dir)}
    settings = [word for pair in FEW for word in ("--set", f"evaluator.{pair}")]
    words = [*PASSAGENT, "run", str(task), "--iters", "2", "--islands", "2", "--seed", "1", *settings]
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None and not (evaluating(runs_dir) and children_of(process.pid)):
        time.sleep(0.1)
    assert process.poll() is None, process.stderr and process.stderr.read()
    children = children_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until_gone(children)

    done = subprocess.run(
        [*PASSAGENT, "resume", "last", "--json"], env=environment, capture_output=True, text=True, check=True
    )
    data = json.loads(done.stdout)
    assert (data["state"], data["episodes"]) == ("finished", 2)
    with Store.open(runs_dir) as store:
        found = nodes.of_run(store, data["run"])
        assert data["nodes"] == len(found) == len({(node.episode_id, node.call_id) for node in found})
        assert nodes.unfinished(store, data["run"]) == []
        assert not sessions.is_driven(store, data["run"])
    assert data["best"]["graphs"][0]["status"] == "ok"


def evaluating(runs_dir: Path) -> bool:
    """Whether a node of the run waits for its evaluation."""
    if not (runs_dir / "passagent.db").exists():
        return False
    with Store.open(runs_dir) as store:
        return any(nodes.unfinished(store, run.id) for run in runs.list_runs(store))


def children_of(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(rest[1]) == parent:
            found.append(pid)
    return found


def wait_until_gone(pids: list[int]) -> None:
    """The evaluator's processes end with their parent."""
    for _ in range(300):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return
        time.sleep(0.1)
    raise AssertionError(f"left behind: {pids}")
