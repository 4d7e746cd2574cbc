"""Sizes."""

BLOCK = 64


def blocks(n: int) -> int:
    return -(-n // BLOCK)
