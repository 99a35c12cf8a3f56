"""The first process of our containers and the engine's: it passes signals on to the program that it runs.

Linux drops a signal to a container's first process that has no handler for it, so Python programs, which set theirs
seconds after their start, would not hear that they are to end. Any other process ends by SIGTERM's default action.
The image's entry point is this program, too (images/cachefleet/Dockerfile).

Nothing is lost from the program's first instruction on; before that, in the millisecond in which the first process
starts it, a signal may be.
"""

from __future__ import annotations

from typing import Final

PROGRAM: Final = "dumb-init"
"""As PyPI's package of that name has it."""
OPTIONS: Final = ("--single-child", "--")
"""Signals go to the program alone: what its own children get is its matter."""


def under_first_process(command: list[str], folder: str) -> list[str]:
    """``command`` as the first process of ``folder`` runs it."""
    return [f"{folder}/{PROGRAM}", *OPTIONS, *command]
