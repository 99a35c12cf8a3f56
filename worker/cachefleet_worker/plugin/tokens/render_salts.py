"""The cache salt of a text, on its way from vLLM's render call to the thread that encodes it.

vLLM adds a request's cache salt to the prompt only after it was encoded, and hands the text to its executor without the
caller's context. So the salt is kept in a context variable during the render call, and travels to the executor as an
attribute of the prompt. A text outside any render call has an unknown salt, which is not the same as none: it is left
to the plain encoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

NO_SALT: Final = ""
_FIELD: Final = "cache_salt"

_current: ContextVar[str | None] = ContextVar("cachefleet_salt", default=None)


class SaltedPrompt(dict[str, Any]):
    """A prompt with the salt of its render call; None where there was no such call."""

    __slots__ = ("salt",)

    def __init__(self, prompt: Mapping[str, Any], salt: str | None) -> None:
        super().__init__(prompt)
        self.salt = salt


@contextmanager
def rendering(extras: Mapping[str, Any] | None) -> Iterator[None]:
    """Set the salt for the duration of a render call with these extras."""
    token = _current.set((extras or {}).get(_FIELD) or NO_SALT)
    try:
        yield
    finally:
        _current.reset(token)


def salted(prompt: Mapping[str, Any]) -> SaltedPrompt:
    """The prompt with the present salt, to be handed to another thread."""
    return SaltedPrompt(prompt, _current.get())


def salt_of(prompt: Mapping[str, Any]) -> str | None:
    """The salt of a prompt's text; None where it is unknown. The render call's salt wins, as in vLLM."""
    salt = prompt.salt if isinstance(prompt, SaltedPrompt) else _current.get()
    if salt == NO_SALT:
        salt = prompt.get(_FIELD) or NO_SALT
    return salt if isinstance(salt, str) else None
