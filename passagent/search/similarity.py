"""How much two candidates have in common: the share of their lines, estimated from sketches.

A sketch keeps the smallest hashes of the lines (bottom-k, Broder 1997): the share of hashes that two sketches
have in common among the smallest of both estimates the Jaccard similarity of the sets of lines. Comments and
whitespace make no difference.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from zlib import crc32

SIZE = 64
"""Hashes that a sketch keeps: 256 bytes; the estimate's standard error is at most 6%."""

_COMMENT = re.compile(r"#(?!pragma|include|define).*|//.*")


def sketch_of(files: Mapping[str, str]) -> bytes:
    """The sketch of a candidate's .py files."""
    text = "\n".join(text for name, text in files.items() if name.endswith(".py"))
    lines = {"".join(line.split()) for line in _COMMENT.sub("", text).split("\n")}
    hashes = {crc32(line.encode("utf-8", "replace")) for line in lines - {""} or {""}}
    return array("I", sorted(hashes)[:SIZE]).tobytes()


def similarity(first: bytes, second: bytes) -> float:
    """The estimate, 0 to 1."""
    mine, theirs = (set(array("I", sketch)) for sketch in (first, second))
    smallest = sorted(mine | theirs)[:SIZE]
    return sum(value in mine and value in theirs for value in smallest) / len(smallest)
