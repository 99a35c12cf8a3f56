"""Which requests another worker can resume, within which limits, and the body that asks it for the rest.

A request can be resumed where the tokens produced so far are all that the rest of its answer depends on: one choice,
no tools, no output parser, no grammar, no log-probabilities, no penalty that counts what was produced, no seed. The
members of the body tell: one that is not known here makes it not resumable. The rest is asked for as a plain completion
of prompt ids and produced ids, with as many tokens less, at most and at least; other members that shape sampling stay
the same. A prompt with media is more than its ids, and not resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from cachefleet_controlplane.gateway.apis.request_info import (
    COMPLETIONS_MAX_TOKENS,
    Endpoint,
    RequestInfo,
)
from cachefleet_controlplane.gateway.request.hit_thresholds import HitThresholds
from cachefleet_controlplane.wire.json_members import READ_ERRORS, Fields, is_null, lax_bool, members
from cachefleet_core.pool.policy import PreemptionPolicy
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_runtime.known_results import known_of_tuples

_texts = msgspec.json.Decoder(str | list[str] | None)
_number = msgspec.json.Decoder(int | None, strict=False)


class ResumeLimits(Struct, frozen=True):
    """Limits of one request."""

    hand_backs: int
    """How often workers may hand it back."""
    tokens: int | None
    """Tokens of the whole answer at most; None: as many as fit."""
    stops: Sequence[str]
    """Its stop strings."""
    stop_included: bool
    """The stop string is part of the answer."""
    least: int = 0
    """Tokens of the whole answer at least."""

    @classmethod
    def of(
        cls, info: RequestInfo, gate: HitThresholds, pools: Iterable[PrefixCachePool], *, parsed: bool
    ) -> ResumeLimits | None:
        """None where no other worker can resume it, or its caller wants a gate's refusal.

        ``parsed``: workers apply a reasoning parser to chat answers.
        """
        if gate.callers and gate.own:
            return None
        stops = _stops(info.ask.member("stop"))
        if stops is None or not resumable(info, parsed=parsed, gated=bool(gate.own)):
            return None
        try:
            bound, least = _bound(info), _count(info.ask.member("min_tokens")) or 0
        except READ_ERRORS:  # only the engine knows what that is
            return None
        if least and stops:  # which are not looked for before the least of tokens: the seam would have to know
            return None
        included = lax_bool(info.ask.member("include_stop_str_in_output"))
        return cls(_hand_backs(pools), bound, stops, included, least)


def with_mark(body: bytes, members: int, info: RequestInfo, limits: ResumeLimits | None) -> tuple[bytes, int]:
    """Return a worker's first body, marked where the worker may hand the request back, and its number of members."""
    if limits is None or not limits.hand_backs:
        return body, members
    # As nearly all: no need to parse it again.
    return appended(body, members) if info.ask.member("vllm_xargs") is None else marked(body)


@known_of_tuples
def _hand_backs(pools: Iterable[PrefixCachePool]) -> int:
    """How often workers of these pools may hand an answer back: as often as each of those that do allows."""
    handing = (pool.spec.preemption for pool in pools if pool.spec.preemption.policy is PreemptionPolicy.HAND_BACK)
    return min((preemption.max_hand_backs for preemption in handing), default=0)


def _stops(raw: Raw | None) -> list[str] | None:
    """None for what the engine will refuse."""
    if raw is None:
        return []
    try:
        stops = _texts.decode(raw)
    except READ_ERRORS:
        return None
    return [stops] if isinstance(stops, str) else stops or []


def _bound(info: RequestInfo) -> int | None:
    names = ("max_completion_tokens", "max_tokens") if info.endpoint is Endpoint.CHAT else ("max_tokens",)
    for name in names:
        number = _count(info.ask.member(name))
        if number is not None:
            return number
    return COMPLETIONS_MAX_TOKENS if info.endpoint is Endpoint.COMPLETIONS else None


def _count(raw: Raw | None) -> int | None:
    """As the engine reads it: 12.0 and "12" are 12. READ_ERRORS."""
    number: int | None = None if raw is None else _number.decode(raw)
    return number


MARK: Final = "cachefleet_resumable"
"""The member of ``vllm_xargs`` by which the worker plugin knows what it may hand back."""

_APPENDED: Final = b',"vllm_xargs":{"%s":1}}' % MARK.encode()
_CARRIED: Final = frozenset(
    {
        *("model", "stream", "stream_options", "return_token_ids", "user", "priority", "session_id", "cache_salt"),
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logit_bias", "allowed_token_ids"),
        *("bad_words", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens"),
        *("spaces_between_special_tokens", "vllm_xargs", "stream_interval"),
    }
)
"""Members that shape the rest of an answer as they did its beginning."""
_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(Fields)


def resumable(info: RequestInfo, *, parsed: bool, gated: bool = False) -> bool:
    """Whether another worker can resume it; ``parsed``: workers apply a reasoning parser to chat answers.

    ``gated``: the gateway acts on the caller's threshold itself.
    """
    known = info.endpoint in {Endpoint.CHAT, Endpoint.COMPLETIONS} and (info.ids_wanted or info.ids_asked)
    known = known and info.bypass is None  # ids alone do not say what was in an image
    if not (known and info.single) or (parsed and info.endpoint is Endpoint.CHAT):
        return False
    return info.ask.is_plain(gated)


def marked(body: bytes) -> tuple[bytes, int]:
    """Return a body whose request a worker may hand back, and its number of members."""
    fields = _fields.decode(body)
    given = {} if is_null(fields, "vllm_xargs") else members(fields["vllm_xargs"])
    if given is None:  # the engine will refuse it
        return body, len(fields)
    fields["vllm_xargs"] = Raw(_encode(given | {MARK: Raw(b"1")}))
    return _encode(fields), len(fields)


def appended(body: bytes, members: int) -> tuple[bytes, int]:
    """As ``marked``, for a body of so many members that was encoded here and has no ``vllm_xargs``."""
    return body[:-1] + _APPENDED, members + 1


def unmarked(body: bytes) -> bytes:
    """Return a body of ours without the mark: no worker may hand it back."""
    fields = _fields.decode(body)
    given = None if is_null(fields, "vllm_xargs") else members(fields["vllm_xargs"])
    if given is None or MARK not in given:
        return body
    del given[MARK]
    if given:
        fields["vllm_xargs"] = Raw(_encode(given))
    else:
        del fields["vllm_xargs"]
    return _encode(fields)


def carried(body: bytes) -> bytes:
    """Return what ``rest_body`` takes of a body: all but the prompt, mostly."""
    return _encode(_kept(body))


def _kept(body: bytes) -> Fields:
    """Without members that are null: some releases refuse that, as 0.32 does for ``skip_special_tokens``."""
    return {name: raw for name, raw in _fields.decode(body).items() if name in _CARRIED and bytes(raw) != b"null"}


def rest_body(body: bytes, *, prompt_ids: list[int], produced: list[int], budget: int, least: int = 0) -> bytes:
    """Return the body for the rest of an answer; ``body`` was the first worker's, ``budget`` are the tokens left, of
    which ``least`` must come before the answer may end.
    """
    kept: dict[str, object] = {**_kept(body)}
    if least > 0:
        kept["min_tokens"] = least
    return _encode(kept | {"prompt": prompt_ids + produced, "max_tokens": budget, "cache_hit_threshold": 0})
