"""Flushing an engine's cached blocks: what a control plane asks of a worker's plugin, and what it answers. Pure.

``POST /v1/fleet/flush`` with a FlushAsk as JSON evicts idle cached blocks, and is answered with a FlushAnswer. What an
ask names is combined as "and"; one that names nothing has to say that it means everything.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from cachefleet_core.report_fields import Count, Name, Rank, SaltDigest, Text

FLUSH_PATH: Final = "/v1/fleet/flush"
FLUSH_FEATURE: Final = "flush"
FLUSH_WHOLE: Final = "whole"
"""Mode of the feature where blocks cannot be told apart: everything can be flushed, and nothing less."""
MAX_SALTS: Final = 1024


class FlushAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which cached blocks to flush."""

    everything: bool = False
    salts: Annotated[tuple[SaltDigest, ...], Meta(min_length=1, max_length=MAX_SALTS)] | None = None
    """Blocks computed under one of these salts."""
    adapter: Name | None = None
    """Blocks computed with this adapter."""
    prompt: dict[str, Any] | None = None
    """Body of a chat or completion: blocks of prompts that begin with its prompts."""
    rank: Rank | None = None
    """Of this data-parallel rank alone."""
    dry_run: bool = False
    """Count, and evict nothing."""

    @property
    def named(self) -> bool:
        """Whether the request names blocks to flush."""
        return self.everything or self.salts is not None or self.adapter is not None or self.prompt is not None


class Flushed(Struct, frozen=True):
    """Blocks evicted on one rank, or that a dry run would evict."""

    blocks: Count = 0
    tokens: Count = 0
    """Tokens of prompts that these blocks hold, counted in the KV cache group that has most."""
    busy: Count = 0
    """Blocks that are meant as well and that running requests use: they stay."""
    reason: Text = ""
    """Why nothing could be evicted; "" where it could."""


class FlushAnswer(Struct, frozen=True):
    """The ranks' answers."""

    ranks: dict[Rank, Flushed]
