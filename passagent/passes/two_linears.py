"""Two linear layers of one input (gate and up of a gated MLP, key and value of a cross attention) as one.

See three_linears, which is applied before: the identity, its conditions and what it costs are the same.
"""

import torch

from passagent.passes._joined_linears import can_be_joined, linear_of_joined


def pattern(x, weight_1, bias_1, weight_2, bias_2):
    y_1 = torch.nn.functional.linear(x, weight_1, bias_1)
    y_2 = torch.nn.functional.linear(x, weight_2, bias_2)
    return y_1, y_2


def applies(weight_1, bias_1, weight_2, bias_2, **_):
    return can_be_joined([weight_1, weight_2], [bias_1, bias_2])


def replacement(x, weight_1, bias_1, weight_2, bias_2):
    return linear_of_joined(x, [weight_1, weight_2], [bias_1, bias_2])
