"""What routing needs to know of a request: endpoint, model, ``cache_hit_threshold``, ``Prefer`` header. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from cachefleet_native import Ask
from msgspec import Struct
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.audio_form import Form
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.wire.json_members import Fields

COMPLETIONS_MAX_TOKENS: Final = 16
"""vLLM's ``max_tokens`` for a completion without one."""


class Endpoint(StrEnum):
    """What a worker can be asked; the value is the path, at the gateway and at the worker."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    EMBEDDINGS = "/v1/embeddings"
    RERANK = "/v1/rerank"
    SCORE = "/v1/score"
    CLASSIFY = "/classify"
    POOLING = "/pooling"
    COUNT_TOKENS = "/v1/messages/count_tokens"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"
    TRANSCRIPTIONS = "/v1/audio/transcriptions"
    TRANSLATIONS = "/v1/audio/translations"


GENERATING: Final = (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES)
POOLED: Final = (Endpoint.EMBEDDINGS, Endpoint.RERANK, Endpoint.SCORE, Endpoint.CLASSIFY, Endpoint.POOLING)
"""Of pooling models, each of which serves some of them."""
TOKENIZING: Final = (Endpoint.TOKENIZE, Endpoint.DETOKENIZE)
"""Of all models; nothing is computed."""

SPEECH: Final = (Endpoint.TRANSCRIPTIONS, Endpoint.TRANSLATIONS)
"""Of speech models; their bodies are forms with a file."""


class Bypass(StrEnum):
    """Why a request is routed by load alone, without rendering its prompt."""

    EMBEDDINGS = "embeddings"
    """A pooling model; no worker reports blocks of it."""
    POOLING = "pooling"
    """The same: rerank, score, classify, pooling."""
    TOKENIZE = "tokenize"
    """Nothing is computed, as of COUNT_TOKENS."""
    COUNT_TOKENS = "count_tokens"
    """Nothing is computed."""
    SPEECH = "speech"
    """Its blocks depend on a recording, which is not looked into."""
    MEDIA = "media"
    """Its blocks depend on images, sound or vectors besides token ids."""


class RequestInfo(Struct, frozen=True):
    """One request, parsed as far as routing needs it; ``ask`` has the members that a worker may see."""

    endpoint: Endpoint
    ask: Ask
    model: str
    """As the client names it; "" where it does not."""
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
    reads_cache: bool = True
    """Whether the engine looks for the prompt in its prefix cache: not where it tells the prompt's own logprobs.

    It does that for some requests with ``echo``, which all count as such.
    """
    echo: bool = False
    lint: bool = False
    """Of a dry run: its client asks what of the prompt will not be served from cache."""
    form: Form | None = None
    """What it came as, where that is a form; ``ask`` has its fields."""

    @property
    def fields(self) -> Fields:
        """The members themselves."""
        return self.ask.fields

    @property
    def sequences(self) -> int:
        """Answers that an engine computes for it, each as large as a request of its own."""
        return self.choices * self.prompts

    def with_fields(self, fields: Fields) -> RequestInfo:
        """Return the same request with other members."""
        return replace(self, ask=Ask(fields))


THRESHOLD_FIELD: Final = "cache_hit_threshold"
TRANSFER_FIELD: Final = "kv_transfer_params"
"""Where a worker finds the KV blocks that another one has computed."""
APPLIED: Final[Header] = (b"preference-applied", b"if-available")
PREFER: Final = b"prefer"
_IF_AVAILABLE: Final = b"if-available"

MAX_WAIT_SECONDS: Final = 3600


def preferred_wait(headers: Iterable[Header]) -> int | None:
    """The seconds that a request is to wait for room at most, by ``Prefer: wait=SECONDS``; None where it says none.

    ApiError 400 for what is no whole number from 0 to MAX_WAIT_SECONDS.
    """
    for name, value in headers:
        if name == PREFER:
            for part in value.split(b","):
                preference, _, given = part.partition(b";")[0].partition(b"=")
                if preference.strip().lower() == b"wait":
                    return _wait_seconds(given.strip().strip(b'"'))
    return None


TOLD_HEADER: Final = b"x-cachefleet-trace"
"""By which a client asks for what was decided on its request; the answer's header has the same name."""


def wants_told(headers: Iterable[Header]) -> bool:
    """Whether a client asks to be told what was decided on its request. ApiError 400 for what is neither 0 nor 1."""
    for name, value in headers:
        if name == TOLD_HEADER:
            if value not in {b"0", b"1"}:
                header = TOLD_HEADER.decode()
                raise ApiError(400, f"`{header}` must be 0 or 1.", param=header)
            return value == b"1"
    return False


def _wait_seconds(given: bytes) -> int:
    seconds = int(given) if given.isdigit() and len(given) <= len(str(MAX_WAIT_SECONDS)) else -1
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        allowed = f"a whole number of seconds from 0 to {MAX_WAIT_SECONDS}"
        raise ApiError(400, f"`wait` of header `prefer` must be {allowed}.", param="prefer")
    return seconds


def wants_cached(headers: Iterable[Header]) -> bool:
    """Whether ``Prefer`` has ``if-available``; its parameters, and other preferences, change nothing."""
    given = [part for name, value in headers if name == PREFER for part in value.split(b",")]
    return bool(given) and any(part.partition(b";")[0].strip().lower() == _IF_AVAILABLE for part in given)
