"""How a request to an engine can fail; no text of these holds content of requests."""

from __future__ import annotations


class EngineError(Exception):
    """The engine did not answer as expected; a retry may succeed."""


class EngineUnreachableError(EngineError):
    """Nothing accepts connections at the engine's address."""


class EngineRefusalError(EngineError):
    """The engine refused the request itself."""

    @property
    def key_advice(self) -> str:
        """What to change where it is the worker key that was refused, in whole sentences; "" where it is not."""
        return ""
