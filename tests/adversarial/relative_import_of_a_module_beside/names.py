"""The functions that are inspected."""


def add(x, y):
    """Nothing."""
    return x


def relu(x):
    """Nothing."""
    return x
