"""The search over a fast model and evaluator: what is asked of each, what is stored, and when it stops."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_search
from test_store import add_node
from tiny_search import shape

from passagent.cli import running
from passagent.cli.deploy_verbs import best as write_best
from passagent.config import EvaluatorConfig, SearchConfig, load_config
from passagent.errors import InfrastructureError, PassagentError, UsageError
from passagent.evaluator.judging import verdict
from passagent.evaluator.reference.eager import EagerGraph, Output
from passagent.evaluator.result import Candidate, Evaluation, Speedup, Violation
from passagent.evaluator.service.known import Case, recall
from passagent.models.scripted import ScriptedModel, calling
from passagent.search import candidates, finalists, remeasure, stop
from passagent.search import session as session_module
from passagent.search.controller import search
from passagent.search.finalists import Round, interval, is_settled, standing
from passagent.search.islands import IslandView, expected_per_hour, gains_after
from passagent.search.policies import choose_migrant, policy_of
from passagent.search.run_files import run_log
from passagent.search.session import Session
from passagent.search.setup import new_run, open_session
from passagent.store import Store, episodes, nodes, runs
from passagent.store.redaction import kind_of_secret, redact
from passagent.store.runs import Gains, Run
from passagent.tasks import load_task
from passagent.view.run_summary import run_data, run_text


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "runs") as opened:
        yield opened


@pytest.fixture
def task(tmp_path):
    return load_task(tiny_search.write_task(tmp_path / "task"))


def open_tiny(store, task, *, model=None, evaluator=None, run=None, on_event=None, **settings) -> Session:
    values = {"search.finalists": 0, "search.expert_seeds": 0} | {
        f"search.{name}": value for name, value in settings.items()
    }
    config = load_config(None, values)
    run = run or new_run(store, task, config)
    stand_ins = tiny_search.parts()
    stand_ins = replace(stand_ins, model=model or stand_ins.model, evaluator=evaluator or stand_ins.evaluator)
    return open_session(store, run, task, config, stand_ins, on_event)


def finish(session: Session) -> Run:
    asyncio.run(search(session))
    return runs.get_run(session.store, session.run.id)


def test_a_run_makes_what_was_asked(store, task):
    events = []
    session = open_tiny(store, task, islands=3, iters=7, seed=3, on_event=events.append)
    run = finish(session)
    assert (run.state, run.stop_reason) == ("finished", "all 7 episodes are done")
    assert [island.episodes for island in runs.islands(store, run.id)] == [3, 2, 2]
    found = nodes.of_run(store, run.id)
    assert len(found) == 14
    assert {node.state for node in found} == {"done"}
    assert all(node.diagnosed["text"] for node in found)
    assert all(node.note.startswith("Attempt ") for node in found)
    for row in store.rows("SELECT * FROM episodes"):
        assert (row["parent_id"] is None) or row["number"] > 3
        made = nodes.of_episode(store, row["id"])
        assert [node.parent_id for node in made] == [row["parent_id"], made[0].id]
        ok = [node.as_score for node in made if node.status == "ok"]
        assert row["best_as"] == max(ok, default=None)
    kinds = [type(event).__name__ for event in events]
    assert [kinds.count(k) for k in ("EpisodeBegun", "Judged", "EpisodeEnded")] == [7, 14, 7]


@pytest.mark.parametrize("policy", ["evolutionary", "mcts"])
def test_island_with_the_same_seed_and_replies_has_the_same_tree(store, task, policy):
    """Two islands of uneven speed, between which nothing migrates; another seed gives another tree."""
    shapes = []
    for rng_seed in range(2):
        rng = random.Random(rng_seed)

        class Jitter(tiny_search.PacedModel):
            async def complete(self, messages, tools, rng=rng):
                await asyncio.sleep(rng.random() * 0.02)
                return await super().complete(messages, tools)

        settings = {"islands": 2, "iters": 8, "stagnation": 99, "policy": policy}
        session = open_tiny(store, task, model=Jitter(), seed=5, **settings)
        finish(session)
        shapes.append(shape(store, session.run.id))
    assert shapes[0] == shapes[1]
    other = open_tiny(store, task, seed=6, **settings)
    finish(other)
    assert shape(store, other.run.id) != shapes[0]


def test_equal_candidates_are_evaluated_once(store, task):
    async def same(self, messages, tools):
        step = sum(message["role"] == "assistant" for message in messages)
        files = tiny_search.candidate_files("the same")
        calls = [("file_editor", {"command": "create", "path": n, "file_text": t}) for n, t in files.items()]
        replies = [calling(*calls, ("pass_evaluator", {})), "Done."]
        return await ScriptedModel([replies[step]]).complete(messages, tools)

    model = type("Same", (tiny_search.PacedModel,), {"complete": same})()
    evaluator = tiny_search.FastEvaluator(0.05)
    events = []
    session = open_tiny(
        store, task, model=model, evaluator=evaluator, islands=3, iters=6, on_event=events.append
    )
    finish(session)
    assert len(evaluator.asked) == 1
    found = nodes.of_run(store, session.run.id)
    assert len(found) == 6
    assert len({node.evaluation_id for node in found}) == 1
    assert sum(node.repeat_of is None for node in found) == 3  # the first of each island
    assert sum(getattr(event, "from_store", False) for event in events) == 5

    again = tiny_search.FastEvaluator()
    finish(open_tiny(store, task, model=model, evaluator=again, islands=1, iters=1, seed=9))
    assert again.asked == []
    finish(open_tiny(store, task, model=model, evaluator=again, islands=1, iters=1, seed=9, reuse=False))
    assert len(again.asked) == 1


def test_what_gives_no_plan_is_a_node_that_costs_no_evaluation(store, task):
    violation = Violation(rule="recording", file="Fused.py", line=4, message="aten.add computes; do not")

    class Recording(tiny_search.FastEvaluator):
        async def evaluate(self, task_path, candidate, bar=None):
            return verdict.evaluate_refused(load_task(task_path), candidate, EvaluatorConfig(), [violation])

        async def outline(self, task_path, candidate):
            return await self.evaluate(task_path, candidate)

    files = tiny_search.candidate_files("sums")
    writes = [("file_editor", {"command": "create", "path": n, "file_text": t}) for n, t in files.items()]
    model = ScriptedModel(
        [calling(*writes, ("check", {}), ("pass_evaluator", {})), calling(("pass_evaluator", {})), "x"]
    )
    session = open_tiny(
        store, task, model=model, evaluator=Recording(), islands=1, iters=1, max_evaluations=1
    )
    assert finish(session).stop_reason == "all 1 episodes are done"
    made = nodes.of_run(store, session.run.id)
    assert [(node.status, node.as_score) for node in made] == [("refused", pytest.approx(0.1))] * 2
    assert runs.get_run(store, session.run.id).evaluations == 0
    results = [m["content"] for m in model.calls[-1] if m["role"] == "tool"]
    checked, evaluated = results[-3], results[-2]
    for text in (checked, evaluated):
        assert "[recording] Fused.py:4: aten.add computes" in text
    assert "this used no evaluation" in evaluated
    assert "\nstatus: refused (not run)\n" in evaluated


class Describing(tiny_search.FastEvaluator):
    """Says what eager does once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()
        self.described = 0

    async def describe(self, task_path: Path) -> tuple[EagerGraph, ...]:
        self.described += 1
        await self.may.wait()
        return (EagerGraph("g", (Output((4, 4), "float32", (4, 1)),), ("relu",), 12.0),)


