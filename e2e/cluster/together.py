"""Which tests pytest-xdist gives to one process: those whose id names ``ALONE`` stay together, all others go singly.

pytest-xdist's own groups (``xdist_group``) are none since pytest 9.2: it writes them into an attribute of the item, of
which pytest makes the id no longer.
"""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadScopeScheduling

ALONE: Final = "alone"
"""The parameter of a session's fixture that there is to be once, and so part of the ids of all tests that use it."""


class Together(LoadScopeScheduling):  # type: ignore[misc]  # published without types
    """For ``--dist loadgroup``."""

    def _split_scope(self, nodeid: str) -> str:
        parameters = nodeid.partition("[")[2].removesuffix("]").split("-")
        return ALONE if ALONE in parameters else nodeid
