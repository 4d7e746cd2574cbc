"""The hint distiller: what it sees, what counts as a hint, and that each episode is asked about once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
import tiny_search
from test_search import finish, store, task  # noqa: F401
from wire_server import Said, WireServer

from passagent.agent import distiller
from passagent.agent.distiller import Improvement, Side, ask, open_distiller, prompt, read
from passagent.agent.tokens import tokens
from passagent.config import load_config
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.result import Candidate, Speedup
from passagent.experience.diagnosis import START, Diagnosis
from passagent.experience.hint_library import HintLibrary
from passagent.experience.hints import Hint
from passagent.models.scripted import ScriptedModel, calling
from passagent.models.types import END, TOOLS, Reply, Usage, assistant
from passagent.report import lineage
from passagent.search import distilling
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


def hints_of(store, episode_id):  # noqa: F811
    return [hint.id for hint in lineage.hints_shown(store, episode_id)]


def side(score: float, files: dict[str, str] | None = None) -> Side:
    evaluation = tiny_search.judge(Candidate(tiny_search.candidate_files("two 1")))
    update = {"speedup": Speedup(e2e=score), "status": "ok"}
    graph = evaluation.graphs[0].model_copy(update=update)
    evaluation = evaluation.model_copy(update={"as_score": score, "status": "ok", "graphs": [graph]})
    return Side(files or tiny_search.candidate_files(f"of {score}"), evaluation)


@pytest.fixture
def improvement(task) -> Improvement:  # noqa: F811
    known = Diagnosis("latency_bound", "Issuing takes the time.")
    return Improvement(task, "cpu", known, side(1.25), side(1.75), "run-1a-episode-7", "run 1a, episode 7")


def written(**fields: object) -> dict[str, object]:
    return calling(("write_hint", FIELDS | fields))


def test_the_prompt_holds_the_change_and_what_it_gained(improvement):
    text = prompt(improvement)
    assert '-WORDS = "of 1.25"' in text and '+WORDS = "of 1.75"' in text
    assert "g (float32): 1.25x -> 1.75x" in text and "1.2500 before, 1.7500 after" in text
    assert "Diagnosis (latency_bound): Issuing takes the time." in text
    assert "Operators: relu" in text and "Dtypes: float32" in text and "Target: cpu" in text

    first = prompt(replace(improvement, before=None, diagnosis=START))
    assert "1.00x -> 1.75x" in first and "AS: eager is 1, more is better): 1 before, 1.7500 after" in first
    assert '-WORDS = "of' not in first and '+WORDS = "of 1.75"' in first


def test_the_prompt_keeps_to_its_size(improvement):
    long = {"Fused.py": "".join(f"line {number} of many\n" for number in range(20_000))}
    graphs = [improvement.after.evaluation.graphs[0].model_copy(update={"name": f"g{n}"}) for n in range(900)]
    evaluation = improvement.after.evaluation.model_copy(update={"graphs": graphs})
    text = prompt(replace(improvement, after=Side(long, evaluation)))
    assert tokens(text) < distiller.MAX_DIFF + distiller.MAX_SPEEDUPS + 1_000
    assert "+line 0 of many" in text and text.count("lines not shown") == 2


def test_a_hint_is_read(improvement):
    hint = read(written(), improvement).hint
    assert isinstance(hint, Hint)
    assert (hint.id, hint.source) == ("run-1a-episode-7", "run 1a, episode 7")
    assert hint.advice == "Keep the row in registers and write it once; it pays where launches limit."
    assert read(written(id="mine", source="me"), improvement).hint == hint
    assert read(assistant(f"```json\n{json.dumps(FIELDS)}\n```"), improvement).hint == hint
    assert read(written(context={}), improvement).hint.context.operators == []


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
        read(message, improvement)


def test_a_malformed_reply_is_asked_for_once_again(improvement):
    model, saved = ScriptedModel([written(confidence=7), written()]), []
    hint = asyncio.run(ask(model, improvement, lambda *both: saved.append(both)))
    assert hint is not None and [found for _, found in saved] == [None, hint]
    assert [message["role"] for message in model.calls[1]] == ["user", "assistant", "tool"]
    assert "confidence: " in model.calls[1][2]["content"]

    model, saved = ScriptedModel(["Fuse.", "Fuse more.", written()]), []
    assert asyncio.run(ask(model, improvement, lambda *both: saved.append(both))) is None
    assert [found for _, found in saved] == [None, None]
    assert [message["role"] for message in model.calls[1]] == ["user", "assistant", "user"]


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
    assert hint == read(written(), improvement)
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
        assert [tool.name for tool in tools][:1] == ["write_hint"]
        if self.gone(len(self.calls)):
            raise PassagentError("gone")
        message = assistant("Fuse.") if self.malformed(len(self.calls)) else written()
        return Reply(message, Usage(10, 2), TOOLS if message["tool_calls"] else END)

    async def close(self) -> None:
        self.is_closed = True


def taught_session(store, task, teacher, run=None, library="off", **settings):  # noqa: F811
    """A tiny search with a distiller (None: without), which always shows the learned hint that it chose."""
    chosen = {"islands": 1, "iters": 6, "seed": 3, "finalists": 0, "expert_seeds": 0, "explore": 0} | settings
    shown = {"experience.library": str(library), "experience.learned": 1.0}
    config = load_config(None, {f"search.{name}": value for name, value in chosen.items()} | shown)
    session = open_session(
        store,
        run or new_run(store, task, config),
        task,
        config,
        lambda event: None,
        tiny_search.PacedModel(),
        tiny_search.FastEvaluator(),
        tiny_search.diagnose,
    )
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


def errors_alone(store, run) -> list[int]:  # noqa: F811
    """Numbers of the episodes that made candidates, all of them wrong."""
    rows = store.rows(
        "SELECT number, min(status != 'ok') AS wrong FROM nodes WHERE run_id = :r GROUP BY number",
        {"r": run.id},
    )
    return [row["number"] for row in rows if row["wrong"]]


def test_each_progress_is_asked_about_once_counted_and_used(store, task, tmp_path):  # noqa: F811
    teacher, library = Teacher(), tmp_path / "library.db"
    session = taught_session(store, task, teacher, iters=10, library=library)
    finish(session)
    run = runs.get_run(store, session.run.id)
    gained = progress(store, run)
    assert 2 <= len(gained) < 10 and teacher.is_closed
    rows = table(store, run)
    failed = errors_alone(store, run)
    assert failed and sorted(rows) == sorted(gained + failed) and len(teacher.calls) == len(rows)
    assert "has just made nothing but errors" in teacher.calls[sorted(rows).index(failed[0])][0]["content"]
    for number, row in rows.items():
        episode = episodes.get_episode(store, row["episode_id"])
        hint = Hint.model_validate_json(row["hint"])
        assert (row["state"], row["gain"]) == ("written", episode.gain)
        assert row["hint_id"] == hint.id == f"run-{run.id}-episode-{number}"
        assert hint.source == f"run {run.id}, episode {number}"

    spent = {group.group: group for group in ledger.spent(store, run.id, "role")}
    theirs = spent["hint_distiller"]
    count = len(rows)
    assert (theirs.replies, theirs.input_tokens, theirs.output_tokens) == (count, 10 * count, 2 * count)
    assert run.input_tokens == theirs.input_tokens + spent["agent"].input_tokens
    sums = store.row("SELECT sum(input_tokens) AS n FROM episodes WHERE run_id = :r", {"r": run.id})
    assert sums == {"n": run.input_tokens}

    first = rows[gained[0]]["hint_id"]
    later = store.rows("SELECT id FROM episodes WHERE number > :n ORDER BY number", {"n": gained[0]})
    assert first in hints_of(store, later[0]["id"]), "the only one that there was then"
    shown = episodes.conversation(store, later[0]["id"])[1]["content"]
    assert (
        f"[{first}] A model noted this" in shown and "> Keep the row in registers and write it once" in shown
    )
    with HintLibrary.open(library) as known:
        assert {entry.learned.hint.id for entry in known.entries()} == {
            row["hint_id"] for row in rows.values()
        }
        written = {row["hint_id"]: row["episode_id"] for row in rows.values()}
        offers = known.rows("SELECT hint, episode, gain FROM outcomes")
    assert offers and all(row["episode"] > written[row["hint"]] for row in offers), "never of its own episode"
    gains = {row["id"]: row["gain"] for row in store.rows("SELECT id, gain FROM episodes")}
    assert all(row["gain"] == (gains[row["episode"]] or 0.0) for row in offers)

    again = taught_session(store, task, None, iters=2, library=library)
    finish(again)
    other = store.rows("SELECT id FROM episodes WHERE run_id = :r", {"r": again.run.id})
    shown = [hint for row in other for hint in hints_of(store, row["id"])]
    assert {*shown} & {row["hint_id"] for row in rows.values()}, "of other runs, too"
    assert table(store, again.run) == {}


def test_without_a_distiller_nothing_is_asked(store, task):  # noqa: F811
    session = taught_session(store, task, None)
    finish(session)
    assert progress(store, session.run) and table(store, session.run) == {}
    assert [group.group for group in ledger.spent(store, session.run.id, "role")] == ["agent"]


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

    monkeypatch.setattr(distilling.hint_uses, "settle_distilled", killed)
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
    assert outcome.state == "finished" and "tokens" in outcome.reason
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
    assert outcome.state == "finished" and "target AS" in outcome.reason
    rows = table(store, session.run)
    last = store.row(
        "SELECT number, state, end_reason FROM episodes WHERE run_id = :r ORDER BY number DESC LIMIT 1",
        {"r": session.run.id},
    )
    assert last["number"] == max(rows) and last["state"] == "running", "it is gone on with"
    assert {row["state"] for row in rows.values()} == {"written"} and len(teacher.calls) == len(rows)
    on = go_on(store, task, session, teacher, target_as=None)
    assert {row["state"] for row in on.values()} == {"written"} and len(teacher.calls) == len(on)
