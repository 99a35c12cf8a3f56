"""Types of the figures of a fleet's status, with their bounds."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

MAX_COUNT: Final = 2**53
"""The bound of the CRD too; not every reader of JSON has larger whole numbers."""

Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
Word = Annotated[str, Meta(max_length=64)]
"""A word that a later release may have another of."""
