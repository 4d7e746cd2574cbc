"""A server on 127.0.0.1 that speaks the providers' wire formats, keeps a ledger, and misbehaves if asked.

It answers Chat Completions, Responses and Messages, whole or as a stream, as `body["stream"]` asks. What is
said comes from a `brain`; what goes wrong is drawn. The ledger has what the server billed: the usage that it
had time to say.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TEXT = "There is nothing that I would fuse here."
Body = dict[str, Any]


CHECK = "check"
"""Key of the small request that comes before a command's work."""


@dataclass
class Said:
    """A reply: text, tool calls of (id, name, arguments as text), and what it counts."""

    text: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    input_tokens: int = 10
    output_tokens: int = 5
    cached: int = 0
    key: object = None
    """What the request was, for the ledger; CHECK is left out of it."""
    thought: str = ""
    """Of a reply that is not streamed: its reasoning, where the API tells it."""
    signature: str = ""
    """Of the thought, as Anthropic signs it."""
    stop: str = ""
    """`length` or `refusal`, in a reply that is not streamed; else the reply is whole."""


@dataclass
class Entry:
    """A request as the server saw it."""

    key: object
    api: str
    fault: str | None
    input_tokens: int
    output_tokens: int
    is_whole: bool
    """The reply was sent whole."""


Brain = Callable[[Body], Said]
UNPAID = ["429", "529", "500", "503", "drop"]
PAID = ["cut clean", "cut hard", "no stop", "error inside"]
FAULTS = UNPAID + PAID


def mute(body: Body) -> Said:
    """Nothing to say."""
    return Said(TEXT)


class WireServer:
    """`with WireServer() as server`: requests to `server.url` are answered until the block ends."""

    def __init__(self, brain: Brain = mute, share: float = 0.0, seed: int = 0, seconds: float = 0.0) -> None:
        """`share` of the requests meet a fault of FAULTS; every reply takes `seconds`."""
        self.brain, self.share, self.seconds = brain, share, seconds
        self.rng, self.lock = random.Random(seed), threading.Lock()
        self.faults = itertools.cycle(FAULTS)
        self.answers: list[tuple[int, dict[str, str], Any]] = []
        """Given before the brain is asked: (status, headers, body of bytes or JSON); status 0 breaks off."""
        self.ledger: list[Entry] = []
        self.requests: list[tuple[str, dict[str, str], Body]] = []
        self.in_flight = self.most_in_flight = 0

    def fault(self) -> str | None:
        """What goes wrong with the next request."""
        with self.lock:
            return next(self.faults) if self.rng.random() < self.share else None

    @property
    def billed(self) -> tuple[int, int]:
        """All tokens, in and out."""
        return sum(e.input_tokens for e in self.ledger), sum(e.output_tokens for e in self.ledger)

    def bodies(self) -> list[Body]:
        """What was asked."""
        return [body for _, _, body in self.requests]

    def __enter__(self) -> WireServer:
        server = self

        class Handler(_Handler):
            wire = server

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()


class _Handler(BaseHTTPRequestHandler):
    wire: WireServer

    def do_POST(self) -> None:
        wire = self.wire
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])).decode("utf-8"))
        with wire.lock:
            wire.requests.append((self.path, dict(self.headers), body))
            wire.in_flight += 1
            wire.most_in_flight = max(wire.most_in_flight, wire.in_flight)
        try:
            self._answer(body)
        except OSError:  # the client is gone
            pass

    def _answer_as_told(self, status: int, headers: dict[str, str], body: Any) -> None:
        if status == 0:
            self.connection.close()
            return
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data) + int(headers.get("x-missing", "0"))))
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    def _answer(self, body: Body) -> None:
        if self.wire.answers:
            self._answer_as_told(*self.wire.answers.pop(0))
            return
        wire, fault = self.wire, self.wire.fault()
        last = self.path.partition("?")[0].rpartition("/")[2]
        api = {"messages": "anthropic", "responses": "responses"}.get(last, "chat")
        try:
            time.sleep(wire.seconds)
            said = wire.brain(body)
        finally:
            with wire.lock:  # before it is sent: a client that has the reply may ask again at once
                wire.in_flight -= 1
        if fault in UNPAID or fault == "401":
            wire.ledger.append(Entry(said.key, api, fault, 0, 0, False))
            self._refuse(fault)
            return
        pieces = list(stream_of(api, said) if body.get("stream") else whole_of(api, said))
        pieces, is_whole = damaged(pieces, fault, api, wire.rng)
        data = [piece for piece, _ in pieces]
        used = [usage for _, usage in pieces if usage]
        tokens = used[-1] if used else (0, 0)
        # billed before it is sent: a client that has the reply never has it before the ledger
        if said.key != CHECK:
            wire.ledger.append(Entry(said.key, api, fault, *tokens, is_whole))
        kind = "text/event-stream" if body.get("stream") else "application/json"
        self._send(kind, data, is_hard=fault == "cut hard")

    def _refuse(self, fault: str) -> None:
        if fault == "drop":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        word = "Incorrect API key provided:" if fault == "401" else "not now,"
        said = f"{word} {self.headers.get('Authorization')} {self.headers.get('X-Api-Key')}"
        data = json.dumps({"type": "error", "error": {"type": "some_error", "message": said}}).encode()
        self.send_response(int(fault))
        self.send_header("Content-Type", "application/json")
        self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send(self, kind: str, pieces: list[bytes], is_hard: bool) -> None:
        """An HTTP/1.0 body ends where the connection does; `is_hard`: more was promised."""
        self.send_response(200)
        self.send_header("Content-Type", kind)
        if is_hard:
            self.send_header("Content-Length", str(sum(map(len, pieces)) + 1000))
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece)
        self.wfile.flush()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


