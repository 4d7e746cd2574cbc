# ruff: noqa: F811
"""Pools over machines: Ray's own cluster harness, HTTP workers in network namespaces, and their faults.

Needs root for namespaces. The referees are stubs that answer by a candidate's text, so that trees can be
compared; what starts, carries, loses and repeats calls is the real thing. The last test is real throughout.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from environments import python_of

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS)]

import tiny_search  # noqa: E402
from pool_search import done, kept, tree  # noqa: E402
from stub_worker import StubWorker  # noqa: E402
from test_remote import candidates, config_of, judged, task, token, worker  # noqa: E402, F401

from passagent.errors import InfrastructureError  # noqa: E402
from passagent.evaluator.fleet.http_fleet import TOKEN_FILE  # noqa: E402
from passagent.evaluator.fleet.opening import open_pool  # noqa: E402
from passagent.evaluator.service import pool  # noqa: E402

ITERS = 30
"""Episodes of two nodes."""
PATIENCE_S = 240.0
one_after_another = pytest.mark.xdist_group("ray")  # each starts clusters


@pytest.fixture(autouse=True)
def _stubs(tmp_path, monkeypatch):
    """Stub referees and the model of `pool_search` take a moment for each answer."""
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "evaluated.log"))
    monkeypatch.setenv("STUB_SECONDS", "0.1")
    monkeypatch.setenv("MODEL_SECONDS", "0.05")


@pytest.fixture
def local_tree(once, monkeypatch):
    """The tree of the local pool."""

    def make(place):
        monkeypatch.setenv("STUB_LOG", str(place / "log"))
        tiny_search.write_task(place / "task")
        search(place / "task", place / "runs", "local").wait(PATIENCE_S)

    return tree(once("local", make) / "runs")


def search(task_path: Path, runs: Path, name: str) -> subprocess.Popen[str]:
    """A process that searches."""
    program = [sys.executable, str(TESTS / "pool_search.py")]
    log = open(runs.with_suffix(".log"), "a")  # noqa: SIM115
    command = [*program, str(task_path), str(runs), str(ITERS), "4", name]
    return subprocess.Popen(command, stdout=log, stderr=log, text=True)


def wait(condition, what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def check_whole(runs: Path, expected) -> str:
    """No node lost, none evaluated twice, none charged, and the local pool's tree; what was told."""
    said = runs.with_suffix(".log").read_text()
    found = tree(runs)
    assert len(found) == 2 * ITERS, said[-3000:]
    assert not [node for node in found if node[3] == "infrastructure"]
    assert max(Counter(kept(runs)).values()) == 1
    assert found == expected
    return said


def on_ray(what: str, *words: object):
    """What ray_faults.py saw."""
    program = [str(python_of("cluster")), str(Path(__file__).with_name("ray_faults.py"))]
    found = subprocess.run(
        [*program, what, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.splitlines()[-1])


@one_after_another
def test_a_run_on_ray_survives_the_loss_of_a_node(task, tmp_path, local_tree):
    found = on_ray("nodes", task, tmp_path / "runs", ITERS)
    said = check_whole(tmp_path / "runs", local_tree)
    assert found["code"] == 0
    assert "its node is gone" in said or "its actor died" in said, said[-3000:]


@one_after_another
def test_a_killed_driver_leaves_no_actor_and_is_gone_on_with(task, tmp_path, local_tree):
    found = on_ray("killed", task, tmp_path / "runs", ITERS)
    check_whole(tmp_path / "runs", local_tree)
    assert found == {"code": 0, "before": 3, "left": []}


@one_after_another
def test_four_gpus_are_four_devices_and_a_fifth_waits():
    found = on_ray("gpus")
    assert found["owners"] == 4
    assert found["four"] == ["0", "1", "2", "3"]
    assert found["fifth_waited"] and found["fifth"] in found["four"]


class Namespace:
    """A network of its own, a veth pair away; processes start in it by `ip netns exec`."""

    def __init__(self, number: int) -> None:
        self.name, self.outside = f"passagent{os.getpid()}-{number}", f"pa{os.getpid() % 10_000}-{number}"
        self.address, gateway = f"10.213.{number}.2", f"10.213.{number}.1"
        for line in (
            f"netns add {self.name}",
            f"link add {self.outside} type veth peer name eth0 netns {self.name}",
            f"addr add {gateway}/24 dev {self.outside}",
            f"link set {self.outside} up",
            f"-n {self.name} addr add {self.address}/24 dev eth0",
            f"-n {self.name} link set eth0 up",
            f"-n {self.name} link set lo up",
        ):
            subprocess.run(["ip", *line.split()], check=True)

    @property
    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]

    def stall(self, seconds: float) -> None:
        """No packet comes or goes for a while."""
        subprocess.run(["ip", "link", "set", self.outside, "down"], check=True)
        time.sleep(seconds)
        subprocess.run(["ip", "link", "set", self.outside, "up"], check=True)

    def close(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name], check=True)


