"""What work and evictions on a worker cost others, as its pool has shown so far.

*Evictions.* Not every cached token is asked for again before it would go anyway: ``eviction`` is the share that is.

*Work.* Each second of prefill makes those wait who come while the worker is busy. With ``a`` requests a second for a
worker that is busy for a share ``b`` of the time, a queue of ``x`` seconds lasts ``x / (1 - b)``, and so is met by
``x * a / (1 - b)`` requests. What will be there besides is what a random request meets: ``b / 2`` of the work that a
request is, each counted by its work, as large ones are there for longer.

Nothing here is known of a pool at first: then what is evicted counts whole, and nobody is delayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Worth:
    """Of one pool; rates are those of one worker on the mean."""

    eviction: float = 1.0
    """Share of evicted tokens that will be computed again because of it; 0 to 1."""
    requests_per_second: float = 0.0
    computed_per_second: float = 0.0
    """Prompt tokens not found in its cache."""
    request_tokens: float = 0.0
    """Prompt tokens computed for a request, the mean weighted by them."""


UNLEARNT: Final = Worth()
