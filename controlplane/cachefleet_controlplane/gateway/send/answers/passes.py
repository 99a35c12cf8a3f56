"""Which events of a stream native code may relay; each stage that a stream passes through says so for itself."""

from __future__ import annotations

from enum import IntEnum


class Passes(IntEnum):
    """Events that a stage need not read; the least of all stages' is what native code relays."""

    NOTHING = 0
    """The stage reads or edits every event."""
    ORDINARY = 1
    """Events with text and token ids alone, which are noted for it, and the ordinary end of a stream."""
    MOST = 2
    """All but errors, and an answer that its engine gives up."""