Piece = tuple[bytes, tuple[int, int] | None]
"""Bytes, and what the server has said of usage once they are read."""


def damaged(pieces: list[Piece], fault: str | None, api: str, rng: random.Random) -> tuple[list[Piece], bool]:
    """The pieces that are sent, and whether they are a whole reply."""
    if fault is None:
        return pieces, True
    if fault in ("cut clean", "cut hard"):
        if len(pieces) == 1:  # JSON
            return [(pieces[0][0][: len(pieces[0][0]) // 2], None)], False
        last = max(i for i, (_, usage) in enumerate(pieces) if usage)
        return pieces[: rng.randint(0, last)], False
    if fault == "error inside":
        error: dict[str, Any] = {"type": "error", "error": {"type": "api_error", "message": "it broke"}}
        if len(pieces) == 1:
            return [(json.dumps(error).encode(), None)], False
        return [*pieces[: rng.randint(1, max(1, len(pieces) - 3))], (event(api, "error", error), None)], False
    # "no stop": all there, but for the word that it is the end
    kept = [(_without_stop(data), usage) for data, usage in pieces]
    return kept, False


def _without_stop(data: bytes) -> bytes:
    """A piece that does not say that the reply is at its end."""
    data = re.sub(rb'"(stop_reason|finish_reason)": "\w+"', rb'"\1": null', data)
    data = data.replace(b'"type": "response.completed"', b'"type": "response.in_progress"')
    return data.replace(b'"status": "completed", "output"', b'"status": "in_progress", "output"')


def event(api: str, name: str, data: Body) -> bytes:
    """One server-sent event."""
    head = "" if api == "chat" else f"event: {name}\n"
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def usage_of(api: str, said: Said) -> Body:
    """The usage object."""
    if api == "chat":
        return {
            "prompt_tokens": said.input_tokens,
            "completion_tokens": said.output_tokens,
            "total_tokens": said.input_tokens + said.output_tokens,
            "prompt_tokens_details": {"cached_tokens": said.cached},
        }
    usage: Body = {"input_tokens": said.input_tokens, "output_tokens": said.output_tokens}
    if api == "anthropic":
        return {
            **usage,
            "input_tokens": said.input_tokens - said.cached,
            "cache_read_input_tokens": said.cached,
        }
    return {**usage, "input_tokens_details": {"cached_tokens": said.cached}}


def whole_of(api: str, said: Said) -> Iterator[Piece]:
    """The reply as one JSON."""
    yield json.dumps(message_of(api, said)).encode(), (said.input_tokens, said.output_tokens)


def message_of(api: str, said: Said) -> Body:
    """The reply as one object."""
    usage = usage_of(api, said)
    if api == "chat":
        message: Body = {"role": "assistant", "content": said.text or None}
        if said.calls:
            message["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": n, "arguments": a}}
                for i, n, a in said.calls
            ]
        if said.thought:
            message["reasoning_content"] = said.thought
        reason = {"length": "length", "refusal": "content_filter"}.get(said.stop)
        reason = reason or ("tool_calls" if said.calls else "stop")
        choice = {"finish_reason": reason, "index": 0, "message": message}
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
    if api == "anthropic":
        content: list[Body] = []
        if said.thought:
            content.append({"type": "thinking", "thinking": said.thought, "signature": said.signature})
        content += [{"type": "text", "text": said.text}] if said.text else []
        content += [{"type": "tool_use", "id": i, "name": n, "input": input_of(a)} for i, n, a in said.calls]
        stop = {"length": "max_tokens", "refusal": "refusal"}.get(said.stop)
        stop = stop or ("tool_use" if said.calls else "end_turn")
        return {
            "id": "m", "type": "message", "role": "assistant", "model": "m", "content": content,
            "stop_reason": stop, "stop_sequence": None, "usage": usage,
        }  # fmt: skip
    status: Body = {"status": "completed"}
    if said.stop:
        why = {"length": "max_output_tokens", "refusal": "content_filter"}[said.stop]
        status = {"incomplete_details": {"reason": why}, "status": "incomplete"}
    return {"id": "r", "object": "response", **status, "output": items_of(said), "usage": usage}


def input_of(arguments: str) -> Any:
    """A call's input in a message: the object, or the text where it is no JSON."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def items_of(said: Said) -> list[Body]:
    """The output items of a response: some reasoning, the text, the calls."""
    items: list[Body] = [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VjcmV0"}]
    if said.text:
        part = {"type": "output_text", "text": said.text, "annotations": []}
        items.append(
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
        )
    for i, n, a in said.calls:
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{i}",
                "call_id": i,
                "name": n,
                "arguments": a,
                "status": "completed",
            }
        )
    return items


def stream_of(api: str, said: Said) -> Iterator[Piece]:
    """The reply event by event."""
    yield from {"chat": _chat, "anthropic": _anthropic, "responses": _responses}[api](said)


def _halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def _chat(said: Said) -> Iterator[Piece]:
    def chunk(delta: Body, reason: str | None = None) -> Piece:
        choice = {"finish_reason": reason, "index": 0, "delta": delta}
        return event("chat", "", {"object": "chat.completion.chunk", "choices": [choice]}), None

    yield chunk({"role": "assistant", "content": ""})
    for part in _halves(said.text) if said.text else []:
        yield chunk({"content": part})
    for index, (name, tool, arguments) in enumerate(said.calls):
        yield chunk(
            {
                "tool_calls": [
                    {
                        "index": index,
                        "id": name,
                        "type": "function",
                        "function": {"name": tool, "arguments": ""},
                    }
                ]
            }
        )
        for part in _halves(arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield chunk({}, "tool_calls" if said.calls else "stop")
    yield (
        event("chat", "", {"choices": [], "usage": usage_of("chat", said)}),
        (said.input_tokens, said.output_tokens),
    )
    yield b"data: [DONE]\n\n", None


def _anthropic(said: Said) -> Iterator[Piece]:
    begun, full = (said.input_tokens, 1), (said.input_tokens, said.output_tokens)

    def say(name: str, _said: tuple[int, int] | None = None, **data: Any) -> Piece:
        return event("anthropic", name, {"type": name, **data}), _said

    message = {**message_of("anthropic", said), "content": [], "stop_reason": None}
    message["usage"] = {**message["usage"], "output_tokens": 1}
    yield say("message_start", begun, message=message)
    yield say("ping")
    index = 0
    if said.text:
        yield say("content_block_start", index=0, content_block={"type": "text", "text": ""})
        for part in _halves(said.text):
            yield say("content_block_delta", index=0, delta={"type": "text_delta", "text": part})
        yield say("content_block_stop", index=0)
        index = 1
    for name, tool, arguments in said.calls:
        block = {"type": "tool_use", "id": name, "name": tool, "input": {}}
        yield say("content_block_start", index=index, content_block=block)
        for part in _halves(arguments):
            delta = {"type": "input_json_delta", "partial_json": part}
            yield say("content_block_delta", index=index, delta=delta)
        yield say("content_block_stop", index=index)
        index += 1
    reason = "tool_use" if said.calls else "end_turn"
    delta = {"stop_reason": reason, "stop_sequence": None}
    yield say("message_delta", full, delta=delta, usage=usage_of("anthropic", said))
    yield say("message_stop")


def _responses(said: Said) -> Iterator[Piece]:
    def say(name: str, usage: tuple[int, int] | None, **data: Any) -> Piece:
        return event("responses", name, {"type": name, **data}), usage

    started = {"id": "r", "object": "response", "status": "in_progress", "output": [], "usage": None}
    yield say("response.created", None, response=started)
    for index, item in enumerate(items_of(said)):
        yield say("response.output_item.added", None, output_index=index, item=item)
        yield say("response.output_item.done", None, output_index=index, item=item)
    full = (said.input_tokens, said.output_tokens)
    yield say("response.completed", full, response=message_of("responses", said))
