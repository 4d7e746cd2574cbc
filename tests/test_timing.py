"""Timing: intervals that hold what they say, and blocks and groups of calls that pair evenly."""

import copy
import json
import math
import os
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passagent.errors import InfrastructureError
from passagent.evaluator.judging.judging import Judging
from passagent.evaluator.reference.reference import Reference
from passagent.evaluator.runner import lockstep
from passagent.evaluator.runner import worker_messages as messages
from passagent.evaluator.runner.endings import waited_ns
from passagent.evaluator.runner.fresh import Draw, Rotation
from passagent.evaluator.runner.lockstep import Turn, TurnLost
from passagent.evaluator.runner.process import WorkerAnswer
from passagent.evaluator.runner.samples import Samples, Timing
from passagent.evaluator.score import SETS
from passagent.evaluator.timing import clocks, timing, turns
from passagent.evaluator.timing.clocks import charge_copying
from passagent.evaluator.timing.estimate import interval, log_ratios, ratio
from passagent.evaluator.timing.timing import Effort, TimedCallError, TimedPair, measure
from passagent.tasks import Subgraph, TensorMeta

CONFIG = Effort("cpu", 120.0, 30.0, trials=60, most_trials=200, interval=0.02)


def blocks(random, count, ratio_, spread, calls_=8, disturbed=0.0):
    """Times of both sides, ns: a common drift, noise of each call, blocks of one side that are held up."""
    eager, compiled = [], []
    for _ in range(count):
        level = 20_000 * math.exp(random.normal(0, 0.1))
        pair = []
        for base in (level, level / ratio_):
            times = base * np.exp(random.normal(0, spread) + random.normal(0, 2 * spread, calls_))
            held = 5 if random.random() < disturbed else 1
            pair.append([int(t * held) for t in times])
        eager.append(pair[0])
        compiled.append(pair[1])
    return eager, compiled


@pytest.mark.parametrize(("count", "least"), [(8, 0.80), (20, 0.87), (60, 0.90)])
def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says(count, least):
    random = np.random.default_rng(count)
    held, width = 0, []
    rounds = 300
    for _ in range(rounds):
        true = math.exp(random.uniform(-1, 1))
        logs = log_ratios(*blocks(random, count, true, 0.03))
        low, high = interval(logs)
        held += low <= true <= high
        width.append(math.log(high / low))
    assert least <= held / rounds <= 0.995
    assert np.mean(width) < 5 * 0.06 / math.sqrt(count)  # nor is it wide for nothing


@pytest.mark.parametrize("bound", ["host", "gpu"])
def test_where_one_side_waits_for_the_gpu_a_host_busy_at_times_does_not_move_the_ratio(bound):
    random = np.random.default_rng(5)
    found = []
    for load in (0.0, 0.1, 0.2):  # the share of blocks in which others slow the host down
        eager, compiled = [], []
        for _ in range(120):
            pace = 1.3 if random.random() < load else 1.0
            theirs, mine = 90_000 * pace, 30_000 * (pace if bound == "host" else 1.0)
            for side, base in ((eager, theirs), (compiled, mine)):
                side.append([int(t) for t in base * np.exp(random.normal(0, 0.02, 8))])
        found.append(ratio(log_ratios(eager, compiled)))
    assert found == pytest.approx([3.0] * 3, rel=0.01)


def test_disturbed_blocks_count_neither_way():
    random = np.random.default_rng(1)
    for true in (0.7, 1.0, 2.5):
        logs = log_ratios(*blocks(random, 200, true, 0.02, disturbed=0.1))
        assert ratio(logs) == pytest.approx(true, rel=0.02)
        low, high = interval(logs)
        assert math.log(high / low) < 0.03


