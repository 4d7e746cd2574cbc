"""The few facts of an ELF64 file that the checks of built kernels need: sections and symbols."""

from __future__ import annotations

import struct
from dataclasses import dataclass

WRITE, ALLOC, EXEC, TLS = 1, 2, 4, 0x400
UNDEFINED, COMMON = 0, 0xFFF2
WEAK = 2
OBJECT, FUNCTION, SECTION_SYMBOL, TLS_SYMBOL, IFUNC = 1, 2, 3, 6, 10
_SYMTAB, _NOBITS, _DYNSYM = 2, 8, 11


@dataclass(frozen=True)
class Section:
    """A section: its `kind` is SHT_*, its `flags` SHF_*, `size` in bytes."""

    name: str
    kind: int
    flags: int
    size: int


@dataclass(frozen=True)
class Symbol:
    """A symbol: `section` is an index into the sections, or UNDEFINED or COMMON."""

    name: str
    kind: int
    binding: int
    section: int
    value: int
    size: int


@dataclass(frozen=True)
class Elf:
    """A file's sections, in order, and its symbols (`dynamic` those of .dynsym)."""

    sections: list[Section]
    symbols: list[Symbol]
    dynamic: list[Symbol]


def read(data: bytes) -> Elf:
    """The sections and symbols of a little-endian ELF64 file; ValueError for anything else."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a little-endian ELF64 file")
    (start,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
    strings = heads[names][4]
    sections = [Section(_text(data, strings + h[0]), h[1], h[2], h[5]) for h in heads]
    tables: dict[int, list[Symbol]] = {_SYMTAB: [], _DYNSYM: []}
    for head in heads:
        if head[1] in tables:
            at, length, texts = head[4], head[5], heads[head[6]][4]
            for entry in range(at + 24, at + length, 24):  # the first is always empty
                name, info, _, section, value, extent = struct.unpack_from("<IBBHQQ", data, entry)
                symbol = Symbol(_text(data, texts + name), info & 15, info >> 4, section, value, extent)
                tables[head[1]].append(symbol)
    return Elf(sections, tables[_SYMTAB], tables[_DYNSYM])


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("utf-8", "backslashreplace")
