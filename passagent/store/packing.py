"""Texts as they lie in the database: zlib's format, which the sqlite3 shell opens with `sqlar_uncompress`."""

from __future__ import annotations

import functools
import zlib

LEVEL = 6
_KEPT = 128
"""Dictionaries, unpacked, that are kept in memory."""


def pack(text: bytes, dictionary: bytes = b"") -> bytes:
    """`text` compressed; what it has in common with `dictionary`, its last 32 kB, costs next to nothing."""
    packer = zlib.compressobj(LEVEL, zdict=dictionary) if dictionary else zlib.compressobj(LEVEL)
    return packer.compress(text) + packer.flush()


def unpack(packed: bytes, dictionary: bytes = b"") -> bytes:
    """The inverse of pack, with the same dictionary. Raises zlib.error."""
    unpacker = zlib.decompressobj(zdict=dictionary) if dictionary else zlib.decompressobj()
    text = unpacker.decompress(packed)
    if not unpacker.eof:
        raise zlib.error("ends too early")
    return text


unpack_kept = functools.lru_cache(maxsize=_KEPT)(unpack)
"""`unpack` of what is needed again soon."""