@pytest.fixture
def namespaces():
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.fail("network namespaces need root and the command ip: install iproute2")
    made = [Namespace(number) for number in (1, 2)]
    yield made
    for one in made:
        one.close()


def test_a_run_on_two_hosts_survives_a_lost_host_and_a_stalled_network(
    task, tmp_path, namespaces, local_tree, worker
):
    first, second = [worker(listen=one.address, prefix=one.prefix, seconds=0.6) for one in namespaces]
    port = int(first.address.rpartition(":")[2])
    later = f"http://{namespaces[0].address}:{port + 1}"
    names = f"{first.address},{second.address},{later}"
    process = search(task, tmp_path / "runs", names)
    wait(lambda: done(tmp_path / "runs") >= 10, "nothing is judged")
    namespaces[1].stall(3.0)
    wait(lambda: done(tmp_path / "runs") >= 20, "20 are not judged")
    first.kill()
    back = worker(listen=namespaces[0].address, prefix=namespaces[0].prefix, port=port + 1)
    assert process.wait(PATIENCE_S) == 0
    said = check_whole(tmp_path / "runs", local_tree)
    assert f"nobody answers at {first.address}" in said
    assert f"{back.address.removeprefix('http://')}/cpu (stub cpu) joins" in said
    assert back.evaluated()


class Proxy:
    """Between a pool and a worker: `spoil(name, count, reply)` gives the bytes that are sent of a reply."""

    def __init__(self, to: str, spoil) -> None:
        self.to, self.spoil, self.counts = to.removeprefix("http://"), spoil, Counter()

    async def start(self) -> str:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader, writer) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                name = head.split()[1].decode().strip("/")
                body = await reader.readexactly(_length(head))
                reply = await self._ask(head, body)
                self.counts[name] += 1
                told = self.spoil(name, self.counts[name], reply)
                writer.write(told)
                await writer.drain()
                if len(told) < len(reply):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _ask(self, head: bytes, body: bytes) -> bytes:
        address, port = self.to.split(":")
        reader, writer = await asyncio.open_connection(address, int(port))
        writer.write(head + body)
        found = await reader.readuntil(b"\r\n\r\n")
        found += await reader.readexactly(_length(found))
        writer.close()
        return found


def _length(head: bytes) -> int:
    lines = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(lines[0].partition(b":")[2]) if lines else 0


def earlier(reply: bytes) -> bytes:
    """The reply as an earlier incarnation would give it."""
    head, body = reply.split(b"\r\n\r\n", 1)
    found = json.loads(body) | {"incarnation": "0" * 32}
    changed = json.dumps(found).encode()
    return head.replace(str(len(body)).encode(), str(len(changed)).encode(), 1) + b"\r\n\r\n" + changed


