"""Shared by all tests: hypothesis's examples, locks, the recording process, and the gpu mark.

Hypothesis has no deadlines (a first call may compile) and draws the same examples in every run: what one run
in a thousand finds is no reason to refuse another change. `--hypothesis-profile explore` draws others.
"""

import gc
import os
import sys
from contextlib import nullcontext
from functools import partial

import pytest
from command import call  # noqa: F401
from hypothesis import settings

# Inductor starts no process that imports torch, to compile or to look what the processor can do.
os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1"}

gc.disable()  # until all is imported and collected: what is made until then stays
gc.set_threshold(5000)  # each look is through all that torch made

settings.register_profile("passagent", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("explore", deadline=None)
settings.load_profile("passagent")


@pytest.fixture(scope="session", autouse=True)
def _own_locks(tmp_path_factory):
    """No test waits for another program's measurements, nor for those of another process of pytest-xdist.

    Nor does one see the user's library, but for a test that names a file of its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PASSAGENT_LEASES", str(tmp_path_factory.mktemp("locks")))
        patch.setenv("PASSAGENT_LIBRARY", "off")
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(autouse=True)
def _same_draws():
    """What a test draws from torch's own generator does not depend on which tests came before it."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def forks():
    """A fork server for workers on the CPU and recordings: one for all files of a worker of pytest-xdist."""
    from passagent.evaluator.runner.worker_process import fork_server
    from passagent.sandbox.environment import worker_threads

    with fork_server("cpu", worker_threads(None)) as process:
        yield process


@pytest.fixture(scope="session")
def recorder(forks):
    """It, for recordings."""
    return forks


@pytest.fixture
def recorded(recorder, monkeypatch):
    """`passagent best` asks the recording process that is there already."""
    from passagent.plan import recorder_process

    monkeypatch.setattr(recorder_process, "recording_process", lambda: nullcontext(recorder))


@pytest.fixture
def no_kernels(monkeypatch):
    """Inductor calls a graph's operators as they are after all passes, and compiles no kernel."""
    from functorch.compile import make_boxed_func
    from torch._inductor import compile_fx

    from passagent.packages import deployed

    plain = partial(
        compile_fx.compile_fx, inner_compile=lambda graph, _, **__: make_boxed_func(graph.forward)
    )
    for module in (compile_fx, deployed):
        monkeypatch.setattr(module, "compile_fx", plain)


class Lent:
    """A fork server that who uses it does not end."""

    def __init__(self, server):
        self._server = server

    def __getattr__(self, name):
        return getattr(self._server, name)

    def end(self):
        """Nothing: its owner does."""


@pytest.fixture(scope="module")
def lent_forks(forks):
    """Every referee of this process that is given no fork server uses the tests' own, which has started."""
    from passagent.evaluator.judging import referee

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(referee, "fork_server", lambda device, threads: Lent(forks))
        yield


@pytest.fixture(scope="module")
def referee_inside(lent_forks):
    """Every pool of this process judges in this process."""
    from inside import RefereeInside

    from passagent.evaluator.service import pool

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "RefereeProcess", RefereeInside)
        yield


@pytest.fixture
def own_memory():
    """Who is killed is not taken for one that the kernel killed for memory, as it does for other tests."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("runner.process", "service.referee_process"):
            patch.setattr(f"passagent.evaluator.{module}.memory_kills", lambda: 0)
        yield


@pytest.fixture
def quick_retries(monkeypatch):
    """A model's next try comes at once, unless the server says when."""
    from passagent.models import retry

    monkeypatch.setattr(retry, "backoff", lambda number: 0.0)


def pytest_collection_modifyitems(items):
    # files with slow tests begin: at the end other processes would have nothing left to do beside them
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        import torch

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_configure(config):
    config.add_cleanup(gc.unfreeze)  # after pytest looks for garbage: libraries tell what is left


def pytest_collection_finish():
    gc.freeze()  # what stays need not be looked through again and again
    gc.enable()
