"""What crosses from a worker is held against a schema: whatever it sends, it ends as the candidate's error.

The peers are real: a worker that speaks on its own channel, and a process on a socket.
"""

import json
import os
import socket
import struct
from pathlib import Path

import cases
import pytest
from hostile_worker import hidden_in_a_kernel, hostile  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st

from passagent.config import EvaluatorConfig
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.result import MANIFEST, Candidate
from passagent.evaluator.runner import worker_messages as messages
from passagent.evaluator.runner.endings import WorkerDied
from passagent.evaluator.runner.process import Worker
from passagent.sandbox.channel import Channel, ChannelTimeout
from passagent.sandbox.child import Fork

TENSOR = {"dtype": "float32", "shape": [2, 3], "offset": 64}
FACTS = {"contiguous": True, "strides": [3, 1], "device": "cpu", "new": True, "own": True}
KEPT = {"outputs": [TENSOR | FACTS], "mutated": [0], "left": [None, TENSOR]}
GROUP = {"samples": [5, 6], "held": 20, "without": 30}
VIOLATION = {"rule": "r", "file": "f", "line": 1, "message": "m"}
ERROR = {"kind": "runtime_error", "message": "no"}
MATCHED = {"matches": 1, "left": ["P"]}


def asked(kind, **given):
    """A request, as far as replies are held against it."""
    return getattr(messages, kind).model_construct(**given)


HONEST = [
    (asked("Load"), {}),
    (asked("Load"), {"error": ERROR, "violations": [VIOLATION]}),
    (asked("TakeGraph", nodes=[]), MATCHED),
    (asked("Run", windows=[[0], [1]], keep=True), {"samples": [7, 8], "kept": KEPT, "copying": [5, 6]}),
    (asked("Run", windows=[[0]], keep=False), {"samples": [7], "kept": None, "violations": []}),
    (
        asked("Lockstep", groups=[messages.Turns.model_construct(turns=[[[0]], [[1]]], keep=(0, 0))]),
        {"groups": [GROUP], "kept": [KEPT]},
    ),
    (asked("Lockstep", groups=[]), {"ended_early": True}),
    (asked("Audit", sets=[0]), {"kept": [KEPT], "stable": True}),
    (asked("Float64"), {"tensors": [TENSOR]}),
    (asked("Float64"), {"tensors": None}),
    (asked("Room"), {"tensors": [TENSOR]}),
    (asked("States", inputs=[1]), {"states": [[TENSOR]], "due": [[False]]}),
]
"""Requests, as far as they are looked at, and what an honest worker replies."""
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), st.text(max_size=8),
    st.just("x" * 100_000), st.lists(st.integers(), max_size=3), st.just([0] * 100_000),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    st.recursive(st.just([]), lambda inner: st.lists(inner, min_size=1, max_size=2), max_leaves=40),
)  # fmt: skip


def places(value, path=()):
    """Paths to all parts of plain data."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*path, key))


def changed(draw, message):
    """The message with a part taken away, replaced, added or repeated."""
    copy = json.loads(json.dumps(message))
    *way, last = draw(st.sampled_from([path for path in places(copy) if path] or [("extra",)]))
    holder = copy
    for key in way:
        holder = holder[key]
    change = draw(st.sampled_from(["drop", "replace", "add", "repeat"]))
    if change == "drop" and last in places_of(holder):
        del holder[last]
    elif change == "repeat" and isinstance(holder, list):
        holder += holder * 3
    elif change == "add" and isinstance(holder, dict):
        holder[draw(st.text(min_size=1, max_size=4))] = draw(JUNK)
    elif isinstance(holder, dict) or last in places_of(holder):
        holder[last] = draw(JUNK)
    return copy


def places_of(holder):
    return holder if isinstance(holder, dict) else range(len(holder))


@st.composite
def wrong(draw):
    """(request, something that is no reply to it, mostly)"""
    request, reply = draw(st.sampled_from(HONEST))
    return request, draw(JUNK) if draw(st.integers(0, 9)) == 0 else changed(draw, reply)


@pytest.mark.parametrize(("request_", "reply"), HONEST)
def test_what_honest_workers_reply_is_taken_as_it_is(request_, reply):
    assert messages.read(request_, reply).model_dump(exclude_unset=True) == reply


@given(wrong())
@settings(max_examples=400)
def test_what_is_taken_is_within_the_limits(case):
    """Numbers in range, counts as asked for, no other key: for every reply that is taken at all."""
    request, message = case
    if not isinstance(message, dict):
        return
    try:
        taken = messages.read(request, message).model_dump(exclude_unset=True)
    except ValueError:
        return
    assert taken == message
    for path in places(taken):
        part = taken
        for key in path:
            part = part[key]
        assert type(part) in (dict, list, str, int, bool, type(None))
        assert not isinstance(part, int) or 0 <= part <= 1 << 50
        assert not isinstance(part, str) or len(part) <= messages.TEXT


class Parent:
    """Of a worker that is a child of this process: it has no fork server."""

    def poll(self):
        return None

    def ending(self, fork):
        return None


def told(scratch, request, frames):
    """What comes of `request` where the worker at the other end of a real socket sends `frames`."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            ours.close()
            Channel(theirs).send({"protections": {}})
            Channel(theirs).receive()
            for frame in frames:
                theirs.sendall(frame)
            theirs.shutdown(socket.SHUT_WR)
            while theirs.recv(1 << 16):
                pass
        finally:
            os._exit(0)
    theirs.close()
    worker = Worker(Parent(), Fork(pid, ours, scratch, Parent()), None)
    try:
        return worker.ask(request, 20.0)
    finally:
        worker.kill()
        os.waitpid(pid, 0)


def framed(data):
    return struct.pack("!I", len(data)) + data


