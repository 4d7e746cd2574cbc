"""Budgets end a run before the call that would exceed them; prices are known or unknown, never 0."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import paid_run
import pytest
import tiny_search
from wire_server import CHECK, Said, WireServer

from passagent import cli
from passagent.cli import running
from passagent.config import SearchConfig, load_config
from passagent.errors import UsageError
from passagent.models import prices
from passagent.models.prices import Price, check_budget, parse_price, price_of, read_prices
from passagent.models.types import Usage
from passagent.options import RunOptions, parse_models, settings_of
from passagent.search.stop import Progress, Want, lack, left
from passagent.store import Store, runs

SMALL = ["model.max_output_tokens=500"]


@pytest.fixture
def spend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`spend(iters, islands, *settings)`: the run that came of it, and the server it asked."""
    task = tiny_search.write_task(tmp_path / "task")

    def go(iters: int, islands: int, *settings: str, share: float = 0.0, **server: Any) -> Any:
        with WireServer(paid_run.brain, share=share, **server) as there:
            monkeypatch.setenv("OPENAI_BASE_URL", f"{there.url}/v1")
            monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789abcdef")
            chosen = paid_run.settings(iters, islands, "openai/m-1", *SMALL, *settings)
            running.run(
                str(task),
                {"settings": chosen, "runs_dir": str(tmp_path / "runs"), "new": True},
                True,
                parts=paid_run.parts(),
            )
        with Store.open(tmp_path / "runs") as store:
            return runs.find_run(store, "last"), there

    return go


