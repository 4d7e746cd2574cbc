"""Work beside a worker's: in order, bounded, and no failure of it is lost."""

import pytest

from passagent.evaluator.hardware.devices import find_device
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.judging.comparisons import Comparisons


@pytest.fixture
def beside():
    one = Comparisons(DeviceLease(find_device("cpu")))
    yield one
    one.close()


def fail(message):
    raise ValueError(message)


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
