"""Shared by the passes."""

from .operators import add_relu, scale_tanh
from .routes import ROUTE_ADD_RELU, ROUTE_SCALE_TANH
from .wrapping import ensure_contiguous

__all__ = ["ROUTE_ADD_RELU", "ROUTE_SCALE_TANH", "dispatch"]


@ensure_contiguous
def dispatch(*args):
    *tensors, route = args
    if route == ROUTE_ADD_RELU:
        return add_relu(*tensors)
    if route == ROUTE_SCALE_TANH:
        return scale_tanh(tensors[0])
    raise ValueError(f"unknown route {route!r}")
