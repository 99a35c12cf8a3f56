"""Types of the fields of reports, with their bounds."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

MAX_SHARES: Final = 256
"""Tenants with a share of the idle cache of their own."""
MAX_IDLE_SALTS: Final = 32
"""Tenants whose idle blocks one State tells: those with most."""
MAX_TEXT: Final = 1024

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


SaltShares = Annotated[tuple[SaltShare, ...], Meta(max_length=MAX_SHARES)]
IdleBySalt = Annotated[dict[SaltDigest, Count], Meta(max_length=MAX_IDLE_SALTS)]
