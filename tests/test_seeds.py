"""Seeds: the expert's and a directory's, and that the first episode of every island starts from the best."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_search
from starlette.testclient import TestClient
from test_search import finish, open_tiny, shape, store, task  # noqa: F401 (fixtures)

from passagent.cli import running
from passagent.cli.deploy_verbs import best as write_best
from passagent.config import load_config
from passagent.data.bench.measure import best_of_search
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.result import Candidate, Speedup
from passagent.expert.expert_model import ExpertModel
from passagent.search.setup import Parts, new_run, open_session
from passagent.store import Store, episodes, nodes, runs
from passagent.store.nodes import Node
from passagent.store.runs import SEEDS
from passagent.tasks import load_task
from passagent.view.node_changes import why_data
from passagent.view.page.app import Access, create_app
from passagent.view.run_summary import run_data, run_row, run_text
from passagent.view.tree import tree_text


class Correct(tiny_search.FastEvaluator):
    """Finds every candidate correct, until it has judged `limit`; nothing is remembered."""

    limit = -1

    async def evaluate(self, task_path, candidate, bar=None):
        if len(self.asked) == self.limit:
            raise KeyError("a bug")
        evaluation = await super().evaluate(task_path, candidate)
        score = 1.0 + tiny_search.share(candidate.key)
        graph = evaluation.graphs[0].model_copy(
            update={"status": "ok", "speedup": Speedup(e2e=score), "passes_from_t": -10}
        )
        return evaluation.model_copy(update={"status": "ok", "as_score": score, "graphs": [graph]})


def seed_numbers(store, run_id):  # noqa: F811
    """The numbers of the episodes that made seeds."""
    rows = store.rows("SELECT number FROM episodes WHERE run_id = :run AND number < 1", {"run": run_id})
    return [row["number"] for row in rows]


def test_the_expert_s_seeds_are_there_before_the_first_episode(store, tmp_path):  # noqa: F811
    task = load_task(tiny.write_task(tmp_path / "seeded"))  # noqa: F811
    settings = {"islands": 2, "iters": 4, "expert_seeds": 2, "seed": 4, "policy": "greedy", "reuse": False}
    session = open_tiny(store, task, evaluator=Correct(), **settings)
    finish(session)
    run = runs.get_run(store, session.run.id)
    rows = store.rows("SELECT * FROM episodes WHERE run_id = :run ORDER BY number", {"run": run.id})
    assert [row["number"] for row in rows] == [-1, 0, 1, 2, 3, 4]
    assert [row["model"] for row in rows] == ["expert"] * 2 + ["scripted"] * 4
    first, second = (tiny_search.nodes_of(store, run.id, number) for number in (-1, 0))
    assert first and second and rows[0]["parent_id"] is None
    assert rows[1]["parent_id"] in {node.id for node in first}
    assert {node.canonical_key for node in second} - {node.canonical_key for node in first}
    # both islands start from the best seed, and the seeds are not counted as episodes
    best = max([*first, *second], key=lambda node: node.rank)
    assert [row["parent_id"] for row in rows[2:4]] == [best.id, best.id]
    assert [island.episodes for island in runs.islands(store, run.id)] == [2, 2]
    assert runs.get_island(store, run.id, SEEDS).role == "seed"
    assert "Your part is the start" in episodes.conversation(store, rows[0]["id"])[1]["content"]
    text = run_text(store, run_data(store, run))
    assert f"seeds: {len(first) + len(second)} ok" in text
    assert "4/4 episodes" in text and "seed" in tree_text(nodes.of_run(store, run.id), best.id, {})

    # the same again, cut off in the second seed and gone on with
    again = Correct()
    again.limit = len(first) + 1
    cut = open_tiny(store, task, evaluator=again, **settings)
    with pytest.raises(KeyError):
        finish(cut)
    finish(open_tiny(store, task, run=cut.run, evaluator=Correct(), **settings))
    assert shape(store, cut.run.id) == shape(store, run.id)

    # none for the expert itself, none where none are wanted
    expert = open_tiny(store, task, model=ExpertModel(), evaluator=Correct(), **(settings | {"iters": 1}))
    finish(expert)
    assert seed_numbers(store, expert.run.id) == []
    none = open_tiny(store, task, evaluator=Correct(), **(settings | {"iters": 1, "expert_seeds": 0}))
    finish(none)
    assert seed_numbers(store, none.run.id) == []


POLICIES = ["evolutionary", "greedy", "mcts", "random"]


def given(path: Path, words: str = "given") -> str:
    """A pass directory for `search.seed_dir`."""
    Candidate(tiny_search.candidate_files(words)).write(path)
    return str(path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "drafts"), [*((policy, 0) for policy in POLICIES), ("evolutionary", 3)]
)  # drafts come before any policy is asked
def test_the_first_episode_of_every_island_starts_from_the_seed(store, task, tmp_path, policy, drafts):  # noqa: F811
    """With the default seed the first episode ignored the expert's seed and did not show it."""
    path = given(tmp_path / "mine")
    settings = {
        "islands": 2,
        "iters": 8,
        "explore": 1.0,
        "stagnation": 99,
        "drafts": drafts,
        "policy": policy,
    }
    session = open_tiny(store, task, evaluator=Correct(), seed_dir=path, **settings)
    finish(session)
    rows = store.rows("SELECT * FROM episodes WHERE number > 0 ORDER BY number")
    [seed] = tiny_search.nodes_of(store, session.run.id, 0)
    assert [row["parent_id"] for row in rows[: drafts + 2]] == [None] * drafts + [seed.id] * 2
    prompts = [episodes.conversation(store, row["id"])[1]["content"] for row in rows]
    for prompt in prompts[drafts : drafts + 2]:
        assert f"node {seed.id}, a seed of this run: status ok, AS {seed.as_score:.4f}" in prompt
        assert 'WORDS = "given"' in prompt and "speedup over eager" in prompt
    assert not any('WORDS = "given"' in prompt or "a seed of" in prompt for prompt in prompts[:drafts])
    if policy == "evolutionary":  # it explores again from the second one on
        assert [row["parent_id"] for row in rows[drafts + 2 :]] == [None] * (6 - drafts)
    assert "starts from the run's best seed" in why_data_of(store, rows[drafts]["id"])


