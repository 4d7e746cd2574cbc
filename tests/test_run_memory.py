"""Memory across runs: what a run leaves in the library, what later ones take, what `--exclude` keeps out."""

import gzip
import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_search
from test_distiller import Teacher
from test_search import finish, shape

from passagent.cli import running
from passagent.config import load_config
from passagent.errors import UsageError
from passagent.experience import exemplars
from passagent.experience.exemplars import Exemplar, Fingerprint, likeness, retrieve, shape_class
from passagent.search import finalists
from passagent.search.setup import new_run, open_memory, open_session
from passagent.store import Store, episodes, hint_uses, nodes, runs
from passagent.store.pass_library import PassLibrary, default_path
from passagent.tasks import load_task


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "library.db"


def task_of(place: Path, shape: list[int], dtype: str = "float32") -> Path:
    """relu on one tensor: the same structure for all shapes of a rank."""
    return tiny_search.write_task(place) if shape == [4, 8] else written(place, shape)


def written(place: Path, shape: list[int]) -> Path:
    task = tiny_search.write_task(place)
    for meta in task.rglob("weight_meta.py"):
        text = meta.read_text()
        old = next(line for line in text.splitlines() if line.strip().startswith("shape"))
        meta.write_text(text.replace(old, f"\tshape = {shape}"))
    return task


def searched(tmp_path: Path, task: Path, library: Path, teacher=None, **settings):
    """A tiny run with the library; the run, and the store's directory."""
    chosen = tiny_search.settings(6, 1, 3) | {"experience.library": str(library)}
    config, loaded = load_config(None, chosen | settings), load_task(task)
    memory = open_memory(config, loaded, tmp_path / "runs")
    with Store.open(tmp_path / "runs") as store:
        run = new_run(store, loaded, config, seed=memory.seed() if memory else None)
        session = open_session(store, run, loaded, config, tiny_search.parts(), lambda event: None)
        if session.distiller:
            session.distiller = teacher
        finish(session)
        prompts = {
            row["number"]: episodes.conversation(store, row["id"])[1]["content"]
            for row in store.rows("SELECT id, number FROM episodes WHERE run_id = :r", {"r": run.id})
            if episodes.conversation(store, row["id"])
        }
        seeds = [nodes.get_files(store, one) for one in tiny_search.nodes_of(store, run.id, 0)]
        winner = finalists.winner(store, run.id)
        return run, prompts, seeds, nodes.get_files(store, winner) if winner else {}


STARTED = """
import subprocess, sys, tiny_search
from passagent.config import load_config
from passagent.search.setup import started
from passagent.tasks import load_task

def refuse(*words, **options):
    raise AssertionError(words)

assert "torch" not in sys.modules
subprocess.run = refuse
settings = tiny_search.settings(1, 1, 3) | {"experience.library": sys.argv[3], "search.expert_seeds": 1}
with started(sys.argv[2], load_task(sys.argv[1]), load_config(None, settings), parts=tiny_search.parts()):
    pass
"""


def test_a_run_that_needs_torch_hashes_its_task_without_another_process(tmp_path, path):
    task = tiny_search.write_task(tmp_path / "task")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    words = [sys.executable, "-c", STARTED, task, tmp_path / "runs", path]
    subprocess.run([*map(str, words)], env=environment, check=True)
    with PassLibrary.open(path) as library:
        assert library.task_hashes(load_task(task).key)


def test_a_later_run_starts_from_what_an_earlier_one_found(tmp_path, path):
    task = tiny_search.write_task(tmp_path / "task")
    _, prompts, seeds, best = searched(tmp_path, task, path)
    assert seeds == [] and "was found for another task" not in prompts[1]
    with PassLibrary.open(path) as library:
        (kept,) = library.passes()
    assert kept.sources == best and kept.as_score > 1 and kept.operators == "relu"

    _, prompts, seeds, _ = searched(tmp_path, task, path)
    assert seeds == [best] and "a seed of this run" in prompts[1]
    _, _, seeds, _ = searched(tmp_path, task, path, **{"experience.seeds": False})
    assert seeds == []
    larger = written(tmp_path / "larger", [64, 96])
    _, prompts, seeds, _ = searched(tmp_path, larger, path)
    assert seeds == [] and "A pass that was found for another task, of relu (the same structure" in prompts[1]
    _, prompts, _, _ = searched(tmp_path, larger, tmp_path / "other.db", **{"experience.examples": 0})
    assert "was found for another task" not in prompts[1]


