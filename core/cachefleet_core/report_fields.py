"""Types of the fields of reports, with their bounds."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]  # an upper bound also refuses infinity
Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
Rank = Annotated[int, Meta(ge=0, le=4095)]
Key = Annotated[int, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1, max_length=253)]
Text = Annotated[str, Meta(max_length=1024)]
Url = Annotated[str, Meta(max_length=2048)]
