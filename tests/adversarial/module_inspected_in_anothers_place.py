# expect: refused (file_name)
"""Two files of one module's name: one is inspected, the other one runs."""

import torch
from passagent.evaluator.guards import audit, gate

gate._switch = lambda *_: None
audit.Audit.wrap = lambda self, function: function


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return torch.relu(x + y)


def replacement_func():
    return fused
