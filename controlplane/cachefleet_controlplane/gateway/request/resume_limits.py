"""Limits within which another worker may resume an interrupted answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.request_info import (
    COMPLETIONS_MAX_TOKENS,
    THRESHOLD_FIELD,
    Endpoint,
    RequestInfo,
)
from cachefleet_controlplane.gateway.request.hit_thresholds import HitThresholds
from cachefleet_controlplane.gateway.request.resume_eligibility import appended, marked, resumable
from cachefleet_controlplane.wire.json_members import READ_ERRORS, lax_bool
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
        if gate.own:  # the gateway acts on it
            info = replace(info, fields={name: raw for name, raw in info.fields.items() if name != THRESHOLD_FIELD})
        stops = _stops(info.fields.get("stop"))
        if stops is None or not resumable(info, parsed=parsed):
            return None
        try:
            bound, least = _bound(info), _count(info.fields.get("min_tokens")) or 0
        except READ_ERRORS:  # only the engine knows what that is
            return None
        if least and stops:  # which are not looked for before the least of tokens: the seam would have to know
            return None
        included = lax_bool(info.fields.get("include_stop_str_in_output"))
        return cls(_hand_backs(pools), bound, stops, included, least)


def with_mark(body: bytes, members: int, info: RequestInfo, limits: ResumeLimits | None) -> tuple[bytes, int]:
    """Return a worker's first body, marked where the worker may hand the request back, and its number of members."""
    if limits is None or not limits.hand_backs:
        return body, members
    # As nearly all: no need to parse it again.
    return appended(body, members) if "vllm_xargs" not in info.fields else marked(body)


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
        number = _count(info.fields.get(name))
        if number is not None:
            return number
    return COMPLETIONS_MAX_TOKENS if info.endpoint is Endpoint.COMPLETIONS else None


def _count(raw: Raw | None) -> int | None:
    """As the engine reads it: 12.0 and "12" are 12. READ_ERRORS."""
    number: int | None = None if raw is None else _number.decode(raw)
    return number
