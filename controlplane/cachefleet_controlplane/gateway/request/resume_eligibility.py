"""Which requests another worker can resume, and the body that asks it for the rest.

A request can be resumed where the tokens produced so far are all that the rest of its answer depends on: one choice,
no tools, no output parser, no grammar, no log-probabilities, no penalty that counts what was produced, no seed. The
members of the body tell: one that is not known here makes it not resumable. The rest is asked for as a plain completion
of prompt ids and produced ids, with as many tokens less, at most and at least; other members that shape sampling stay
the same. A prompt with media is more than its ids, and not resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.wire.json_members import Fields, is_null, members

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
_SPENT: Final = frozenset(
    {
        *("messages", "prompt", "chat_template", "chat_template_kwargs", "documents", "reasoning_effort"),
        *("add_generation_prompt", "add_special_tokens", "truncate_prompt_tokens", "truncation_side"),
        *("mm_processor_kwargs", "media_io_kwargs", "parallel_tool_calls", "include_reasoning"),
        *("max_tokens", "max_completion_tokens", "min_tokens", "prompt_cache_key", "prompt_cache_retention"),
    }
)
"""Members that shaped the prompt, which is known as ids now; and token limits, which are set anew."""
_PLAIN: Final = _CARRIED | _SPENT
_NEUTRAL: Final[Mapping[str, frozenset[bytes]]] = {
    "n": frozenset({b"1"}),
    "best_of": frozenset({b"1"}),
    "echo": frozenset({b"false"}),
    "use_beam_search": frozenset({b"false"}),
    "logprobs": frozenset({b"false"}),
    "top_logprobs": frozenset({b"0"}),
    "tools": frozenset({b"[]"}),
    "tool_choice": frozenset({b'"none"'}),
    "response_format": frozenset({b'{"type":"text"}', b'{"type": "text"}'}),
    "frequency_penalty": frozenset({b"0", b"0.0"}),
    "presence_penalty": frozenset({b"0", b"0.0"}),
    "length_penalty": frozenset({b"1", b"1.0"}),
    "cache_hit_threshold": frozenset({b"0", b"0.0"}),  # above 0 the caller wants to get a refusal
}
"""Members that are harmless with these values, which equal their absence."""

_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(Fields)


def resumable(info: RequestInfo, *, parsed: bool) -> bool:
    """Whether another worker can resume it; ``parsed``: workers apply a reasoning parser to chat answers."""
    known = info.endpoint in {Endpoint.CHAT, Endpoint.COMPLETIONS} and (info.ids_wanted or info.ids_asked)
    known = known and info.bypass is None  # ids alone do not say what was in an image
    if not (known and info.single) or (parsed and info.endpoint is Endpoint.CHAT):
        return False
    odd = info.fields.keys() - _PLAIN
    return not _running_usage(info.fields) and all(_harmless(name, info.fields[name]) for name in odd)


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


def _running_usage(fields: Fields) -> bool:
    """The client wants usage in each event."""
    return b"continuous_usage_stats" in bytes(fields.get("stream_options", b""))


def _harmless(name: str, raw: Raw) -> bool:
    value = bytes(raw)
    return value == b"null" or value in _NEUTRAL.get(name, ())
