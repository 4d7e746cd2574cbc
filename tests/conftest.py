"""Shared by all tests: hypothesis without deadlines (a first call may compile), and the gpu mark."""

import pytest
from hypothesis import settings

settings.register_profile("passagent", deadline=None)
settings.load_profile("passagent")


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        import torch

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
