"""What routing needs to know of a request: endpoint, model, ``cache_hit_threshold``, ``Prefer`` header. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Raw

from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.wire.json_members import READ_ERRORS, Fields, is_null, members

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


FIELD: Final = "cache_hit_threshold"
MESSAGE: Final = f"Parameter `{FIELD}` must be between 0.0 and 1.0 if provided."

_number = msgspec.json.Decoder(float)


def own_threshold(fields: Fields) -> float | None:
    """The top level's, else that of ``vllm_xargs``; None where neither has one. ApiError 400 for what is none."""
    nested = {} if is_null(fields, "vllm_xargs") else members(fields["vllm_xargs"]) or {}
    given = [_checked(part[FIELD]) for part in (fields, nested) if not is_null(part, FIELD)]
    return given[0] if given else None


def _checked(raw: Raw) -> float:
    try:
        value = _number.decode(raw)
    except READ_ERRORS as error:
        raise _refused() from error
    if not 0.0 <= value <= 1.0:
        raise _refused()
    return value


def _refused() -> ApiError:
    return ApiError(400, MESSAGE, param=FIELD)


APPLIED: Final[Header] = (b"preference-applied", b"if-available")
_PREFER: Final = b"prefer"
_IF_AVAILABLE: Final = b"if-available"


def wants_cached(headers: Iterable[Header]) -> bool:
    """Whether a request prefers that; other preferences beside it, and parameters of it, change nothing."""
    given = (part for name, value in headers if name == _PREFER for part in value.split(b","))
    return any(part.partition(b";")[0].strip().lower() == _IF_AVAILABLE for part in given)