@given(
    st.lists(st.lists(st.integers(100, 10**7), min_size=1, max_size=5), min_size=1, max_size=12),
    st.lists(st.integers(1, 20), min_size=12, max_size=12),
)
def test_ratios_without_noise_are_exact(eager, factors):
    compiled = [[t * factor for t in block] for block, factor in zip(eager, factors, strict=False)]
    logs = log_ratios(eager, compiled)
    assert np.exp(-logs) == pytest.approx(factors[: len(eager)])
    assert ratio(-logs) == pytest.approx(1 / ratio(logs))
    low, high = interval(logs)
    assert -logs.max() - 1e-9 <= -math.log(high) <= -math.log(low) <= -logs.min() + 1e-9
    shifted = interval(logs + math.log(2))
    assert shifted == pytest.approx((2 * low, 2 * high))


def answer(own_us, count, clock_us, waited_us=0):
    return WorkerAnswer(
        messages.RunReply.model_construct(samples=[round(own_us * 1e3)] * count),
        round(clock_us * 1e3),
        round(waited_us * 1e3),
    )


def sides(pairs, calls_=16):
    """Samples of both sides; of a pair of blocks for either what a call takes and what else passed, us."""
    eager, compiled = Samples(), Samples()
    for samples, of in ((eager, 0), (compiled, 1)):
        for pair in pairs:
            own, rest = pair[of]
            samples.add(answer(own, calls_, own * calls_ + rest))
    return eager, compiled


def test_hidden_time_is_suspicious_in_most_blocks():
    for slow in (20, 900):
        eager = (slow, 60)
        honest, disturbed, cheat = (20, 60), (20, 9000), (2, 18 * 16 + 60)
        assert not clocks.suspicious(*sides([(eager, honest)] * 6))
        assert not clocks.suspicious(*sides([(eager, disturbed), (eager, honest)] * 3))
        assert clocks.suspicious(*sides([(eager, cheat)] * 4 + [(eager, honest)] * 2))


def test_what_the_harness_takes_is_no_hidden_time():
    # refreshing large inputs, outside of the own clock
    assert not clocks.suspicious(*sides([((20, 5000), (10, 5000))] * 6))


def test_a_referee_that_wakes_up_late_tells_nothing():
    late, honest, cheat = (20, -300), (20, 60), (2, 18 * 16 + 60)
    assert not clocks.suspicious(*sides([(late, (20, 500))] * 5 + [((20, 60), honest)] * 2))
    assert clocks.suspicious(*sides([(late, (20, 60))] * 6))  # which is no reason to believe anything
    assert clocks.suspicious(*sides([((20, 60), late)] * 5 + [((20, 60), cheat)]))


def telling(shares, random):
    """Pairs of blocks, of which so many show hidden time."""
    made = []

    def pair(eager, compiled):
        made.append(1)
        hides = random.random() < shares
        eager.add(answer(20, 10, 260))
        compiled.add(answer(20, 10, 5200 if hides else 260))

    return pair, made


def test_time_that_is_hidden_is_the_candidates_doing_the_sooner_the_more_pairs_show_it():
    random = np.random.default_rng(0)
    for share, found, most in ((1.0, True, 25), (0.0, False, 6)):
        pair, made = telling(share, random)
        assert (clocks.hides_time(pair) is not None, len(made)) == (found, most)
    for share, least, most in ((0.9, 197, 200), (0.8, 188, 200), (0.6, 0, 20), (0.5, 0, 1)):
        found = [clocks.hides_time(telling(share, random)[0]) for _ in range(200)]
        assert least <= sum(one is not None for one in found) <= most


@pytest.mark.parametrize("is_told", [False, True])
def test_a_machine_that_disturbs_either_side_is_no_candidates_fault(is_told):
    """Where the kernel tells of none or some of the milliseconds that other processes took."""
    random = np.random.default_rng(0)

    def pair(eager, compiled):
        for samples in (eager, compiled):
            lost = random.exponential(2000 if is_told else 4000)
            samples.add(answer(20, 10, 260 + lost, is_told * random.random() * lost))

    assert sum(clocks.hides_time(pair) is not None for _ in range(500)) <= 1