@pytest.mark.parametrize(
    ("fault", "again"),
    [
        (
            lambda name, count, reply: reply[: len(reply) // 2] if name == "job" and count == 2 else reply,
            False,
        ),
        (lambda name, count, reply: reply * 2 if name == "job" and count == 2 else reply, False),
        (lambda name, count, reply: b"" if name == "job" and count in (2, 3) else reply, False),
        (lambda name, count, reply: earlier(reply) if name == "job" and count == 2 else reply, True),
    ],
    ids=["half a reply", "a reply twice", "no reply", "an earlier incarnation"],
)
def test_a_spoiled_reply_neither_loses_nor_repeats_an_evaluation(worker, task, monkeypatch, fault, again):
    one, told = worker(), []
    given = candidates(5)

    async def work():
        proxy = Proxy(one.address, fault)
        config = config_of(one).model_copy(update={"pool": await proxy.start()})
        evaluators = await asyncio.to_thread(open_pool, config, told.append)
        try:
            return await asyncio.gather(*(evaluators.evaluate(task, each) for each in given))
        finally:
            await evaluators.close()

    found = asyncio.run(work())
    assert [each.as_score for each in found] == [tiny_search.judge(each).as_score for each in given]
    assert sorted(set(one.evaluated())) == sorted(each.key for each in given)
    assert len(one.evaluated()) == len(given) + again
    assert any("it was restarted meanwhile" in line for line in told) == again


def test_a_worker_killed_at_each_evaluation_charges_no_candidate(worker, task, monkeypatch):
    monkeypatch.setattr(pool, "PAUSES_S", (0.2,))
    first = worker(seconds=3600)
    port, told = int(first.address.rpartition(":")[2]), []
    config = config_of(first)

    async def work():
        evaluators = open_pool(config, told.append)
        try:
            asked = asyncio.create_task(evaluators.evaluate(task, candidates(1)[0]))
            for left in range(pool.ATTEMPTS, -1, -1):
                last = await asyncio.to_thread(begun, started[-1])
                last.kill()
                started.append(worker(port=port, seconds=3600 if left else 0))
            return await asked
        finally:
            await evaluators.close()

    def begun(one: StubWorker) -> StubWorker:
        one.wait_for(1)
        return one

    started = [first]
    assert asyncio.run(work()).status == tiny_search.judge(candidates(1)[0]).status
    assert not any("lost twice" in line for line in told)


def test_a_sick_device_is_quarantined_and_another_does_its_work(worker, task, tmp_path, monkeypatch):
    well = tmp_path / "well"
    well.touch()
    sick, healthy = worker(problem=str(well), seconds=0.3), worker(seconds=0.3)
    config, told = config_of(sick, healthy), []

    async def work():
        evaluators = open_pool(config, told.append)
        try:
            await asyncio.gather(*(evaluators.evaluate(task, one) for one in candidates(2)))
            well.unlink()
            found = await asyncio.gather(*(evaluators.evaluate(task, one) for one in candidates(6)))
            return found, evaluators.figures()
        finally:
            await evaluators.close()

    found, figures = asyncio.run(work())
    assert len(found) == 6 and {one.status for one in found} <= {"ok", "wrong_result"}
    assert figures[0]["state"].endswith(": a kernel gave the wrong sum") and figures[1]["state"] == "idle"
    assert any("is quarantined for 5 s: a kernel gave the wrong sum" in line for line in told)


def test_a_drained_worker_finishes_and_takes_nothing_new(worker, task):
    drained, other = worker(seconds=5.0), worker(seconds=0.1)
    config, told = config_of(drained, other), []

    async def work():
        evaluators = open_pool(config, told.append)
        try:
            asked = [asyncio.create_task(evaluators.evaluate(task, one)) for one in candidates(4)]
            await asyncio.to_thread(drained.wait_for, 1)
            drained.process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*asked), evaluators.figures()
        finally:
            await evaluators.close()

    found, figures = asyncio.run(work())
    assert len(found) == 4 and [one["evaluations"] for one in figures] == [1, 3]
    assert drained.process.wait(PATIENCE_S) == 0


