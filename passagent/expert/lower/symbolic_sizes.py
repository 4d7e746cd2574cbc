"""Sizes of tensors: what they are in the example, and the host expression that gives them at run time.

Sizes are texts that the generated wrapper evaluates on the host. Each carries the value that it had in the
example (`hint`), and every equality that the lowering relied on is kept as a guard. At the end the texts are
made to read well: sizes without detours, conditions that can fail.
"""

from __future__ import annotations

import ast
import functools
import math
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


_NEUTRAL: dict[type[ast.AST], int] = {ast.Add: 0, ast.Sub: 0, ast.FloorDiv: 1}
"""The right operand that changes nothing."""


def simplified(text: str) -> str:
    """An expression over integers with its constants computed and no parenthesis that changes nothing.

    `(1 * (s0[0] * s0[1]))` becomes `s0[0] * s0[1]`, and `1 > 0` becomes `True`.
    """
    return _text(_Folding().visit(ast.parse(text.strip(), mode="eval").body))


def product(texts: Iterable[str]) -> str:
    """The product of expressions, simplified; `1` of none."""
    return simplified(" * ".join(f"({text})" for text in texts) or "1")


def conditions(guards: Iterable[str]) -> list[str]:
    """The guards that can fail, simplified; equal sizes as one chain: `s0[2] == s1[0] == s2[2]`."""
    groups: list[str | list[str]] = []
    for guard in _without_implied(list(dict.fromkeys(simplified(text) for text in guards))):
        sides = _equal_sides(guard)
        if guard == "True":
            continue
        if sides is None:
            groups.append(guard)
            continue
        met = [group for group in groups if isinstance(group, list) and set(group) & set(sides)]
        if not met:
            met = [[]]
            groups += met
        first, *others = met
        for other in others:
            groups.remove(other)
        first[:] = dict.fromkeys([*first, *(side for other in others for side in other), *sides])
        first.sort(key=str.isdigit)  # what all are equal to is said last
    result: list[str] = []
    for text in (group if isinstance(group, str) else " == ".join(group) for group in groups):
        middle = _between(result[-1], text) if result else None
        if middle is None:
            result.append(text)
        else:
            result[-1] += text.removeprefix(middle)
    return result


def before_divisions(guards: Iterable[str]) -> list[str]:
    """The guards, and before one that divides that the divisor is above zero."""
    ordered: dict[str, None] = {}
    for guard in guards:
        for node in reversed(list(ast.walk(ast.parse(guard, mode="eval")))):  # what stands inside first
            match node:
                case ast.BinOp(_, ast.FloorDiv() | ast.Mod(), divisor) if not _integer(divisor):
                    ordered[f"{_text(divisor)} > 0"] = None
        ordered[guard] = None
    return list(ordered)


def _without_implied(guards: list[str]) -> list[str]:
    """Without divisions that hold because others do: `n % (n // k) == 0` if `n % k == 0` is asked before."""
    named: dict[str, ast.expr] = {}
    for guard in guards:
        node = ast.parse(guard, mode="eval").body
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            left, right = node.left, node.comparators[0]
            for name, value in ((left, right), (right, left)):
                if isinstance(name, ast.Name) and isinstance(value, ast.BinOp) and not _divides(value):
                    named[name.id] = value
    needed: list[str] = []
    whole: dict[str, str] = {}
    """Divisions that were asked for, by the values that are known from them: `n // (n // k)` is `k`."""
    for guard in guards:
        node = ast.parse(guard, mode="eval").body
        if not _divides(node):
            needed.append(guard)
            continue
        if _text(_Cancelling(named, whole).visit(node)) == "True":
            continue
        needed.append(guard)
        match ast.parse(guard, mode="eval").body:
            case ast.Compare(ast.BinOp(n, ast.Mod(), k), [ast.Eq()], [ast.Constant(0)]):
                quotient = ast.BinOp(n, ast.FloorDiv(), k)
                whole[_text(ast.BinOp(n, ast.FloorDiv(), quotient))] = _text(k)
                whole[_text(ast.BinOp(n, ast.Mod(), quotient))] = "0"
            case ast.Compare(ast.BinOp(n, ast.FloorDiv(), k), [ast.Eq()], [m]):
                remainder = f"{_text(ast.BinOp(n, ast.Mod(), k))} == 0"
                if remainder in needed and not _divides(k) and not _divides(m):  # n is a product
                    needed = [condition for condition in needed if condition not in (guard, remainder)]
                    needed.append(f"{_text(n)} == {product([_text(k), _text(m)])}")
    return needed


