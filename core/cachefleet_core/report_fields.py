"""Types of the fields of reports, with their bounds."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

MAX_HELD_SALTS: Final = 64
"""Tenants with a cache contract."""
MAX_SHARES: Final = 256 + MAX_HELD_SALTS
"""Tenants with a share of the idle cache of their own, those with a contract among them."""
MAX_IDLE_SALTS: Final = 32
"""Tenants whose idle blocks one State tells: those with most."""
MAX_TEXT: Final = 1024
MAX_FLIGHTS: Final = 4096
"""Requests of one replica on one worker that are told."""
MAX_TOLD_KEYS: Final = 4096
"""Of one request."""

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]  # an upper bound also refuses infinity
Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
Rank = Annotated[int, Meta(ge=0, le=4095)]
Key = Annotated[int, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1, max_length=253)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Url = Annotated[str, Meta(max_length=2048)]
SaltDigest = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
"""What ``tenancy.salt_digest`` makes of a tenant's salt."""


class SaltShare(Struct, frozen=True, kw_only=True):
    """A tenant's share of the budget for idle cached blocks."""

    salt: SaltDigest
    share: Ratio
    guaranteed: bool = False
    """Whether the tenant's blocks within it are evicted last, by a contract."""
    retention_seconds: Count = 0
    """For how long since their last use; 0 is without end."""


class HeldBlocks(Struct, array_like=True, frozen=True):
    """Idle blocks of a tenant with a contract: all it has, and those evicted against the contract, in all."""

    idle: Count
    evicted: Count
    """Since the engine's start, because running requests needed room."""


SaltShares = Annotated[tuple[SaltShare, ...], Meta(max_length=MAX_SHARES)]
IdleBySalt = Annotated[dict[SaltDigest, Count], Meta(max_length=MAX_IDLE_SALTS)]
HeldBySalt = Annotated[dict[SaltDigest, HeldBlocks], Meta(max_length=MAX_HELD_SALTS)]


class Flight(Struct, array_like=True, frozen=True):
    """A replica's request in flight: seconds since it was sent, tokens to compute, blocks that it will fill."""

    number: Count
    age: Seconds
    computing: bool
    """It has no first token yet."""
    tokens: Count
    sequences: Count
    blocks: Count
    """Blocks that it needs beyond those that were there."""
    taken: Count
    """Free blocks that it takes."""
    skip: Count
    """Blocks of its prompt before the first of ``keys``."""
    common: Count
    """Of ``keys``, the first ones whose blocks others may share."""
    keys: Annotated[bytes, Meta(max_length=8 * MAX_TOLD_KEYS)]
    """Packed keys of blocks that it computes: told once."""


class Paid(Struct, array_like=True, frozen=True):
    """Seconds that a request waits for a prefix, named by its last key; 0 where a copy of it is computed instead."""

    prefix: Annotated[bytes, Meta(min_length=8, max_length=8)]
    seconds: Seconds


Flights = Annotated[tuple[Flight, ...], Meta(max_length=MAX_FLIGHTS)]
FlightNumbers = Annotated[tuple[Count, ...], Meta(max_length=2 * MAX_FLIGHTS)]