def test_a_full_disk_of_a_worker_is_its_own_trouble(worker, task, tmp_path, monkeypatch):
    (Path(task) / "graphs/g/input_meta.py").write_text("# " + os.urandom(60_000).hex())
    room = tmp_path / "small"
    room.mkdir()
    script = f'mount -t tmpfs -o size=64k none {room} && TMPDIR={room} exec "$@"'
    full = worker(prefix=["unshare", "--mount", "sh", "-c", script, "sh"])
    found, figures, _ = judged(config_of(full, worker(seconds=0.1)), task, candidates(4))
    assert {one.status for one in found} <= {"ok", "wrong_result"}
    assert figures[0]["state"].startswith("quarantined since ") and "MB free in" in figures[0]["state"]
    assert [one["evaluations"] for one in figures] == [0, 4]
    monkeypatch.setattr(pool, "OUTAGE_S", 0.5)
    with pytest.raises(InfrastructureError, match="MB free in"):
        judged(config_of(full), task, candidates(1))


def test_clocks_of_other_machines_do_not_matter(worker, task, tmp_path):
    (tmp_path / "skew").mkdir()
    (tmp_path / "skew" / "sitecustomize.py").write_text(
        "import time\nreal = time.time\ntime.time = lambda: real() - 86400.0\n"
    )
    skewed = worker(prefix=["env", f"PYTHONPATH={tmp_path / 'skew'}"])
    found, figures, told = judged(config_of(skewed, worker()), task, candidates(6))
    assert [one.candidate for one in found] == [one.key for one in candidates(6)]
    assert figures[0]["evaluations"] and told == []


def test_what_a_silent_program_left_on_a_worker_ends(tmp_path, monkeypatch):
    """Real throughout: `passagent worker`, a search of the expert, kill -9, and resume."""
    token, runs, example = tmp_path / "token", tmp_path / "runs", "example:quick_gelu"
    passagent = [sys.executable, "-m", "passagent"]
    offered = subprocess.Popen(
        [*passagent, "worker", "--listen", "127.0.0.1:0", "--token-file", str(token), "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        address = json.loads(offered.stdout.readline())["address"]
        monkeypatch.setenv(TOKEN_FILE, str(token))
        words = ["--pool", address, "--runs-dir", str(runs)]
        run = [*passagent, "run", example, "--iters", "3", "--islands", "1", *words]
        quick = ["--set", "evaluator.budget_s=0.05", "--set", "search.finalists=0"]
        first = subprocess.Popen([*run, *quick], stdout=subprocess.DEVNULL)
        wait(lambda: done(runs) >= 1 and referees(offered.pid), "nothing is judged")
        first.kill()
        first.wait()
        wait(lambda: not referees(offered.pid), "the referee does not end")
        subprocess.run(
            [*passagent, "resume", "last", "--runs-dir", str(runs)], check=True, timeout=PATIENCE_S
        )
        assert done(runs) >= 3 and max(Counter(kept(runs)).values()) == 1
    finally:
        offered.terminate()
        assert offered.wait(PATIENCE_S) == 0  # it drains


@one_after_another
def test_a_cluster_of_ray_start_that_asks_for_a_token(tmp_path, monkeypatch):
    """Ray asks for one where there is a token, as there is once Ray was started on a machine."""
    python = Path(python_of("cluster"))
    monkeypatch.setenv("HOME", str(tmp_path))
    place = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # names of sockets are short
    monkeypatch.setenv("RAY_TMPDIR", place)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("0123456789abcdef" * 4)
    ray = str(python.with_name("ray"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    head = [ray, "start", "--head", f"--port={port}", "--num-cpus=1", "--disable-usage-stats", "--block"]
    started = subprocess.Popen(head, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert any("runtime started" in line for line in started.stdout)
        words = ["example:quick_gelu", "--compiler", "expert", "--pool", f"ray://127.0.0.1:{port}"]
        quick = ["--set", "evaluator.budget_s=0.05", "--out", str(tmp_path / "out"), "--json"]
        made = subprocess.run(
            [str(python), "-m", "passagent", "bench", *words, *quick],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        assert json.loads(made.stdout)["compilers"][0]["tasks"] == 1
    finally:
        started.terminate()  # with all of its cluster; `ray stop` would end others' clusters, too
        started.communicate(timeout=PATIENCE_S)
        shutil.rmtree(place, ignore_errors=True)


def referees(pid: int) -> list[int]:
    """The referee processes below a process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if (
                entry.name.isdigit()
                and int(parent) == pid
                and b"service.serve" in (entry / "cmdline").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found
