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
from passagent.tasks import resources

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


@dataclass(frozen=True)
class _Library:
    """The documents, and their sections with what BM25 needs of them."""

    documents: dict[str, str]
    passages: list[Passage]
    """The sections of all documents, document by document."""
    worth: list[dict[str, float]]
    """The score of each section for each of its words, those of heading, path and index entry included."""


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
    rarity = {word: math.log(1 + (len(bags) - n + 0.5) / (n + 0.5)) for word, n in holders.items()}
    mean_size, worth = sum(bag.total() for bag in bags) / max(len(bags), 1), []
    for bag in bags:
        norm = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * bag.total() / mean_size)
        worth.append({w: rarity[w] * n * (SATURATION + 1) / (n + norm) for w, n in bag.items()})
    return _Library(texts, passages, worth)


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
    library, words = _library(roots), set(_words(query))
    weights = dict.fromkeys(_words(" ".join(operators)), OPERATOR_WEIGHT) | dict.fromkeys(words, 1.0)
    scores = [
        (-sum(weight * worth.get(word, 0.0) for word, weight in weights.items()), passage)
        for passage, worth in zip(library.passages, library.worth, strict=True)
        if not words or words & worth.keys()
    ]
    order = sorted(scores, key=lambda scored: (scored[0], scored[1].path, scored[1].heading))
    return [passage for score, passage in order if score < 0]


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
