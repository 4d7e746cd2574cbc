"""What a worker sees of the input sets: the values that the referee drew, read when first asked for."""

import subprocess
import sys

import pytest
import torch

from passagent.evaluator.runner import reservoirs
from passagent.evaluator.runner.reservoirs import InputSets
from passagent.evaluator.runner.worker_messages import Given
from passagent.sandbox.channel import Arena


@pytest.fixture
def sets():
    """Two sets of a tensor, a bool one that stays on the host and a number."""
    drawn = [(torch.randn(5), torch.tensor([True, False, True])), (torch.arange(5.0), torch.zeros(3) > 0)]
    arena = Arena.create(sum(Arena.room([x, x, mask]) for x, mask in drawn))
    described = [
        [
            Given(tensor=arena.write_flat([x, x[:2]]), shape=[5]),
            Given(tensor=arena.write_flat([mask]), shape=[3], host=True),
            Given(value=7),
        ]
        for x, mask in drawn
    ]
    arena.seal()
    return drawn, arena, described


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr("passagent.sandbox.pieces.PART", 5)


def test_a_set_is_what_was_drawn_and_read_once(sets):
    drawn, arena, described = sets
    read = InputSets(described, arena, "cpu")
    for chosen, (x, mask) in enumerate(drawn):
        assert torch.equal(read[chosen][0][:], torch.cat([x, x[:2]]))
        assert torch.equal(read[chosen][1][:], mask)
        assert read[chosen][2] == 7
        assert read[chosen] is read[chosen]


def test_outputs_may_be_larger_than_a_log():
    """The limit on a worker's files is for its log; Linux applies it to writes into shared memory, too."""
    child = """
import resource, torch
from passagent.sandbox.channel import Arena
values = torch.arange(9 << 20)
arena = Arena.create(Arena.room([values, values]))
resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))
placed = [arena.write(values), arena.write(values)]
assert all(torch.equal(arena.read(each), values) for each in placed), placed
arena.seal()
"""
    done = subprocess.run(
        [sys.executable, "-c", child], check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done


def test_all_sets_stay_on_the_device_unless_they_take_much_of_it(sets, monkeypatch):
    _, arena, described = sets
    for device, memory, are_large in [("meta", 8, False), ("meta", 7, True), ("cpu", 7, False)]:
        monkeypatch.setattr(reservoirs, "device_bytes", lambda _, times=memory: times * arena.size)
        assert InputSets(described, arena, device).are_large is are_large


@pytest.mark.gpu
def test_a_gpus_memory_is_known_to_a_worker():
    told = torch.cuda.get_device_properties("cuda").total_memory
    assert reservoirs.device_bytes("cuda") == pytest.approx(told, rel=0.05)
