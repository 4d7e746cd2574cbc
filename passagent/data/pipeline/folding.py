"""Recursive folding (PassNet 3.2): the most telling repeated operator sequence becomes one token.

This is done again and again. Which sequence is GraphNet's choice: that with the largest
(length - 1) * (occurrences - 1), occurrences that overlap included. GraphNet compares random floating point
fingerprints of all windows. Here windows grow by a token at a time, and only repeated ones are kept: that is
exact.
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
    """Find the sequence with the largest (length - 1) * (occurrences - 1); length 1 if nothing repeats.

    Of equal ones it is the shortest, of these the one that begins first.
    """
    best, best_score = Pattern(1, [0] if len(tokens) else []), 0
    values = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    starts, groups = np.arange(len(tokens)), values
    for length in range(2, min(window, len(tokens)) + 1):
        inside = starts + length <= len(tokens)
        starts, groups = starts[inside], groups[inside]
        if not len(starts):
            break
        windows = groups * len(tokens) + values[starts + length - 1]
        _, first, groups, counts = np.unique(
            windows, return_index=True, return_inverse=True, return_counts=True
        )
        occurrences = int(counts.max())
        if (score := (length - 1) * (occurrences - 1)) > best_score:
            group = groups[first[counts == occurrences].min()]
            best, best_score = Pattern(length, starts[groups == group].tolist()), score
        repeated = counts[groups] > 1  # what is unique stays unique when it grows
        starts, groups = starts[repeated], groups[repeated]
    return best


def without_overlap(starts: Sequence[int], length: int) -> list[int]:
    """Choose occurrences that do not overlap, from the left."""
    places: list[int] = []
    for start in starts:
        if not places or start >= places[-1] + length:
            places.append(start)
    return places


def period(tokens: Sequence[int]) -> int:
    """Return the shortest length after which a sequence repeats itself; its full length if it does not."""
    return next(
        length for length in range(1, len(tokens) + 1) if tokens[length:] == tokens[: len(tokens) - length]
    )


class Fold(NamedTuple):
    """A folded sequence."""

    token: int
    body: list[int]
    """Its tokens; earlier folds among them."""
    times: int
    size: int
    """The operators in it."""


class Folded(NamedTuple):
    """Sequences of operators after folding."""

    names: list[Hashable]
    """The operators by their tokens, which are numbers from 0 on."""
    folds: list[Fold]
    bodies: list[list[int]]
    """The tokens of each sequence."""


def fold(sequences: Sequence[Sequence[Hashable]], whole_periods: bool = True) -> Folded:
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
    sizes = [1] * len(names)
    for token in range(len(names), len(names) + FOLDS):
        length, starts = most_telling(np.array(tokens, np.int64))
        body = tokens[starts[0] : starts[0] + length] if starts else []
        if whole_periods and length > 1 and 1 < (layer := period(body)) <= length // 2:
            length, body = layer, body[:layer]
            starts = [i for i in range(len(tokens) - layer + 1) if tokens[i : i + layer] == body]
        while length > 1 and len(without_overlap(starts, length)) < 2:
            length -= 1
        if length <= 1:
            break
        places = without_overlap(starts, length)
        body = body[:length]
        sizes.append(sum(sizes[part] for part in body))
        done.append(Fold(token, body, len(places), sizes[token]))
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


def ranges(folded: Folded) -> list[list[tuple[int, int]]]:
    """Return, of each sequence, the largest folds and the rows of operators between folds, of such sizes."""
    folds = {fold.token: fold for fold in folded.folds}

    def parts(body: list[int], start: int) -> Iterator[tuple[int, int]]:
        row = start
        for token in body:
            fold = folds.get(token)
            if fold is not None:
                if LEAST <= start - row < MOST:
                    yield row, start
                row = start + fold.size
                if LEAST <= fold.size < MOST:
                    yield start, row
                elif fold.size >= MOST:
                    yield from parts(fold.body, start)
            start += 1 if fold is None else fold.size
        if LEAST <= start - row < MOST:
            yield row, start

    return [sorted(parts(body, 0)) for body in folded.bodies]
