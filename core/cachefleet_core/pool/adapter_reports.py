"""Adapters (LoRA) that the workers of a pool are to have, those that one has, and why not others: parts of reports."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from cachefleet_core.report_fields import Count, Name, Text

MAX_ADAPTERS: Final = 64
MAX_PROBLEMS: Final = 8
"""Adapters that a report says are not as they should be."""
MAX_DETAIL: Final = 256

AdapterNames = Annotated[tuple[Name, ...], Meta(max_length=MAX_ADAPTERS)]


class WantedAdapter(Struct, frozen=True, kw_only=True):
    """An adapter that a pool's workers are to have."""

    name: Name
    path: Text
    """What the engine is told to load it from: a folder, or a hub id, as ``ID@REVISION`` at a revision."""


WantedAdapters = Annotated[tuple[WantedAdapter, ...], Meta(max_length=MAX_ADAPTERS)]


class AdapterProblem(Struct, frozen=True, kw_only=True):
    """An adapter that could not be loaded, or not be taken away; it is tried again."""

    name: Name
    detail: Annotated[str, Meta(max_length=MAX_DETAIL)]
    """Where from, and the engine's answer to the last try."""


class AdapterReport(Struct, frozen=True, kw_only=True):
    """The adapters of a worker."""

    served: AdapterNames | None = None
    """Those that may be asked for, in the order in which they were loaded; None for more than fit here."""
    busy: AdapterNames = ()
    """Those with requests."""
    slots: Count = 0
    """How many have room on the device at once; 0 where the engine does not tell."""
    loading: AdapterNames = ()
    """Those that it is to have and has not loaded yet."""
    problems: Annotated[tuple[AdapterProblem, ...], Meta(max_length=MAX_PROBLEMS)] = ()
