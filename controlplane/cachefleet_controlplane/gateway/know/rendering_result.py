"""Reads the answer on a rung: the prompt's length and keys, or why there are none. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw, Struct

from cachefleet_controlplane.gateway.apis.request_info import Bypass, Endpoint
from cachefleet_controlplane.gateway.request.rendered_prompt import Keyed, RenderFailure, Rendering, Rung
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import Answer, AttemptResult
from cachefleet_controlplane.wire.json_members import READ_ERRORS
from cachefleet_core.block_keys import BlockKeyer
from cachefleet_core.continuation import ids_array, unpacked
from cachefleet_core.prompt_keys import PromptKeys, PromptKeysError, decode
from cachefleet_core.request_bodies import BodyError, token_ids


class Keying(Struct, frozen=True):
    """How one request's prompt is keyed.

    ``keyer`` returns what computes keys now, None where nothing does. A prompt longer than ``max_tokens`` has no keys:
    no worker takes it, and the engine is to refuse it. ``keep_ids``: the request needs the token ids as well.
    """

    keyer: Callable[[], BlockKeyer | None]
    max_tokens: int | None = None
    keep_ids: bool = False

    def read(self, ids: Raw) -> Keyed:
        """Key a JSON array of token ids. ``bodies.BodyError`` for anything else."""
        body = b'{"ids":%b}' % ids
        keyer = self.keyer()
        if keyer is not None and not self.keep_ids:
            tokens, keys = keyer.packed_json(body, "ids")
            return Keyed(tokens, keys, keyer.block_size) if self._keyable(tokens) else Keyed(tokens)
        numbers = token_ids(body, "ids")
        keyable = self._keyable(len(numbers))
        kept = ids_array(numbers) if self.keep_ids and keyable else None
        if keyer is None or not keyable:
            return Keyed(len(numbers), ids=kept)
        return Keyed(len(numbers), keyer.packed_keys(numbers), keyer.block_size, ids=kept)

    def take(self, prompt: PromptKeys) -> Keyed:
        """Take over keys that a worker computed itself."""
        if not self._keyable(prompt.tokens):
            return Keyed(prompt.tokens)
        kept = unpacked(prompt.ids) if self.keep_ids and prompt.ids else None
        return Keyed(prompt.tokens, prompt.keys, prompt.block_size, prompt.boundaries, kept)

    def _keyable(self, tokens: int) -> bool:
        return tokens > 0 and (self.max_tokens is None or tokens <= self.max_tokens)


ABSENT_SECONDS: Final = 60.0
"""How long a rung that a worker lacks is left out there."""
FAILED_SECONDS: Final = 5.0
"""How long a rung that failed on a worker is left out there."""
BUSY_SECONDS: Final = 1.0


_PAUSES: Final = {
    RenderFailure.ABSENT: ABSENT_SECONDS,
    RenderFailure.UNAUTHORIZED: ABSENT_SECONDS,
    RenderFailure.UNREADABLE: ABSENT_SECONDS,
    RenderFailure.FAILED: FAILED_SECONDS,
    RenderFailure.TIMEOUT: FAILED_SECONDS,
    RenderFailure.BUSY: BUSY_SECONDS,
}


class _Rendered(Struct, frozen=True):
    token_ids: Raw
    features: Raw = Raw(b"null")


class _Tokenized(Struct, frozen=True):
    tokens: Raw


class _ErrorType(Struct, frozen=True):
    type: str = ""


class _Error(Struct, frozen=True):
    error: _ErrorType


_one = msgspec.json.Decoder(_Rendered)
_completions = msgspec.json.Decoder(list[_Rendered])
_tokenized = msgspec.json.Decoder(_Tokenized)
_error = msgspec.json.Decoder(_Error)


def read(opened: AttemptResult, rung: Rung, endpoint: Endpoint, *, keying: Keying) -> Rendering:
    """Return what a worker's answer on a rung says of the prompt."""
    if opened.held is not None:
        return _of_held(opened.keys, keying)
    if opened.answer is None:
        return Rendering(reason=RenderFailure.TIMEOUT if opened.outcome is Outcome.SILENT else RenderFailure.FAILED)
    if opened.answer.status != 200:
        return Rendering(reason=_refusal(opened.answer, rung))
    try:
        return _rendering(opened.answer.body, rung, endpoint, keying=keying)
    except (*READ_ERRORS, BodyError, PromptKeysError):
        return Rendering(reason=RenderFailure.UNREADABLE)


def _of_held(document: bytes, keying: Keying) -> Rendering:
    """Without a document the prompt has no keys of its own: media, embeddings."""
    try:
        prompts = decode(document) if document else []
    except PromptKeysError:
        return Rendering(reason=RenderFailure.UNREADABLE)
    return Rendering(keying.take(prompts[0]), Rung.KEYS) if prompts else Rendering(reason=RenderFailure.DECLINED)


def left_out_for(reason: RenderFailure | Bypass | None) -> float:
    """Return the seconds to leave out a rung on a worker for a reason; 0 where the worker is not at fault."""
    return _PAUSES.get(reason, 0.0) if isinstance(reason, RenderFailure) else 0.0


def _rendering(body: bytes, rung: Rung, endpoint: Endpoint, *, keying: Keying) -> Rendering:
    if rung is Rung.KEYS:
        prompts = decode(body)
        return Rendering(keying.take(prompts[0]), rung) if prompts else Rendering(reason=RenderFailure.UNREADABLE)
    if rung is Rung.TOKENIZE:
        return Rendering(keying.read(_tokenized.decode(body).tokens), rung)
    several = endpoint is Endpoint.COMPLETIONS
    rendered = next(iter(_completions.decode(body)), None) if several else _one.decode(body)
    if rendered is None:
        return Rendering(reason=RenderFailure.UNREADABLE)
    if bytes(rendered.features) != b"null":
        return Rendering(reason=RenderFailure.MULTIMODAL)
    return Rendering(keying.read(rendered.token_ids), rung)


def _refusal(answer: Answer, rung: Rung) -> RenderFailure:
    if answer.status in {401, 403}:
        return RenderFailure.UNAUTHORIZED
    if answer.status in {404, 405, 501}:
        # An unknown model is a 404 too, with vLLM's own type.
        return RenderFailure.REFUSED if _error_type(answer.body) == "NotFoundError" else RenderFailure.ABSENT
    if answer.status >= 500:
        return RenderFailure.FAILED
    if rung is Rung.KEYS and not _error_type(answer.body):  # the plugin's own errors have no type
        return RenderFailure.BUSY if answer.status == 429 else RenderFailure.DECLINED
    return RenderFailure.REFUSED


def _error_type(body: bytes) -> str:
    try:
        return _error.decode(body).error.type
    except READ_ERRORS:
        return ""
