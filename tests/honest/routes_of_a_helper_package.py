# expect: ok
# task: two_regions
"""Two passes of a package: routes by constants of a helper, relative imports, a decorator of its own."""

import torch
from shared import ROUTE_ADD_RELU, dispatch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y, ROUTE_ADD_RELU)


def replacement_func():
    return dispatch
