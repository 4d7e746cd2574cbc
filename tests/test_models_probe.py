"""A wrong key, address or model is found before the first seed, and said with the address."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paid_run
import pytest
import tiny_search
from test_models_command import Call
from test_models_wire import ASK, TOOL, error_body, server, text_body
from wire_server import WireServer

import passagent as pa
from passagent.config import ModelConfig, load_config
from passagent.errors import UsageError
from passagent.models import open_model, probe
from passagent.search import setup
from passagent.store import Store, nodes, runs
from passagent.tasks import load_task

__all__ = ["server"]

pytestmark = pytest.mark.usefixtures("quick_retries")


@contextmanager
def listening(answer: bytes | None, drip: bytes = b"") -> Iterator[str]:
    """The address of a server that answers each connection with these bytes; None: with silence.

    `drip`: sent after them again and again.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                kept.append(connection)
                if answer is not None:
                    connection.recv(1 << 16)
                    connection.sendall(answer)
                    with suppress(OSError):
                        while drip:
                            connection.sendall(drip)
                            time.sleep(0.05)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        listener.shutdown(socket.SHUT_RDWR)


def nobody_listens() -> str:
    """An address that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def answered(status: str, kind: str, body: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


PAGE = "<!DOCTYPE html><html><body>nginx</body></html>"
WRONG = {
    "silence": (None, "does not answer"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "HTTP"),
    "a page": (answered("200 OK", "text/html", PAGE), "HTML"),
    "no page": (answered("404 Not Found", "text/html", PAGE), "HTML"),
    "signs of life": (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
        "no whole answer within 2 s",
    ),
}


@pytest.mark.parametrize(
    ("what", "name"), [*((what, "openai/m-1") for what in WRONG), ("a page", "anthropic/m-1")]
)
def test_check_says_what_is_wrong_with_the_address(
    call: Call, monkeypatch: pytest.MonkeyPatch, what: str, name: str
) -> None:
    monkeypatch.setattr(probe, "SILENCE_S", 0.3)
    monkeypatch.setattr(probe, "ANSWER_S", 2.0)
    answer, said = WRONG[what]
    with listening(answer, b": ping\n\n" if what == "signs of life" else b"") as address:
        code, _, err = call("models", "--model", name, "--base-url", address, "--check")
    assert code == 1 and said in err and address in err
    assert err.count("\n") == 1 and err.count(name) == 1


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("", "connection refused"),
        ("http://no-such-host.invalid/v1", "unknown host"),
        ("127.0.0.1:8000/v1", "is no address such as http://"),
        ("http://127.0.0.1:99999/v1", "is no address such as http://"),
        ("http://[::1/v1", "is no address such as http://"),
    ],
)
def test_check_of_an_address_that_cannot_be_reached_says_why(call: Call, address: str, said: str) -> None:
    address = address or nobody_listens()
    code, _, err = call("models", "--model", "openai/m", "--base-url", address, "--check")
    assert code == 1 and said in err and address in err and err.count("\n") == 1


def test_first_request_to_a_refusing_address_is_not_tried_again_but_a_later_one(
    server: WireServer,
) -> None:
    async def ask(address: str) -> list[str]:
        model = open_model(ModelConfig(name="openai/m", base_url=address, max_retries=1, stream=False))
        errors = []
        for _ in range(2):
            try:
                await model.complete(ASK, [TOOL])
                await asyncio.to_thread(server.http.server_close)
                await asyncio.to_thread(server.http.shutdown)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
        await model.close()
        return errors

    first, _ = asyncio.run(ask(nobody_listens()))
    assert first.startswith("UsageError") and "connection refused" in first
    server.answers = [(200, {}, text_body("openai", "ok"))]
    [later] = asyncio.run(ask(f"{server.url}/v1"))
    assert later.startswith("InfrastructureError") and "gave up after 2 tries" in later


def start_run(tmp_path: Path, address: str, **settings: Any) -> None:
    chosen = paid_run.settings(1, 1, "openai/m", f"model.base_url={address}")
    config = load_config(None, chosen | {"search.expert_seeds": 1, "model.max_retries": 0} | settings)
    task = load_task(tiny_search.write_task(tmp_path / "task"))
    with setup.started(tmp_path / "runs", task, config, True, paid_run.parts()) as session:
        asyncio.run(setup.work(session))


def test_wrong_key_ends_a_run_before_its_first_seed(tmp_path: Path) -> None:
    with WireServer(paid_run.brain) as there:
        there.fault = lambda: "401"  # type: ignore[method-assign]
        with pytest.raises(UsageError, match=f"at {there.url}/v1: the server refuses the key"):
            start_run(tmp_path, f"{there.url}/v1")
        assert len(there.requests) == 1
    with Store.open(tmp_path / "runs") as store:
        assert nodes.of_run(store, runs.find_run(store, "last").id) == []


@pytest.mark.parametrize("verb", ["run", "bench"])
def test_wrong_name_of_a_model_is_found_by_one_small_request_and_said_in_a_line(
    call: Call, server: WireServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """And the first line names the library that is used, also that of a bench that searches."""
    monkeypatch.delenv("PASSAGENT_LIBRARY")
    server.answers = [(404, {}, error_body("The model `wrong` does not exist"))] * 2
    task = tiny_search.write_task(tmp_path / "task")
    words = ["--model", "openai/wrong", "--set", f"model.base_url={server.url}/v1"]
    words += ["--runs-dir", "runs"] if verb == "run" else ["--compiler", "run", "--out", "kept"]
    code, out, err = call(verb, task, *words)
    assert code == 2 and len(server.requests) == 1
    said = [line for line in err.splitlines() if line.startswith("passagent: error: ")]
    assert said == err.splitlines()[-1:] and "no such model or address (HTTP 404)" in said[0]
    assert f"openai/wrong at {server.url}/v1" in said[0]
    [(_, _, body)] = server.requests
    assert len(str(body)) < 1000 and "Episode seed" not in str(body)
    place = f"{tmp_path}/runs" if verb == "run" else "kept/searches"
    assert f"library: {place}/library.db (passes: 0); " in (out + err).splitlines()[0]
    if verb == "run":
        with Store.open("runs") as store:
            assert nodes.of_run(store, runs.find_run(store, "last").id) == []


def test_run_without_seeds_is_asked_nothing_before_its_first_request(tmp_path: Path) -> None:
    with WireServer(paid_run.brain) as there:
        start_run(tmp_path, f"{there.url}/v1", **{"search.expert_seeds": 0})
        assert all("Episode seed" in str(body) for _, _, body in there.requests)


def test_busy_server_at_the_start_is_warned_of(server: WireServer, caplog: pytest.LogCaptureFixture) -> None:
    server.answers = [(503, {}, error_body("busy"))]
    config = load_config(None, {"model.name": "openai/m", "model.base_url": f"{server.url}/v1"})
    asyncio.run(probe.check_models(config))
    assert f"openai/m at {server.url}/v1: HTTP 503: busy" in caplog.text


@pytest.mark.parametrize("compilers", [["run"], ["inductor", "run"]])
def test_wrong_key_ends_a_bench_before_it_measures(tmp_path: Path, compilers: list[str]) -> None:
    task = tiny_search.write_task(tmp_path / "task")
    with WireServer(paid_run.brain) as there:
        there.fault = lambda: "401"  # type: ignore[method-assign]
        settings = {"model.name": "openai/m", "model.base_url": f"{there.url}/v1"}
        with pytest.raises(UsageError, match="refuses the key"):
            pa.bench([str(task)], compiler=compilers, settings=settings, out=str(tmp_path / "out"))
        assert len(there.requests) == 1