def test_first_message_waits_for_eagers_figures_which_are_kept_for_a_day(store, task, monkeypatch, tmp_path):
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path / "cache"))
    for described in (1, 0):
        evaluator = Describing()
        evaluator.may.set()
        finish(open_tiny(store, task, evaluator=evaluator, islands=1, iters=2, seed=described))
        ids = [row["id"] for row in store.rows("SELECT id FROM episodes")]
        prompts = [episodes.conversation(store, episode_id)[1]["content"] for episode_id in ids]
        assert all("| T[4, 4] | float32 12.0 us |" in text for text in prompts)
        assert evaluator.described == described
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path / "other"))
    stopped = open_tiny(store, task, evaluator=Describing(), islands=1, iters=1, seed=10)

    async def stop_soon():
        searching = asyncio.create_task(search(stopped))
        await asyncio.sleep(0.3)
        stopped.stop("a person", interrupted=True)
        await searching

    asyncio.run(stop_soon())
    assert runs.get_run(store, stopped.run.id).state == "stopped"


class Failing(tiny_search.FastEvaluator):
    """The machine fails the first `failures` evaluations."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def evaluate(self, task_path: Path, candidate: Candidate, bar: float | None = None) -> Evaluation:
        self.failures -= 1
        if self.failures < 0:
            return await super().evaluate(task_path, candidate)
        raise InfrastructureError("GPU lost")


def test_nothing_in_a_search_is_measured_in_full(store, task):
    class Noting(tiny_search.FastEvaluator):
        async def evaluate(self, task_path, candidate, bar=None):
            bars.append(bar)
            return await super().evaluate(task_path, candidate)

    bars: list[float | None] = []
    session = open_tiny(store, task, evaluator=Noting(), islands=1, iters=6, finalists=2)
    finish(session)
    searched = bars[: len(store.rows("SELECT id FROM nodes"))]
    assert searched[0] == 0.0
    assert None not in searched
    assert searched == sorted(searched)
    assert searched[-1] > 0.5
    assert set(bars[len(searched) :]) == {0.0}  # the finalists' rounds


def test_the_machine_s_failures_are_not_charged(store, task, monkeypatch):
    monkeypatch.setattr(candidates, "RETRY_AFTER_S", (0.0, 0.0))
    session = open_tiny(store, task, evaluator=Failing(2), islands=1, iters=2)
    finish(session)
    run = runs.get_run(store, session.run.id)
    assert run.evaluations == len(store.rows("SELECT id FROM evaluations"))
    assert {node.status for node in nodes.of_run(store, run.id)} <= {"ok", "wrong_result"}


def test_a_lost_machine_stops_the_run_and_loses_nothing(store, task, monkeypatch):
    monkeypatch.setattr(candidates, "RETRY_AFTER_S", (0.0, 0.0))
    session = open_tiny(store, task, evaluator=Failing(3), islands=1, iters=3)
    with pytest.raises(InfrastructureError, match="GPU lost"):
        finish(session)
    run = runs.get_run(store, session.run.id)
    assert (run.state, run.stop_reason) == ("failed", "GPU lost")
    [node] = nodes.unfinished(store, run.id)
    assert node.status is None
    finish(open_tiny(store, task, run=run, islands=1, iters=3))
    assert nodes.get_node(store, node.id).state == "done"
    assert len(nodes.of_run(store, run.id)) == 6


def test_a_failing_model_lets_the_others_finish_their_step(store, task):
    class Refusing(tiny_search.PacedModel):
        async def complete(self, messages, tools):
            if len(self.calls) == 6:
                self.calls.append(messages)
                raise UsageError("the key is refused")
            return await super().complete(messages, tools)

    session = open_tiny(store, task, model=Refusing(), evaluator=tiny_search.FastEvaluator(0.01), iters=6)
    with pytest.raises(UsageError, match="the key is refused"):
        finish(session)
    run = runs.get_run(store, session.run.id)
    assert run.state == "failed"
    finish(open_tiny(store, task, run=run, iters=6))
    assert len(nodes.of_run(store, run.id)) == 12
    steps = store.rows("SELECT sum(steps) AS n FROM episodes")
    assert steps[0]["n"] == 30  # five a episode: no paid reply was asked for again


def test_stagnation_and_expected_gain_are_rules():
    stale = stop.Progress(9, 8, 100, 5.0, 1.5, stagnant=6, gain_per_hour=0.015)
    reason = lambda progress=stale, **rule: stop.rules_of(SearchConfig(iters=99, **rule))(progress)  # noqa: E731
    assert reason(max_stagnation=7) is None
    assert reason(max_stagnation=6) == "6 episodes went by without a gain"
    assert reason(until=0.01) is None
    assert reason(until=0.02) == "an hour more is expected to gain 1.50%, less than 2.00%"
    assert reason(stop.Progress(9, 8, 100, 5.0, 1.5), until=0.02) is None  # nothing is known yet
    assert reason(max_stagnation=6) and not stop.rules_of(
        SearchConfig(iters=99, max_stagnation=7, until=0.001)
    )(stale)


def test_what_an_hour_is_expected_to_gain():
    gains, best = Gains(), 1.0
    for number in range(1, 33):
        # a steady 0.6% in each 36 s: 100 gains an hour
        best *= 1.006
        gains = gains_after(gains, best, 36.0 * number)
        expected = expected_per_hour(gains)
        assert (expected is None) == (number < 16)
    assert expected == pytest.approx(1.006**100 - 1)
    assert gains.stagnant <= 1  # two gains of 0.6% are one of 1.2%
    for number in range(33, 41):  # a half-life without any gain
        gains = gains_after(gains, 1.0, 36.0 * number)
    assert math.log1p(expected_per_hour(gains)) == pytest.approx(math.log1p(expected) / 2, rel=0.1)
    assert 8 <= gains.stagnant <= 9
    first = gains_after(Gains(best_as=1.5, marked_as=1.5), 1.4, 10.0)  # the seeds were better
    assert (first.gain, first.stagnant, first.best_as) == (0.0, 1, 1.5)
    assert gains_after(Gains(), 0.8, 10.0).gain == 0.0
    assert gains_after(Gains(), 1.2, 10.0).gain == pytest.approx(math.log(1.2))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_stagnation": 2}, "2 episodes went by without a gain"),
        ({"max_evaluations": 5}, "5 evaluations are made"),
        ({"max_tokens": 30}, "30 tokens are used"),
        ({"target_as": 0.6}, "the target AS 0.6 is reached"),
        ({"max_time_s": 1e-9}, "1e-09 s have passed"),
    ],
)
def test_limits_stop_a_run_that_can_go_on(store, task, settings, reason):
    session = open_tiny(store, task, islands=2, iters=10, **settings)
    done = finish(session)
    assert (done.state, done.stop_reason) == ("finished", reason)
    run = runs.get_run(store, session.run.id)
    assert sum(island.episodes for island in runs.islands(store, run.id)) < 10
    before = len(nodes.of_run(store, run.id))
    assert finish(open_tiny(store, task, run=run, islands=2, iters=10, **settings)).stop_reason == reason
    assert len(nodes.of_run(store, run.id)) == before
    assert (
        finish(open_tiny(store, task, run=run, islands=2, iters=10)).stop_reason == "all 10 episodes are done"
    )
    assert len(nodes.of_run(store, run.id)) == 20


def test_migration_on_stagnation_has_a_reason(store, task):
    session = open_tiny(store, task, islands=2, iters=100, stagnation=2)
    run = session.run
    add_node(store, run, 0, score=1.2)
    add_node(store, run, 1, score=1.5)
    best = add_node(store, run, 1, score=1.8)
    migrant, reason = choose_migrant(store, run, 0, 5)
    assert migrant.id == best.id
    assert "island 0 (fusion) had 0 episodes without a gain of 1% and has AS 1.200" in reason
    assert "island 1 (memory) has AS 1.800" in reason
    assert choose_migrant(store, run, 1, 6) is None
    episode = episodes.next_episode(store, run, 0)
    episodes.set_start(store, replace(episode, parent_id=best.id, migration=reason))
    assert choose_migrant(store, run, 0, 5) is None
    assert IslandView(store, run.id, 0).best().id == best.id


def test_an_island_that_stagnates_starts_from_a_migrant(store, task):
    for seed in range(10):
        session = open_tiny(store, task, islands=2, iters=12, seed=seed, stagnation=1)
        finish(session)
        moved = episodes.list_migrations(store, session.run.id)
        for migration in moved:
            assert nodes.get_node(store, migration.node_id).island == migration.from_island
            assert migration.from_island != migration.to_island and "without a gain" in migration.reason
        if moved:
            return
    raise AssertionError("ten runs without a migration")


def test_selection(store, task):
    session = open_tiny(store, task, islands=1, iters=100)
    run = session.run
    view = IslandView(store, run.id, 0)
    greedy = policy_of(SearchConfig(policy="greedy"))
    evolutionary = policy_of(SearchConfig(elites=2, explore=0.25))
    assert greedy.select(view, random.Random(0)) is None
    refused = add_node(store, run, status="refused", score=0.1)
    wrong = add_node(store, run, status="wrong_result", score=0.1)
    add_node(store, run, status="load_error", score=0.1)
    assert greedy.select(view, random.Random(0)).id == wrong.id != refused.id
    low, high, middle = (add_node(store, run, score=score) for score in (1.1, 1.9, 1.5))
    add_node(store, run, status="wrong_result", score=5.0)
    assert greedy.select(view, random.Random(0)).id == high.id
    drawn = [evolutionary.select(view, random.Random(seed)) for seed in range(400)]
    chosen = [node.id if node else None for node in drawn]
    assert set(chosen) == {None, high.id, middle.id}
    assert low.id not in chosen
    assert 60 < chosen.count(None) < 140  # a quarter
    assert chosen.count(high.id) > 2 * chosen.count(middle.id)  # three to one
    untimed = add_node(store, run, score=None)
    assert [n.id for n in view.elites(9)] == [high.id, middle.id, low.id, untimed.id]


def test_hints_are_shown_and_logged(store, task):
    session = open_tiny(store, task, islands=2, iters=6)
    finish(session)
    uses = store.rows("SELECT * FROM hint_uses")
    assert uses
    for use in uses:
        body = episodes.conversation(store, use["episode_id"])[1]["content"]
        advice = next(hint.advice for hint in session.hints if hint.id == use["hint_id"])
        assert " ".join(advice.split())[:40] in " ".join(body.split())


def test_the_prompt_shows_parent_and_attempts(store, task):
    session = open_tiny(store, task, islands=1, iters=3, explore=0)
    finish(session)
    third = store.row("SELECT * FROM episodes WHERE number = 3")
    body = episodes.conversation(store, third["id"])[1]["content"]
    parent = nodes.get_node(store, third["parent_id"])
    assert nodes.get_files(store, parent)["Fused.py"].splitlines()[2] in body
    assert f"Episode seed: {third['seed']}" in body
    others = [n for n in nodes.of_run(store, session.run.id) if n.episode_id != third["id"]]
    assert any(f"{node.as_score:.3f}"[:5] in body for node in others)


def test_an_unknown_role_is_told(store, task):
    with pytest.raises(UsageError, match="no prompt for role 'fusoin'; did you mean 'fusion'"):
        new_run(store, task, load_config(None, {"search.roles": ["fusoin"]}))


def test_the_log_holds_no_secret(tmp_path, monkeypatch):
    import logging

    monkeypatch.setenv("EXAMPLE_API_KEY", "sk-very-secret-value")
    with run_log(tmp_path / "run") as path:
        try:
            raise PassagentError("refused with sk-very-secret-value")
        except PassagentError:
            logging.getLogger("passagent.x").exception("it failed")
    text = path.read_text()
    assert "Traceback" in text
    assert "sk-very-secret-value" not in text
    assert "<EXAMPLE_API_KEY>" in text
    assert redact("nothing here") == "nothing here"


SECRETS = {
    "an AWS key": "AKIA" + "Z7" * 8,
    "a GitHub token": "ghp_" + "a1" * 16,
    "a GitLab token": "glpat-" + "a1" * 10,
    "a Hugging Face token": "hf_" + "a1" * 16,
    "a Google key": "AIza" + "a1" * 17 + "b",
    "a Slack token": "xoxb-" + "a1" * 8,
    "an API key": "sk-" + "a1" * 10,
    "a private key": "-----BEGIN PRIVATE KEY-----\\n" + "MIIEv+/a" * 9,
}


@pytest.mark.parametrize("kind", SECRETS)
def test_secret_of_a_known_shape_is_taken_out_once(kind):
    text = f'it says "{SECRETS[kind]}" there'
    cleaned = redact(text)
    assert SECRETS[kind][-12:] not in cleaned and cleaned.endswith('" there')
    assert (kind_of_secret(text), kind_of_secret(cleaned), redact(cleaned)) == (kind, None, cleaned)


def test_a_limit_stops_in_the_middle_of_an_episode(store, task):
    session = open_tiny(store, task, islands=1, iters=3, max_evaluations=1)
    finish(session)
    assert len(nodes.of_run(store, session.run.id)) == 1
    [episode] = store.rows("SELECT state, steps FROM episodes")
    assert episode == {"state": "running", "steps": 2}


class Lucky(tiny_search.FastEvaluator):
    """The first score of a candidate is luck: it is best where later ones are worst. Rounds are disturbed."""

    noise = 0.1
    most = 3

    async def evaluate(self, task_path, candidate, bar=None):
        evaluation = await super().evaluate(task_path, candidate)
        score = int(candidate.key[:4], 16) / 65536 + 0.5
        if (times := self.asked.count(candidate.key)) > 1:
            score = (self.most - score) * (1 + self.noise * (times % 2))
        graph = evaluation.graphs[0].model_copy(
            update={"status": "ok", "speedup": Speedup(e2e=score), "passes_from_t": -10}
        )
        return evaluation.model_copy(update={"status": "ok", "as_score": score, "graphs": [graph]})


@pytest.fixture
def five_rounds(monkeypatch):
    for module in (remeasure, session_module):
        monkeypatch.setattr(module, "ROUNDS", 5)


@pytest.fixture
def compared(store, task, five_rounds):
    """The session of a run that has ended with five rounds of its finalists."""
    session = open_tiny(store, task, evaluator=Lucky(), **COMPARED)
    finish(session)
    return session


COMPARED = {"islands": 2, "iters": 20, "finalists": 3}


def test_finalists_are_measured_again_side_by_side(store, compared):
    session, run = compared, runs.get_run(store, compared.run.id)
    best_first = finalists.best_of_run(store, run.id, 3)[:3]
    rows = finalists.last_series(store, run.id)
    assert [row.series for row in rows] == [20] * 15
    orders = [[row.node_id for row in rows if row.round == number] for number in range(1, 6)]
    assert all(sorted(order) == sorted(node.id for node in best_first) for order in orders)
    assert len({tuple(order) for order in orders}) > 1  # in random order
    assert len(session.evaluator.asked) == run.evaluations + 15  # they are not charged to the budget
    winner = finalists.winner(store, run.id)
    assert winner.id == min(best_first, key=lambda node: node.as_score).id != best_first[0].id
    mean = (3 - winner.as_score) * 1.1 ** (2 / 5)
    assert finalists.score_of(store, winner) == pytest.approx(mean)
    text = run_text(store, run_data(store, run))
    assert f"measured again side by side: node {winner.id}, AS {mean:.4f}" in text
    assert "cannot be told apart" not in text  # every round says the same

    # what was found since is named beside the confirmed winner
    *_, fourth = finalists.best_of_run(store, run.id, 4)[:4]
    assert finalists.found_since(store, run.id) is None
    lucky = {"id": fourth.id, "score": best_first[0].as_score + 5}
    store.execute("UPDATE nodes SET as_score = :score WHERE id = :id", lucky)
    assert finalists.winner(store, run.id).id == winner.id
    assert finalists.found_since(store, run.id).id == fourth.id
    assert f"found since: node {fourth.id}, AS {lucky['score']:.4f} in one" in run_text(
        store, run_data(store, runs.get_run(store, run.id))
    )


class Unstable(tiny_search.FastEvaluator):
    """Every candidate is correct, and as fast as any other within a wide interval."""

    is_unstable = True

    async def evaluate(self, task_path, candidate, bar=None):
        evaluation = await super().evaluate(task_path, candidate)
        score = 1.5 + int(candidate.key[:4], 16) / 65536 / 10
        timed = {"speedup": Speedup(e2e=score, low=1.4, high=1.8), "unstable": self.is_unstable}
        graph = evaluation.graphs[0].model_copy(update={"status": "ok", "passes_from_t": -10} | timed)
        interval = {"as_score": score, "as_low": 1.4, "as_high": 1.8}
        return evaluation.model_copy(update={"status": "ok", "graphs": [graph]} | interval)


@pytest.mark.parametrize("is_unstable", [True, False])
def test_unstable_contenders_of_an_episode_are_compared_at_its_end(store, task, is_unstable):
    evaluator = Unstable()
    evaluator.is_unstable = is_unstable
    session = open_tiny(store, task, evaluator=evaluator, islands=2, iters=20, finalists=3)
    finish(session)
    run, rows = runs.get_run(store, session.run.id), finalists.measurements(store, session.run.id)
    compared = [row for row in rows if row.series < 0]
    assert bool(compared) == is_unstable and {row.series for row in rows if row.series >= 0} == {20}
    assert len(compared) <= run.evaluations // 2 and all(row.round <= 3 for row in compared)
    for series in {row.series for row in compared}:
        pair = {row.node_id for row in compared if row.series == series}
        assert len(pair) == 2 and any(nodes.get_node(store, node_id).episode_id for node_id in pair)
    assert len(evaluator.asked) == run.evaluations + len(rows)  # they are not charged to the budget


def test_series_end_stores_each_finalists_rounds_as_one_evaluation(store, task, compared):
    session = compared
    node_ids = {row.node_id for row in finalists.last_series(store, session.run.id)}
    assert len(node_ids) == 3
    for node in (nodes.get_node(store, node_id) for node_id in node_ids):
        known = recall(store, Case(task, Candidate(nodes.get_files(store, node)), session.environment))
        mean = finalists.score_of(store, node)
        assert known.evaluation.as_score == pytest.approx(mean) != pytest.approx(node.as_score)
        assert known.evaluation.graphs[0].speedup.e2e == pytest.approx(mean)
        assert known.evaluation.as_low < mean < known.evaluation.as_high
        assert known.evaluation.protocol["rounds"] == 5
    stored = len(store.rows("SELECT id FROM evaluations"))
    finish(open_tiny(store, task, evaluator=session.evaluator, run=session.run, **COMPARED))
    assert len(store.rows("SELECT id FROM evaluations")) == stored


def test_best_and_summary_show_headline_and_table_of_the_same_rounds(store, compared, recorded, tmp_path):
    run = runs.get_run(store, compared.run.id)
    mean = finalists.score_of(store, finalists.winner(store, run.id))
    data = run_data(store, run)["best"]
    assert data["as_score"] == pytest.approx(mean)
    assert data["graphs"][0]["speedup"]["e2e"] == data["gmean_speedup"] == pytest.approx(mean)
    text = run_text(store, run_data(store, run))
    assert "geometric means over 5 rounds beside other finalists" in text
    out = {"out": str(tmp_path / "best"), "runs_dir": str(store.runs_dir), "format": "review"}
    answer = write_best("last", **out, force=False, standalone=False)
    assert answer.data["as_score"] == pytest.approx(mean)
    readme = (tmp_path / "best" / "README.md").read_text()
    assert readme.count(f"{mean:.3f} [") == 2, "the headline and the table's line"
    assert "geometric mean over 5 rounds" in readme


def test_the_best_pass_is_a_confirmed_node_in_a_short_run_too(store, task):
    """A short run confirms fewer nodes than `search.finalists`: the others, measured once, do not win."""
    evaluator = Lucky()
    evaluator.most = 1.6  # later scores are below all first ones
    session = open_tiny(store, task, evaluator=evaluator, islands=2, iters=6, finalists=3)
    finish(session)
    run = runs.get_run(store, session.run.id)
    rows = finalists.last_series(store, run.id)
    confirmed, correct = {row.node_id for row in rows}, finalists.best_of_run(store, run.id, 10)
    assert len(confirmed) == 2 < len(correct)
    winner = finalists.winner(store, run.id)
    assert winner.id in confirmed
    assert max(node.as_score for node in correct[2:]) > finalists.score_of(store, winner)
    assert f"best pass: node {winner.id}," in run_text(store, run_data(store, run))


def test_who_is_behind_for_sure_is_no_finalist(store, task):
    class Sure(Lucky):
        most = 1.6

        async def evaluate(self, task_path, candidate, bar=None):
            found = await super().evaluate(task_path, candidate, bar)
            ends = {"as_low": found.as_score * 0.999, "as_high": found.as_score * 1.001}
            return found.model_copy(update=ends)

    session = open_tiny(store, task, evaluator=Sure(), islands=2, iters=6, finalists=3)
    finish(session)
    best, *others = finalists.best_of_run(store, session.run.id, 3)
    assert others[0].as_score < best.as_score / 1.01
    assert {row.node_id for row in finalists.last_series(store, session.run.id)} == {best.id}
    assert others[0].as_score > finalists.score_of(store, best)
    assert finalists.winner(store, session.run.id).id == best.id  # the others were not confirmed


def test_a_series_ends_when_its_outcome_is_known(store, task, five_rounds):
    evaluator = Lucky()
    evaluator.noise = 0.0
    settings = {"islands": 2, "iters": 14, "finalists": 3}
    session = open_tiny(store, task, evaluator=evaluator, **settings)
    finish(session)
    run = runs.get_run(store, session.run.id)
    rows = finalists.last_series(store, run.id)
    assert [row.round for row in rows] == [1, 1, 1, 2, 2, 2]
    assert len(evaluator.asked) == run.evaluations + 6
    best_first = finalists.best_of_run(store, run.id, 3)[:3]
    assert finalists.winner(store, run.id).id == min(best_first, key=lambda node: node.as_score).id
    finish(open_tiny(store, task, evaluator=evaluator, run=session.run, **settings))
    assert len(evaluator.asked) == run.evaluations + 6  # and it stays ended


class Hanging(Lucky):
    """The time is over in the evaluation after the first `limit`, which would not end by itself."""

    session: Session

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    async def evaluate(self, task_path, candidate, bar=None):
        if len(self.asked) == self.limit:
            self.session.begun -= 1e6
            await asyncio.Event().wait()
        return await super().evaluate(task_path, candidate, bar)


@pytest.mark.parametrize("is_among_finalists", [False, True])
def test_max_time_cuts_the_evaluation_under_way_and_resume_has_the_time_anew(store, task, is_among_finalists):
    settings = {"islands": 1, "iters": 4, "finalists": 2, "max_time_s": 1e5}
    evaluator = Hanging(9 if is_among_finalists else 3)  # of 8 candidates
    session = evaluator.session = open_tiny(store, task, evaluator=evaluator, **settings)
    reason = "all 4 episodes are done" if is_among_finalists else "100000 s have passed"
    done = finish(session)
    assert (done.state, done.stop_reason) == ("finished", reason)
    run = runs.get_run(store, session.run.id)
    assert (run.state, finalists.last_series(store, run.id)) == ("finished", [])
    assert bool(nodes.unfinished(store, run.id)) is not is_among_finalists
    assert run.elapsed_s < 1e5

    store.execute("UPDATE runs SET elapsed_s = 1e6", {})  # what earlier commands took does not count
    evaluator.limit = -1
    again = open_tiny(store, task, run=run, evaluator=evaluator, **settings)
    assert finish(again).stop_reason == "all 4 episodes are done"
    assert nodes.unfinished(store, run.id) == [] != finalists.last_series(store, run.id)


def test_max_time_keeps_time_for_the_finalists(store, task):
    class Slow(Lucky):
        async def evaluate(self, task_path, candidate, bar=None):
            found = await super().evaluate(task_path, candidate, bar)
            return found.model_copy(update={"seconds": 1e3})

    session = open_tiny(store, task, evaluator=Slow(), islands=1, iters=9, finalists=2, max_time_s=1e5)
    session.begun -= 9.5e4  # 5000 s are left, finalists may take 2 * 4 * 1000
    assert finish(session).stop_reason == "100000 s have passed but for 8e+03 s for the finalists"
    assert len(nodes.of_run(store, session.run.id)) == 1
    assert finalists.last_series(store, session.run.id)


def test_max_time_counts_from_the_commands_beginning(tmp_path, capsys):
    task = str(tiny_search.write_task(tmp_path / "task"))
    parts = replace(tiny_search.parts(), begun=time.monotonic() - 1e6)
    settings = tiny_search.settings(2, 1, 0) | {"search.max_time_s": 1e5}
    running.run(task, {"settings": settings, "runs_dir": tmp_path / "runs"}, True, parts)
    found = json.loads(capsys.readouterr().out)
    assert (found["reason"], found["nodes"]) == ("100000 s have passed", 0)


def test_what_settles_a_series():
    rounds = lambda *graphs: [Round([one], None) for one in graphs]  # noqa: E731
    steady = lambda gain: rounds(gain, gain + 0.001, gain - 0.001)  # noqa: E731
    assert is_settled(standing({1: steady(0.5), 2: steady(0.4)}))
    assert is_settled(standing({1: steady(0.5), 2: steady(0.499)}))  # less than 1% behind: either will do
    noisy = rounds(0.48, 0.45, 0.49)
    assert not is_settled(standing({1: steady(0.5), 2: noisy}))
    assert not is_settled(
        standing({1: rounds(0.5, 0.6, 0.4), 2: rounds(0.4, 0.5, 0.3)})
    )  # what is it itself?
    assert is_settled(standing({1: steady(0.5)})) and is_settled([])
    pair = lambda one, other, error: [Round([one], error), Round([other], error)]  # noqa: E731
    two = lambda error: {1: pair(0.501, 0.499, error), 2: pair(0.479, 0.481, error)}  # noqa: E731
    assert is_settled(standing(two(0.005)))  # two rounds that agree will do
    assert not is_settled(standing(two(None)))
    assert not is_settled(standing(two(0.02)))


def test_a_series_that_was_cut_off_is_gone_on_with(store, task):
    done = "SELECT count(evaluation_id) AS n FROM confirmations"

    class Failing(Lucky):
        async def evaluate(self, task_path, candidate, bar=None):
            if store.row(done)["n"] == 5:
                raise KeyError("a bug")
            return await super().evaluate(task_path, candidate)

    session = open_tiny(store, task, evaluator=Failing(), islands=1, iters=20, finalists=3)
    with pytest.raises(KeyError):
        finish(session)
    assert store.row(done)["n"] == 5
    assert finalists.last_series(store, session.run.id) == []
    again = Lucky()
    finish(open_tiny(store, task, evaluator=again, run=session.run, islands=1, iters=20, finalists=3))
    assert len(again.asked) == 12 - 5
    finish(open_tiny(store, task, evaluator=again, run=session.run, islands=1, iters=20, finalists=3))
    assert len(again.asked) == 12 - 5  # nothing new: nothing is measured again


def test_an_interval_says_when_two_cannot_be_told_apart():
    rng = random.Random(1)
    load = [rng.gauss(0, 0.3) for _ in range(6)]  # slows a whole round down
    rounds = lambda gain: [  # noqa: E731
        Round([gain + slow + rng.gauss(0, 0.01) for _ in range(4)], 0.005) for slow in load
    ]
    first, second, third = standing({7: rounds(0.50), 8: rounds(0.501), 9: rounds(0.40)})
    assert {first.node_id, second.node_id} == {7, 8} and third.node_id == 9
    assert first.behind is None and not second.is_behind and third.is_behind
    assert third.behind.low < 1.105 < third.behind.high < 1.2
    assert first.as_score.low < 1.3  # the load is in each one's own interval, not in the difference


@pytest.mark.parametrize("drift", [0.0, 0.5, 1.0, 2.0, 10.0])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_interval_over_rounds_covers(count, drift):
    """`drift`: what slows whole rounds down, in multiples of the rounds' own errors."""
    rng = random.Random(1)
    hits = {True: 0, False: 0}
    for _ in range(2000):
        slow = [rng.gauss(0.1, 0.01 * drift) for _ in range(count)]
        means = [rng.gauss(one, 0.01) for one in slow]
        for known in hits:
            found = interval(means, [0.01 if known else None] * count)
            hits[known] += found.low <= math.exp(0.1) <= found.high
    assert 0.93 < hits[False] / 2000 < 0.97
    assert (0.95 if drift == 0 else 0.85) < hits[True] / 2000 < 1
