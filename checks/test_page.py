"""The page in a browser: every page of four databases, live and in one file, may complain of nothing.

`make check-web` runs this. playwright lives in an environment of its own (checks/environments.py).
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from browser import answers, browser, served, until
from environments import ROOT

sys.path.insert(0, str(ROOT / "tests"))

import tiny_search

from passagent.search import finalists
from passagent.store import Store, nodes, runs, sessions

MANY = 100_000
EVIL = "</script><script>alert(1)</script>\x1b[31m\u202e<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module", autouse=True)
def _path():
    """`passagent` is the checkout's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        yield


@pytest.fixture(scope="module")
def chromium(_path):
    with browser() as made:
        yield made


@pytest.fixture
def task(once):
    return once("task", tiny_search.write_task)


def search(task, runs_dir, iters, islands, seed=1):
    """A finished run."""
    command = [sys.executable, tiny_search.__file__, "run", task, runs_dir, iters, islands, seed, "0"]
    subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
def finished(task, once):
    """Two runs, one hostile candidate."""
    return once("finished", lambda place: make_finished(task, place))


def make_finished(task, place):
    search(task, place, 24, 4)
    search(task, place, 12, 2, seed=2)
    with Store.open(place) as store:
        store.execute("UPDATE calls SET cost = 0.01, output_tokens = 900")
        key = store.keep_files(nodes.get_files(store, nodes.get_node(store, 3)) | {"evil.py": EVIL})
        names = {
            "key": key,
            "note": EVIL,
            "told": json.dumps({"label": "x", "text": EVIL, "graphs": []}),
        }
        store.execute(
            "UPDATE nodes SET candidate_key = :key, note = :note, diagnosis = :told WHERE id = 3", names
        )
        text = f"task on a CPU, tier cheap\n  g (float32): 4.19 MB, 3 launches, {EVIL}"
        nodes.keep_profile(store, nodes.get_node(store, 3).run_id, key, False, text, "{}")
        store.execute("UPDATE nodes SET as_score = 9e999 WHERE id = 5", {})


@pytest.fixture
def many(task, once):
    """A run of 100,000 nodes: copies of those of a small one, nine more generations of them."""
    return once("many", lambda place: make_many(task, place))


