import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)