def test_the_wait_for_a_core_is_not_held_against_a_candidate():
    random = np.random.default_rng(0)
    made = []

    def pairs_of(busy, own_us):
        def pair(eager, compiled):
            made.append(1)
            for samples, own in ((eager, 20), (compiled, own_us)):  # the longer one loses its core
                waits = 4000 if samples is compiled and random.random() < busy else 0
                samples.add(answer(own, 10, 260 + waits, waits))

        return pair

    assert not clocks.hides_time(pairs_of(0.9, 20))
    assert len(made) > 20  # most pairs did not count
    made.clear()
    assert not clocks.hides_time(pairs_of(1.0, 20))
    assert len(made) == clocks.MOST_PAIRS
    for busy in (0.5, 1.0):
        assert clocks.hides_time(pairs_of(busy, 2))


def test_a_block_of_the_audit_is_as_long_as_eagers_calls_make_it():
    eager = sides([((20, 200), (5, 50))] * 6)[0]
    took_ns = 16 * 20e3 + 200e3  # of its calls, and between them
    assert clocks.block_length(eager) == round(clocks.BLOCK_S * 1e9 / (took_ns / 16))


def test_where_eager_works_in_place_its_inputs_are_in_its_caches():
    for in_place, refresh_us in ((True, 490), (False, 490), (True, 900)):

        def pair(eager, compiled, refresh_us=refresh_us):
            eager.add(answer(500, 8, 8 * (500 + 350)))
            compiled.add(answer(550, 8, 8 * (550 + refresh_us)))

        is_found = (in_place, refresh_us) != (True, 490)
        assert (clocks.hides_time(pair, in_place) is not None) == is_found
        assert (
            clocks.suspicious(*sides([((500, 8 * 350), (550, 8 * refresh_us))] * 6, 8), in_place) == is_found
        )


