"""Exit statuses by which the operator knows why a process of a worker pod has ended."""

from __future__ import annotations

from typing import Final

KEY_REFUSED: Final = 78
"""Of the agent: its own engine does not take the worker key."""
