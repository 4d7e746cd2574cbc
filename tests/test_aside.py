"""Work beside a worker's: in order, bounded, and no failure of it is lost."""

import threading
import time

import pytest

from passagent.evaluator.hardware.devices import find_device
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.judging import comparisons as aside
from passagent.evaluator.judging.comparisons import Comparisons


@pytest.fixture
def beside():
    one = Comparisons(DeviceLease(find_device("cpu")))
    yield one
    one.close()


def fail(message):
    raise ValueError(message)


def test_work_is_done_in_order_while_the_caller_goes_on(beside):
    gate, done = threading.Event(), []
    beside.do(lambda: gate.wait() and done.append(1), 8)
    beside.do(lambda: done.append(2), 8)
    assert done == []
    gate.set()
    beside.wait()
    assert done == [1, 2]


def test_no_more_waits_than_there_is_room_for(beside, monkeypatch):
    done = []
    for number in range(aside._MOST + 2):
        beside.do(lambda number=number: (time.sleep(0.01), done.append(number))[0], 8)
    assert len(done) >= 2  # the others had to end first
    beside.wait()
    beside.do(lambda: done.append("small"), 8)
    beside.do(lambda: done.append("large"), aside._ROOM)
    assert "small" in done
    beside.do(lambda: done.append("too large"), aside._ROOM + 1)
    assert done[-1] == "too large"  # waited for at once


def in_a_block(beside, error=None):
    with beside.finished():
        if error is not None:
            beside.do(lambda: fail("dropped"), 8)
            raise error


WAITING = {"wait": Comparisons.wait, "do": lambda beside: beside.do(lambda: None, 8), "finished": in_a_block}


@pytest.mark.parametrize("waiting", WAITING)
def test_the_first_failure_is_raised_and_later_work_dropped(beside, waiting):
    beside.do(lambda: fail("first"), 8)
    beside.do(lambda: fail("second"), 8)
    with pytest.raises(ValueError, match="first"):
        WAITING[waiting](beside)
    beside.wait()


def test_an_exception_of_the_callers_own_goes_before(beside):
    with pytest.raises(KeyError):
        in_a_block(beside, KeyError("own"))
    beside.wait()
