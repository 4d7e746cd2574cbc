"""HTTP workers: the same pool over other machines' devices, and what it makes of their faults."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_search
import torch
from stub_worker import TOKEN, StubWorker, facts

from passagent.config import EvaluatorConfig
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.fleet import contents, http_fleet, offers
from passagent.evaluator.fleet.opening import environment_key, open_pool
from passagent.evaluator.result import Candidate
from passagent.evaluator.service import pool
from passagent.search.run_files import devices_of, report


def candidates(count: int) -> list[Candidate]:
    return [Candidate(tiny_search.candidate_files(f"{number} x")) for number in range(count)]


@pytest.fixture
def task(tmp_path):
    return tiny_search.write_task(tmp_path / "task")


@pytest.fixture
def worker(tmp_path):
    """Starts stub workers, each with a directory of its own, and ends them."""
    started: list[StubWorker] = []

    def start(**options):
        place = tmp_path / f"worker{len(started)}"
        place.mkdir()
        started.append(StubWorker(place, **options))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def config_of(*workers: StubWorker) -> EvaluatorConfig:
    addresses = ",".join(one.address for one in workers)
    return EvaluatorConfig(pool=addresses)


@pytest.fixture(autouse=True)
def token(tmp_path, monkeypatch):
    """The file with every stub's token."""
    path = tmp_path / "workers_token"
    path.write_text(TOKEN)
    monkeypatch.setenv(http_fleet.TOKEN_FILE, str(path))
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two workers that several tests share."""
    made = [StubWorker(tmp_path_factory.mktemp("pair"), seconds=0.02) for _ in range(2)]
    yield made
    for one in made:
        one.kill()


def judged(config, task, given):
    """The evaluations of candidates that were asked for at once, and what was told."""
    told: list[str] = []

    async def work():
        evaluators = open_pool(config, told.append)
        try:
            found = await asyncio.gather(*(evaluators.evaluate(task, one, 0.0) for one in given))
            return found, evaluators.figures()
        finally:
            await evaluators.close()

    return *asyncio.run(work()), told


def test_two_workers_share_the_work_and_contents_travel_once(pair, task, monkeypatch):
    first, second = pair
    sent: list[int] = []
    pack, encode = contents.pack, contents.encode
    monkeypatch.setattr(contents, "encode", lambda content: sent.append(len(content)) or encode(content))
    given = candidates(8)
    found, figures, told = judged(config_of(first, second), task, given)
    assert [one.candidate for one in found] == [one.key for one in given]
    assert [one.as_score for one in found] == [tiny_search.judge(one).as_score for one in given]
    names = {one.environment["worker"] for one in found}
    assert names == {f"{one.address.removeprefix('http://')}/cpu" for one in (first, second)}
    assert sorted(first.evaluated() + second.evaluated()) == sorted(one.key for one in given)
    _, blobs = pack({"task": str(task), "files": given[0].files})
    others = 2 * (
        8 - 1
    )  # a source of each other candidate: one worker may be told of it, another evaluate it
    assert len(sent) <= 2 * len(blobs) + others
    assert [one["evaluations"] for one in figures] == [len(first.evaluated()), len(second.evaluated())]
    assert told == []
    asyncio.run(reported(figures, task.parent))
    shown = devices_of(task.parent)
    assert [one["device"] for one in shown] == [one["device"] for one in figures]
    assert {one["versions"]["torch"] for one in shown} == {torch.__version__.partition("+")[0]}


async def reported(figures, where):
    """The report of a pool with these figures, once."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await report(SimpleNamespace(figures=lambda: figures), where)


