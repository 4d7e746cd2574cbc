"""Shared by all checks: what they run keeps its experience and its locks apart from the user's."""

import fcntl
import shutil

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_places(tmp_path_factory):
    """No check sees the user's library, or waits for another program's measurements.

    Two workers share the cores: threads of torch that wait must not spin.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_WAIT_POLICY", "passive")
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.setenv("PASSAGENT_LEASES", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="session")
def once(tmp_path_factory, worker_id):
    """`once(name, make)`: a directory that `make(path)` fills, once for all workers of pytest-xdist."""

    def made(name, make):
        top = tmp_path_factory.getbasetemp()
        path = (top if worker_id == "master" else top.parent) / name
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.mkdir()
                try:
                    make(path)
                except BaseException:
                    shutil.rmtree(path)
                    raise
        return path

    return made


@pytest.fixture(scope="module")
def no_library():
    """Searches of the same task are alike: none starts from what an earlier one found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PASSAGENT_LIBRARY", "off")
        yield
