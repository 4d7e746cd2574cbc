"""Three linear layers of one input (the query, key and value of an attention) as one product.

Each output of a linear layer depends on its own row of the weight alone. So the rows of three weights, one
below the other, give the three outputs side by side, and a split takes them apart. A layer without a bias
gets zeros where another one has a bias (the key of Whisper).

Right for all sizes of the outputs. They are views with the row stride of the joined product, where eager's
are contiguous.

Pays where each product alone is too small to fill the device: one call in place of three, and the input is
read once. The joined weight is a copy, so the layers take twice their memory. Where the weights are no
parameters of the model but computed in each call, joining them costs more than it gains.
"""

import torch

from passagent.passes._joined_linears import can_be_joined, linear_of_joined


def pattern(x, weight_1, bias_1, weight_2, bias_2, weight_3, bias_3):
    y_1 = torch.nn.functional.linear(x, weight_1, bias_1)
    y_2 = torch.nn.functional.linear(x, weight_2, bias_2)
    y_3 = torch.nn.functional.linear(x, weight_3, bias_3)
    return y_1, y_2, y_3


def applies(weight_1, bias_1, weight_2, bias_2, weight_3, bias_3, **_):
    return can_be_joined([weight_1, weight_2, weight_3], [bias_1, bias_2, bias_3])


def replacement(x, weight_1, bias_1, weight_2, bias_2, weight_3, bias_3):
    return linear_of_joined(x, [weight_1, weight_2, weight_3], [bias_1, bias_2, bias_3])
