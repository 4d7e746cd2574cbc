"""Recursive folding (PassNet 3.2): the most telling repeated operator sequence becomes one token.

This is done again and again. Which sequence is GraphNet's choice: that with the largest
(length - 1) * (occurrences - 1), occurrences that overlap included. GraphNet compares random floating point
fingerprints of all windows. Here the suffixes are sorted, which is exact and takes O(n log n).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

WINDOW = 64
"""Tokens of the longest sequence that is looked for."""
FOLDS = 17
"""GraphNet's `fold_times` of 16 come after a first one."""
LEAST, MOST = 4, 64
"""Operators of a subgraph: at least LEAST, fewer than MOST."""


class Pattern(NamedTuple):
    """A repeated sequence."""

    length: int
    starts: list[int]
    """The starts of all its occurrences, those that overlap included."""


def most_telling(tokens: np.ndarray, window: int = WINDOW) -> Pattern:
    """The sequence with the largest (length - 1) * (occurrences - 1); length 1 if nothing repeats.

    Of equal ones the shortest, of these the one that begins first.
    """
    count = len(tokens)
    order, common = _sorted_suffixes(tokens, window)
    best, key = Pattern(1, [0] if count else []), (0, 0, 0)
    stack: list[tuple[int, int]] = []
    """Common length, and the first suffix in order that has it."""
    for position in range(1, count + 1):
        length = int(common[position]) if position < count else 0
        first = position - 1
        while stack and stack[-1][0] > length:
            shared, first = stack.pop()
            score = (shared - 1) * (position - first - 1)
            if score and score >= key[0]:
                starts = order[first:position]
                own = (score, -shared, -int(starts.min()))
                if own > key:
                    best, key = Pattern(shared, sorted(starts.tolist())), own
        if length and (not stack or stack[-1][0] < length):
            stack.append((length, first))
    return best


def _sorted_suffixes(tokens: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Suffixes by their first `window` tokens, and how many of these each shares with the one before."""
    count = len(tokens)
    ranks = [np.unique(tokens, return_inverse=True)[1].astype(np.int64)]
    lengths = [1]
    while lengths[-1] * 2 <= window:
        rank, length = ranks[-1], lengths[-1]
        behind = np.full(count, -1, np.int64)
        behind[: max(0, count - length)] = rank[length:]
        ranks.append(np.unique(rank * (count + 2) + behind + 1, return_inverse=True)[1].astype(np.int64))
        lengths.append(length * 2)
    # ranks of 2^k tokens: two that overlap rank any window between 2^k and 2^(k+1)
    order = np.argsort(ranks[-1], kind="stable")
    if lengths[-1] < window:
        behind = np.full(count, -1, np.int64)
        behind[: max(0, count - (window - lengths[-1]))] = ranks[-1][window - lengths[-1] :]
        order = np.lexsort((behind, ranks[-1]))
    common = np.zeros(count, np.int64)
    one, other = order[:-1].copy(), order[1:].copy()
    for rank, length in zip(reversed(ranks), reversed(lengths), strict=True):
        for _ in range(2 if length == lengths[-1] else 1):
            inside = (np.maximum(one, other) + length <= count) & (common[1:] + length <= window)
            equal = np.zeros(len(one), bool)
            equal[inside] = rank[one[inside]] == rank[other[inside]]
            common[1:][equal] += length
            one[equal] += length
            other[equal] += length
    return order, common


def apart(starts: Sequence[int], length: int) -> list[int]:
    """Choose occurrences that do not overlap, from the left."""
    found: list[int] = []
    for start in starts:
        if not found or start >= found[-1] + length:
            found.append(start)
    return found


def period(tokens: Sequence[int]) -> int:
    """The shortest length after which a sequence repeats itself; its own length if it does not."""
    border = [0] * len(tokens)
    for i in range(1, len(tokens)):
        k = border[i - 1]
        while k and tokens[i] != tokens[k]:
            k = border[k - 1]
        border[i] = k + (tokens[i] == tokens[k])
    return len(tokens) - (border[-1] if tokens else 0)


class Fold(NamedTuple):
    """A sequence that was found, and where."""

    token: int
    body: list[int]
    """Its tokens; earlier folds among them."""
    times: int


class Folded(NamedTuple):
    """Sequences of operators after folding."""

    names: list[Hashable]
    """The operators by their tokens, which are numbers from 0 on."""
    folds: list[Fold]
    bodies: list[list[int]]
    """The tokens of each sequence."""

    def lengths(self) -> dict[int, int]:
        """Operators of each fold's token."""
        found: dict[int, int] = {}
        for fold in self.folds:
            found[fold.token] = sum(found.get(token, 1) for token in fold.body)
        return found


def fold(
    sequences: Sequence[Sequence[Hashable]],
    window: int = WINDOW,
    folds: int = FOLDS,
    whole_periods: bool = True,
) -> Folded:
    """Fold sequences together.

    A window cuts a row of equal layers anywhere. With `whole_periods` a winner that repeats itself stands for
    its period, a layer; without, it is taken as it is, as GraphNet does.
    """
    names = sorted({name for sequence in sequences for name in sequence}, key=repr)
    token_of = {name: token for token, name in enumerate(names)}
    separators = range(-1, -len(sequences) - 1, -1)
    tokens: list[int] = []
    for separator, sequence in zip(separators, sequences, strict=True):
        tokens += [token_of[name] for name in sequence] + [separator]
    done: list[Fold] = []
    for token in range(len(names), len(names) + folds):
        length, starts = most_telling(np.array(tokens, np.int64), window)
        body = tokens[starts[0] : starts[0] + length] if starts else []
        if whole_periods and length > 1 and (own := period(body)) * 2 <= length and own > 1:
            length, body = own, body[:own]
            starts = [i for i in range(len(tokens) - own + 1) if tokens[i : i + own] == body]
        while length > 1 and len(apart(starts, length)) < 2:
            length -= 1
        if length <= 1:
            break
        places = apart(starts, length)
        done.append(Fold(token, tokens[places[0] : places[0] + length], len(places)))
        replaced, at = list[int](), 0
        for start in places:
            replaced += [*tokens[at:start], token]
            at = start + length
        tokens = replaced + tokens[at:]
    bodies, at = list[list[int]](), 0
    for separator in separators:
        end = tokens.index(separator, at)
        bodies.append(tokens[at:end])
        at = end + 1
    return Folded(list(names), done, bodies)


def ranges(folded: Folded, least: int = LEAST, most: int = MOST) -> list[list[tuple[int, int]]]:
    """Return, of each sequence, the largest folds and the rows of operators between folds, of such sizes."""
    lengths = folded.lengths()
    inner = {fold.token: fold.body for fold in folded.folds}

    def parts(body: list[int], start: int) -> Iterator[tuple[int, int]]:
        row = start
        for token in [*body, None]:
            size = 0 if token is None else lengths.get(token, 1)
            if token is None or token in inner:
                if least <= start - row < most:
                    yield row, start
                row = start + size
            if token in inner:
                if least <= size < most:
                    yield start, start + size
                elif size >= most:
                    yield from parts(inner[token], start)
            start += size

    return [sorted(parts(body, 0)) for body in folded.bodies]