def test_a_draft_is_shown_five_passes_of_other_tasks(tmp_path, path):
    task = tiny_search.write_task(tmp_path / "task")
    searched(tmp_path, task, path)
    with PassLibrary.open(path) as library:
        (kept,) = library.passes()
        with library.transaction():
            library.execute("DELETE FROM exemplars")
        for letter in "abcdefg":
            files = json.dumps(kept.sources | {"note.py": f"# {letter}"})
            hashes = {"instance": "1:" + letter * 64, "structure": "1:" + letter * 64}
            library.keep(replace(kept, files=files, **hashes))
    header = "A pass that was found for another task"
    _, prompts, _, _ = searched(tmp_path, task, path, **{"search.drafts": 2})
    assert [prompts[number].count(header) for number in (1, 2)] == [5, 5]
    assert prompts[3].count(header) == 0, "told of another attempt"
    larger = written(tmp_path / "larger", [64, 96])
    _, prompts, _, _ = searched(tmp_path, larger, path)
    assert prompts[1].count(header) == 2
    _, prompts, _, _ = searched(tmp_path, task, path, **{"search.drafts": 2, "experience.examples": 0})
    assert prompts[1].count(header) == 0


def test_nothing_of_an_excluded_task_is_stored_or_taken(tmp_path, path, monkeypatch):
    task, larger = tiny_search.write_task(tmp_path / "task"), written(tmp_path / "larger", [64, 96])
    out, teacher = {"experience.exclude": [str(task)]}, {"roles.hint_distiller": {"name": "openai/teacher"}}
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    run, *_ = searched(tmp_path, task, path, Teacher(), **teacher, **out)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM exemplars").fetchone() == (0,)
        text = "\n".join(connection.iterdump())
    connection.close()
    assert run.id not in text
    with Store.open(tmp_path / "runs") as store:
        assert hint_uses.learned(store) == []

    searched(tmp_path, task, path, Teacher(), **teacher)  # as if somebody had stored it before
    with Store.open(tmp_path / "runs") as store:
        assert hint_uses.learned(store)
    _, prompts, *_ = searched(tmp_path, task, path)
    assert "A model noted this" in "".join(prompts.values())
    # the larger one has the structure of the excluded one: it is of the evaluation, too
    for other in (task, larger):
        _, prompts, seeds, _ = searched(tmp_path, other, path, **out)
        assert seeds == [] and "was found for another task" not in "".join(prompts.values())
        assert "A model noted this" not in "".join(prompts.values())


def exemplar(name: str, **fields) -> Exemplar:
    given = {
        "task": name, "instances": frozenset([f"i-{name}"]), "structures": frozenset([f"s-{name}"]),
        "operators": ("add", "layer_norm"), "shapes": frozenset(["3d medium"]), "files": {"P.py": name},
        "target": "cpu", "device": "a CPU", "as_score": 1.5, "as_low": 1.4, "as_high": 1.6,
        "author": "expert", "licence": "Apache-2.0", "source": "shipped",
    }  # fmt: skip
    return Exemplar(**given | fields)


OWN = Fingerprint(frozenset(["i-one"]), frozenset(["s-one"]), ("add", "layer_norm"), frozenset(["3d medium"]))


def names(found) -> list[tuple[str, str]]:
    return [(one.exemplar.task, one.relation) for one in found.examples]


