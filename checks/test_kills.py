"""Many kills at random moments: what the default suite does a few times."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

import test_ledger  # noqa: E402
import test_queue  # noqa: E402
from many import forks  # noqa: E402, F401

pytestmark = pytest.mark.usefixtures("no_library", "forks")


def test_fifteen_kills_leave_the_same_tree(tmp_path: Path) -> None:
    test_queue.random_kills(tmp_path, kills=15, iters=27)


def test_six_kills_leave_the_same_ledger(tmp_path: Path) -> None:
    test_ledger.random_kills(tmp_path, kills=6, iters=14)
