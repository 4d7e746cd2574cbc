"""Selection policies: what each chooses, what each may see, and that nobody's speed changes the tree."""

from __future__ import annotations

import asyncio
import math
import random
import re
import statistics

import pytest
import tiny_search
from many import Runs, forks, kill, steps_of  # noqa: F401 (fixture)
from many import finish as finish_process
from test_search import finish, open_tiny, shape, store, task  # noqa: F401 (fixtures)
from test_store import add_node

from passagent.agent.prompt import roles
from passagent.config import SearchConfig, load_config, override, presets
from passagent.evaluator.result import Candidate
from passagent.search import treerows
from passagent.search.controller import search
from passagent.search.islandview import IslandView
from passagent.search.policies import policy_of
from passagent.search.policies.mcts import MAX_CHILDREN
from passagent.search.rounds import Position
from passagent.search.setup import new_run, open_session
from passagent.search.treerows import TASK
from passagent.search.treeview import open_tree, outcome, take_in_own
from passagent.search.waiting import is_ready
from passagent.store import archive, episodes, migrations, nodes, participants, runs


@pytest.mark.long
@pytest.mark.usefixtures("forks")
def test_two_processes_one_killed_leave_the_tree_of_one(tmp_path):
    there = Runs(tmp_path, iters=15, islands=3, seed=7, policy="mcts", drafts=2)
    there.gate.hold(replies=10)
    first = there.start(seconds=0.03)
    there.wait(lambda held: steps_of(held) > 20)
    second = there.start("resume", seconds=0.03)
    there.together(first, second)
    there.gate.go()
    there.wait(lambda held: steps_of(held) > 40)
    kill(first)
    finish_process(second, there)
    there.check()
    assert there.tree() == there.whole(tmp_path)


def test_island_stopped_after_its_episode_does_not_wait_for_one_that_begins_nothing(store, task):  # noqa: F811
    session = open_tiny(store, task, islands=2, iters=100, policy="mcts")

    class Stopped(tiny_search.PacedModel):
        """The second island's first episode lasts until the first island is two rounds ahead."""

        async def complete(self, messages, tools):
            if "Your role is memory" in messages[1]["content"]:
                while not store.rows("SELECT 1 FROM episodes WHERE number = 5"):
                    await asyncio.sleep(0.01)
                runs.want(store, session.run.id, "stop_after_episodes")
            return await super().complete(messages, tools)

    session.model = Stopped()
    assert asyncio.run(asyncio.wait_for(search(session), 60)).state == "stopped"
    done = store.rows("SELECT number FROM episodes WHERE state = 'done' ORDER BY number")
    assert [row["number"] for row in done] == [1, 2, 3]
    runs.want(store, session.run.id, "run")
    again = open_tiny(store, task, run=session.run, islands=2, iters=6, policy="mcts")
    assert finish(again).reason == "all 6 episodes are done"


