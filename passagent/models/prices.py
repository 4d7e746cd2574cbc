"""Prices of models. An unknown price is unknown (None), never 0; a model without a server costs nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from passagent.config import ModelConfig
from passagent.errors import UsageError
from passagent.models.types import Usage
from passagent.tasks import resources

PAID = ("openai/", "anthropic/")
_DATE = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2})$")


class Price(BaseModel):
    """A model's rates, USD per million tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(None, ge=0)
    """Input read from a cache; None: as input."""
    cache_write: float | None = Field(None, ge=0)
    """Input written to a cache; None: as input."""
    over: LongPrice | None = None
    up_to: int | None = Field(None, gt=0)
    """Input tokens over which the price is not known."""

    def cost(self, usage: Usage) -> float | None:
        """The cost of one call, USD; None where it is not known."""
        if self.up_to is not None and usage.input_tokens > self.up_to:
            return None
        if self.over is not None and usage.input_tokens > self.over.tokens:
            return self.over.cost(usage)
        fresh = max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens)
        read = self.input if self.cached is None else self.cached
        write = self.input if self.cache_write is None else self.cache_write
        parts = (fresh * self.input, usage.cached_tokens * read, usage.cache_write_tokens * write)
        return (sum(parts) + usage.output_tokens * self.output) / 1e6


class LongPrice(Price):
    """The rates of calls with a longer prompt."""

    tokens: int = Field(gt=0)
    """Input tokens over which they hold."""


FREE = Price(input=0, output=0)


class _PriceFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    date: object
    sources: dict[str, str] = {}
    models: dict[str, Price]


def read_prices() -> tuple[str, dict[str, Price]]:
    """`(date, prices)` of configs/prices.yaml, the user's own file first.

    Raises UsageError for a file that is not of its form.
    """
    path = resources.find("configs/prices.yaml")
    try:
        file = _PriceFile.model_validate(resources.read_yaml(path))
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from error
    return str(file.date), file.models


def price_of(name: str, mine: Mapping[str, Sequence[float]], listed: Mapping[str, Price]) -> Price | None:
    """The price of model `name`: given by the person (`[input, output, cached, cache_write]`), else known."""
    if not name.startswith(PAID):
        return FREE
    for key in (name, _DATE.sub("", name)):
        if key in mine:
            figures = mine[key]
            return Price(**dict(zip(("input", "output", "cached", "cache_write"), figures, strict=False)))
        if key in listed:
            return listed[key]
    return None


def prices_of(config: ModelConfig, names: Sequence[str]) -> dict[str, Price | None]:
    """The price of each of `names`, under the person's own prices."""
    prices = read_prices()[1] if any(name.startswith(PAID) for name in names) else {}
    return {name: price_of(name, config.prices, prices) for name in names}


def check_budget(prices: Mapping[str, Price | None], max_cost: float | None, max_tokens: int | None) -> None:
    """Raise UsageError if money is to be limited, a price is not known, and tokens are not limited either."""
    unknown = [name for name, price in prices.items() if price is None]
    if max_cost is not None and max_tokens is None and unknown:
        raise UsageError(
            f"--max-cost {max_cost:g}: the price of {unknown[0]} is not known; give "
            f"--price {unknown[0]}=IN,OUT (USD per million tokens), or limit --max-tokens as well"
        )


def parse_price(text: str) -> tuple[str, list[float]]:
    """`openai/x=2,10` to `("openai/x", [2.0, 10.0])`. Raises UsageError."""
    name, _, figures = text.rpartition("=")
    try:
        values = [float(figure) for figure in figures.split(",")]
    except ValueError:
        values = []
    if not name or not 2 <= len(values) <= 4:
        raise UsageError(
            f"--price {text}: write MODEL=INPUT,OUTPUT[,CACHED[,CACHE_WRITE]], USD per million tokens"
        )
    return name, values
