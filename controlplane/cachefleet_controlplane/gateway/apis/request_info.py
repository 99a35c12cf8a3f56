"""A request as far as routing needs to understand it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cachefleet_controlplane.wire.json_members import Fields

COMPLETIONS_MAX_TOKENS: Final = 16
"""What vLLM gives a completion that names no bound."""
CHAT_MAX_TOKENS: Final = 256
"""What to reckon with for a chat that names no bound; decisions count no more than that anyway."""


class Endpoint(StrEnum):
    """What a worker can be asked; the value is the path, ours and the worker's."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    EMBEDDINGS = "/v1/embeddings"
    COUNT_TOKENS = "/v1/messages/count_tokens"


GENERATING: Final = (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES)


class Bypass(StrEnum):
    """Why a request is routed by load without asking anybody for its ids."""

    EMBEDDINGS = "embeddings"
    """A pooling model; nobody reports blocks of it."""
    COUNT_TOKENS = "count_tokens"
    """Nothing is computed."""
    MEDIA = "media"
    """Its blocks depend on images, sound or vectors as well as on ids."""


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """One request, understood as far as routing needs it. ``fields`` are what a worker may see of it."""

    endpoint: Endpoint
    model: str
    """As the client named it; "" where it named none."""
    fields: Fields
    size: int
    """Members of the client's own body."""
    stream: bool
    usage_asked: bool
    """The client gets the usage that its stream has."""
    ids_asked: bool
    ids_wanted: bool
    """We want token ids: of chats and completions, but for an echo, where asking for them changes the text."""
    single: bool
    """One choice of one prompt."""
    max_tokens: int
    bypass: Bypass | None = None
    threshold: float | None = None
    """Its own ``cache_hit_threshold``, of chats and completions."""
    choices: int = 1
    """Of each prompt."""
    prompts: int = 1
