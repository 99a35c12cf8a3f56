"""The limits that a tenant may have, and their bounds: requests, tokens and money, by the minute, day and month of UTC.

A limit's name is that of the tenant's field, of an error's code and of a metric's label; ``requests-per-day`` on the
command line, ``requestsPerDay`` in JSON. Tokens are those computed of prompts (uncached) and those generated (output);
limits of uncached, cached and output tokens hold beside it, each for itself. Money is in the pools' currency.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

MAX_NUMBER: Final = 2**31 - 1
"""Upper bound of limits of requests at once, and of requests and tokens a minute."""
MAX_TOKENS: Final = 10**15
"""Upper bound of requests and tokens a day or month."""
MAX_SPEND: Final = 10**6
"""Upper bound of spending, in units of the currency."""
LEAST_SPEND: Final = 1e-6
"""As the least price; limits are to a millionth, too."""


class Limit(StrEnum):
    """A limit of a tenant."""

    REQUESTS_AT_ONCE = "requests_at_once"
    REQUESTS_PER_MINUTE = "requests_per_minute"
    REQUESTS_PER_DAY = "requests_per_day"
    REQUESTS_PER_MONTH = "requests_per_month"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    TOKENS_PER_DAY = "tokens_per_day"
    TOKENS_PER_MONTH = "tokens_per_month"
    UNCACHED_TOKENS_PER_MINUTE = "uncached_tokens_per_minute"
    UNCACHED_TOKENS_PER_DAY = "uncached_tokens_per_day"
    UNCACHED_TOKENS_PER_MONTH = "uncached_tokens_per_month"
    CACHED_TOKENS_PER_MINUTE = "cached_tokens_per_minute"
    CACHED_TOKENS_PER_DAY = "cached_tokens_per_day"
    CACHED_TOKENS_PER_MONTH = "cached_tokens_per_month"
    OUTPUT_TOKENS_PER_MINUTE = "output_tokens_per_minute"
    OUTPUT_TOKENS_PER_DAY = "output_tokens_per_day"
    OUTPUT_TOKENS_PER_MONTH = "output_tokens_per_month"
    SPEND_PER_MINUTE = "spend_per_minute"
    SPEND_PER_DAY = "spend_per_day"
    SPEND_PER_MONTH = "spend_per_month"

    @property
    def unit(self) -> str:
        """What is limited: requests, tokens, uncached_tokens, cached_tokens, output_tokens or spend."""
        return self.partition("_per_")[0] if self.period else "requests"

    @property
    def period(self) -> str:
        """Minute, day or month; "" of requests at once."""
        return self.partition("_per_")[2]

    @property
    def most(self) -> int:
        """The highest that it may be."""
        if self.unit == "spend":
            return MAX_SPEND
        return MAX_TOKENS if self.period in {"day", "month"} else MAX_NUMBER

    @property
    def least(self) -> float:
        """The lowest that it may be."""
        return LEAST_SPEND if self.unit == "spend" else 1

    @property
    def words(self) -> str:
        """In words: requests at once, cached tokens a minute, spending a day."""
        unit = "spending" if self.unit == "spend" else self.unit.replace("_", " ")
        return f"{unit} a {self.period}" if self.period else f"{unit} at once"

    @property
    def option(self) -> str:
        """As the command line has it."""
        return self.replace("_", "-")

    @property
    def field(self) -> str:
        """As JSON has it."""
        first, *rest = self.split("_")
        return first + "".join(word.capitalize() for word in rest)


PER_MINUTE: Final = tuple(limit for limit in Limit if limit.period == "minute")
BUDGET: Final = tuple(limit for limit in Limit if limit.period in {"day", "month"})
"""Limits by the calendar: of tenants, and of keys of their own."""
SPEND: Final = tuple(limit for limit in Limit if limit.unit == "spend")
"""Limits of money."""
