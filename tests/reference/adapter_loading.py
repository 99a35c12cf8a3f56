"""What a request for an adapter (LoRA) costs where a worker's device is full of other adapters. Pure.

An engine keeps the weights of all its adapters in the host's memory and of a few on the device. One that is not there
takes the place of another before the request is computed, and everybody in that step waits for the copy.
"""

from __future__ import annotations

from typing import Final

ASSUMED_SECONDS: Final = 0.05
"""Engines do not tell how long it takes: some hundred copies, of 84 MB in all for rank 16 in every layer of a model of
8 billion parameters, each begun by itself."""


def adapter_seconds(*, displaces: bool) -> float:
    """How long an adapter is loaded onto the device; ``displaces`` where another has to go for it."""
    return ASSUMED_SECONDS if displaces else 0.0
