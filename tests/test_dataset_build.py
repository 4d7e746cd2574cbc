"""`passagent tasks build`: whole builds of tiny samples, gone on with, killed, two at once, checked."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from graphs_to_fold import LAYER, OTHER, write_graph

import passagent as pa
from passagent.tasks.constraints import check_task

pytestmark = pytest.mark.long

BUILD = ["tasks", "build", "samples", "--out", "data", "--shapes", "2", "--parallel", "2",
         "--most-refused", "1"]  # fmt: skip

BAD = {
    "nan": "        x{j} = torch.log(x{i} - 100)\n",
    "fails": "        x{j} = x{i} @ w{i} @ x{i}\n",
    "missing_package": "        import unheard_of\n        x{j} = unheard_of.act(x{i})\n",
    "not_captured": "        x{j} = x{i}\n        if x{i}.sum() > 0:\n            x{j} = -x{i}\n",
}
"""A sample for each reason, which is its name."""


def command(cwd: Path, *words: str, **more):
    return subprocess.run(
        [sys.executable, "-m", "passagent", *words],
        cwd=cwd, capture_output=True, text=True, check=False, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    place = tmp_path_factory.mktemp("dataset")
    write_graph(place / "samples" / "one", 4)
    write_graph(place / "samples" / "two", 3, body=LAYER.replace("gelu", "silu"))
    write_graph(place / "samples" / "other", 3, body=OTHER)
    for name, body in BAD.items():
        write_graph(place / "samples" / name, 1, body=body)
    return place


@pytest.fixture(scope="module")
def built(samples):
    done = command(samples, *BUILD)
    assert done.returncode == 0, done.stderr
    return samples / "data", done


def listed(data: Path) -> dict[str, list[str]]:
    return {path.name: path.read_text().split() for path in sorted((data / "lists").iterdir())}


def test_a_build_makes_tasks_of_each_kind_that_are_in_order(built):
    data, done = built
    assert "samples/nan: nan: an output is NaN" in done.stderr
    record = json.loads((data / "dataset.json").read_text())
    assert record["funnel"][0]["lost"] == dict.fromkeys(BAD, 1)
    assert {path.name for path in (data / "tasks").iterdir()} == {"classical", "fusible", "single"}
    assert all(step["in"] - step["out"] == sum(step["lost"].values()) for step in record["funnel"]
               if step["step"] not in ("groups", "split"))  # fmt: skip
    for lines in listed(data).values():
        for line in lines:
            results = check_task(data / "lists" / line)
            assert all(result.ok for result in results), results
    sizes = json.loads(next((data / "tasks/classical").glob("*/*/graph_net.json")).read_text())
    assert sizes["origin"]["sample"].startswith("samples/")


def test_looking_at_a_data_set(built, tmp_path):
    data, _ = built
    assert "share nothing" in command(data, "check", ".").stdout
    stats = command(data, "show", ".").stdout
    assert "validate" in stats and "train_single" in stats
    name = next((data / "tasks/classical").iterdir()).name
    shown = command(data, "show", f"tasks/classical/{name}").stdout
    assert "class GraphModule" in shown and "from sample samples/" in shown
    told = command(data, "show", ".", "1")
    assert told.returncode == 2 and "has no rows" in told.stderr
    check = ("tasks", "check", "lists/train_single.txt", "--against")
    leaks = command(data, *check, "lists/train_single.txt")
    assert leaks.returncode == 1
    assert leaks.stdout.count("has a subgraph of") == leaks.stdout.count("\n")
    apart = command(data, *check, "example:quick_gelu")
    assert apart.returncode == 0, apart.stderr
    assert command(data, "check", ".", "--against", "lists/train_single.txt").returncode == 1
    other = shutil.copytree(data, tmp_path / "copy")
    file = next((other / "tasks/single").glob("*/*/graph_hash.txt"))
    file.write_text("1:0\n")
    told = command(other, "check", ".")
    assert told.returncode == 1 and "has not the hash that is recorded" in told.stderr
    assert command(tmp_path, "check", "none").returncode == 2


def test_the_same_again_computes_nothing_and_changes_nothing(built):
    data, _ = built
    before = {path: path.stat().st_mtime_ns for path in data.glob("**/*.py")}
    results = {path: path.stat().st_mtime_ns for path in (data / "work").glob("*.jsonl")}
    record = pa.build_dataset(data.parent / "samples", out=data, shapes=2, parallel=1)
    assert record["tasks"] == json.loads((data / "dataset.json").read_text())["tasks"]
    assert before == {path: path.stat().st_mtime_ns for path in data.glob("**/*.py")}
    assert results == {path: path.stat().st_mtime_ns for path in (data / "work").glob("*.jsonl")}


def test_a_killed_build_goes_on_and_a_second_one_is_told_of_the_first(samples, built, tmp_path):
    shutil.copytree(samples / "samples", tmp_path / "samples")
    words = [sys.executable, "-m", "passagent", *BUILD]
    first = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
    while not (tmp_path / "data/work/validate_sample.jsonl").exists():
        assert first.poll() is None
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGSTOP)  # it must not end before the second one is there
    second = command(tmp_path, *BUILD)
    assert second.returncode == 2 and "works here; wait until it ends" in second.stderr
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert not (tmp_path / "data/dataset.json").exists() and not (tmp_path / "data/lists").exists()
    assert command(tmp_path, "check", "data").returncode == 2
    done = command(tmp_path, *BUILD)
    assert done.returncode == 0, done.stderr
    assert listed(tmp_path / "data") == listed(built[0])
    assert not list((tmp_path / "data/tasks").glob("*/.*"))


def test_gradients_are_tasks_and_too_many_refusals_are_a_failure(samples):
    done = command(samples, *BUILD[:-2], "--out", "trained", "--backward", "--evaluation", "0")
    assert done.returncode == 1 and "4 of 7 samples are refused" in done.stderr
    assert {"train_forward", "train_backward"} <= {
        path.name for path in (samples / "trained/tasks").iterdir()
    }
    for path in (samples / "trained/tasks/train_backward").iterdir():
        assert all(result.ok for result in check_task(path)), path
