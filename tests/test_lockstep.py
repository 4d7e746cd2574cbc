"""Two real processes that call in strict alternation, and what frees one of them when the other fails."""

import itertools
import os
import signal
import time

import pytest
import torch

from passagent.evaluator.runner import calls, lockstep
from passagent.evaluator.runner.lockstep import Turn, TurnLost
from passagent.evaluator.runner.marks import GAPS, Marks, mark_by
from passagent.evaluator.runner.worker_messages import Turns
from passagent.sandbox.channel import Arena


def in_another_process(work):
    """Run `work()` in a forked process; its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def ended(pid, within_s=120.0):
    """The exit code of a process; it is killed if it does not end in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the other side still waits")


def graph(name: bytes, pipe: int, work_s=0.0, seen=None) -> calls.Graph:
    """A subgraph whose calls write the side's name into the pipe."""

    def call(x):
        os.write(pipe, name)
        if work_s:
            time.sleep(work_s)
        if seen is not None:
            seen.append(x.tolist())
        return (x + 1,)

    live = [torch.zeros(4)]
    return calls.Graph(call, None, False, [0], live, [[torch.arange(64.0)]], None, [], [])


def groups(count, turns=2, length=3, keep=None):
    """Groups of turns of `length` calls each; first one side begins, then the other."""
    core, starts = min(os.sched_getaffinity(0)), itertools.count()
    return [
        Turns(
            core=core,
            set=0,
            keep=keep,
            first=number % 2,
            turns=[[[next(starts) % 60] for _ in range(length)] for _ in range(turns)],
            skips=[0] * turns,
        )
        for number in range(count)
    ]


def side(number, name, fd, pipe, given_, **options):
    turn = Turn(os.dup(fd))
    try:
        return calls.lockstep(graph(name, pipe, **options), given_, [0], number, turn)
    except BaseException:
        turn.abort()
        raise
    finally:
        turn.close()


@pytest.mark.parametrize("work_s", [0.0, 0.0005])
def test_two_processes_call_in_strict_alternation(work_s):
    fd, (out, into) = Turn.create(), os.pipe()
    everywhere, seen = os.sched_getaffinity(0), []
    other = in_another_process(lambda: side(1, b"B", fd, into, groups(5), work_s=3 * work_s))
    reports, kept = side(0, b"A", fd, into, groups(5, keep=[1, 0]), seen=seen, work_s=work_s)
    assert ended(other) == 0
    os.close(into)
    begun_by_a, begun_by_b = b"AAABBBBBBAAA", b"BBBAAAAAABBB"
    assert os.read(out, 1000) == (begun_by_a + begun_by_b) * 2 + begun_by_a
    os.close(out)
    os.close(fd)
    assert os.sched_getaffinity(0) == everywhere
    assert seen == [[float(start + i) for i in range(4)] for start in range(30)]  # fresh before each call
    assert [len(report.samples) for report in reports] == [6] * 5
    assert [one.copies[0].tolist() for one in kept] == [
        [6 * n + 3 + i + 1.0 for i in range(4)] for n in range(5)
    ]
    for report in reports:
        assert report.held >= sum(report.samples)
        assert report.without >= 6 * 3 * work_s * 1e9  # all that the other side took is in it


def test_an_abort_frees_the_other_side():
    fd, (out, into) = Turn.create(), os.pipe()

    def gives_up():
        turn = Turn(os.dup(fd))
        turn.wait(1)
        turn.abort()

    other = in_another_process(gives_up)
    begun = time.monotonic()
    with pytest.raises(TurnLost):
        side(0, b"A", fd, into, groups(5))
    assert time.monotonic() - begun < lockstep._PATIENCE_S / 4
    assert ended(other) == 0
    for one in (fd, out, into):
        os.close(one)


def test_an_abort_during_the_others_turn_is_seen_too():
    fd = Turn.create()
    mine, theirs = Turn(os.dup(fd)), Turn(fd)
    theirs.abort()
    mine.give()
    begun = time.monotonic()
    with pytest.raises(TurnLost):
        mine.wait(2)
    assert time.monotonic() - begun < lockstep._PATIENCE_S / 4