def test_the_kernel_says_how_long_a_thread_waited_for_its_core():
    core = min(os.sched_getaffinity(0))
    burn = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    begun = time.monotonic_ns()
    both = [subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for one in both:
            one.stdout.readline()
        while (waited := waited_ns(both[0].pid)) < 50e6:
            assert time.monotonic_ns() - begun < 300e9
            time.sleep(0.01)
        assert waited < 2 * (time.monotonic_ns() - begun)
    finally:
        for one in both:
            one.kill()
            one.communicate()
    assert waited_ns(both[0].pid) == 0  # of one that is gone nothing is known


def reference(often=(0, 1), mutated=()) -> Reference:
    metas = (
        TensorMeta("in_0", "x", (4, 64), "float32", "cuda:0"),
        TensorMeta("in_1", "w", (64,), "float32", "cuda:0"),
        TensorMeta("in_2", "n", (), "int", "cuda:0", data=3),
    )
    subgraph = Subgraph("g", Path("g"), metas, "", "float32", "")
    rotation = Rotation.of(subgraph)
    return Reference(
        "g",
        subgraph,
        "direct",
        None,
        [],
        [],
        rotation,
        [],
        [0, 1, 2],
        often=list(often),
        mutated=list(mutated),
    )


def test_rarely_refreshed_inputs_keep_still_within_a_block():
    few = reference(often=[0])
    draw = Draw(few.rotation)
    made = [turns.windows(draw, few, 9) for _ in range(5)]
    for block in made:
        assert len(block) == 9
        assert len({windows[0] for windows in block}) == 9
        assert len({windows[1] for windows in block}) == 1
        assert {windows[2] for windows in block} == {0}
    assert len({block[0][1] for block in made}) == 5
    assert len({windows[0] for block in made for windows in block}) == 45  # nothing is seen twice


def failure(text):
    return messages.Failure(error=messages.Error(kind="runtime_error", message=text))


FAILURE = failure("not today")


class Scripted:
    """A worker that only keeps book: what it was asked, and times as told."""

    overhead_ns = 0

    copying_ns = 5_000

    def __init__(self, name, log, per_call_ns=20_000, hidden_ns=0, waits_ns=0):
        """`hidden_ns`: of each block, beyond its own times; `waits_ns`: for the other side, of each group."""
        self.name, self.log, self.per_call_ns = name, log, per_call_ns
        self.hidden_ns, self.waits_ns = hidden_ns, waits_ns
        self.random = np.random.default_rng(len(name))

    def ask(self, message, timeout_s, fds=()):
        json.dumps(message.model_dump())  # it has to fit through the channel
        self.log.append((self.name, message))
        if message.op == "lockstep":
            reports = [self.report(group) for group in message.groups]
            kept = [group for group in message.groups if group.keep is not None]
            return WorkerAnswer(messages.LockstepReply.model_construct(groups=reports, kept=kept), None)
        times = self.times(len(message.windows))
        kept = message.windows[-1] if message.keep else None
        copying = [self.copying_ns] * len(times) if message.keep else []
        reply = messages.RunReply.model_construct(samples=times, copying=copying, kept=kept)
        return WorkerAnswer(reply, sum(times) + 50_000 + self.hidden_ns)

    def paused(self):
        return nullcontext()

    def times(self, count):
        return [int(self.per_call_ns * math.exp(self.random.normal(0, 0.01))) for _ in range(count)]

    def report(self, group):
        times = self.times(sum(map(len, group.turns)))
        return messages.GroupTimes(samples=times, held=sum(times), without=sum(times) + self.waits_ns)


def scripted(config=CONFIG, at=None, waits_ns=0, **candidate):
    """A measurement with scripted sides: the Timing, what was asked, and what was verified."""
    log, verified = [], []
    at = at or reference()
    measured = measure(
        TimedPair(
            Scripted("candidate", log, **candidate),
            Scripted("eager", log, waits_ns=waits_ns + candidate.get("hidden_ns", 0)),
            at,
            lambda chosen, windows, kept: verified.append((chosen, windows, kept)),
            config,
        )
    )
    return measured, log, verified


def test_blocks_of_both_sides_have_the_same_values_in_turn():
    measured, log, verified = scripted(replace(CONFIG, interval=1e-9, most_trials=300))
    names = [name for name, _ in log]
    assert names[:4] == ["eager", "candidate", "candidate", "eager"]  # the probes, and the warm-ups
    assert [len(message.windows) for _, message in log[:4]] == [3, 1, 25, 25]
    measured_blocks = log[4:]
    pairs = list(zip(measured_blocks[::2], measured_blocks[1::2], strict=True))
    assert len(pairs) == len(measured.eager.blocks) == len(measured.compiled.blocks)
    for number, (first, second) in enumerate(pairs):
        assert (first[0], second[0]) == [("candidate", "eager"), ("eager", "candidate")][number % 2]
        assert first[1].windows == second[1].windows
        assert first[1].set == second[1].set
        assert first[1].often == second[1].often == [0, 1]
        assert first[1].settle == second[1].settle
        assert first[1].settle not in first[1].windows  # what is timed has values of its own
    assert {message.set for _, message in measured_blocks} == set(range(1, SETS))
    assert len({len(message.windows) for _, message in measured_blocks}) > 1  # how long is not known ahead
    assert all(message.keep for _, message in measured_blocks)  # whether one is verified, nothing tells
    own = [(m.set, m.windows[-1], m.windows[-1]) for name, m in measured_blocks if name == "candidate"]
    assert 0 < len(verified) < len(own)
    assert [one for one in own if one in verified] == verified
    assert 300 <= len(measured.compiled.e2e) < 330
    assert measured.low <= measured.speedup <= measured.high


def test_measuring_ends_when_the_interval_is_narrow_enough():
    narrow, *_ = scripted()
    assert 60 <= len(narrow.compiled.e2e) < 100
    assert len(narrow.compiled.blocks) >= timing.MIN_PAIRS
    assert math.log(narrow.high / narrow.low) / 2 <= CONFIG.interval
    assert not narrow.unstable


@pytest.mark.parametrize(
    ("patience", "spread", "seconds", "ends"),
    [
        (2, 0.0001, 0.5, True),
        (2, 0.01, 0.5, False),
        (2, 0.01, 1.5, True),  # past the budget the interval may be wider
        (2, 0.1, 1.9, False),
        (2, 0.1, 2.1, True),  # bounded
        (1, 0.1, 0.9, False),
        (1, 0.1, 1.1, True),
    ],
)
def test_a_wide_interval_is_given_as_much_time_as_there_is_patience(
    monkeypatch, patience, spread, seconds, ends
):
    random = np.random.default_rng(1)
    found = Timing()
    found.eager.blocks, found.compiled.blocks = blocks(random, 30, 2.0, spread)
    config = replace(CONFIG, budget_s=1.0, interval=0.005, most_trials=10_000)
    monkeypatch.setattr(timing.time, "monotonic", lambda: 100.0 + seconds)
    pair = Mock(effort=replace(config, patience=patience))
    assert timing._enough(found, pair, 100.0) == ends


def test_slow_calls_come_in_shorter_blocks_and_within_the_budget():
    config = replace(CONFIG, budget_s=1e-9)
    log = []
    measured = measure(TimedPair(
        Scripted("candidate", log, per_call_ns=2 * 10**8),
        Scripted("eager", log, per_call_ns=2 * 10**8),
        reference(), lambda *_: None, config,
    ))  # fmt: skip
    assert {len(block) for block in measured.compiled.blocks} == {1}
    assert len(measured.compiled.blocks) == timing.MIN_PAIRS
    assert [len(message.windows) for _, message in log[2:4]] == [2, 2]  # fewer warm-ups


SLOW_NS = int(0.6e9)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("eager_ns", "call_s"), [(SLOW_NS, 0.6), (20_000, 2e-5)], ids=["both", "candidate"])
def test_slow_calls_of_both_pairs_are_six_of_each_side(eager_ns, call_s, device, monkeypatch):
    """However much time the budget has left."""
    monkeypatch.setattr(
        clocks, "suspicious", lambda *_: False
    )  # scripted sides do not see each other's turns
    config = replace(CONFIG, device=device, budget_s=600.0, trials=100, interval=1e-9)
    log, checked = [], []
    at = reference()
    at.call_s = call_s
    for _ in range(2):
        measured = measure(TimedPair(
            Scripted("candidate", log, per_call_ns=SLOW_NS),
            Scripted("eager", log, per_call_ns=eager_ns),
            at, lambda *words: checked.append(words), config,
        ))  # fmt: skip
        assert measured.is_slow and measured.low <= measured.speedup <= measured.high
    slow = {"candidate"} if eager_ns < SLOW_NS else {"candidate", "eager"}
    for side in slow:
        asked = [message for name, message in log if name == side]
        turns_ = [
            len(turn) for one in asked if one.op == "lockstep" for group in one.groups for turn in group.turns
        ]
        assert 4 <= sum(turns_) + sum(len(one.windows) for one in asked if one.op == "run") <= 6
    assert 2 <= len(checked) <= 6  # as shares of the calls