def make_many(task, place):
    search(task, place, 100, 4)
    with Store.open(place) as store:
        made = len(nodes.of_run(store, runs.find_run(store, "last").id))
        columns = [row["name"] for row in store.rows("PRAGMA table_info(nodes)")]
        copied = {
            "id": "id + n * :made",
            "parent_id": "coalesce(parent_id, id) + (n / 2) * :made",
            "call_id": "call_id || ' ' || n",
            "repeat_of": "repeat_of + n * :made",
            "as_score": "as_score * (1 - 1e-6 * n)",
        }
        store.execute(
            "WITH RECURSIVE copies (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies WHERE n < :copies) "
            f"INSERT INTO nodes ({', '.join(columns)}) "
            f"SELECT {', '.join(copied.get(name, name) for name in columns)} FROM copies, nodes",
            {"made": made, "copies": MANY // made},
        )


class Live:
    """A search in a process of its own that goes on when it is told to."""

    def __init__(self, task, place) -> None:
        self.runs_dir, self.gate = place / "runs", tiny_search.Gate(place / "gate")
        self.gate.hold(9)
        command = [sys.executable, tiny_search.__file__, "run", task, self.runs_dir, "400", "2", "1"]
        environment = os.environ | {"HOLD": str(self.gate.path)}
        self.process = subprocess.Popen([*map(str, command)], env=environment, stdout=subprocess.DEVNULL)
        until(lambda: self.count() >= 2 and newest(self.runs_dir)[1], "the search makes nodes")

    def count(self):
        """Nodes so far."""
        if not (self.runs_dir / "passagent.db").exists():
            return 0
        with Store.open(self.runs_dir) as store:
            return store.rows("SELECT count(*) AS n FROM nodes WHERE state = 'done'")[0]["n"]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def live(task, tmp_path):
    made = Live(task, tmp_path)
    yield made
    made.kill()


def newest(runs_dir):
    """Its newest run, and the best node of it."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, "last")
        return run, finalists.winner(store, run.id)


def look_at_all(chromium, runs_dir, name):
    """Every page of the newest run."""
    run, best = newest(runs_dir)
    with served(runs_dir) as at:
        chromium.look(f"{at}/", f"{name}-runs")
        chromium.look(f"{at}/run/{run.id}", f"{name}-run", "#figures .sheet, #figures p:not(.wait)")
        chromium.look(f"{at}/run/{run.id}/tree", f"{name}-tree")
        chromium.look(f"{at}/run/{run.id}/episode/1", f"{name}-episode")
        chromium.look(f"{at}/task/{run.task_key}", f"{name}-task")
        chromium.look(f"{at}/node/{best.id}", f"{name}-node")
        other = best.parent_id or 1
        chromium.look(f"{at}/node/{best.id}/diff/{other}", f"{name}-diff")


def test_an_empty_and_a_missing_database(chromium, tmp_path):
    with served(tmp_path) as at:
        chromium.look(at, "missing", ".empty")
        with chromium.page() as page:  # it finds the database once it is there
            page.goto(at)
            page.wait_for_selector("text=holds no runs")
            Store.open(tmp_path).close()
            page.wait_for_selector("text=No runs")
        chromium.look(at, "empty", "text=No runs")


def test_a_finished_run(chromium, finished):
    look_at_all(chromium, finished, "finished")


def test_pages_of_many(chromium, finished):
    with served(finished) as at:
        chromium.look(f"{at}/hints", "hints")
        chromium.look(f"{at}/node/3", "hostile", "text=evil.py")
        chromium.look(f"{at}/node/5", "infinite")


def test_a_killed_run(chromium, live):
    live.kill()
    look_at_all(chromium, live.runs_dir, "killed")
    run, _ = newest(live.runs_dir)
    with served(live.runs_dir) as at, chromium.page() as page:
        page.goto(f"{at}/run/{run.id}")
        page.wait_for_selector(".status.interrupted")


def test_a_running_run_is_followed_whatever_restarts(chromium, live):
    look_at_all(chromium, live.runs_dir, "running")
    run, _ = newest(live.runs_dir)
    with chromium.page(quiet=False) as page:
        with served(live.runs_dir) as at:
            page.goto(f"{at}/run/{run.id}")
            page.wait_for_selector(".status.running")
            page.wait_for_selector("#figures svg.chart")
            live.gate.hold(20)
            page.wait_for_selector(f"#row-{live.count() + 1}")
        page.wait_for_selector("[data-state=offline]")
        live.gate.hold(40)
        until(lambda: live.count() >= 9, "the search goes on without the page")
        with served(live.runs_dir, port=at.rpartition(":")[2]):
            page.wait_for_selector(f"#row-{live.count()}")
            page.wait_for_selector("html:not([data-state])", state="attached")
            live.kill()
            page.wait_for_selector(".status.interrupted")


def test_a_hundred_thousand_nodes(chromium, many):
    look_at_all(chromium, many, "many")


def test_figures_are_those_of_the_command_line(chromium, finished):
    run, _ = newest(finished)
    told = subprocess.run(
        ["passagent", "show", run.id, "--json", "--runs-dir", finished],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    data = json.loads(told.stdout)
    chosen = random.Random(0).sample(data["tree"], 20)
    with served(finished) as at, chromium.page() as page:
        for row in chosen:
            page.goto(f"{at}/node/{row['node']}")
            shown = {
                one.get_attribute("data-figure"): one.inner_text().split("\n")[0].strip()
                for one in page.query_selector_all("[data-figure]")
            }
            assert shown["as"] == f"{row['as_score']:.4f}"
            assert shown["status"] == row["status"].replace("_", " ")
            assert shown["island"] == str(row["island"])
            assert shown["parent"] == (f"node {row['parent']}" if row["parent"] else "the task")
        page.goto(f"{at}/run/{run.id}")
        text = page.inner_text("#now")
        for figure in (f"{data['best']['as_score']:.3f}", f"node {data['best']['node']}", data["state"]):
            assert figure in text


def test_keys_theme_and_times(chromium, finished):
    run, _ = newest(finished)
    with served(finished) as at, chromium.page(timezone_id="Asia/Tokyo") as page:
        page.goto(at)
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open] >> text=Light or dark")
        page.keyboard.press("Escape")
        ground = "getComputedStyle(document.body).backgroundColor"
        before = page.evaluate(ground)
        page.keyboard.press("t")
        page.wait_for_function(f"{ground} !== {json.dumps(before)}")
        page.keyboard.press("1")
        page.wait_for_url(f"**/run/{run.id}")
        assert page.evaluate(ground) != before  # it is remembered
        at_tokyo = page.evaluate("document.querySelector('.under time').textContent")
        hour = int(re.search(r"(\d\d):\d\d", at_tokyo)[1])
        assert hour == (int(run.created_at[11:13]) + 9) % 24
        page.keyboard.press("e")
        page.wait_for_selector("svg.tree a")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        for _ in range(12):  # past the bar: the picture and its nodes can be reached
            page.keyboard.press("Tab")
        assert page.evaluate("Boolean(document.activeElement.closest('main'))")
        page.keyboard.press("n")
        page.wait_for_selector("h1:has-text('Node')")
        page.pdf()


def test_one_file_from_disk(chromium, finished, tmp_path):
    out = tmp_path / "a b"
    out.mkdir()
    subprocess.run(
        ["passagent", "report", "last", "--html", out / "x.html", "--runs-dir", finished], check=True
    )
    shutil.copy(out / "x.html", tmp_path / "y.html")
    for path in (out / "x.html", tmp_path / "y.html"):
        chromium.look(path.as_uri(), "one-file", "svg.chart")


def test_another_address_asks_for_the_token(chromium, finished):
    with served(finished, "--host", "0.0.0.0", "--token", "secret") as at:
        local = at.replace("0.0.0.0", "127.0.0.1")
        assert answers(f"{local}/") == 403
        with chromium.page() as page:
            page.goto(f"{local}/?token=secret")
            page.wait_for_selector("h1")
            assert page.url == f"{local}/"


def test_one_who_looks_changes_nothing(finished, tmp_path):
    place = shutil.copytree(finished, tmp_path / "runs")
    with served(place) as at:
        before = (place / "passagent.db").read_bytes()
        for address in ("", "node/1", "hints"):
            assert answers(f"{at}/{address}") == 200
        assert (place / "passagent.db").read_bytes() == before
    with Store.open(place, create=False) as store:
        assert not sessions.is_driven(store, runs.find_run(store, "last").id)