class Uneven(tiny_search.PacedModel):
    """One island's model is slow."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self.slow = f"Your role is {slow}"

    async def complete(self, messages, tools):
        if self.slow in messages[1]["content"]:
            await asyncio.sleep(0.1)
        return await super().complete(messages, tools)


def told(store, run_id) -> list[str]:  # noqa: F811
    """What every episode was told of other nodes, which are named by episode and place, not by id."""
    names = {str(node.id): f"{node.number}.{node.place}" for node in nodes.of_run(store, run_id)}
    numbers = sorted(node.number for node in nodes.of_run(store, run_id))
    said = []
    for number in sorted({*numbers}):
        messages = episodes.conversation(store, episodes.of_number(store, run_id, number).id)[1:]
        text = "\n".join(message["content"] for message in messages)
        said.append(re.sub(r"\bnode (\d+)", lambda found: f"node {names[found[1]]}", text))
    return said


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("policy", ["evolutionary", "mcts"])
def test_the_tree_does_not_depend_on_who_is_faster(store, task, tmp_path, policy, drafts):  # noqa: F811
    Candidate(tiny_search.candidate_files("given")).write(tmp_path / "mine")
    settings = {"islands": 3, "iters": 12, "seed": 5, "policy": policy, "drafts": drafts}
    shapes, texts = [], []
    for slow in ("fusion", "memory access"):
        session = open_tiny(store, task, model=Uneven(slow), seed_dir=str(tmp_path / "mine"), **settings)
        # what hints gained in other runs, and on islands that were faster, decides which are shown
        session.config = override(session.config, {"agent.hints": 0})
        finish(session)
        shapes.append(shape(store, session.run.id))
        texts.append(told(store, session.run.id))
    assert shapes[0] == shapes[1]
    assert texts[0] == texts[1] and any("; failed: " in text for text in texts[0])
    parents = {row["parent_id"] for row in store.rows("SELECT parent_id FROM episodes")}
    assert len(parents) > 2


def play(store, run, number, parent, scores, policy="mcts"):  # noqa: F811
    """An episode that is done and left nodes with these scores, None for a failure."""
    store.execute(
        "INSERT INTO episodes (run_id, number, island, seed, state, created_at, parent_id, model) "
        "VALUES (:run, :number, :island, 0, 'running', 'now', :parent, 'm')",
        {
            "run": run.id,
            "number": number,
            "island": (number - 1) % run.islands,
            "parent": parent.id if parent else None,
        },
    )
    episode = episodes.of_number(store, run.id, number)
    made = [
        add_node(
            store, run, "", status="wrong_result" if score is None else "ok", score=score or 0.1,
            call=f"call{place}", episode=episode, parent=episode.parent_id,
        )
        for place, score in enumerate(scores)
    ]  # fmt: skip
    episodes.finish(store, episode, "done", None, True)
    return made


def view_of(store, run, number):  # noqa: F811
    position = Position(number, run.islands)
    return IslandView(store, run.id, position.island, position)


def choose(store, run, number, **settings):  # noqa: F811
    policy = policy_of(SearchConfig(policy="mcts", **settings))
    return policy.select(view_of(store, run, number), random.Random(0))


def test_uct_goes_where_the_value_is_and_comes_back_where_little_was_tried(store, task):  # noqa: F811
    run = open_tiny(store, task, islands=1, iters=100).run
    assert choose(store, run, 1) is None
    [good] = play(store, run, 1, None, [2.0])
    [bad] = play(store, run, 2, None, [None])
    for number, score in enumerate([2.1, 2.2, 2.0], start=3):
        play(store, run, number, good, [score])
    # the task was visited 5 times: with 5^0.4 it has room for one child and has two
    assert choose(store, run, 6, exploration=0.0).as_score == 2.2  # the best below the best
    assert choose(store, run, 6, exploration=50.0).id == bad.id
    # with room for more it is the task itself
    assert choose(store, run, 6, widening=1.0) is None


def test_the_numbers_of_the_tree(store, task):  # noqa: F811
    run = open_tiny(store, task, islands=1, iters=100).run
    first, second = play(store, run, 1, None, [1.0, 4.0])
    [failed] = play(store, run, 2, second, [None])
    [below] = play(store, run, 3, failed, [2.0])
    play(store, run, 4, None, [])
    treerows.settle(store, run.id, 4, lambda episode_id: outcome(store, episode_id))
    rows = {row["node_id"]: row for row in store.rows("SELECT * FROM tree")}
    assert set(rows) == {TASK, second.id, failed.id, below.id}  # an episode is remembered by its best
    assert first.id not in rows
    logs = math.log(4) + math.log(2)
    numbers = ("visits", "correct", "sum_log_as")
    assert [rows[TASK][n] for n in numbers] == [4, 2, pytest.approx(logs)]
    assert [rows[second.id][n] for n in numbers] == [3, 2, pytest.approx(logs)]
    assert [rows[failed.id][n] for n in numbers] == [2, 1, pytest.approx(math.log(2))]
    assert treerows.scale(store, run.id) == (pytest.approx(math.log(2)), pytest.approx(math.log(4)))
    treerows.settle(store, run.id, 4, lambda episode_id: outcome(store, episode_id))  # changes nothing
    assert {row["node_id"]: row for row in store.rows("SELECT * FROM tree")} == rows
    view = open_tree(store, run.id, Position(5, 1))
    # the best is worth 1, the worst correct one 0.5, a failure nothing
    assert view.value(treerows.get(store, run.id, second.id)) == pytest.approx((1 + 0.5 + 0) / 3)
    assert view.value(treerows.get(store, run.id, below.id)) == pytest.approx(0.5)


def test_an_episode_sees_what_is_settled_its_own_last_and_where_the_others_began(store, task):  # noqa: F811
    run = open_tiny(store, task, islands=3, iters=100).run
    [a] = play(store, run, 1, None, [1.5])
    [b] = play(store, run, 2, None, [3.0])
    [c] = play(store, run, 3, None, [None])
    [own] = play(store, run, 4, a, [1.8])
    [others] = play(store, run, 5, b, [9.0])
    play(store, run, 6, b, [9.5])
    view = open_tree(store, run.id, Position(7, 3))
    take_in_own(view, Position(7, 3))
    by_id = {place.node_id: place for place in view.children(TASK)}
    assert set(by_id) == {a.id, b.id, c.id}
    assert (view.root().visits, view.root().correct) == (6, 3)
    assert [place.node_id for place in view.children(a.id)] == [own.id]
    assert view.children(b.id) == []
    assert others.id not in {place.node_id for place in view.children(b.id)}
    assert (by_id[a.id].visits, by_id[a.id].correct) == (2, 2)
    assert (by_id[b.id].visits, by_id[b.id].correct, view.waiting[b.id]) == (3, 1, 2)
    assert view.high == pytest.approx(math.log(3.0))  # 9.0 and 9.5 are not known to this island
    # what the others found later changes nothing of what is seen
    before = choose(store, run, 7)
    play(store, run, 8, b, [50.0])
    assert choose(store, run, 7) == before


def test_islands_that_choose_side_by_side_spread(store, task):  # noqa: F811
    """One place is the best by far, and all islands know it: yet they do not all go there."""
    run = open_tiny(store, task, islands=4, iters=100).run
    made = [play(store, run, number, None, [3.0 if number == 1 else 1.0])[0] for number in range(1, 5)]
    for number in range(5, 9):
        play(store, run, number, None, [None])
    starts = [choose(store, run, number, widening=0.2) for number in range(9, 13)]
    assert starts[0].id == made[0].id  # who chooses first goes there
    assert len({start.id for start in starts}) >= 3


def test_a_choice_waits_for_what_it_looks_at(store, task):  # noqa: F811
    session = open_tiny(store, task, islands=2, iters=100, policy="mcts")
    run, config = session.run, session.config.search
    ready = lambda episode: is_ready(store, run, config, session.model, episode)  # noqa: E731
    owner = participants.join(store, run.id)
    first, other = (episodes.claim(store, run, island, owner) for island in (0, 1))
    assert ready(first) and ready(other)
    store.execute("UPDATE episodes SET model = 'm' WHERE id = :id", {"id": first.id})
    episodes.finish(store, first, "done", None, True)
    third = episodes.claim(store, run, 0, owner)
    assert not ready(third)  # where episode 2 begins is not known
    store.execute("UPDATE episodes SET model = 'm' WHERE id = :id", {"id": other.id})
    assert ready(third)
    store.execute("UPDATE episodes SET model = 'm' WHERE id = :id", {"id": third.id})
    episodes.finish(store, third, "done", None, True)
    fifth = episodes.claim(store, run, 0, owner)
    assert not ready(fifth)  # episode 2 is not finished, episode 4 has not begun
    episodes.finish(store, other, "done", None, True)
    fourth = episodes.claim(store, run, 1, owner)
    assert not ready(fifth)
    store.execute("UPDATE episodes SET model = 'm' WHERE id = :id", {"id": fourth.id})
    assert ready(fifth)


def test_the_archive_keeps_the_best_of_every_behaviour(store, task):  # noqa: F811
    run = open_tiny(store, task, islands=2, iters=100).run
    owner = participants.join(store, run.id)

    def made(behaviour, score, status="ok", island=0):
        node = add_node(store, run, owner, island, score=score, status=status)
        store.execute("UPDATE nodes SET behaviour = :b WHERE id = :id", {"b": behaviour, "id": node.id})
        node = nodes.get_node(store, node.id)
        archive.add(store, node, island)
        return node

    made("one kernel", 1.1)
    best = made("one kernel", 3.0)
    made("one kernel", 2.0)
    lone = made("two kernels", 1.2)
    made("three kernels", 0.1, status="wrong_result")
    made(None, 2.9)
    view = IslandView(store, run.id, 0)
    assert [node.id for node in view.cells(9)] == [best.id, lone.id]
    assert [node.id for node in view.cells(1)] == [best.id]
    diverse = policy_of(SearchConfig(elites=1, explore=0, diversity=0.5))
    drawn = [diverse.select(view, random.Random(seed)).id for seed in range(200)]
    assert 20 < drawn.count(lone.id) < 80  # half of a half
    assert set(drawn) == {best.id, lone.id}
    # an elite that migrates comes to the archive, too
    episode = episodes.claim(store, run, 1, owner)
    migrations.add_migration(store, episode, best, "because")
    assert [node.id for node in IslandView(store, run.id, 1).cells(9)] == [best.id]


def test_best_of_n_always_starts_from_the_task(store, task):  # noqa: F811
    finish(open_tiny(store, task, islands=2, iters=6, policy="best_of_n"))
    assert {row["parent_id"] for row in store.rows("SELECT parent_id FROM episodes")} == {None}


def test_drafts_start_from_the_task_and_know_of_nothing(store, task):  # noqa: F811
    session = open_tiny(store, task, islands=2, iters=8, drafts=5, policy="greedy", seed=2)
    finish(session)
    for row in store.rows("SELECT * FROM episodes ORDER BY number"):
        body = episodes.conversation(store, row["id"])[1]["content"]
        if row["number"] <= 5:
            assert row["parent_id"] is None
        assert ("# What was tried before" in body) == (row["number"] > 5)
        assert ("The best AS of this run" in body) == (row["number"] > 5)
    assert any(row["parent_id"] for row in store.rows("SELECT parent_id FROM episodes WHERE number > 5"))


def test_ties_are_decided_by_episode_and_place(store, task):  # noqa: F811
    run = open_tiny(store, task, islands=2, iters=100).run
    [late] = play(store, run, 3, None, [1.5])  # of a lower id, but of a later episode
    [early] = play(store, run, 1, None, [1.5])
    assert late.id < early.id
    assert IslandView(store, run.id, 0).best().id == early.id


def test_a_choice_in_a_large_tree_looks_at_few_rows(store, task):  # noqa: F811
    """Of 3,000 episodes a choice reads a bounded number of rows: no timing, the statements are counted."""
    run = open_tiny(store, task, islands=1, iters=10_000).run
    rng, read = random.Random(0), []
    rows = store.rows

    def counted(sql, parameters=None):
        found = rows(sql, parameters)
        read.append(len(found))
        return found

    counts = {}
    with store.transaction():
        for number in range(1, 3001):
            read.clear()
            store.rows = counted
            parent = choose(store, run, number)
            store.rows = rows
            counts[number] = sum(read)
            number_of = parent.number if parent else 0
            score = 1.0 + rng.random() + number_of / 10_000 if rng.random() < 0.7 else None
            light_episode(store, run, number, parent, score)
    assert statistics.median([counts[n] for n in range(2500, 3001)]) < 4 * MAX_CHILDREN
    assert max(counts.values()) < 12 * MAX_CHILDREN


def light_episode(store, run, number, parent, score):  # noqa: F811
    """An episode with one node, as rows alone."""
    store.execute(
        "INSERT INTO episodes (run_id, number, island, seed, state, created_at, parent_id, model) "
        "VALUES (:run, :number, 0, 0, 'done', 'now', :parent, 'm')",
        {"run": run.id, "number": number, "parent": parent.id if parent else None},
    )
    store.execute(
        "INSERT INTO nodes (run_id, parent_id, island, episode_id, call_id, state, status, as_score, note, "
        "candidate_key, canonical_key, created_at, number, place) SELECT run_id, parent_id, 0, id, "
        "'c', 'done', :status, :score, '', number, number, 'now', number, 1 FROM episodes "
        "WHERE run_id = :run AND number = :number",
        {
            "run": run.id,
            "number": number,
            "status": "wrong_result" if score is None else "ok",
            "score": score,
        },
    )


@pytest.mark.parametrize("preset", presets())
def test_each_preset_runs(store, task, preset):  # noqa: F811
    settings = {"search.iters": 5, "search.finalists": 0, "search.expert_seeds": 0}
    whole = load_config(preset)
    config = load_config(preset, settings | {"search.drafts": min(2, whole.search.drafts)})
    assert set(whole.search.roles) <= set(roles())
    session = open_session(
        store,
        new_run(store, task, config),
        task,
        config,
        lambda event: None,
        tiny_search.PacedModel(),
        tiny_search.FastEvaluator(),
        tiny_search.diagnose,
    )
    assert finish(session).state == "finished"
    made = nodes.of_run(store, session.run.id)
    assert len(made) == 5 * min(2, whole.agent.max_evaluations) and {node.state for node in made} == {"done"}


def test_the_presets_are_the_papers_systems():
    evolve, foundry = (load_config(name).search for name in ("kernel_evolve", "kernel_foundry"))
    assert (evolve.policy, evolve.drafts, evolve.iters, evolve.expert_seeds) == ("mcts", 10, 50, 0)
    assert (foundry.policy, foundry.iters, foundry.islands) == ("evolutionary", 30, 3)
    assert foundry.expert_seeds > 0 and load_config("kernel_foundry").validator.decisive
    assert load_config("passnet").search.expert_seeds == 0 < load_config().search.expert_seeds
