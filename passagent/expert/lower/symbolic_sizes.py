"""Sizes of tensors: what they are in the example, and the host expression that gives them at run time.

Sizes are texts that the generated wrapper evaluates on the host. Each carries the value that it had in the
example (`hint`), and every equality that the lowering relied on is kept as a guard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


class Unsupported(Exception):
    """An operator that cannot be lowered: its name and why."""

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(f"{op}: {reason}")
        self.op, self.reason = op, reason


@dataclass(frozen=True)
class Scalar:
    """A float literal that is a parameter of the pattern."""

    hint: float
    name: str


@dataclass(frozen=True)
class Size:
    """A size: its value in the example and the host expression that gives it (a number if it is constant).

    `a + b`, `a - b` and `a * b` are sizes, too, and so is `a // b`, which relies on divisibility. As a text
    (`str`, f-strings) a size is the one among those that guards made equal.
    """

    hint: int
    text: str
    facts: Sizes | None = field(default=None, compare=False, repr=False)
    """Facts on sizes; a constant has none."""

    @property
    def constant(self) -> bool:
        return self.text.lstrip("-").isdigit()

    def __str__(self) -> str:
        return self.facts.text(self) if self.facts else self.text

    def __add__(self, other: Size | int) -> Size:
        a, b = self, as_size(other)
        x, y = str(a), str(b)
        if a.constant and b.constant:
            return fixed(a.hint + b.hint)
        if x == "0" or y == "0":
            return b if x == "0" else a
        text = f"({x} - {y[1:]})" if y.startswith("-") else f"({x} + {y})"
        return Size(a.hint + b.hint, text, a.facts or b.facts)

    def __sub__(self, other: Size | int) -> Size:
        a, b = self, as_size(other)
        x, y = str(a), str(b)
        if x.isdigit() and y.isdigit():
            return fixed(a.hint - b.hint)
        return a if y == "0" else Size(a.hint - b.hint, f"({x} - {y})", a.facts or b.facts)

    def __mul__(self, other: Size | int) -> Size:
        return times([self, as_size(other)])

    def __floordiv__(self, other: Size | int) -> Size:
        a, b = self, as_size(other)
        if a.hint % max(b.hint, 1):
            raise Unsupported("shape", f"{a.hint} is no multiple of {b.hint}")
        x, y = str(a), str(b)
        if x.isdigit() and y.isdigit():
            return fixed(int(x) // int(y))
        if y == "1":
            return a
        facts = a.facts or b.facts
        assert facts is not None
        facts.guard(f"{x} % {y} == 0")
        return facts.size(a.hint // b.hint, f"({x} // {y})")


def fixed(value: int) -> Size:
    """A constant size."""
    return Size(value, str(value))


ONE = fixed(1)


def as_size(value: Any) -> Size:
    if isinstance(value, Size):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return fixed(value)
    raise Unsupported("size", f"{value!r} is not known before the call")


def times(sizes: Iterable[Size]) -> Size:
    """Product of sizes."""
    hint, constant, texts, facts = 1, 1, list[str](), None
    for size in sizes:
        hint, facts, text = hint * size.hint, facts or size.facts, str(size)
        if text.isdigit():
            constant *= int(text)
        else:
            texts.append(text)
    if constant != 1 or not texts:
        texts.append(str(constant))
    if len(texts) == 1:
        return Size(hint, texts[0], facts)
    result = Size(hint, f"({' * '.join(texts)})", facts)
    assert facts is not None
    facts.products[result.text] = tuple(texts)
    return result


class Sizes:
    """Facts about sizes: which are equal, which are products, and what has to hold at run time."""

    def __init__(self) -> None:
        self._same: dict[str, str] = {}
        self.hints: dict[str, int] = {}
        self.products: dict[str, tuple[str, ...]] = {}
        """Texts of sizes that are a product of others."""
        self.guards: dict[str, None] = {}

    def size(self, hint: int, text: str) -> Size:
        """The size that a host expression gives."""
        return Size(hint, text, self)

    def text(self, size: Size) -> str:
        """The canonical text among the texts that guards made equal."""
        text = size.text
        while text in self._same:
            text = self._same[text]
        self.hints[text] = size.hint
        return text

    def equal(self, a: Size, b: Size | int) -> None:
        """Rely on a == b. Raises Unsupported if it does not even hold in the example."""
        b = as_size(b)
        if a.hint != b.hint:
            raise Unsupported("shape", f"{a.text} = {a.hint} and {b.text} = {b.hint} do not fit")
        x, y = self.text(a), self.text(b)
        if x != y:
            self.guards[f"{x} == {y}"] = None
            # The plainer text stays: a number, else a product, else the shorter one.
            kinds = {t: 0 if t.isdigit() else 1 if t in self.products else 2 for t in (x, y)}
            keep, drop = sorted((x, y), key=lambda text: (kinds[text], len(text)))
            self._same[drop] = keep

    def constant(self, size: Size) -> int:
        """The size as a number, which then is relied on."""
        self.equal(size, size.hint)
        return size.hint

    def guard(self, condition: str) -> None:
        self.guards[condition] = None
