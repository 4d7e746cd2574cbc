"""The curated documents under `knowledge/`: ranked search over their sections, and reading one.

`knowledge/index.md` is the map; a user's own directory (PASSAGENT_RESOURCES) adds and overrides files.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from passagent import resources
from passagent.errors import UsageError, nearest
from passagent.extend import Target

ROOT = "knowledge/"
INDEX = "index.md"
SUFFIXES = {".md", ".py", ".json"}
SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""k1 and b of BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework)."""
OPERATOR_WEIGHT = 0.5
"""A word that only the task's operators bring, against a word of the query."""
TITLE_WEIGHT = 3
"""A word in a heading or a path counts as often as this in the text."""


@dataclass(frozen=True)
class Passage:
    """A section of a document."""

    path: str
    """Relative to knowledge/: what `read` takes."""
    heading: str
    text: str
    score: float = 0.0


@dataclass(frozen=True)
class _Library:
    """The documents and what search needs of their sections."""

    documents: dict[str, str]
    passages: list[Passage]
    bags: list[Counter[str]]
    """The words of each passage."""
    sizes: list[int]
    holders: Counter[str]
    """In how many passages a word occurs."""


def documents() -> dict[str, str]:
    """Relative path to text of every document, read once a process."""
    return _library(resources.roots()).documents


@functools.lru_cache(maxsize=4)
def _library(roots: tuple[Path, ...]) -> _Library:
    found = {}
    for name, path in resources.glob(ROOT + "**/*"):
        if path.suffix in SUFFIXES:
            found[name.removeprefix(ROOT)] = path.read_text(encoding="utf-8")
    passages = [section for path, text in found.items() if path != INDEX for section in _sections(path, text)]
    bags = [Counter(_words(p.text) + TITLE_WEIGHT * _words(f"{p.heading} {p.path}")) for p in passages]
    holders = Counter(word for bag in bags for word in bag)
    return _Library(found, passages, bags, [bag.total() for bag in bags], holders)


def read(path: str = INDEX, target: Target | None = None) -> str:
    """The text of one document; for a `target`, what of it names only what works there.

    Raises UsageError, with the nearest path, for anything else.
    """
    found = {name: _for(target, name, text) for name, text in documents().items()}
    wanted = path.strip().removeprefix("./").removeprefix(ROOT)
    if not found.get(wanted):
        known = [name for name, text in found.items() if text]
        raise UsageError(f"knowledge: no document '{path}'{nearest(wanted, known)}")
    return found[wanted]


def search(
    query: str, operators: Iterable[str] = (), limit: int = 5, target: Target | None = None
) -> list[Passage]:
    """The sections that answer `query` best (BM25), those that name the task's `operators` ahead.

    For a `target` they hold only what names nothing else than what works there.
    """
    ranked = _ranked(resources.roots(), query, tuple(operators))
    admitted = (replace(one, text=_for(target, f"{one.path} {one.heading}", one.text)) for one in ranked)
    return list(islice((one for one in admitted if one.text.strip()), limit))


def _for(target: Target | None, title: str, text: str) -> str:
    """The lines (of Markdown; other files whole) that a target admits, under headings that it admits."""
    if target is None:
        return text
    if not target.admits(title):
        return ""
    if ".md" not in title:
        return text if target.admits(text) else ""
    kept, is_shown = [], True
    for part in re.split(r"^(#.*\n|```.*\n(?s:.*?)^```\s*\n?|.*\n)", text, flags=re.MULTILINE):
        if part.startswith("#"):
            is_shown = target.admits(part)
        if is_shown and target.admits(part):
            kept.append(part)
    return "".join(kept)


@functools.lru_cache(maxsize=256)
def _ranked(roots: tuple[Path, ...], query: str, operators: tuple[str, ...]) -> list[Passage]:
    library = _library(roots)
    weights = dict.fromkeys(_words(" ".join(operators)), OPERATOR_WEIGHT)
    weights.update(dict.fromkeys(_words(query), 1.0))
    asked = set(_words(query))
    count = len(library.passages)
    mean = sum(library.sizes) / max(count, 1)
    scored = []
    for passage, bag, size in zip(library.passages, library.bags, library.sizes, strict=True):
        if asked and not asked & bag.keys():
            continue
        score = 0.0
        for word, weight in weights.items():
            holders = library.holders[word]
            rarity = math.log(1 + (count - holders + 0.5) / (holders + 0.5))
            norm = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * size / mean)
            score += weight * rarity * bag[word] * (SATURATION + 1) / (bag[word] + norm)
        if score > 0:
            scored.append(Passage(passage.path, passage.heading, passage.text, score))
    return sorted(scored, key=lambda p: (-p.score, p.path, p.heading))


def _sections(path: str, text: str) -> list[Passage]:
    """A Markdown document by its headings; any other file whole."""
    if not path.endswith(".md"):
        return [Passage(path, path.rsplit("/", 1)[-1], text)]
    sections: list[Passage] = []
    current: list[str] = []
    title, heading, fenced = path, "", False
    for line in [*text.splitlines(), "# "]:
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            if "".join(current).strip():
                sections.append(Passage(path, heading or title, "\n".join(current).strip()))
            name = line.lstrip("#").strip()
            title = name if line.startswith("# ") and name else title
            heading, current = (name if name == title else f"{title}: {name}"), []
        else:
            current.append(line)
    return sections


def _words(text: str) -> list[str]:
    """Lower-case words; `layer_norm` also as `layer` and `norm`; plurals folded."""
    words = []
    for word in re.findall(r"[a-z0-9_]+", text.lower()):
        parts = [part for part in word.split("_") if part]
        words += [word.strip("_"), *(parts if len(parts) > 1 else [])]
    return [
        word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
        for word in words
        if word
    ]
