"""Selection policies: what each chooses, and what each may see."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import tiny_search
from test_search import finish, open_tiny, store, task  # noqa: F401 (fixtures)
from test_store import add_node

from passagent.agent.prompt import roles
from passagent.config import SearchConfig, load_config, presets
from passagent.search.islands import IslandView
from passagent.search.policies import policy_of, read_tree
from passagent.search.setup import new_run, open_session
from passagent.store import episodes, nodes


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
    episode = tiny_search.episode_of(store, run.id, number)
    made = [
        add_node(
            store, run, "", status="wrong_result" if score is None else "ok", score=score or 0.1,
            call=f"call{place}", episode=episode, parent=episode.parent_id,
        )
        for place, score in enumerate(scores)
    ]  # fmt: skip
    episodes.finish(store, episode, "done", None, True)
    return made


def choose(store, run, number, **settings):  # noqa: F811
    policy = replace(policy_of(SearchConfig(policy="mcts")), **settings)
    return policy.select(IslandView(store, run.id, (number - 1) % run.islands), random.Random(0))


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


def test_tree_counts_each_episode_where_it_started_and_above(store, task):  # noqa: F811
    run = open_tiny(store, task, islands=2, iters=100).run
    first, second = play(store, run, 1, None, [1.0, 4.0])
    [elsewhere] = play(store, run, 2, None, [9.0])
    [failed] = play(store, run, 3, second, [None])
    [below] = play(store, run, 5, failed, [2.0])
    play(store, run, 7, None, [])
    [migrated] = play(store, run, 9, elsewhere, [3.0])
    tree = read_tree(store, run.id, 0)
    places, left = {}, [tree.root]
    while left:
        place = left.pop()
        places[place.node_id] = place
        left += place.children
    # an episode is remembered by its best; one that started from another island's node is below the task
    assert set(places) == {None, second.id, failed.id, below.id, migrated.id} and first.id not in places
    assert {child.node_id for child in tree.root.children} == {second.id, migrated.id}

    def figures(node_id):
        return places[node_id].visits, places[node_id].correct, places[node_id].sum_log_as

    assert figures(None) == (5, 3, pytest.approx(math.log(4) + math.log(2) + math.log(3)))
    assert figures(second.id) == (3, 2, pytest.approx(math.log(4) + math.log(2)))
    assert figures(failed.id) == (2, 1, pytest.approx(math.log(2)))
    assert (tree.low, tree.high) == (pytest.approx(math.log(2)), pytest.approx(math.log(4)))
    # the best is worth 1, the worst correct one 0.5, a failure nothing
    assert tree.value(places[second.id]) == pytest.approx((1 + 0.5 + 0) / 3)
    assert tree.value(places[below.id]) == pytest.approx(0.5)


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


@pytest.mark.parametrize("preset", presets())
def test_each_preset_runs(store, task, preset):  # noqa: F811
    settings = {"search.iters": 5, "search.finalists": 0, "search.expert_seeds": 0}
    whole = load_config(preset)
    config = load_config(preset, settings | {"search.drafts": min(2, whole.search.drafts)})
    assert set(whole.search.roles) <= set(roles())
    run = new_run(store, task, config)
    session = open_session(store, run, task, config, tiny_search.parts(), lambda event: None)
    assert finish(session).state == "finished"
    made = nodes.of_run(store, session.run.id)
    assert len(made) == 5 * min(2, whole.agent.max_evaluations) and {node.state for node in made} == {"done"}
