"""The hint distiller: what it sees, what counts as a hint, and that each episode is asked about once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from statistics import fmean

import pytest
import tiny_search
from test_search import finish, store, task  # noqa: F401
from wire_server import Said, WireServer

from passagent.agent import distiller
from passagent.agent.context import JudgedNode
from passagent.agent.distiller import Improvement, ask, open_distiller, prompt, read
from passagent.agent.tokens import tokens
from passagent.config import load_config, override
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.result import Candidate, Speedup
from passagent.experience.hints import Hint, is_held_out
from passagent.models.scripted import ScriptedModel, calling
from passagent.models.types import END, TOOLS, Reply, Usage, assistant
from passagent.search import run_models
from passagent.search.setup import check_money, new_run, open_session
from passagent.store import episodes, hint_uses, ledger, nodes, runs

ADVICE = "Keep the row in registers\n  and write it once; it pays where launches limit."
FIELDS = {
    "trigger": ["start", "latency_bound", "wrong_result"],
    "context": {"operators": ["relu"], "dtypes": ["float32"], "targets": ["cpu"]},
    "advice": ADVICE,
    "confidence": 0.6,
}
NAMED = {"roles.hint_distiller": {"name": "openai/teacher"}}


def judged(score: float, diagnosis: dict[str, str] | None = None) -> JudgedNode:
    evaluation = tiny_search.judge(Candidate(tiny_search.candidate_files("two 1")))
    update = {"speedup": Speedup(e2e=score), "status": "ok"}
    graph = evaluation.graphs[0].model_copy(update=update)
    evaluation = evaluation.model_copy(update={"as_score": score, "status": "ok", "graphs": [graph]})
    node = tiny_search.node_of(1, number=7, as_score=score, diagnosis=diagnosis and json.dumps(diagnosis))
    return JudgedNode(node, tiny_search.candidate_files(f"of {score}"), evaluation)


@pytest.fixture
def improvement(task) -> Improvement:  # noqa: F811
    known = {"label": "latency_bound", "text": "Issuing takes the time."}
    return Improvement(task, "cpu", judged(1.25, known), judged(1.75))


def written(**fields: object) -> dict[str, object]:
    return calling(("write_hint", FIELDS | fields))


def test_the_prompt_holds_the_change_and_what_it_gained(improvement):
    text = prompt(improvement)
    assert '-WORDS = "of 1.25"' in text and '+WORDS = "of 1.75"' in text
    assert "g (float32): 1.25x -> 1.75x" in text and "1.2500 before, 1.7500 after" in text
    assert "Diagnosis (latency_bound): Issuing takes the time." in text
    assert "Operators: relu" in text and "Dtypes: float32" in text and "Target: cpu" in text

    first = prompt(replace(improvement, before=None))
    assert "1.00x -> 1.75x" in first and "AS: eager is 1, more is better): 1 before, 1.7500 after" in first
    assert '-WORDS = "of' not in first and '+WORDS = "of 1.75"' in first


def test_the_prompt_keeps_to_its_size(improvement):
    long = {"Fused.py": "".join(f"line {number} of many\n" for number in range(20_000))}
    graphs = [improvement.after.evaluation.graphs[0].model_copy(update={"name": f"g{n}"}) for n in range(900)]
    evaluation = improvement.after.evaluation.model_copy(update={"graphs": graphs})
    after = improvement.after._replace(files=long, evaluation=evaluation)
    text = prompt(replace(improvement, after=after))
    assert tokens(text) < distiller.MAX_DIFF + distiller.MAX_SPEEDUPS + 1_000
    assert "+line 0 of many" in text and text.count("lines not shown") == 2


def test_a_hint_is_read(improvement):
    hint = read(improvement, written())
    assert isinstance(hint, Hint)
    assert (hint.id, hint.source) == ("run-1a-episode-7", "run 1a, episode 7")
    assert hint.advice == "Keep the row in registers and write it once; it pays where launches limit."
    assert read(improvement, written(id="mine", source="me")) == hint
    assert read(improvement, assistant(f"```json\n{json.dumps(FIELDS)}\n```")) == hint
    assert read(improvement, written(context={})).context.operators == []


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (assistant("Fuse more."), "no valid JSON"),
        (calling(("write_hint", '{"trigger": ')), "no valid JSON"),
        (calling(("write_hint", "[1]")), "no JSON object"),
        (calling(("other", FIELDS)), "no valid JSON"),
        (written(trigger=["latency_bond"]), "trigger: .*did you mean 'latency_bound'"),
        (written(trigger=[]), "trigger: "),
        (written(confidence=1.5), "confidence: "),
        (written(advice="Fuse."), "advice: "),
        (written(advice="x" * 401), "advice: 401 characters, 400 are allowed"),
        (written(advice="Write ```this``` in place of all."), "advice: holds a code fence"),
        (written(advice="\ud800" * 30), "advice: .*unicode"),
        (written(note="more"), "note: Extra"),
        (written(context={"operators": ["torch.relu"]}), "leaves out the very task"),
        (written(context={"dtypes": ["float16"]}), "leaves out the very task"),
        (written(context={"targets": ["cuda"]}), "leaves out the very task"),
        (written(context={"targets": ["tpu"]}), r"context.targets.0: "),
    ],
)
def test_what_is_no_hint(message, reason, improvement):
    with pytest.raises(ValueError, match=reason):
        read(improvement, message)


def test_the_model_that_is_named_is_asked(improvement, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    assert open_distiller(load_config()) is None
    with WireServer(lambda body: Said(calls=[("c1", "write_hint", json.dumps(FIELDS))])) as server:
        choice = {"name": "openai/teacher", "base_url": f"{server.url}/v1"}

        async def asked():
            model = open_distiller(load_config(None, {"roles.hint_distiller": choice}))
            try:
                return await ask(model, improvement)
            finally:
                await model.close()

        hint = asyncio.run(asked())
    assert hint == read(improvement, written())
    assert len(server.requests) == 1 and "write_hint" in json.dumps(server.requests[0][2])


def test_its_price_must_be_known_for_a_budget_of_money():
    config = load_config(None, NAMED | {"search.max_cost": 1.0})
    with pytest.raises(UsageError, match="openai/teacher"):
        check_money(config, tiny_search.PacedModel())


class Teacher(ScriptedModel):
    """Writes a hint about every episode; ten tokens in and two out for each reply."""

    def __init__(self, malformed=lambda number: False, gone=lambda number: False):
        super().__init__(self.teach, "openai/teacher")
        self.malformed, self.gone, self.is_closed = malformed, gone, False

    def teach(self, messages, tools):
        assert [tool.name for tool in tools] == ["write_hint"]
        if self.gone(len(self.calls)):
            raise PassagentError("gone")
        message = assistant("Fuse.") if self.malformed(len(self.calls)) else written()
        return Reply(message, Usage(10, 2), TOOLS if message["tool_calls"] else END)

    async def close(self) -> None:
        self.is_closed = True


def taught_session(store, task, teacher, run=None, **settings):  # noqa: F811
    """Open a tiny search with a distiller (None: without), whose runs take no passes from each other."""
    chosen = {"islands": 1, "iters": 6, "seed": 3, "finalists": 0, "expert_seeds": 0, "explore": 0} | settings
    library = {"library": str(store.runs_dir / "library.db"), "seeds": False, "examples": 0}
    more = {f"experience.{name}": value for name, value in library.items()}
    config = load_config(None, {f"search.{name}": value for name, value in chosen.items()} | more)
    run, parts = run or new_run(store, task, config), tiny_search.parts()
    stand_ins = replace(parts, model=tiny_search.PacedModel(), evaluator=tiny_search.FastEvaluator())
    session = open_session(store, run, task, config, stand_ins, lambda event: None)
    assert session.distiller is None, "unset: nobody"
    session.distiller = teacher
    return session


def table(store, run) -> dict[int, dict[str, object]]:  # noqa: F811
    """The rows of `distilled_hints` by the number of their episode."""
    rows = store.rows("SELECT * FROM distilled_hints WHERE run_id = :run", {"run": run.id})
    return {episodes.get_episode(store, row["episode_id"]).number: row for row in rows}


def progress(store, run) -> list[int]:  # noqa: F811
    """Numbers of the episodes of a run of one island that beat all before them."""
    found, best = [], 0.0
    for row in store.rows(
        "SELECT number, best_as FROM episodes WHERE run_id = :r ORDER BY number", {"r": run.id}
    ):
        if row["best_as"] is not None and row["best_as"] > best * 1.01:
            found.append(row["number"])
        best = max(best, row["best_as"] or 0.0)
    return found


def test_each_progress_is_asked_about_once_and_its_call_counted(store, task):  # noqa: F811
    teacher = Teacher()
    session = taught_session(store, task, teacher, iters=10)
    finish(session)
    run = runs.get_run(store, session.run.id)
    gained = progress(store, run)
    assert 2 <= len(gained) < 10 and teacher.is_closed
    rows = table(store, run)
    assert sorted(rows) == gained and len(teacher.calls) == len(rows)
    for number, row in rows.items():
        hint = Hint.model_validate_json(row["hint"])
        assert row["state"] == "written" and row["author"] == "openai/teacher"
        assert row["hint_id"] == hint.id == f"run-{run.id}-episode-{number}"
        assert hint.source == f"run {run.id}, episode {number}"
        assert row["node_id"] == episodes.get_episode(store, row["episode_id"]).best_node

    spent = {group.group: group for group in ledger.spent(store, run.id, "role")}
    theirs = spent["hint_distiller"]
    count = len(rows)
    assert (theirs.replies, theirs.input_tokens, theirs.output_tokens) == (count, 10 * count, 2 * count)
    assert run.input_tokens == theirs.input_tokens + spent["agent"].input_tokens
    sums = store.row("SELECT sum(input_tokens) AS n FROM episodes WHERE run_id = :r", {"r": run.id})
    assert sums == {"n": run.input_tokens}


def test_learned_hints_are_used_in_later_runs_but_for_the_held_out_episodes(store, task, call):  # noqa: F811
    finish(first := taught_session(store, task, Teacher()))
    # all have the same text: only the oldest one is shown
    name = next(iter(table(store, first.run).values()))["hint_id"]
    finish(later := taught_session(store, task, None, iters=20, seed=5))
    assert table(store, later.run) == {}
    gains = {True: [], False: []}
    sql = (
        "SELECT episodes.id, episodes.run_id, seed, coalesce(gain, 0.0) AS gain, is_shown FROM hint_uses "
        "JOIN episodes ON episodes.id = episode_id WHERE hint_id = :name ORDER BY episodes.id"
    )
    for row in store.rows(sql, {"name": name}):
        assert row["is_shown"] == (not is_held_out(row["seed"]))
        prompt = episodes.conversation(store, row["id"])[1]["content"]
        assert (f"[{name}] A model noted this" in prompt) == bool(row["is_shown"])
        gains[bool(row["is_shown"])].append(row["gain"])
    used_by = {row["run_id"] for row in store.rows(sql, {"name": name})}
    assert used_by == {first.run.id, later.run.id} and min(map(len, gains.values())) >= 2

    code, out, _ = call("hints", "--runs-dir", store.runs_dir, "--json")
    found = json.loads(out)
    listed = {hint["id"]: hint for hint in found["hints"]}
    node = table(store, first.run)[progress(store, first.run)[0]]["node_id"]
    assert listed[name]["origin"] == f"run {first.run.id}, node {node}, openai/teacher"
    assert listed[name]["uplift"] == found["uplift"], "no other one was shown"
    assert found["uplift"]["estimate"] == pytest.approx(fmean(gains[True]) - fmean(gains[False]))
    assert found["uplift"]["low"] <= found["uplift"]["estimate"] <= found["uplift"]["high"]
    counts = found["uplift"]["shown"], found["uplift"]["held_out"]
    assert counts == (len(gains[True]), len(gains[False]))
    curated = [hint for hint in found["hints"] if hint["origin"] == "curated"]
    assert len(curated) >= 40 and any(hint["shown"] for hint in curated)
    code, out, _ = call("hints", "--runs-dir", store.runs_dir)
    assert code == 0 and "uplift of learned hints: " in out
    assert f"{name}: run {first.run.id}, node {node}" in out


def test_an_episode_sees_no_learned_hints_where_they_are_turned_off(store, task):  # noqa: F811
    finish(taught_session(store, task, Teacher()))
    session = taught_session(store, task, None, iters=4)
    session.config = override(session.config, {"experience.learned": False})
    finish(session)
    sql = "SELECT 1 FROM hint_uses JOIN distilled_hints USING (hint_id) WHERE hint_uses.run_id = :run"
    assert store.rows(sql, {"run": session.run.id}) == []


def go_on(store, task, before, teacher, **settings):  # noqa: F811
    """Resume the run as another process does."""
    session = taught_session(store, task, teacher, runs.get_run(store, before.run.id), **settings)
    finish(session)
    return table(store, session.run)


def test_a_malformed_reply_that_was_paid_for_is_not_asked_for_again_after_a_kill(store, task):  # noqa: F811
    session = taught_session(
        store, task, Teacher(malformed=lambda number: number == 1, gone=lambda number: number == 2)
    )
    with pytest.raises(PassagentError, match="gone"):
        finish(session)
    first = min(table(store, session.run))
    assert table(store, session.run)[first]["state"] == "none"
    teacher = Teacher()
    rows = go_on(store, task, session, teacher)
    assert [number for number, row in rows.items() if row["state"] == "none"] == [first]
    assert len(teacher.calls) == len(rows) - 1 == len(progress(store, session.run)) - 1


def test_an_end_without_its_hint_is_asked_about_by_the_next_process(store, task):  # noqa: F811
    session = taught_session(store, task, Teacher(gone=lambda number: True))
    with pytest.raises(PassagentError, match="gone"):
        finish(session)
    (row,) = table(store, session.run).values()
    assert row["state"] == "wanted" and episodes.get_episode(store, row["episode_id"]).state == "done"
    teacher = Teacher()
    rows = go_on(store, task, session, teacher)
    assert {row["state"] for row in rows.values()} == {"written"}
    assert len(teacher.calls) == len(rows) == len(progress(store, session.run))


def test_reply_and_hint_are_stored_together_or_not_at_all(store, task, monkeypatch):  # noqa: F811
    session = taught_session(store, task, Teacher())
    whole = hint_uses.settle_distilled

    def killed(*arguments):
        whole(*arguments)
        raise PassagentError("killed")

    monkeypatch.setattr(run_models.hint_uses, "settle_distilled", killed)
    with pytest.raises(PassagentError, match="killed"):
        finish(session)
    monkeypatch.undo()
    (row,) = table(store, session.run).values()
    assert row["state"] == "wanted" and row["hint"] is None
    (spent,) = (s for s in ledger.spent(store, session.run.id, "role") if s.group == "hint_distiller")
    assert (spent.requests, spent.replies) == (1, 0)
    rows = go_on(store, task, session, Teacher())
    assert {row["state"] for row in rows.values()} == {"written"}


class Wide(Teacher):
    """A call that may take more than the budget has."""

    def bound(self, messages, tools):
        return 5_000, 5_000


def test_a_budget_without_room_leaves_it_to_be_asked(store, task):  # noqa: F811
    teacher = Wide()
    session = taught_session(store, task, teacher, max_tokens=9_000)
    outcome = finish(session)
    assert outcome.state == "finished" and "tokens" in outcome.stop_reason
    assert teacher.calls == []
    assert [row["state"] for row in table(store, session.run).values()] == ["wanted"]
    assert len(store.rows("SELECT id FROM episodes")) == min(table(store, session.run))
    rows = go_on(store, task, session, Wide(), max_tokens=1_000_000)
    assert {row["state"] for row in rows.values()} == {"written"}


@pytest.mark.long
def test_the_gain_that_meets_the_target_is_asked_about_before_the_run_is_over(store, task):  # noqa: F811
    finish(first := taught_session(store, task, None, iters=10))
    best = max(node.as_score for node in nodes.of_run(store, first.run.id) if node.status == "ok")
    teacher = Teacher()
    session = taught_session(store, task, teacher, iters=10, target_as=best, reuse=False)
    outcome = finish(session)
    assert outcome.state == "finished" and "target AS" in outcome.stop_reason
    rows = table(store, session.run)
    last = store.row(
        "SELECT number, state, end_reason FROM episodes WHERE run_id = :r ORDER BY number DESC LIMIT 1",
        {"r": session.run.id},
    )
    assert last["number"] == max(rows) and last["state"] == "running", "it is gone on with"
    assert {row["state"] for row in rows.values()} == {"written"} and len(teacher.calls) == len(rows)
    on = go_on(store, task, session, teacher, target_as=None)
    assert {row["state"] for row in on.values()} == {"written"} and len(teacher.calls) == len(on)
