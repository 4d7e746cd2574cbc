"""The curated documents under `knowledge/`: ranked search, and reading one.

`knowledge/index.md` is the map; a user's own directory (PASSAGENT_RESOURCES) adds and overrides files.
A search ranks sections, by their words and by what the map says of their document.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from passagent.errors import UsageError, nearest
from passagent.extend import Target
from passagent.system import resources

ROOT = "knowledge/"
INDEX = "index.md"
SUFFIXES = {".md", ".py", ".json"}
SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""k1 and b of BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework)."""
OPERATOR_WEIGHT = 0.5
"""A word that only the task's operators bring, against a word of the query."""
TITLE_WEIGHT = 3
"""A word in a heading, a path or the index counts as often as this in the text."""


_SEAMS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Between the words of `LayerNorm` and `RMSNorm`."""


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
    """The documents, and their sections with what BM25 needs of them."""

    documents: dict[str, str]
    passages: list[Passage]
    """The sections of all documents, document by document."""
    bags: list[Counter[str]]
    """The words of each section with their counts, those of its heading, path and index entry included."""
    holders: Counter[str]
    """The number of sections that hold a word."""
    mean_size: float
    """Words of a section."""

    def score(self, place: int, weights: dict[str, float]) -> float:
        """Return how well the section at `place` answers words of these weights (BM25)."""
        bag, count, score = self.bags[place], len(self.bags), 0.0
        share = bag.total() / self.mean_size
        norm = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * share)
        for word, weight in weights.items():
            holders = self.holders[word]
            rarity = math.log(1 + (count - holders + 0.5) / (holders + 0.5))
            score += weight * rarity * bag[word] * (SATURATION + 1) / (bag[word] + norm)
        return score


def documents() -> dict[str, str]:
    """Relative path to text of every document, read once a process."""
    return _library(resources.roots()).documents


@functools.lru_cache(maxsize=4)
def _library(roots: tuple[Path, ...]) -> _Library:
    texts = {}
    for name, path in resources.glob(ROOT + "**/*"):
        if path.suffix in SUFFIXES:
            texts[name.removeprefix(ROOT)] = path.read_text(encoding="utf-8")
    passages = [section for path, text in texts.items() if path != INDEX for section in _sections(path, text)]
    entries = dict(re.findall(r"^- `(.+?)`: (.*)$", texts.get(INDEX, ""), re.MULTILINE))
    titles = [f"{p.heading} {p.path} {entries.get(p.path, '')}" for p in passages]
    bags = [
        Counter(_words(passage.text) + TITLE_WEIGHT * _words(title))
        for passage, title in zip(passages, titles, strict=True)
    ]
    holders = Counter(word for bag in bags for word in bag)
    return _Library(texts, passages, bags, holders, sum(bag.total() for bag in bags) / max(len(bags), 1))


def read(path: str = INDEX, target: Target | None = None) -> str:
    """The text of one document; for a `target`, what of it names only what works there.

    Raises UsageError, with the nearest path, for anything else.
    """
    texts = documents()
    name = path.strip().removeprefix("./").removeprefix(ROOT)
    text = _for(target, name, texts.get(name, ""))
    if not text:
        names = [name for name, content in texts.items() if _for(target, name, content)]
        raise UsageError(f"knowledge: no document '{path}'{nearest(name, names)}")
    return text


def search(
    query: str, operators: Iterable[str] = (), limit: int = 5, target: Target | None = None
) -> list[Passage]:
    """The documents that answer `query` best (BM25), each by its best section.

    Those that name the task's `operators` come ahead. For a `target` they hold only what names nothing else
    than what works there.
    """
    ranked = _ranked(resources.roots(), query, tuple(operators))
    passages = dict[str, Passage]()
    for passage in ranked:
        if passage.path not in passages and len(passages) < limit:
            text = _for(target, f"{passage.path} {passage.heading}", passage.text)
            passages.update({passage.path: replace(passage, text=text)} if text.strip() else {})
    return list(passages.values())


def _for(target: Target | None, title: str, text: str) -> str:
    """The lines (of Markdown; other files whole) that a target admits, under headings that it admits."""
    if target is None:
        return text
    if not target.admits(title):
        return ""
    if ".md" not in title:
        return text if target.admits(text) else ""
    parts, is_shown = [], True
    for part in re.split(r"^(#.*\n|```.*\n(?s:.*?)^```\s*\n?|.*\n)", text, flags=re.MULTILINE):
        if part.startswith("#"):
            is_shown = target.admits(part)
        if is_shown and target.admits(part):
            parts.append(part)
    return "".join(parts)


@functools.lru_cache(maxsize=256)
def _ranked(roots: tuple[Path, ...], query: str, operators: tuple[str, ...]) -> list[Passage]:
    """The sections, the best ahead."""
    library = _library(roots)
    weights = dict.fromkeys(_words(" ".join(operators)), OPERATOR_WEIGHT)
    weights.update(dict.fromkeys(_words(query), 1.0))
    words = set(_words(query))
    scored = [
        replace(passage, score=library.score(place, weights))
        for place, passage in enumerate(library.passages)
        if not words or words & library.bags[place].keys()
    ]
    order = sorted(scored, key=lambda passage: (-passage.score, passage.path, passage.heading))
    return [passage for passage in order if passage.score > 0]


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
    """Lower-case words; `layer_norm` and `LayerNorm` also as `layer` and `norm`; plurals folded."""
    words = []
    for word in re.findall(r"[A-Za-z0-9_]+", text):
        parts = [part for part in _SEAMS.sub("_", word).lower().split("_") if part]
        words += [word.lower().strip("_"), *(parts if len(parts) > 1 else [])]
    return [
        word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
        for word in words
        if word
    ]