def test_a_dead_partner_is_waited_for_in_vain_but_not_for_ever(monkeypatch):
    fd, (out, into) = Turn.create(), os.pipe()

    def dies():  # who has all patience
        turn = Turn(os.dup(fd))
        turn.wait(1)
        os.kill(os.getpid(), signal.SIGKILL)

    other = in_another_process(dies)
    monkeypatch.setattr(lockstep, "_PATIENCE_S", 0.3)
    everywhere = os.sched_getaffinity(0)
    with pytest.raises(TurnLost):
        side(0, b"A", fd, into, groups(5))
    assert ended(other) == -signal.SIGKILL
    assert os.read(out, 100) == b"AAA"
    assert os.sched_getaffinity(0) == everywhere
    for one in (fd, out, into):
        os.close(one)


def test_each_call_is_copied_out_before_the_next_and_the_last_one_is_told_of():
    """A kernel cannot know which call is looked at: in any of them what is left undone takes time."""
    order = []

    def call(x):
        order.append("call")
        return (x * 2, x.expand(2, 4).t())

    arena = Arena.create(4096)
    graph = calls.Graph(call, None, False, [0], [torch.zeros(4)], {0: [torch.arange(12.0)]}, arena, [], [0])
    copy = graph.outputs.write_all
    arena.write_all = lambda tensors: order.append("copy") or copy(tensors)
    windows = [[start] for start in (0, 2, 4, 6, 8)]

    def timed(keep):
        refresh = graph.refresher(0, [0])
        return calls.timed(graph, 0, windows, refresh, keep, lambda: order.append("mark") or 1)

    samples, copying, last = timed(keep=True)
    assert order == ["mark", "mark", "call", "mark", "copy", "mark"] * 5
    assert len(samples) == len(copying) == 5
    doubled, turned, written = (arena.read(place) for place in [*last.outputs, *last.left])
    assert doubled.tolist() == [16.0, 18.0, 20.0, 22.0]
    assert turned.tolist() == [[value, value] for value in (8.0, 9.0, 10.0, 11.0)]
    assert written.tolist() == [8.0, 9.0, 10.0, 11.0]
    assert [output.new for output in last.outputs] == [True, False]
    order.clear()
    assert timed(keep=False)[1:] == ([], None)
    assert order == ["mark", "mark", "call", "mark"] * 5
    arena.close()


@pytest.mark.parametrize("calls_made", [3, 40])
def test_the_kernel_of_the_operating_system_says_how_long_calls_and_copying_took(calls_made):
    marks = Marks(calls_made, is_copied=True)
    mark, sock = mark_by(os.dup(marks.fd))
    spans = []  # of each call: between which looks at the clock its marks were made, ns
    for number in range(calls_made):
        looks = []
        for sleep_s in (0.0, 0.002, 0.005, 0.0) if number < GAPS else (0.002, 0.005, 0.0):
            looks.append(time.clock_gettime_ns(time.CLOCK_REALTIME))
            mark()
            looks.append(time.clock_gettime_ns(time.CLOCK_REALTIME))
            time.sleep(sleep_s)
        spans.append(looks)
    own = max(looks[3] - looks[0] for looks in spans[:GAPS])  # a mark itself, which is taken off, is no more
    times = marks.times()
    sock.close()
    marks.close()
    for place, found in zip((-6, -4), times, strict=True):
        for looks, ns in zip(spans, found, strict=True):
            before, begun, ended, after = looks[place : place + 4 or None]
            assert ended - begun - own <= ns <= after - before


def test_a_socket_holds_no_more_marks_than_it_should():
    with pytest.raises(OSError, match="buffer"):
        Marks(81, is_copied=True)
    marks = Marks(120, is_copied=False)
    mark, sock = mark_by(os.dup(marks.fd))
    for _ in range(2 * 120 + GAPS):
        mark()
    assert [len(times) for times in marks.times()] == [120, 0]
    sock.close()
    marks.close()
