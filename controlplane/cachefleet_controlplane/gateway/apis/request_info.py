"""What routing needs to know of a request: endpoint, model, ``cache_hit_threshold``, ``Prefer`` header. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Raw, Struct

from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.wire.json_members import READ_ERRORS, Fields, is_null, lax_bool, members

COMPLETIONS_MAX_TOKENS: Final = 16
"""vLLM's ``max_tokens`` for a completion without one."""
CHAT_MAX_TOKENS: Final = 256
"""Assumed for a chat without a bound; decisions count no more than that anyway."""

MAX_CHOICES: Final = 8
"""Choices of each prompt that may be asked for."""
MAX_SEQUENCES: Final = 128
"""Choices of all prompts of one request: an engine computes as many answers."""
MAX_INPUTS: Final = 2048
"""Texts of one request for embeddings."""


class Endpoint(StrEnum):
    """What a worker can be asked; the value is the path, at the gateway and at the worker."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    EMBEDDINGS = "/v1/embeddings"
    COUNT_TOKENS = "/v1/messages/count_tokens"


GENERATING: Final = (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES)


class Bypass(StrEnum):
    """Why a request is routed by load alone, without rendering its prompt."""

    EMBEDDINGS = "embeddings"
    """A pooling model; no worker reports blocks of it."""
    COUNT_TOKENS = "count_tokens"
    """Nothing is computed."""
    MEDIA = "media"
    """Its blocks depend on images, sound or vectors besides token ids."""


class RequestInfo(Struct, frozen=True):
    """One request, parsed as far as routing needs it; ``fields`` are the members that a worker may see."""

    endpoint: Endpoint
    model: str
    """As the client names it; "" where it does not."""
    fields: Fields
    size: int
    """Members of the client's own body."""
    stream: bool
    usage_asked: bool
    """The client gets the usage in its stream; else the gateway takes it out."""
    ids_asked: bool
    ids_wanted: bool
    """The gateway asks for token ids: of chats and completions, but not with ``echo``, where that changes the text."""
    single: bool
    """One choice of one prompt."""
    max_tokens: int
    bypass: Bypass | None = None
    threshold: float | None = None
    """The caller's ``cache_hit_threshold``, of chats and completions; None without one."""
    choices: int = 1
    """Choices of each prompt."""
    prompts: int = 1
    cache_key: str = ""
    """The client's ``prompt_cache_key``."""

    @property
    def sequences(self) -> int:
        """Answers that an engine computes for it, each as large as a request of its own."""
        return self.choices * self.prompts

    @property
    def reads_cache(self) -> bool:
        """Whether the engine looks for the prompt in its prefix cache: not where it tells the prompt's own logprobs.

        It does that for some requests with ``echo``, which all count as such.
        """
        if _TELLING.isdisjoint(self.fields):
            return True  # as nearly all
        told = any(not is_null(self.fields, name) for name in _PROMPT_LOGPROBS)
        return not told and not lax_bool(self.fields.get("echo"))


_PROMPT_LOGPROBS: Final = ("prompt_logprobs", "prompt_logprob_token_ids")
_TELLING: Final = frozenset({*_PROMPT_LOGPROBS, "echo"})
THRESHOLD_FIELD: Final = "cache_hit_threshold"
TRANSFER_FIELD: Final = "kv_transfer_params"
"""Where a worker finds the KV blocks that another one has computed."""
MESSAGE: Final = f"Parameter `{THRESHOLD_FIELD}` must be between 0.0 and 1.0 if provided."

_number = msgspec.json.Decoder(float)
_number_or_text = msgspec.json.Decoder(int | float | str)


def own_threshold(fields: Fields) -> float | None:
    """Return the threshold in a body, else in its ``vllm_xargs``; None for neither. ApiError 400 outside 0 to 1."""
    if THRESHOLD_FIELD not in fields and "vllm_xargs" not in fields:
        return None  # as nearly all
    nested = {} if is_null(fields, "vllm_xargs") else members(fields["vllm_xargs"]) or {}
    given = [_checked(part[THRESHOLD_FIELD]) for part in (fields, nested) if not is_null(part, THRESHOLD_FIELD)]
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
    return ApiError(400, MESSAGE, param=THRESHOLD_FIELD)


APPLIED: Final[Header] = (b"preference-applied", b"if-available")
_PREFER: Final = b"prefer"
_IF_AVAILABLE: Final = b"if-available"


def choices_of(fields: Fields) -> int:
    """Return how many choices of each prompt are asked for, by ``n`` or ``best_of``. ApiError 400 over MAX_CHOICES."""
    if "n" not in fields and "best_of" not in fields:
        return 1  # as nearly all
    return max(_choices(fields, "n"), _choices(fields, "best_of"))


def _choices(fields: Fields, name: str) -> int:
    if is_null(fields, name):
        return 1
    try:
        count = float(_number_or_text.decode(fields[name]))  # takes every way of writing a number that the engine takes
    except (*READ_ERRORS, ValueError, OverflowError):
        return 1  # no number: the engine refuses it
    if not count <= MAX_CHOICES:
        raise ApiError(400, f"`{name}` must be a whole number from 1 to {MAX_CHOICES}.", param=name)
    return max(1, int(count))  # the engine refuses what is below 1


def within_bounds(prompts: int, choices: int = 1, *, most: int = MAX_SEQUENCES, param: str) -> int:
    """Return the number of prompts, which the member ``param`` lists. ApiError 400 where all of them are too many."""
    if prompts * choices <= most:
        return prompts
    each = f", and with {choices} choices of each {most // choices}" if choices > 1 else ""
    raise ApiError(400, f"`{param}` may have from 1 to {most} items{each}; it has {prompts}.", param=param)


def wants_cached(headers: Iterable[Header]) -> bool:
    """Whether ``Prefer`` has ``if-available``; its parameters, and other preferences, change nothing."""
    given = [part for name, value in headers if name == _PREFER for part in value.split(b",")]
    return bool(given) and any(part.partition(b";")[0].strip().lower() == _IF_AVAILABLE for part in given)
