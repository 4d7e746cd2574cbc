"""What an audit holds at a time: the copies of a large input do not add up over its calls."""

from __future__ import annotations

import itertools
import secrets
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from passagent.evaluator.runner import worker
from passagent.evaluator.runner.calls import Graph, refresh_all
from passagent.evaluator.runner.reservoirs import InputSets
from passagent.evaluator.runner.subgraphs import _live
from passagent.evaluator.runner.worker_messages import Audit, AuditReply, Given
from passagent.sandbox.channel import Arena

SETS = 5
ROWS, COLUMNS = 512, 2048
NBYTES = ROWS * COLUMNS * 4
"""Of the weight, beside which everything else is small."""


class Audited:
    """A worker's state with one subgraph: a small input times a large weight."""

    def __init__(self, call=lambda x, w: (x @ w.t(),)) -> None:
        self.drawn = [(torch.randn(3, COLUMNS), torch.randn(ROWS, COLUMNS)) for _ in range(SETS)]
        self.arena = Arena.create(sum(Arena.room([x, w]) for x, w in self.drawn))
        described = [
            [Given(tensor=self.arena.write_flat([one]), shape=list(one.shape)) for one in values]
            for values in self.drawn
        ]
        self.arena.seal()
        self.outputs = Arena.create(2 * SETS * Arena.room(list(self.drawn[0])))
        zoned, sets = [], InputSets(described, self.arena, "cpu")
        live = [_live(sets[0][i], list(one.shape), zoned) for i, one in enumerate(self.drawn[0])]
        self.state = worker._State(None, Path(), is_shut_in=True)
        self.state.loaded = []
        graph = Graph(call, call, False, [0, 1], live, sets, self.outputs, [], [], zoned)
        self.state.graphs["g"] = graph

    def audit(self, sets: list[int]) -> AuditReply:
        """The worker's answer."""
        return worker._audit(self.state, Audit(id="g", sets=sets, before=SETS - 1))

    def peak(self, sets: list[int]) -> float:
        """The most bytes of tensors that lived at a time in an audit, in multiples of the weight's."""
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            self.audit(sets)
        events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
        now = most = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            now += event.nbytes()
            most = max(most, now)
        return most / NBYTES


def test_an_audit_holds_no_more_inputs_however_many_calls_it_makes():
    peaks = [Audited().peak(list(range(count))) for count in (1, 3, SETS)]
    assert peaks[2] < peaks[0] + 0.2
    assert max(peaks) < 3.4  # this call's inputs, those of the call before, what is read of a set, and zones


def test_an_audit_holds_the_outputs_of_its_calls_but_no_copies_of_them():
    peaks = [Audited(lambda x, w: (w + 1,)).peak(list(range(count))) for count in (1, SETS)]
    assert peaks[1] < peaks[0] + SETS - 1 + 0.2


def test_each_call_of_an_audit_has_inputs_at_other_addresses_than_the_one_before():
    seen = []

    def call(x, w):
        seen.append((x.data_ptr(), w.data_ptr()))
        return (x @ w.t(),)

    audited = Audited(call)
    audited.audit(list(range(SETS)))
    live = [value.data_ptr() for value in audited.state.graphs["g"].live]
    calls = [*seen, live]
    assert len(seen) == 1 + SETS
    for first, second in itertools.pairwise(calls):
        assert not {*first} & {*second}
    assert not {*live} & {address for call in seen for address in call}


def test_of_large_sets_that_of_the_call_at_hand_is_held():
    held = []

    def call(x, w):
        held.append(sorted(graph.sets._taken))
        return (x @ w.t(),)

    audited = Audited(call)
    graph = audited.state.graphs["g"]
    graph.sets.are_large = True
    refresh_all(graph, 1, [0, 0])
    audited.audit(list(range(SETS)))
    assert held == [[SETS - 1], *([chosen] for chosen in range(SETS))]
    assert (graph.sets._taken, graph.refreshers) == ({}, {})
    refresh_all(graph, 2, [0, 0])
    assert all(map(torch.equal, graph.live, audited.drawn[2]))


def test_outputs_of_an_audit_are_those_of_its_inputs_and_alive_until_its_end():
    """Also where they lie in an input, whose memory is given back otherwise."""
    audited = Audited(lambda x, w: (x @ w.t(), w.view(-1)[::2], x[1:]))
    reply = audited.audit(list(range(SETS)))
    assert reply.stable
    for (x, w), kept in zip(audited.drawn, reply.kept, strict=True):
        found = [audited.outputs.read(one) for one in kept.outputs]
        assert all(map(torch.equal, found, [x @ w.t(), w.view(-1)[::2], x[1:]]))
        assert kept.mutated == []


@pytest.mark.parametrize("later", [1, SETS - 1])
def test_an_output_that_a_later_call_changes_is_seen(later):
    made = []

    def call(x, w):
        made.append(x @ w.t())
        if len(made) > later + 1:
            made[-1 - later][0, 0] += 1
        return (made[-1],)

    assert not Audited(call).audit(list(range(SETS))).stable


@pytest.mark.parametrize("late", [0, 1])
def test_what_a_call_writes_beside_the_inputs_of_its_own_or_of_the_call_before_is_seen(late):
    given = []
    wanted = secrets.randbelow(SETS) + 1

    def call(x, w):
        given.append(w)
        if len(given) == wanted + 1:
            beside = given[-1 - late]
            storage = torch._C._construct_storage_from_data_pointer(
                beside.data_ptr() + beside.nbytes, beside.device, 4
            )
            torch.empty(0, dtype=torch.uint8).set_(storage, 0, (1,), (1,)).bitwise_xor_(1)
        return (x @ w.t(),)

    audited = Audited(call)
    audited.audit(list(range(SETS)))
    assert [one.rule for one in audited.state.blocks.take()] == ["out_of_bounds"]
