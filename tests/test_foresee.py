"""A candidate that waits for a device is recorded and built beside the one that is measured."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import tiny
import tiny_search
from stub_worker import facts

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError
from passagent.evaluator import captures
from passagent.evaluator.fleet import contents
from passagent.evaluator.fleet.host import Host
from passagent.evaluator.hardware.devices import Device
from passagent.evaluator.judging import recorder, referee
from passagent.evaluator.judging.referee import Referee
from passagent.tasks import load_task

pytestmark = pytest.mark.usefixtures("own_memory")

CONFIG = EvaluatorConfig(budget_s=1e-6, timeout_s=120, memory_gb=6)
NUMBERED = "    # {number}\n" + tiny.HONEST


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    return tiny.write_subgraph(tmp_path_factory.mktemp("task") / "silu_mul_add", [4, 64])


class Owner:
    """Answers when it is let; what it was told of."""

    pid = None

    def __init__(self, name: str) -> None:
        self.device = Device(name, name, "stub")
        self.foreseen: list[str] = []
        self.answers = asyncio.Semaphore(0)

    async def foresee(self, request):
        self.foreseen.append(request["files"]["FuseRelu.py"])

    async def ask(self, request):
        await self.answers.acquire()
        return tiny_search.judge(tiny_search.Candidate(request["files"])).model_dump()

    async def stop(self):
        pass


@pytest.fixture
def counted(monkeypatch):
    """A referee on this CPU whose host counts as having room; how often each text was recorded."""
    texts: list[str] = []
    whole = recorder.record.record

    def record(process, candidate, *rest):
        texts.append(candidate.files["Fused.py"])
        return whole(process, candidate, *rest)

    monkeypatch.setattr(recorder.record, "record", record)
    monkeypatch.setattr(referee, "has_room", lambda device: True)
    return texts


def test_what_was_foreseen_is_recorded_once_and_judged_as_ever(task, counted, forks, monkeypatch):
    loaded = load_task(task)
    for subgraph in loaded.subgraphs:
        captures.graph_of(subgraph, "cpu")  # what is not captured yet is not recorded ahead
    one, two, three = (tiny.candidate(NUMBERED.format(number=number)) for number in range(3))
    refused = tiny.candidate("    return a * torch.sigmoid(a) + b\n")
    with Referee(CONFIG, forks) as judge:
        judge.foresee(loaded, one)
        judge._recorder._next[2].result()
        assert [counted.count(each.files["Fused.py"]) for each in (one, two)] == [1, 0]
        assert judge.evaluate(loaded, one).status == "ok"
        assert len(counted) == 1
        judge.foresee(loaded, two)  # another one comes first, and a third replaces it
        assert judge.evaluate(loaded, three).status == "ok"
        judge.foresee(loaded, refused)
        assert judge.evaluate(loaded, two).status == "ok"
        alone = judge.evaluate(loaded, refused)
        assert alone.status == judge.evaluate(loaded, refused).status == "refused"

        def fault(*_):
            raise InfrastructureError("no process")

        with monkeypatch.context() as broken:
            broken.setattr(recorder.record, "record", fault)
            judge.foresee(loaded, one)
            with pytest.raises(InfrastructureError):
                judge._recorder._next[2].result()
        assert judge.evaluate(loaded, one).status == "ok", "a fault of the machine is none of the candidate's"
        judge.foresee(loaded, three)  # closing does not wait for who asks


def test_a_host_hands_it_on_to_the_referee_that_it_has(tmp_path):
    request = {"task": str(tiny_search.write_task(tmp_path / "task")), "files": {"FuseRelu.py": "1 x"}}
    owner = Owner("cpu")

    async def work():
        host = Host(facts(), lambda *given, **more: owner)
        packed, blobs = contents.pack(request)
        body = {"session": "s", "incarnation": host.incarnation, "device": "cpu", "request": packed}
        answer = await host.answer("next", body)
        assert sorted(answer["missing"]) == sorted(blobs) and not owner.foreseen
        wanted = {key: contents.encode(blob) for key, blob in blobs.items()}
        await host.answer("put", body | {"contents": wanted})
        assert "error" not in await host.answer("next", body) and not owner.foreseen, "it has no referee yet"
        owner.answers.release()
        job = {"ticket": "t", "config": CONFIG.model_dump(mode="json"), "wait_s": 5.0}
        found = await host.answer("job", body | job)
        assert found["state"] == "done", found
        await host.answer("next", body)
        await host.close()

    asyncio.run(work())
    assert owner.foreseen == ["1 x"]
