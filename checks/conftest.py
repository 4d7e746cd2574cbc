"""Shared by all checks: what they run keeps its experience apart from the user's library."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_library(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="module")
def no_library():
    """Searches of the same task are alike: none starts from what an earlier one found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PASSAGENT_LIBRARY", "off")
        yield