def test_slow_subgraph_has_no_calls_in_further_pairs():
    timed = SimpleNamespace(_timings={"g": [Timing(is_slow=True)] * 2})
    Judging._time(timed, None, None, SimpleNamespace(name="g"))  # it asks no worker
    assert len(timed._timings["g"]) == 2


def test_a_share_of_the_blocks_is_verified():
    many = 20_000  # calls, some 2000 pairs
    config = replace(CONFIG, interval=1e-9, trials=many, most_trials=many, budget_s=600)
    _, log, verified = scripted(config)
    pairs = (len(log) - 3) // 2
    assert 0.1 * pairs < len(verified) < 0.5 * pairs


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_hidden_time_in_every_block_is_looked_at_again_and_then_named(device):
    config = replace(CONFIG, device=device)
    measured, log, *_ = scripted(config, hidden_ns=10_000_000)
    claimed, seen, bound = measured.hidden.claimed, measured.hidden.seen, measured.hidden.bound
    per_call_us = 10_000 / clocks.block_length(measured.eager)  # hidden in each block
    assert claimed == pytest.approx(20, rel=0.05)
    assert seen == pytest.approx(20 + per_call_us, rel=0.05)
    assert claimed < bound < seen
    again = [m for m in log if isinstance(m[1], messages.Run) and m[1].core is not None]
    assert len(again) == 2 * 25
    for first, second in zip(again[::2], again[1::2], strict=True):
        assert {first[0], second[0]} == {"candidate", "eager"}
        assert first[1] == second[1]
        assert not first[1].settle
    assert len({first[0] for first in again[::2]}) == 2  # either side begins
    assert scripted(config, hidden_ns=1000)[0].hidden is None