BYTES = st.one_of(st.binary(max_size=40), st.just(b"\xff\xff\xff\xff"), st.binary(max_size=30).map(framed))
TEXTS = st.sampled_from([
    b"NaN", b"[" * 100_000, b'{"a":' * 100_000, b'{"samples": [1e999]}', b'{"kept": -Infinity}',
    b"\xff\xfe{}",
    b'{"mark": "start"}', b'{"mark": 1}', b'{"build": 3}', b"1" * 5000,
    b'{"samples": [7, 8], "samples": 0}', b'{"mark": "start", "samples": []}', b"[]", b"null", b"",
])  # fmt: skip


@st.composite
def conversations(draw):
    request, message = draw(wrong())
    frames = [framed(json.dumps(message).encode()), draw(BYTES), framed(draw(TEXTS))]
    return request, draw(st.lists(st.sampled_from(frames), min_size=1, max_size=3))


@given(conversations())
@settings(max_examples=25)
def test_a_process_that_sends_what_it_likes_is_answered_or_died(conversation):
    """Never another exception: that would be a traceback, or a fault of the machine."""
    request, frames = conversation
    try:
        assert isinstance(told(Path("/nonexistent"), request, frames).said, messages.Reply)
    except WorkerDied as death:
        status = death.status
        assert status == "runtime_error"


def test_timed_calls_start_once():
    """A worker that says so for ever would have the referee answer for ever."""
    run = asked("Run", windows=[[0]], keep=False, core=0)
    with pytest.raises(WorkerDied, match="no answer"):
        told(Path("/nonexistent"), run, [framed(b'{"mark": "start"}')] * 2)


def test_who_does_not_read_is_not_waited_for():
    ours, _theirs = socket.socketpair()
    with pytest.raises(ChannelTimeout):
        Channel(ours).send({"object": "x" * (4 << 20)}, (), 0.2)


FORGING = """
import gc
from passagent.sandbox.channel import Channel

channel = next(one for one in gc.get_objects() if type(one) is Channel and one.socket.fileno() >= 0)
send = channel.send

def forged(message, fds=()):
    if {when}:
        {forge}
    send(message, fds)

channel.send = forged
"""
PASS = """
import torch
from passagent.kernels import cpp_kernel

def pattern(a, b):
    return a + b

def replacement_args(a, b):
    return (a, b)

kernel = cpp_kernel('''{hidden}template <class T> void add(const T* a, const T* b, T* out, int64_t n) {{
  for (int64_t i = 0; i < n; ++i) out[i] = T(float(a[i]) + float(b[i]));
}}''', "add")

def add(a, b):
    out = torch.empty_like(a)
    kernel(a, b, out, a.numel())
    return out

def replacement_func():
    return add
"""
WHEN = {
    "load": "'mark' not in message",
    "graph": "'matches' in message",
    "audit": "'stable' in message",
    "run": "'samples' in message",
}
ALL = "message.update({{k: {value} for k in message}})"
FORGED = {
    "no key that is needed": "message.clear()",
    "a key too many": "message['more'] = 1",
    "lists of lists": ALL.format(value="[[[]]]"),
    "not a number": ALL.format(value="float('nan')"),
    "the machine's fault": "message['error'] = {'kind': 'infrastructure', 'message': 'disk full'}",
    "an error that is none": "message['error'] = {'kind': 'infrastructure', 'message': 3}",
    "too many violations": f"message['violations'] = [{VIOLATION}] * 100000",
}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    text = cases.TaskText("tmp_0 = in_0 + in_1\nreturn (tmp_0,)", [[([4, 64], "float32")] * 2])
    return cases.write_task(tmp_path_factory.mktemp("task") / "add", text)


@pytest.fixture(scope="module")
def referee(hostile, forks):  # noqa: F811
    with Referee(EvaluatorConfig(budget_s=1e-6), forks) as one:
        yield one


def evaluated(referee, task, when, forge):
    hidden = hidden_in_a_kernel(FORGING.format(when=when, forge=forge))
    files = {"P.py": PASS.format(hidden=hidden), MANIFEST: '["P"]'}
    return referee.evaluate(task, Candidate(files))


def test_one_that_forges_nothing_is_measured(referee, task):
    result = evaluated(referee, task, "False", "pass")
    assert (result.status, result.error) == ("ok", None)


EACH_ONCE = sorted({*((name, "audit") for name in FORGED), *(("lists of lists", op) for op in WHEN)})
"""Every forgery and every operation."""


@pytest.mark.parametrize(("name", "op"), EACH_ONCE)
def test_a_candidate_that_forges_replies_fails(name, op, referee, task):
    """The whole way: it speaks for its worker, and the evaluation ends with its own error."""
    result = evaluated(referee, task, WHEN[op], FORGED[name])
    failed = ("runtime_error", "load_error", "refused")
    assert result.status in failed, (result.status, result.error)
    assert result.error


TENSORS = {
    "outside of the memory": "one['offset'] = 1 << 40",
    "where none begins": "one['offset'] += 1",
    "too large": "one['shape'] = [1 << 40]",
    "of no possible size": "one['shape'] = [0, 1 << 47, 1 << 47]",
    "of another type": "one['dtype'] = 'complex32'",
    "of no type": "one['dtype'] = '__dict__'",
    "of another shape": "one['shape'] = [1]",
    "left where nothing was": "message['kept'][0]['left'] = [None] * 9",
    "more than there are": "message['kept'][0]['outputs'] *= 3",
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_candidate_that_forges_tensors_fails(name, referee, task):
    forge = f"one = message['kept'][0]['outputs'][0]; {TENSORS[name]}"
    result = evaluated(referee, task, WHEN["audit"], forge)
    assert (result.status, bool(result.error)) == ("runtime_error", True), result.error
