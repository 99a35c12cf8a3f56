"""Leaves counts of cached tokens that are 0 out of usage, for pools with ``hit.omitZeroCachedTokens``. Pure.

Every API is known here by its members alone: usage stands in the answer, or in an event's ``response`` or ``message``.
All other members stay the bytes that they were.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Raw

from cachefleet_controlplane.wire.json_members import READ_ERRORS, Fields, is_object
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_runtime.known_results import known_of_tuples
from cachefleet_runtime.sse import event_data, event_name

_ZERO: Final = re.compile(rb'"cache(?:d|_read_input)_tokens"\s*:\s*0\b')
_USAGE: Final = "usage"
_HOLDERS: Final = ("response", "message")
_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details")
_CACHED: Final = "cached_tokens"
_READ: Final = "cache_read_input_tokens"

_fields = msgspec.json.Decoder(Fields)
_encode = msgspec.json.Encoder().encode


@known_of_tuples
def omitting(pools: Iterable[PrefixCachePool]) -> frozenset[str]:
    """Return the keys of the pools whose answers have no count of cached tokens that is 0."""
    return frozenset(pool.key for pool in pools if pool.spec.hit.omit_zero_cached_tokens)


def without_zero(body: bytes) -> bytes:
    """Return an answer, or an event's JSON, without counts of cached tokens that are 0."""
    if _ZERO.search(body) is None:
        return body
    try:
        top = _fields.decode(body)
        return _encode(_edited(top))
    except READ_ERRORS:
        return body


def event_without_zero(event: bytes) -> bytes:
    """As ``without_zero``, for an event of a stream."""
    if _ZERO.search(event) is None or not (data := event_data(event)):
        return event  # as nearly all
    name = event_name(event)
    return b"%bdata: %b\n\n" % (b"event: %b\n" % name if name else b"", without_zero(data))


def _edited(top: Fields) -> Fields:
    for holder in _HOLDERS:
        if holder in top and is_object(top[holder]):
            top[holder] = Raw(_encode(_edited(_fields.decode(top[holder]))))
    if _USAGE in top and is_object(top[_USAGE]):
        top[_USAGE] = Raw(_encode(_counted(_fields.decode(top[_USAGE]))))
    return top


def _counted(usage: Fields) -> Fields:
    """Usage without zeros; of OpenAI's APIs without the object that has them: clients of typed languages read none
    that lacks its member.
    """
    for name in _DETAILS:
        if name in usage and is_object(usage[name]) and _is_zero(_fields.decode(usage[name]), _CACHED):
            del usage[name]
    if _is_zero(usage, _READ):
        del usage[_READ]
    return usage


def _is_zero(fields: Fields, name: str) -> bool:
    return bytes(fields.get(name, b"")) == b"0"
