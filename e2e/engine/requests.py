"""Requests whose answers a real and a fake engine must agree on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Sent:
    """A request; ``body`` is JSON, or bytes as they are."""

    path: str
    body: Any = None
    method: str = "POST"
    anonymous: bool = False

    def __str__(self) -> str:
        shown = self.body.decode() if isinstance(self.body, bytes) else json.dumps(self.body or "")
        return f"{self.method} {self.path} {shown[:120]}{'...' if len(shown) > 120 else ''}"


CHAT: Final = "/v1/chat/completions"
COMPLETION: Final = "/v1/completions"
GENERATE: Final = "/inference/v1/generate"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
TURNS: Final = [
    {"role": "system", "content": "You answer questions about the weather, the sea and the mountains. " * 6},
    {"role": "user", "content": "What is the weather like tomorrow?"},
]
USER: Final = [{"role": "user", "content": "hello"}]
PARTS: Final = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
]
TEXT: Final = "The quick brown fox jumps over the lazy dog. " * 12
IDS: Final = list(range(300, 400))
SHORT: Final[dict[str, Any]] = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
WARM: Final[dict[str, Any]] = {"max_tokens": 3, "temperature": 1, "ignore_eos": True}
USAGE: Final[dict[str, Any]] = {"stream": True, "stream_options": {"include_usage": True}}
RUNNING_USAGE: Final[dict[str, Any]] = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
LONG: Final = "x y z " * 2000


def _chat(**body: Any) -> Sent:
    return Sent(CHAT, {"model": "tiny", "messages": TURNS} | SHORT | body)


def _completion(**body: Any) -> Sent:
    return Sent(COMPLETION, {"model": "tiny", "prompt": TEXT} | SHORT | body)


def _generate(*, sampling: dict[str, Any] | None = None, **body: Any) -> Sent:
    return Sent(GENERATE, {"token_ids": IDS, "sampling_params": sampling or SHORT} | body)


def _response(**body: Any) -> Sent:
    return Sent(RESPONSES, {"model": "tiny", "input": TURNS, "max_output_tokens": 4, "temperature": 0} | body)


def _message(**body: Any) -> Sent:
    return Sent(MESSAGES, {"model": "tiny", "messages": TURNS[1:], "max_tokens": 4, "temperature": 0} | body)


ANSWERED: Final = [
    Sent("/health", method="GET", anonymous=True),
    Sent("/version", method="GET", anonymous=True),
    Sent("/v1/models", method="GET"),
    Sent("/kv_event_sources", method="GET", anonymous=True),
    _chat(),
    _chat(stream=True),
    _chat(return_token_ids=True),
    _chat(**USAGE, return_token_ids=True),
    _chat(**RUNNING_USAGE),
    _chat(**WARM, n=2, return_token_ids=True),
    _chat(**WARM, n=2, stream=True, return_token_ids=True),
    _chat(messages=PARTS),
    _chat(max_tokens=None, max_completion_tokens=2, return_prompt_text=True),
    _chat(cache_salt="tenant"),
    Sent(CHAT, {"messages": USER} | SHORT),
    _completion(),
    _completion(stream=True),
    _completion(return_token_ids=True),
    _completion(**USAGE, return_token_ids=True),
    _completion(**RUNNING_USAGE),
    _completion(echo=True),
    _completion(cache_salt="tenant"),
    _completion(prompt=IDS, max_tokens=None),
    _completion(prompt=["ab", "cd"], return_token_ids=True),
    _completion(prompt=[IDS[:70], IDS]),
    _completion(**WARM, prompt=["ab", "cd"], n=2, return_token_ids=True),
    _completion(**USAGE, prompt=["ab", "cd"]),
    _completion(prompt=IDS * 10, max_tokens=100),
    _generate(),
    _generate(stream=True),
    _generate(**USAGE, request_id="r1"),
    _generate(sampling=WARM | {"n": 2}, output_mode="text", return_token_ids=True, cache_salt="z"),
    _generate(sampling={"ignore_eos": True}),
    Sent(f"{CHAT}/render", {"model": "tiny", "messages": TURNS} | SHORT | {"cache_salt": "s"}),
    Sent(f"{CHAT}/render", {"messages": USER}),
    Sent(
        f"{CHAT}/render",
        {"messages": USER, "seed": 3, "stop": ["x"], "top_p": 0.9, "top_k": 5, "vllm_xargs": {"a": 1}} | USAGE,
    ),
    Sent(f"{CHAT}/render", {"messages": USER, "max_tokens": 5, "n": 2, "presence_penalty": 0.5, "stop": "y"}),
    Sent(f"{COMPLETION}/render", {"model": "tiny", "prompt": TEXT, "max_tokens": 4}),
    Sent(f"{COMPLETION}/render", {"prompt": ["abc", "d"]}),
    Sent(f"{COMPLETION}/render", {"prompt": IDS}),
    _response(ignore_eos=True),
    _response(ignore_eos=True, stream=True),
    _response(ignore_eos=True, input="hello", instructions="You are terse.", cache_salt="tenant", metadata={"a": "b"}),
    _response(ignore_eos=True, input=PARTS[:1], store=False, user="u", truncation="auto"),
    _message(),
    _message(stream=True),
    _message(system=[{"type": "text", "text": "You are "}, {"type": "text", "text": "terse."}], cache_salt="tenant"),
    _message(
        messages=[{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    ),
    Sent(f"{MESSAGES}/count_tokens", {"model": "tiny", "messages": TURNS[1:], "system": "You are terse."}),
    Sent(f"{RESPONSES}/render", {"input": TURNS, "max_output_tokens": 4, "cache_salt": "s"}),
    Sent(f"{RESPONSES}/render", {"input": "hello", "instructions": "You are terse.", "max_output_tokens": 3}),
    Sent(f"{MESSAGES}/render", {"model": "tiny", "messages": TURNS[1:], "max_tokens": 4, "cache_salt": "s"}),
    Sent(f"{MESSAGES}/render", {"model": "tiny", "messages": USER, "system": "You are terse.", "max_tokens": 3}),
    Sent("/tokenize", {"model": "tiny", "prompt": "héllo, wörld 😀 <|im_end|> 字"}, anonymous=True),
    Sent("/tokenize", {"prompt": "hello world", "return_token_strs": True}),
    Sent("/tokenize", {"model": "tiny", "messages": TURNS}),
    Sent("/tokenize", {"messages": PARTS, "add_generation_prompt": False}),
    Sent("/tokenize", {"prompt": LONG}),
    Sent("/detokenize", {"model": "tiny", "tokens": IDS}),
]

REFUSED: Final = [
    Sent("/v1/models", method="GET", anonymous=True),
    Sent(CHAT, {"messages": USER}, anonymous=True),
    Sent(f"{CHAT}/render", {"messages": USER}, anonymous=True),
    Sent(GENERATE, {"token_ids": IDS, "sampling_params": SHORT}, anonymous=True),
    Sent("/none", method="GET"),
    Sent("/v1/none", method="GET"),
    Sent(CHAT, method="GET"),
    _chat(model="other"),
    _response(model="other"),
    _message(model="other"),
    Sent(RESPONSES, {"model": "tiny"}),
    Sent(RESPONSES, {"input": "x"}, anonymous=True),
    _response(previous_response_id="resp_none"),
    Sent(MESSAGES, {"model": "tiny", "messages": USER}),
    Sent(MESSAGES, {"messages": USER}, anonymous=True),
    Sent(f"{MESSAGES}/count_tokens", {"model": "other", "messages": USER}),
    Sent("/v1/embeddings", {"model": "tiny", "input": "x"}),
    _completion(model="other"),
    _generate(model="other"),
    Sent(f"{CHAT}/render", {"model": "other", "messages": USER}),
    Sent("/tokenize", {"model": "other", "prompt": "a"}),
    Sent(CHAT, {"model": "tiny", "max_tokens": 4}),
    Sent(CHAT, b"{bad"),
    Sent(COMPLETION, b'{"prompt": "a",}'),
    Sent(COMPLETION, b"[]"),
    Sent(COMPLETION, {"max_tokens": 4}),
    Sent("/tokenize", {"model": "tiny"}),
    _chat(messages="x"),
    _chat(messages=[]),
    _chat(messages=[{"role": "user", "content": LONG}]),
    Sent(f"{CHAT}/render", {"messages": [{"role": "user", "content": LONG}]}),
    _chat(cache_salt=""),
    _chat(stream_options={"include_usage": True}),
    _chat(n=2),
    _completion(prompt=""),
    _completion(prompt=[]),
    _completion(prompt=[99999]),
    _completion(prompt=LONG),
    _completion(prompt=IDS * 11),
    _completion(prompt=(IDS * 11)[:1024]),
    _completion(max_tokens=0),
    _completion(max_tokens=-1),
    _completion(max_tokens="x"),
    _completion(n=0),
    _completion(temperature=-1),
    _generate(token_ids=[]),
    _generate(token_ids=[99999]),
    _generate(token_ids=IDS * 20),
    _generate(sampling={"max_tokens": 0}),
]
