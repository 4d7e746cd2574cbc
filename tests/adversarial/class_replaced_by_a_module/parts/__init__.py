"""A class with the name of a file."""


class names:
    torch = None


def library():
    return names.torch
