"""The functions that run."""

from torch import add, relu  # noqa: F401