def test_what_serves_a_task_and_why():
    same = exemplar("same", instances=frozenset(["i-one"]), structures=frozenset(["s-one"]))
    shape = exemplar("shape", structures=frozenset(["s-one"]))
    near, far = exemplar("near"), exemplar("far", operators=("softmax", "mul", "add"))
    slow, other = exemplar("slow", as_score=1.1), exemplar("other size", shapes=frozenset(["3d large"]))
    gpu = exemplar("gpu", instances=frozenset(["i-one"]), target="cuda")
    everything = [far, other, gpu, slow, near, shape, same]
    found = retrieve(OWN, everything, "cpu", 3)
    assert found.seed.exemplar is same and "the same operators, sizes and dtypes" in found.seed.why
    assert names(found) == [("near", "operators"), ("slow", "operators")], "its own structure is the seed's"
    assert "100% of the operators" in found.examples[0].why
    found = retrieve(OWN, [far, near, shape], "cpu", 1)
    assert found.seed is None and names(found) == [("shape", "structure")]
    assert retrieve(OWN, everything, "cuda", 2).seed.exemplar is gpu
    barred = retrieve(OWN, everything, "cpu", 9, without=["i-one", "s-one"])
    assert barred.seed is None and "shape" not in [name for name, _ in names(barred)]
    assert likeness(["add", "add"], ["add"]) == 0.5 and likeness([], []) == 0


def test_shape_classes(tmp_path):
    small, large = task_of(tmp_path / "a", [4, 8]), written(tmp_path / "b", [4096, 4096])
    of = [shape_class(load_task(one).subgraphs[0].inputs) for one in (small, large)]
    assert of == ["2d small", "2d large"] and shape_class([]) == "scalar"


def test_the_shipped_exemplars_are_small_and_whole():
    found = exemplars.shipped()
    assert len(found) >= 10
    for one in found:
        assert one.files and one.instances and one.structures and one.operators and one.licence
        assert one.target == exemplars.target_of_files(one.files)
        assert one.as_score is None or one.as_low > 1
    places = [path for _, path in exemplars.resources.glob(exemplars.SHIPPED)]
    assert sum(path.stat().st_size for path in places) < 1_000_000
    text = b"".join(gzip.decompress(path.read_bytes()) for path in places)
    assert b"GraphModule" not in text, "passes, and nothing of the tasks"


def test_a_library_of_another_version_is_refused(path):
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.execute("CREATE TABLE exemplars (instance TEXT)")
    connection.close()
    with pytest.raises(UsageError, match="another version"), PassLibrary.open(path):
        pass


def test_run_uses_what_its_runs_directory_holds_and_says_so_in_its_first_line(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("PASSAGENT_LIBRARY")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    task = tiny_search.write_task(tmp_path / "task")
    searched(tmp_path / "elsewhere", task, default_path())  # the user's library has a pass for this task

    def run(place: str, **more: object) -> tuple[str, list[str], list[tuple]]:
        """The first line, where the seeds are from, and the tree."""
        settings = tiny_search.settings(6, 1, 3) | more
        running.run(
            str(task),
            {"settings": settings, "runs_dir": str(tmp_path / place), "new": True},
            False,
            parts=tiny_search.parts(),
        )
        with Store.open(tmp_path / place) as store:
            found = runs.find_run(store, "last").id
            return (
                capsys.readouterr().out.splitlines()[0],
                episodes.seed_origins(store, found),
                shape(store, found),
            )

    first, again, other = run("one"), run("one"), run("two")
    mine = tmp_path / "one" / "library.db"
    assert f"library: {mine} (passes: 0)" in first[0] and first[1] == []
    assert other[1:] == first[1:], "the same command and seed in a new directory"
    assert f"library: {mine} (passes: 1)" in again[0]
    [origin] = again[1]
    assert origin.startswith(f"library {mine}, {tmp_path / 'one'} ")
    off, theirs = run("one", **{"experience.library": "off"}), {"experience.library": str(default_path())}
    assert "library: off" in off[0] and off[1:] == first[1:]
    assert f"library: {default_path()} (passes: 1)" in run("three", **theirs)[0]
