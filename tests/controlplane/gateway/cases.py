"""Requests whose answers must be the worker's own, byte for byte; for the fake engine and for real vLLM."""

from __future__ import annotations

import re
from typing import Any, Final

Case = tuple[str, str, dict[str, Any]]
"""Endpoint, name, body without its model."""

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
EMBEDDINGS: Final = "/v1/embeddings"

_MESSAGES: Final = [
    {"role": "system", "content": "You are terse. Ünïcode: 漢字 🙂"},
    {"role": "user", "content": "hello there my friend, say something long enough"},
]
_BASE: Final[dict[str, dict[str, Any]]] = {
    CHAT: {"messages": _MESSAGES, "max_tokens": 6, "temperature": 0},
    COMPLETIONS: {"prompt": "hello there my friend, ünïcode 漢字 🙂 and more", "max_tokens": 6, "temperature": 0},
}
_STREAM: Final = {"stream": True}
_USAGE: Final = {"stream": True, "stream_options": {"include_usage": True}}

_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "stream": _STREAM,
    "stream-usage": _USAGE,
    "stream-running-usage": {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "stream-usage-refused": {
        "stream": True,
        "stream_options": {"include_usage": False, "continuous_usage_stats": True},
    },
    "stream-options-empty": {"stream": True, "stream_options": {}},
    "stream-as-text": {"stream": "true"},
    "stream-as-one": {"stream": 1},
    "ids": {"return_token_ids": True},
    "stream-ids": {**_STREAM, "return_token_ids": True},
    "stream-usage-ids": {**_USAGE, "return_token_ids": True},
    "ids-refused": {"return_token_ids": False},
    "echo": {"echo": True},
    "stream-echo": {**_STREAM, "echo": True},
    "stop": {"stop": ["e", "a"], "max_tokens": 20},
    "stream-stop": {**_STREAM, "stop": ["e", "a"], "max_tokens": 20},
    "seeded": {"temperature": 1, "seed": 7, "top_p": 0.9},
    "two": {"n": 2, "temperature": 1, "seed": 7},
    "stream-two": {**_STREAM, "n": 2, "temperature": 1, "seed": 7},
    "stream-two-usage": {**_USAGE, "n": 2, "temperature": 1, "seed": 7},
    "one-token": {"max_tokens": 1},
    "stream-one-token": {**_STREAM, "max_tokens": 1},
}
_OWN: Final[dict[str, dict[str, dict[str, Any]]]] = {
    CHAT: {
        "logprobs": {"logprobs": True, "top_logprobs": 2},
        "stream-logprobs": {**_STREAM, "logprobs": True, "top_logprobs": 2},
        "completion-tokens": {"max_completion_tokens": 3},
        "prompt-text": {"return_prompt_text": True},
    },
    COMPLETIONS: {
        "logprobs": {"logprobs": 2},
        "stream-logprobs": {**_STREAM, "logprobs": 2},
        "echo-logprobs": {"echo": True, "logprobs": 1},
        "prompt-ids": {"prompt": list(range(40, 90))},
        "stream-prompt-ids": {**_STREAM, "prompt": list(range(40, 90))},
        "prompts": {"prompt": ["hello there", "and you there"]},
        "stream-prompts": {**_STREAM, "prompt": ["hello there", "and you there"]},
        "prompts-ids": {"prompt": [list(range(40, 60)), list(range(50, 90))]},
    },
}
ANSWERED: Final[list[Case]] = [
    (path, name, _BASE[path] | options) for path in _BASE for name, options in (_OPTIONS | _OWN[path]).items()
]