def why_data_of(store, episode_id):  # noqa: F811
    """Why the episode began where it did."""
    node = nodes.of_episode(store, episode_id)[0]
    return why_data(store, node)["chain"][-1]["episode"]["chosen"]


def test_a_seed_that_fails_is_mended(store, task, tmp_path):  # noqa: F811
    wrong = next(words for words in map(str, range(99)) if tiny_search.share("status", words) <= 0.25)
    session = open_tiny(store, task, seed_dir=given(tmp_path / "mine", wrong), islands=1, iters=1)
    finish(session)
    [seed] = tiny_search.nodes_of(store, session.run.id, 0)
    row = store.row("SELECT * FROM episodes WHERE number = 1")
    assert (seed.status, row["parent_id"]) == ("wrong_result", seed.id)
    assert "a seed of this run: status wrong_result" in episodes.conversation(store, row["id"])[1]["content"]


@pytest.mark.parametrize("preset", ["passnet", "kernel_evolve"])
def test_a_preset_without_seeds_has_one_from_a_directory_only(store, task, tmp_path, preset):  # noqa: F811
    def run(**settings: object) -> list[int | None]:
        few = {"search.iters": 2, "search.drafts": 0, "search.islands": 2, "search.finalists": 0}
        config = load_config(preset, few | settings)
        run = new_run(store, task, config)
        session = open_session(store, run, task, config, tiny_search.parts(), lambda event: None)
        assert finish(session).state == "finished"
        rows = store.rows(
            "SELECT parent_id FROM episodes WHERE run_id = :run AND number > 0", {"run": run.id}
        )
        seeds = [
            node.id
            for number in seed_numbers(store, run.id)
            for node in tiny_search.nodes_of(store, run.id, number)
        ]
        return [*seeds, "|", *(row["parent_id"] for row in rows)]

    assert run() == ["|", None, None]
    seed, *rest = run(**{"search.seed_dir": given(tmp_path / "mine")})
    assert rest == ["|", seed, seed]


def test_what_a_seed_directory_held_is_kept(tmp_path, capsys):
    """It is read once: a run that was cut off goes on without it, another content is another run."""
    task = tiny_search.write_task(tmp_path / "task")  # noqa: F811
    mine, runs_dir = given(tmp_path / "mine"), str(tmp_path / "runs")
    settings = tiny_search.settings(2, 2, 0) | {"search.seed_dir": mine, "search.reuse": False}
    broken = Correct()
    broken.limit = 0

    def start(evaluator: Any) -> list[Node]:
        parts = Parts(tiny_search.PacedModel(), evaluator, tiny_search.diagnose)
        running.run(str(task), {"settings": settings, "runs_dir": runs_dir}, True, parts)
        return seeds()

    def seeds() -> list[Node]:
        with Store.open(runs_dir) as store:  # noqa: F811
            return [node for run in runs.list_runs(store) for node in tiny_search.nodes_of(store, run.id, 0)]

    with pytest.raises(PassagentError, match=r"a bug.*go on with: passagent resume"):
        start(broken)
    [cut] = seeds()
    assert (cut.state, cut.candidate_key) == ("proposed", Candidate.from_dir(mine).key)
    with pytest.raises(PassagentError, match="a bug"):
        start(broken)  # the same run
    assert len(seeds()) == 1
    shutil.move(mine, tmp_path / "gone")
    running.resume(
        "last",
        {"settings": {}, "runs_dir": runs_dir},
        True,
        parts=Parts(tiny_search.PacedModel(), Correct(), tiny_search.diagnose),
    )
    [done] = seeds()
    assert (done.id, done.state, done.candidate_key) == (cut.id, "done", cut.candidate_key)
    with pytest.raises(UsageError, match="mine: no such pass directory"):
        start(Correct())
    with pytest.raises(UsageError, match="fixed for a run's life"):
        running.resume("last", {"settings": {"search.seed_dir": "x"}, "runs_dir": runs_dir}, True)

    given(tmp_path / "mine", "begun")
    with pytest.raises(PassagentError, match=r"a bug.*go on with: passagent resume"):
        start(broken)
    given(tmp_path / "mine", "changed")
    assert len(start(Correct())) == 3


