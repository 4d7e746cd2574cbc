import math

import shared
import torch
from shared import dispatch


def pattern(x):
    return torch.tanh(x * 2.0)


def replacement_args(x):
    return (x, -math.inf, shared.ROUTE_SCALE_TANH)


def replacement_func():
    return dispatch