def test_tokens_are_never_exceeded_with_four_in_flight(spend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, brain, others, have_met = 60_000, paid_run.brain, threading.Barrier(2), threading.Event()

    def answer_two_at_once(body: dict[str, Any]) -> Said:
        said = brain(body)
        if said.key != CHECK and not have_met.is_set():
            others.wait(300)
            have_met.set()
        return said

    monkeypatch.setattr(paid_run, "brain", answer_two_at_once)
    run, there = spend(20, 4, f"search.max_tokens={limit}", seconds=0.02)
    assert run.state == "finished"
    assert f"of {limit} are left" in run.stop_reason
    assert run.tokens == sum(there.billed) <= limit
    assert run.tokens > limit / 2  # and the budget is used
    assert there.most_in_flight > 1


def test_money_is_never_exceeded(spend: Any) -> None:
    price = "model.prices={openai/m-1: [10, 100, 1]}"  # per million: a call costs about 3 cents
    run, there = spend(20, 4, price, "search.max_cost=0.9", seconds=0.02)
    assert "of $0.9 are left" in run.stop_reason
    spent = sum(
        Price(input=10, output=100, cached=1).cost(Usage(e.input_tokens, e.output_tokens, cached)) or 0
        for e, cached in zip(there.ledger, (cached_of(e.key) for e in there.ledger), strict=True)
    )
    assert 0.4 < spent <= 0.9
    with Store.open(Path(run.task_path).parent / "runs") as store:
        assert runs.get_run(store, run.id).cost == pytest.approx(spent)
        assert runs.find_run(store, "last").id == run.id


def cached_of(key: Any) -> int:
    return paid_run.brain(
        {"model": "m-1", "x": f"Episode seed: {key[0]}", "y": [f"s{i}_0" for i in range(key[1])]}
    ).cached


def test_evaluations_are_never_exceeded(spend: Any) -> None:
    run, _ = spend(20, 4, "search.max_evaluations=5", "search.reuse=false")
    assert (run.evaluations, run.stop_reason) == (5, "5 evaluations are made")


def test_a_call_that_would_last_too_long_is_not_begun(spend: Any) -> None:
    run, there = spend(40, 1, "search.max_time_s=1.5", seconds=0.3)
    assert "the next call takes" in run.stop_reason or "have passed" in run.stop_reason
    assert len(there.ledger) <= 4  # when these are made, less than the time of a fifth is left


def test_what_is_lacking() -> None:
    config = SearchConfig(max_tokens=100, max_cost=1.0, max_evaluations=3, max_time_s=10)
    spent = Progress(episodes=0, evaluations=1, tokens=40, elapsed_s=7.2, best_as=None, cost=0.25)
    assert left(config, spent) == [
        "the run's 2 of 3 evaluations",
        "60 of 100 tokens",
        "$0.7500 of $1",
        "3 of 10 seconds",
    ]
    assert left(SearchConfig(), spent) == []
    so_far = Progress(episodes=0, evaluations=2, tokens=50, elapsed_s=5, best_as=None, cost=0.5)
    assert lack(config, so_far, Want(tokens=50, cost=0.5, seconds=5, evaluations=1), Want()) is None
    assert (
        lack(config, so_far, Want(tokens=51), Want())
        == "the next call may take 51 tokens, 50 of 100 are left"
    )
    assert lack(config, so_far, Want(tokens=31), Want(tokens=20))
    assert "may cost $0.6000, $0.5000 of $1" in str(lack(config, so_far, Want(cost=0.6), Want()))
    assert lack(config, so_far, Want(cost=None), Want()) is None
    assert lack(config, so_far, Want(seconds=6), Want()) == "the next call takes 6.0 s, 5.0 s of 10 are left"
    assert lack(config, so_far, Want(evaluations=1), Want(evaluations=1)) == "3 evaluations are made"
    assert lack(SearchConfig(), so_far, Want(10**9, 10**9, 10**9, 10**9), Want()) is None


def test_a_price_counts_every_kind_of_token() -> None:
    price = Price(input=2, output=10, cached=0.2, cache_write=2.5)
    assert price.cost(Usage(1_000_000, 100_000, 400_000, 50_000, 100_000)) == pytest.approx(
        0.5 * 2 + 0.4 * 0.2 + 0.1 * 2.5 + 0.1 * 10
    )
    assert Price(input=2, output=10).cost(Usage(1000, 0, 500, 0, 500)) == pytest.approx(0.002)
    tiered = Price.model_validate({"input": 1, "output": 1, "over": {"tokens": 10, "input": 5, "output": 5}})
    assert (tiered.cost(Usage(10, 0)), tiered.cost(Usage(11, 0))) == (1e-5, 5.5e-5)
    assert Price(input=1, output=1, up_to=10).cost(Usage(11, 0)) is None


def test_the_shipped_prices() -> None:
    date, known = read_prices()
    assert date.startswith("20")
    assert known["anthropic/claude-haiku-4-5"] == Price(input=1, cached=0.1, cache_write=1.25, output=5)
    assert price_of("anthropic/claude-haiku-4-5-20251001", {}, known) == known["anthropic/claude-haiku-4-5"]
    assert price_of("openai/somebody-s-own", {}, known) is None
    assert price_of("openai/x", {"openai/x": [1, 2]}, known) == Price(input=1, output=2)
    for name in ("expert", "replay:x", "scripted"):
        assert price_of(name, {}, known) == prices.FREE
    for price in known.values():
        assert 0 < (price.cached or 0) < price.input < price.output


def test_a_users_prices_override(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").mkdir()
    file = tmp_path / "configs" / "prices.yaml"
    file.write_text("date: 2030-01-01\nmodels:\n  openai/mine: {input: 1, output: 2}\n")
    monkeypatch.setenv("PASSAGENT_RESOURCES", str(tmp_path))
    assert read_prices() == ("2030-01-01", {"openai/mine": Price(input=1, output=2)})
    for text, told in (("models: {a: {input: 1}}\ndate: x", "models.a.output"), ("[", "not valid YAML")):
        file.write_text(text)
        with pytest.raises(UsageError, match=told):
            read_prices()


def test_money_without_a_price_is_refused_before_anything_is_paid() -> None:
    unknown = {"openai/x": None, "expert": prices.FREE}
    with pytest.raises(UsageError, match=r"the price of openai/x is not known; give --price openai/x=IN,OUT"):
        check_budget(unknown, 5.0, None)
    check_budget(unknown, 5.0, 1000)
    check_budget(unknown, None, None)
    check_budget({"openai/x": Price(input=0, output=0)}, 5.0, None)
    assert parse_price("openai/x=1,2.5,0.1") == ("openai/x", [1, 2.5, 0.1])
    for text in ("openai/x", "openai/x=1", "=1,2", "openai/x=1,b", "openai/x=1,2,3,4,5"):
        with pytest.raises(UsageError, match="write MODEL=INPUT,OUTPUT"):
            parse_price(text)


def test_the_command_line_refuses_and_takes_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tiny_search.write_task(tmp_path / "task")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789abcdef")
    monkeypatch.chdir(tmp_path)
    words = ["passagent", "run", str(task), "--model", "openai/own", "--max-cost", "1"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    err = capsys.readouterr().err
    assert exit_.value.code == 2
    assert len(err.splitlines()) == 1 and "--price openai/own=IN,OUT" in err
    assert not (tmp_path / "runs" / "passagent.db").exists()
    assert settings_of(RunOptions, {"price": ["openai/own=1,2"]}) == {
        "model.prices": {"openai/own": [1.0, 2.0]}
    }


def test_models_and_weights_on_the_command_line() -> None:
    assert parse_models(["expert"]) == {"model.name": "expert", "model.ensemble": []}
    found = load_config(None, parse_models(["openai/a=0.7", "anthropic/b=0.3"])).model
    assert found.label == "openai/a=0.7 anthropic/b=0.3"
    assert [member.name for member in found.members()] == ["openai/a", "anthropic/b"]
    with pytest.raises(UsageError, match="weight must be over 0"):
        parse_models(["openai/a=0"])
    local = load_config(
        None, {**parse_models(["openai/a=1", "anthropic/b=1"]), "model.base_url": "http://x/v1"}
    )
    assert [member.base_url for member in local.model.members()] == ["http://x/v1", None]


def test_spending_is_shown(
    spend: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, there = spend(4, 2, "model.prices={openai/m-1: [10, 100]}", share=0.2, seed=2)
    runs_dir = Path(run.task_path).parent / "runs"
    capsys.readouterr()
    for words in (["show", "last", "--json"], ["show", "last"]):
        monkeypatch.setattr("sys.argv", ["passagent", *words, "--runs-dir", str(runs_dir)])
        with pytest.raises(SystemExit):
            cli.main()
    data, text = capsys.readouterr().out.split("\n", 1)
    spending = json.loads(data)["spending"]
    [model] = spending["by_model"]
    assert (model["input_tokens"], model["output_tokens"]) == there.billed
    assert spending["cost_usd"] == pytest.approx(there.billed[0] * 1e-5 + there.billed[1] * 1e-4)
    assert model["replies"] == 20 and spending["requests"] == len(there.ledger)
    assert sum(island["requests"] for island in spending["by_island"]) == spending["requests"]
    assert [group["group"] for group in spending["by_role"]] == ["agent"]
    assert f"{spending['cost_usd']:.4f}" in text