_REFUSALS: Final[dict[str, dict[str, Any]]] = {
    "cold": {"temperature": -1},
    "no-tokens": {"max_tokens": -1},
    "none-asked": {"n": 0},
    "options-without-stream": {"stream_options": {"include_usage": True}},
}
_TYPES: Final[dict[str, dict[str, Any]]] = {
    "hot": {"temperature": "hot"},
    "options-no-object": {"stream": True, "stream_options": 7},
    "stream-no-bool": {"stream": "perhaps"},
}
REFUSED: Final[list[Case]] = [
    *((path, name, _BASE[path] | options) for path in _BASE for name, options in _REFUSALS.items()),
    (CHAT, "no-messages", {}),
    (CHAT, "no-messages-stream", {"stream": True, "max_tokens": 1}),
    (CHAT, "empty-messages", {"messages": []}),
    (CHAT, "number-messages", {"messages": 7}),
    (CHAT, "too-long", {"messages": [{"role": "user", "content": "hello " * 40_000}]}),
    (COMPLETIONS, "no-prompt", {}),
    (COMPLETIONS, "empty-prompt", {"prompt": ""}),
    (COMPLETIONS, "too-long", {"prompt": "hello " * 40_000}),
]
REFUSED_FOR_TYPES: Final[list[Case]] = [
    *((path, name, _BASE[path] | options) for path in _BASE for name, options in _TYPES.items()),
    (CHAT, "message-without-role", {"messages": [{"content": "x"}]}),
    (COMPLETIONS, "object-prompt", {"prompt": {"a": 1}, "x": 1}),
]
"""What real vLLM refuses; the fake engine does not check types."""

_SAID: Final = "hello there my friend, say something long enough"
_RESPONSE: Final[dict[str, Any]] = {"input": _SAID, "max_output_tokens": 6, "temperature": 0}
_MESSAGE: Final[dict[str, Any]] = {"messages": [_MESSAGES[1]], "max_tokens": 6, "temperature": 0}
OTHERS: Final[list[Case]] = [
    (RESPONSES, "plain", _RESPONSE),
    (RESPONSES, "stream", _RESPONSE | _STREAM),
    (
        RESPONSES,
        "instructions",
        _RESPONSE | {"instructions": "You are terse. Ünïcode: 漢字 🙂", "metadata": {"a": "b"}},
    ),
    (RESPONSES, "turns", _RESPONSE | {"input": _MESSAGES, "store": False, "user": "u", "truncation": "auto"}),
    (RESPONSES, "stream-turns", _RESPONSE | _STREAM | {"input": _MESSAGES}),
    (MESSAGES, "plain", _MESSAGE),
    (MESSAGES, "stream", _MESSAGE | _STREAM),
    (MESSAGES, "system", _MESSAGE | {"system": [{"type": "text", "text": "You are terse. 漢字 🙂"}], "metadata": {}}),
    (MESSAGES, "stop", _MESSAGE | {"stop_sequences": ["never said"]}),
    (f"{MESSAGES}/count_tokens", "count", {"messages": _MESSAGES}),
]
"""Of the APIs whose answers nothing is ever taken out of."""
POOLED: Final[list[Case]] = [
    (EMBEDDINGS, "text", {"input": _SAID}),
    (EMBEDDINGS, "texts", {"input": ["one", "two"], "encoding_format": "base64"}),
    (EMBEDDINGS, "ids", {"input": list(range(40, 60)), "encoding_format": "float"}),
    ("/v1/rerank", "texts", {"query": "one", "documents": ["two", "one more"], "top_n": 1}),
    ("/v1/score", "pairs", {"queries": "one", "documents": ["two", "one more"]}),
    ("/v1/score", "as vLLM names them", {"text_1": ["one", "two"], "text_2": ["three", "four"]}),
    ("/pooling", "texts", {"input": ["one", "two"]}),
    ("/tokenize", "text", {"prompt": _SAID, "return_token_strs": True}),
    ("/detokenize", "ids", {"tokens": [40, 41, 42]}),
]

_ID: Final = re.compile(rb'"(id|item_id|call_id)":"(chatcmpl|cmpl|resp|msg|fc|embd|rerank|score|pooling)([-_])[^"]*"')
_CREATED: Final = re.compile(rb'"(created|created_at)":\d+')


def timeless(body: bytes) -> bytes:
    """An answer without what differs from one request to the next."""
    return _CREATED.sub(rb'"\1":0', _ID.sub(rb'"\1":"\2"', body))