def _divides(node: ast.expr) -> bool:
    return any(isinstance(part, ast.FloorDiv | ast.Mod) for part in ast.walk(node))


def _between(first: str, second: str) -> str | None:
    """The expression that `0 <= a` and `a < b` both bound: they can be one comparison."""
    match ast.parse(first, mode="eval").body, ast.parse(second, mode="eval").body:
        case ast.Compare(_, below, [*_, last]), ast.Compare(left, above) if _text(last) == _text(left):
            return _text(left) if all(isinstance(op, ast.Lt | ast.LtE) for op in (*below, *above)) else None
    return None


def _equal_sides(guard: str) -> list[str] | None:
    """Both sides of an equality of sizes that nothing divides: it may be asked at any time."""
    node = ast.parse(guard, mode="eval").body
    if not isinstance(node, ast.Compare) or not all(isinstance(op, ast.Eq) for op in node.ops):
        return None
    return None if _divides(node) else [_text(side) for side in (node.left, *node.comparators)]


def _text(node: ast.expr) -> str:
    return ast.unparse(ast.fix_missing_locations(node)).replace("'", '"')


class _Folding(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(node.op, ast.Mult):
            return _product([*_factors(left), *_factors(right)])
        a, b, kind = _integer(left), _integer(right), type(node.op)
        stays = kind is ast.Pow or (b == 0 and kind in (ast.FloorDiv, ast.Mod))  # 2**31, or an error
        if a is not None and b is not None and not stays:
            return _constant(eval(_text(ast.BinOp(left, node.op, right))))
        if b is not None and b == _NEUTRAL.get(kind):
            return left  # type: ignore[no-any-return]
        if kind is ast.Add and a == 0:
            return right  # type: ignore[no-any-return]
        if kind is ast.Mod and b == 1:
            return _constant(0)
        return ast.BinOp(left, node.op, right)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        sides = [self.visit(side) for side in (node.left, *node.comparators)]
        pairs: list[tuple[ast.expr, ast.cmpop, ast.expr]] = []
        for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
            a, b = _integer(left), _integer(right)
            same = isinstance(op, ast.Eq | ast.LtE | ast.GtE) and ast.dump(left) == ast.dump(right)
            if a is not None and b is not None:
                same = eval(_text(ast.Compare(left, [op], [right])))
                if not same:
                    return ast.Constant(False)
            if not same:
                pairs.append((left, op, right))
        if not pairs:
            return ast.Constant(True)
        if len(pairs) < len(node.ops) and len(pairs) > 1:
            return ast.BoolOp(ast.And(), [ast.Compare(a, [op], [b]) for a, op, b in pairs])
        return ast.Compare(pairs[0][0], [op for _, op, _ in pairs], [b for _, _, b in pairs])


class _Cancelling(_Folding):
    """Folds with what is known: names as products, and what divides what."""

    def __init__(self, named: dict[str, ast.expr], whole: dict[str, str]) -> None:
        self.named, self.whole = named, whole

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.named.get(node.id, node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        whole = self.whole.get(_text(node))
        if whole is not None:
            return ast.parse(whole, mode="eval").body
        folded = super().visit_BinOp(node)
        if not isinstance(folded, ast.BinOp) or not isinstance(folded.op, ast.FloorDiv | ast.Mod):
            return folded
        factors, right = (
            [_text(factor) for factor in _factors(side)] for side in (folded.left, folded.right)
        )
        for factor in right:
            if factor not in factors:
                return folded
            factors.remove(factor)
        return ast.parse(product(factors) if isinstance(folded.op, ast.FloorDiv) else "0", mode="eval").body


def _factors(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors(node.left), *_factors(node.right)]
    return [node]


def _product(factors: list[ast.expr]) -> ast.expr:
    number = math.prod(n for factor in factors if (n := _integer(factor)) is not None)
    unknown = [factor for factor in factors if _integer(factor) is None] if number else []
    if number != 1 or not unknown:
        unknown.append(_constant(number))
    return functools.reduce(lambda a, b: ast.BinOp(a, ast.Mult(), b), unknown)


def _integer(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _integer(node.operand)
        return None if inner is None else -inner
    is_integer = isinstance(node, ast.Constant) and type(node.value) is int
    return node.value if is_integer else None  # type: ignore[attr-defined,no-any-return]


def _constant(value: int) -> ast.expr:
    return ast.UnaryOp(ast.USub(), ast.Constant(-value)) if value < 0 else ast.Constant(value)