def copied_sides(blocks, calls, late=0.0, late_ns=40_000, slower=1.0, copying_ns=5_000, seed=0):
    """Samples of eager and of a candidate that leaves so much of so many of its calls to the copying."""
    random = np.random.default_rng(seed)
    both = []
    for share, factor in ((0.0, 1.0), (late, slower)):
        made = Samples()
        for _ in range(blocks):
            noise = np.exp(random.normal(0, 0.05, calls)) * np.where(random.random(calls) < 0.1, 5, 1)
            left = random.random(calls) < share
            made.blocks.append([60_000 - late_ns * bool(one) for one in left])
            made.copying.append(
                [round(copying_ns * factor * n + late_ns * o) for n, o in zip(noise, left, strict=True)]
            )
            made.hidden.append(sum(made.copying[-1]))
        both.append(made)
    return both


@pytest.mark.parametrize(("blocks", "calls"), [(6, 8), (14, 10), (60, 10), (6, 1)])
def test_honest_copies_are_not_charged(blocks, calls):
    for seed in range(50):
        for copying_ns, slower in ((5_000, 1.0), (900_000, 1.0), (900_000, 1.8)):
            eager, compiled = copied_sides(blocks, calls, slower=slower, copying_ns=copying_ns, seed=seed)
            before = copy.deepcopy(compiled)
            charge_copying(eager, compiled)
            assert compiled == before


@pytest.mark.parametrize(
    ("blocks", "calls", "late"), [(6, 8, 1.0), (6, 8, 0.6), (14, 10, 0.4), (60, 10, 0.3)]
)
def test_work_that_is_left_to_the_copying_counts_as_the_calls(blocks, calls, late):
    """Also that of a part of the calls; the clock audit is told of it."""
    for seed in range(50):
        eager, compiled = copied_sides(blocks, calls, late, seed=seed)
        charge_copying(eager, compiled)
        assert ratio(log_ratios(eager.blocks, compiled.blocks)) < 1.01
        assert max(map(min, compiled.blocks)) >= 59_000
        assert max(compiled.hidden) <= 1.5 * calls * 5_000 * 1.2
    charge_copying(Samples(blocks=[[1]], hidden=[0]), Samples(blocks=[[2]], hidden=[0]))  # nothing was copied


def test_measuring_charges_what_a_candidate_does_while_its_outputs_are_copied(monkeypatch):
    honest, *_ = scripted()
    monkeypatch.setattr(
        Scripted, "copying_ns", property(lambda self: 5_000 + 20_000 * (self.name != "eager"))
    )
    charged, *_ = scripted()
    assert honest.speedup == pytest.approx(1.0, abs=0.02)
    assert charged.speedup == pytest.approx(0.5, abs=0.02)


