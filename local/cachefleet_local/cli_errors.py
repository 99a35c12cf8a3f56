"""Failures of commands: lines for the user, and an exit status for scripts."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit statuses of the command line."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2


class FailureError(Exception):
    """A command failed; ``lines`` say why, one for each reason."""

    def __init__(self, lines: list[str], status: Exit = Exit.FAILED) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.status = status