def made_by_model_and_seed(store, task, tmp_path):  # noqa: F811
    """A finished run whose seed, from a directory, is better than all that the model made."""
    score = lambda words: tiny_search.share(Candidate(tiny_search.candidate_files(words)).key)  # noqa: E731
    best = max(map(str, range(99)), key=score)
    session = open_tiny(store, task, evaluator=Correct(), seed_dir=given(tmp_path / "mine", best), iters=3)
    finish(session)
    [seed] = tiny_search.nodes_of(store, session.run.id, 0)
    own = [node for node in nodes.of_run(store, session.run.id) if node.id != seed.id]
    return session, seed, max(own, key=lambda node: node.rank)


def test_runs_credit_the_model_with_its_own_and_name_the_seeds_origin(store, task, tmp_path, recorded, call):  # noqa: F811
    session, seed, own = made_by_model_and_seed(store, task, tmp_path)
    assert seed.as_score > own.as_score
    run, origin = runs.get_run(store, session.run.id), f"directory {tmp_path / 'mine'}"
    row = run_row(store, run)
    assert (row["best_as"], row["seed"], row["seed_from"]) == (own.as_score, seed.as_score, origin)
    assert f"{seed.as_score:.3f} (directory)" in call("runs", "--runs-dir", store.runs_dir)[1]
    text = run_text(store, run_data(store, run))
    assert f"best pass: node {seed.id}, a seed ({origin})," in text and f"1 ok ({origin})" in text
    out = {"out": str(tmp_path / "best"), "runs_dir": str(store.runs_dir), "format": "review"}
    write_best(run.id, **out, force=False, standalone=False)
    assert f"It comes from `{origin}`, node {seed.id}" in (tmp_path / "best" / "README.md").read_text()


@pytest.mark.parametrize(
    ("origin", "finalists"), [("expert", 0), ("library", 0), ("library", 2), ("directory", 0)]
)
def test_runs_and_their_page_mark_seeds_and_credit_the_model_with_what_came_after_its_first_reply(
    tmp_path, call, capsys, origin, finalists
):
    asked = (tiny if origin == "expert" else tiny_search).write_task(tmp_path / "task")
    runs_dir = str(tmp_path / "runs")
    more: dict[str, Any] = {"experience.library": str(tmp_path / "mine.db"), "search.finalists": finalists}
    parts = Parts(tiny_search.PacedModel(), Correct(), tiny_search.diagnose)

    def start(**settings: object) -> None:
        chosen = tiny_search.settings(2, 1, 3) | more | settings
        running.run(str(asked), {"settings": chosen, "runs_dir": runs_dir, "new": True}, True, parts)

    if origin == "library":
        start()
    start(**{
        "expert": {"search.expert_seeds": 1},
        "directory": {"search.seed_dir": given(tmp_path / "given")},
    }.get(origin, {}))  # fmt: skip
    capsys.readouterr()
    with Store.open(runs_dir) as store:  # noqa: F811
        run = runs.find_run(store, "last")
        made = "SELECT island, as_score FROM nodes WHERE run_id = :run AND repeat_of IS NULL"
        rows = store.rows(made, {"run": run.id})
    first, own = (
        max(row["as_score"] for row in rows if (row["island"] < 0) == is_seed) for is_seed in (True, False)
    )
    row = json.loads(call("runs", "--runs-dir", runs_dir, "--json")[1])["runs"][0]
    assert (row["run"], row["best_as"], row["seed"]) == (run.id, own, first) and own != first
    words = {"library": f"library {tmp_path / 'mine.db'}, ", "directory": f"directory {tmp_path / 'given'}"}
    assert row["seed_from"].startswith(words.get(origin, "expert"))
    line = next(line for line in call("runs", "--runs-dir", runs_dir)[1].splitlines() if run.id in line)
    assert f"{own:.3f}  {first:.3f} ({origin})" in re.sub(" +", "  ", line).replace("  (", " (")
    page = TestClient(create_app(Path(runs_dir), Access()), base_url="http://127.0.0.1:8640").get("/").text
    assert f"{own:.3f} <small>seed {first:.3f} ({row['seed_from']})</small>" in page


def test_bench_measures_the_best_that_the_model_made_and_no_copy_of_the_seed(store, task, tmp_path):  # noqa: F811
    session, seed, own = made_by_model_and_seed(store, task, tmp_path)
    found = best_of_search(store, task, session.config, None, None)
    assert asyncio.run(found) == (session.run.id, Candidate(nodes.get_files(store, own)))
    store.execute("UPDATE nodes SET repeat_of = :seed WHERE id != :seed", {"seed": seed.id})
    assert asyncio.run(best_of_search(store, task, session.config, None, None))[1] is None
