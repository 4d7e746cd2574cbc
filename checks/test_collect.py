"""A collection of 8 tasks, two trials each, is killed five times: nothing is made or paid twice.

`make check-long` runs this. The tasks are variants of the shipped examples; the model is a server on
127.0.0.1, which counts; candidates are judged at once.
"""

import itertools
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import paid_collection  # noqa: E402
import pytest  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_library")

TASKS, TRIALS, KILLS = 8, 2, 5


def write_variants(path):
    """Copies of the examples, their graphs' sources made different by a remark."""
    examples = sorted(one for one in (ROOT / "examples/tasks").iterdir() if one.is_dir())
    for number, example in zip(range(TASKS), itertools.cycle(examples), strict=False):
        task = path / f"{example.name}_{number:02}"
        shutil.copytree(example, task)
        for model in task.rglob("model.py"):
            model.write_text(f"# variant {number}\n{model.read_text()}")
    return sorted(map(str, path.iterdir()))


def test_killed_five_times(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    paid_collection.preload()
    (tmp_path / "tasks").mkdir()
    lost = paid_collection.collect_with_kills(
        tmp_path, write_variants(tmp_path / "tasks"), TRIALS, KILLS, seed=2
    )
    assert 0 < lost <= KILLS * 4
