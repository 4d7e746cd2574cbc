"""Imports torch."""

import torch as t  # noqa: F401