def test_waiting_for_a_core_is_no_hidden_time():
    """In turns it looks like that; a side's blocks alone tell."""
    measured, log, *_ = scripted(replace(CONFIG, device="cuda"), waits_ns=50_000_000)
    assert measured.hidden is None
    again = [m for m in log if isinstance(m[1], messages.Run) and m[1].core is not None]
    assert len(again) == 2 * 6
    assert {len(message.windows) for _, message in again} == {clocks._MOST_CALLS}


def test_calls_that_fail():
    class Failing(Scripted):
        def ask(self, message, timeout_s, fds=()):
            if len(self.log) > 6:
                return WorkerAnswer(FAILURE, None)
            return super().ask(message, timeout_s, fds)

    log = []
    with pytest.raises(TimedCallError, match="not today"):
        measure(
            TimedPair(Failing("candidate", log), Scripted("eager", log), reference(), lambda *_: None, CONFIG)
        )


GPU = replace(CONFIG, device="cuda", interval=1e-9, most_trials=600)


def test_groups_are_even_and_both_sides_make_the_same_calls():
    measured, log, verified = scripted(GPU, reference(often=[0]))
    asked = [(name, message) for name, message in log if message.op == "lockstep"]
    sides = {name: [m for n, m in asked if n == name] for name in ("eager", "candidate")}
    assert {message.side for message in sides["eager"]} == {0}
    assert {message.side for message in sides["candidate"]} == {1}
    everywhere = os.sched_getaffinity(0)
    cores, beginners = [], []
    for theirs, mine in zip(sides["eager"], sides["candidate"], strict=True):
        assert [g.keep for g in theirs.groups] == [None] * len(theirs.groups)
        assert [g.model_copy(update={"keep": None}) for g in mine.groups] == theirs.groups
        assert 0 < len(mine.groups) <= turns.SERIES
        kept = [g for g in mine.groups if g.keep is not None]
        assert len(kept) <= SETS  # as many as there is room for
        assert bool(kept) == (mine is not sides["candidate"][0])  # the first series warms up
        for group in kept:
            place, position = group.keep
            assert group.skips[place] <= position < len(group.turns[place])
        for group in mine.groups:
            cores.append(group.core)
            beginners.append(group.first)
            assert len(group.turns) % 2 == 0  # each side goes first as often as the other
            assert all(len(t) > skip for t, skip in zip(group.turns, group.skips, strict=True))
            assert len({windows[1] for turn in group.turns for windows in turn}) == 1
            assert group.set in range(1, SETS)
    assert set(beginners) == {0, 1}
    for start in range(0, len(cores), len(everywhere)):  # none comes again before all were used
        part = cores[start : start + len(everywhere)]
        assert len(set(part)) == len(part) and set(part) <= everywhere
    assert len(verified) == sum(g.keep is not None for m in sides["candidate"] for g in m.groups)
    for _, windows, kept in verified:
        place, position = kept.keep
        assert kept.turns[place][position] == windows
    longest = turns.TURNS * turns.MEASURED
    for block in measured.compiled.blocks:
        assert longest - turns.MEASURED < len(block) <= longest
    assert len(measured.eager.blocks) == len(measured.compiled.blocks)


@pytest.mark.parametrize("per_call_ns", [1_000, 3_000_000, 7_000_000, 11_000_000, 40_000_000, 4 * 10**8])
def test_groups_of_slow_calls_are_even_too(per_call_ns):
    log = []
    config = replace(GPU, budget_s=1e-9, trials=2)
    sides = [Scripted(name, log, per_call_ns=per_call_ns) for name in ("candidate", "eager")]
    measure(TimedPair(*sides, reference(), lambda *_: None, config))
    groups = [g for _, message in log if message.op == "lockstep" for g in message.groups]
    assert {len(group.turns) % 2 for group in groups} == {0}
    if per_call_ns > 10**6:
        assert all(group.skips == [0] * len(group.turns) for group in groups)
        assert all(2 <= len(group.turns) <= turns.TURNS for group in groups)