def test_a_killed_worker_costs_no_candidate_and_is_used_again_on_another_port(
    worker, task, tmp_path, monkeypatch
):
    monkeypatch.setattr(pool, "PAUSES_S", (0.2,))
    lost = worker(seconds=3600)
    reserved = socket.socket()  # bound, so that nobody else gets the port; nobody listens
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    config = EvaluatorConfig(pool=f"{lost.address},http://127.0.0.1:{port}")
    told: list[str] = []

    async def work():
        monkeypatch.setattr("passagent.evaluator.fleet.remote_owner.BEAT_S", 0.1)
        evaluators = open_pool(config, told.append)
        try:
            asked = [asyncio.create_task(evaluators.evaluate(task, one)) for one in candidates(3)]
            await asyncio.to_thread(lost.wait_for, 1)
            lost.kill()
            worker(port=port)
            return await asyncio.gather(*asked)
        finally:
            await evaluators.close()

    found = asyncio.run(work())
    assert [one.status for one in found] == [tiny_search.judge(one).status for one in candidates(3)]
    assert {one.environment["worker"] for one in found} == {f"127.0.0.1:{port}/cpu"}
    assert any("no worker answers yet" in line for line in told)
    assert any(line.endswith("joins") for line in told)
    assert any("quarantined" in line and "nobody answers at" in line for line in told)


def test_a_wrong_token_and_unlike_versions_are_refused_in_one_line(worker, token):
    token.write_text("another-token-of-16")
    fresh = config_of(worker())
    with pytest.raises(UsageError, match=f"^{fresh.pool}: the token is not the worker's; copy [^\n]*$"):
        open_pool(fresh)
    token.write_text(TOKEN)
    old = worker(torch="1.0")
    with pytest.raises(UsageError, match=f"^{old.address}: unlike versions: torch 1.0 there, [^\n]*$"):
        open_pool(config_of(old))


def test_unlike_devices_are_never_compared():
    answers = {f"http://h{n}:1": facts(words=f"gpu {n % 2}; torch") for n in (1, 2, 3)}
    survey = offers.make_survey(EvaluatorConfig(), answers, [])
    assert survey.reference.words == "gpu 1; torch"
    assert survey.notes == [
        "unlike devices are never compared: this run uses 2 (stub cpu), and not h2:1/cpu (gpu 0)"
    ]
    assert offers.make_survey(EvaluatorConfig(), {"http://h1:1": answers["http://h1:1"]}, []).notes == []


def test_results_of_equal_devices_are_equal_under_any_address(pair):
    first, second = pair
    assert environment_key(config_of(first)) == environment_key(config_of(second))
    assert "stub cpu" in environment_key(config_of(first))


@pytest.mark.parametrize(
    ("pool_", "said"),
    [
        ("http://127.0.0.1:1", "no worker answers yet"),
        ("ftp://host", "write local, http://HOST:PORT"),
        ("nonsense", "write local, http://HOST:PORT"),
    ],
)
def test_a_pool_that_is_not_there_is_a_usage_error(token, pool_, said):
    with pytest.raises(UsageError, match=said):
        open_pool(EvaluatorConfig(pool=pool_))
    token.unlink()
    with pytest.raises(UsageError, match="copy the workers' token file there, or name it in PASSAGENT_TOKEN"):
        open_pool(EvaluatorConfig(pool="http://127.0.0.1:2"))


def test_contents_cannot_leave_their_place(tmp_path, task):
    here = contents.Contents(tmp_path / "room")
    packed, blobs = contents.pack({"task": str(task), "files": {"a.py": "x = 1"}})
    assert sorted(here.missing(packed)) == sorted(blobs)
    with pytest.raises(PassagentError, match="damaged"):
        here.add(next(iter(blobs)), b"other")
    for key, content in blobs.items():
        here.add(key, content)
    found = here.unpack(packed)
    assert found["files"] == {"a.py": "x = 1"}
    assert (Path(found["task"]) / "graphs/g/model.py").read_text() == tiny_search.TASK_MODEL
    key = next(iter(blobs))
    for name in ("../../outside", "/outside"):
        packed["task"]["files"] = {name: key}
        with pytest.raises(PassagentError, match="cannot be sent"):
            here.unpack(packed)
    with pytest.raises(PassagentError, match="no content hash"):
        here.get("../../etc/passwd")


def test_passagent_does_not_import_what_carries_calls():
    program = "import sys, passagent.api, passagent.evaluator.fleet.opening; print(sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    names = set(json.loads(found.stdout.replace("'", '"')))
    assert not names & {"ray", "starlette", "uvicorn"}