@pytest.mark.parametrize(("device", "budget_s", "fewest"), [("cpu", 0.4, 2 * 8), ("cuda", 0.08, 3)])
def test_what_others_do_meanwhile_is_in_no_budget_and_warming_up_again_in_no_time(
    device, budget_s, fewest, monkeypatch
):
    now, log, shared = [0.0], [], []

    class Slow(Scripted):
        def ask(self, message, timeout_s, fds=()):
            now[0] += 0.01
            return super().ask(message, timeout_s, fds)

    def share():
        now[0] += 100.0
        shared.append(len(log))
        return 100.0

    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    most = {"trials": 10**6, "most_trials": 10**6, "patience": 1}
    config = replace(CONFIG, device=device, budget_s=budget_s, **most)
    sides = [Slow("candidate", log), Slow("eager", log)]
    made = measure(TimedPair(*sides, reference(), lambda *_: None, replace(config, patience=1), share))
    if device == "cpu":
        timed = [message for _, message in log if message.op == "run" and message.keep]
        again = [message for number in shared for _, message in log[number : number + 2]]
        assert [message.keep for message in again] == [False] * len(again)
        assert len(timed) == 2 * len(made.eager.blocks)
    else:
        series = [message for name, message in log if message.op == "lockstep" and name == "eager"]
        timed = series[1::2]  # every other one is for warming up
        assert sum(len(message.groups) for message in timed) == len(made.eager.blocks)
    assert len(timed) >= fewest


class Waiting(Scripted):
    """A side that comes to its turn, which never is."""

    def ask(self, message, timeout_s, fds=()):
        if message.op == "lockstep":
            turn = Turn(os.dup(fds[0]))
            try:
                turn.wait(99)
            finally:
                turn.close()
        return super().ask(message, timeout_s, fds)


class Lost(Scripted):
    def ask(self, message, timeout_s, fds=()):
        if message.op == "lockstep":
            raise InfrastructureError("eager's worker was lost")
        return super().ask(message, timeout_s, fds)


class Raising(Scripted):
    def ask(self, message, timeout_s, fds=()):
        if message.op == "lockstep":
            return WorkerAnswer(FAILURE, None)
        return super().ask(message, timeout_s, fds)


class LosingItsTurn(Waiting):
    """As a worker does it: what is raised comes back as an error."""

    def ask(self, message, timeout_s, fds=()):
        try:
            return super().ask(message, timeout_s, fds)
        except TurnLost as error:
            return WorkerAnswer(failure(str(error)), None)


@pytest.mark.parametrize(
    ("candidate", "eager", "error"),
    [(Raising, Waiting, TimedCallError), (LosingItsTurn, Lost, InfrastructureError)],
)
def test_a_side_does_not_wait_for_one_that_failed(candidate, eager, error):
    log, begun = [], time.monotonic()
    with pytest.raises(error):
        measure(
            TimedPair(candidate("candidate", log), eager("eager", log), reference(), lambda *_: None, GPU)
        )
    assert time.monotonic() - begun < lockstep._PATIENCE_S / 4


def test_one_file_descriptor_of_a_turn_per_side():
    def open_turns() -> int:
        links = []
        for fd in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # another thread's
                links.append(os.readlink(fd))
        return sum("passagent-turn" in link for link in links)

    kept = Turn.create()
    assert open_turns() == 1
    scripted(replace(GPU, most_trials=100, trials=60))
    assert open_turns() == 1
    os.close(kept)


def test_pairs_of_workers_that_contradict_each_other_widen_the_interval():
    def measured(*speedups):
        one, *_ = scripted()
        pairs = [replace(one, speedup=each, low=each * 0.999, high=each * 1.001) for each in speedups]
        return timing.together(pairs)

    agreeing, contradicting = measured(1.02, 1.02, 1.02, 1.02), measured(0.99, 1.05, 1.05, 0.99)
    assert agreeing.low > 1.01
    assert contradicting.low < 1.0 < contradicting.speedup < 1.04 < contradicting.high
