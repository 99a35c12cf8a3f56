"""A stream that breaks off goes on at another worker as it would have at the first: every byte, for every API.

Real vLLM with real parsers records a stream, and makes it again from any part of its record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import pytest

from cachefleet_core.engine.answer_replay import COMMENT, HEADER, ReplayAsk, Unrecorded, part_of, read_part, record_of
from e2e.engine.plugin_client import call
from e2e.engine.scripted_answers import OPTION, SCRIPT
from e2e.engine.spoken_streams import plain, said
from e2e.engine.vllm import VllmOptions, VllmServer

TOOLED: Final = VllmOptions(
    plugin=True, max_batched_tokens=512, extra=("--enable-auto-tool-choice", "--tool-call-parser=hermes", OPTION)
)
REASONING: Final = replace(TOOLED, extra=("--reasoning-parser=granite", OPTION))

ASK: Final = ReplayAsk("decision-1", 1_764_000_000)
END: Final = "<|im_end|>"
THOUGHT: Final = "Here is my thought process: the sea is wide. Here is my response: "
CALLS: Final = "".join(
    f'<tool_call>\n{{"name": "tide", "arguments": {{"at": {at}, "where": "Köln 字"}}}}\n</tool_call>\n'
    for at in (3, 14)
)
SCHEMA: Final = {"type": "object", "properties": {"at": {"type": "integer"}, "where": {"type": "string"}}}
FUNCTION: Final = {"name": "tide", "description": "the tide", "parameters": SCHEMA}
QUESTION: Final = [{"role": "user", "content": "What of the sea?"}]
STREAM: Final = {"model": "tiny", "temperature": 0, "stream": True, "max_tokens": 200}
USAGE: Final = {"stream_options": {"include_usage": True}}
CHAT: Final = STREAM | USAGE | {"messages": QUESTION}
TOOLS: Final = [{"type": "function", "function": FUNCTION}]
MESSAGE: Final = STREAM | {"messages": QUESTION}
RESPONSE: Final = {name: CHAT[name] for name in ("model", "temperature", "stream")} | {"input": "What of the sea?"}
COMPLETION: Final = STREAM | USAGE | {"prompt": "What of the sea?"}
TOOL: Final = {"name": "tide", "description": "the tide", "input_schema": SCHEMA}
FORMS: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "tools": ("/v1/chat/completions", CHAT | {"tools": TOOLS}, "Let me see. " + CALLS),
    "stops": ("/v1/chat/completions", CHAT | {"stop": ["is low", "never"]}, "The tide is low. So it is."),
    "messages": ("/v1/messages", MESSAGE | {"tools": [TOOL]}, "Let me see. " + CALLS),
    "responses": ("/v1/responses", RESPONSE | {"tools": [{"type": "function", **FUNCTION}]}, CALLS),
    "completion": ("/v1/completions", COMPLETION, "It is wide. 字👩‍👩‍👧 So it is."),
}
NAMED: Final = {"type": "function", "function": {"name": "tide"}}
FEW: Final = {"allowed_token_ids": list(range(300, 308))}
JSON_SCHEMA: Final = {"type": "json_schema", "json_schema": {"name": "tide", "schema": SCHEMA}}
SHORT: Final = {"max_tokens": 60}
GRAMMARS: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "required": ("/v1/chat/completions", CHAT | SHORT | {"tools": TOOLS, "tool_choice": "required"}, ""),
    "named": ("/v1/chat/completions", CHAT | SHORT | {"tools": TOOLS, "tool_choice": NAMED}, ""),
    "schema": ("/v1/chat/completions", CHAT | SHORT | {"response_format": JSON_SCHEMA}, ""),
    "messages-any": ("/v1/messages", MESSAGE | SHORT | {"tools": [TOOL], "tool_choice": {"type": "any"}}, ""),
}
"""The model's own words, as far as a grammar lets it."""
LOGPROBS: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "logprobs": (
        "/v1/chat/completions",
        CHAT | {"logprobs": True, "top_logprobs": 3},
        "It is wide. 字👩‍👩‍👧 So it is.",
    ),
    "logprobs-completion": ("/v1/completions", COMPLETION | {"logprobs": 2}, "It is wide. 字 So it is."),
    "logprobs-sampled": ("/v1/completions", COMPLETION | {"logprobs": 0}, "It is wide."),
}
"""What comes of a record is the same; of what is computed anew numbers may differ in their last digits."""
THOUGHTS: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "reasoning": ("/v1/chat/completions", CHAT, THOUGHT + "The tide is low. 字👩‍👩‍👧"),
    "reasoning-messages": ("/v1/messages", MESSAGE, THOUGHT + "The tide is low."),
    "reasoning-responses": ("/v1/responses", RESPONSE, THOUGHT + "The tide is low."),
}
ALL: Final = FORMS | GRAMMARS | LOGPROBS | THOUGHTS


def scripted(server: VllmServer, body: dict[str, Any], text: str) -> dict[str, Any]:
    """The body of a request that is answered with this text; as it is without one."""
    if not text:
        return body
    asked = {"model": "tiny", "prompt": text, "add_special_tokens": False}
    ids = call(server, "POST", "/tokenize", asked).json["tokens"]
    end = call(server, "POST", "/tokenize", asked | {"prompt": END}).json["tokens"]
    return body | {"vllm_xargs": {SCRIPT: [*ids, *end]}}


def events(server: VllmServer, path: str, body: bytes, ask: ReplayAsk) -> list[bytes]:
    answer = call(server, "POST", path, body, headers=server.headers | {HEADER: ask.header})
    assert answer.status == 200, answer.content
    *found, rest = answer.content.split(b"\n\n")
    assert rest == b""
    return [event + b"\n\n" for event in found]


def recorded(stream: list[bytes], parts: int) -> list[bytes]:
    """The events that come of the first parts of the record."""
    places = [at for at, event in enumerate(stream) if event.startswith(COMMENT)]
    return plain(stream[: places[parts]] if parts < len(places) else stream)


def ids_of(record: Iterable[bytes]) -> list[int]:
    return [token for line in record for token in read_part(line).ids]


@pytest.mark.parametrize(
    ("vllm_server", "form"),
    [*((TOOLED, form) for form in FORMS | GRAMMARS | LOGPROBS), *((REASONING, form) for form in THOUGHTS)],
    indirect=["vllm_server"],
)
def test_a_stream_is_made_again_from_any_part_of_its_record(vllm_server: VllmServer, form: str) -> None:
    """What comes of the record is the same to the byte; the engine goes on with the tokens that it went on with.

    How many of those make one piece differs from time to time, and some parsers say other pieces then.
    """
    path, body, text = ALL[form]
    sent = json.dumps(scripted(vllm_server, body, text)).encode()
    stream = events(vllm_server, path, sent, ASK)
    lines = [part_of(event) for event in stream if event.startswith(COMMENT)]
    assert len(lines) > 1
    assert b"off" not in b"".join(lines)
    for cut in sorted({1, 2, (len(lines) + 1) // 2, len(lines) - 1, len(lines)}):
        record = record_of(lines[:cut])
        again = events(vllm_server, path, sent + record, ReplayAsk(ASK.name, ASK.seconds, len(record)))
        told = [part_of(event) for event in again if event.startswith(COMMENT)]
        assert recorded(again, cut) == recorded(stream, cut)
        assert (told[:cut], ids_of(told)) == (lines[:cut], ids_of(lines))
        if form in FORMS | GRAMMARS:
            assert said(again) == said(stream)
    assert plain(again) == plain(stream)


@pytest.mark.parametrize("vllm_server", [TOOLED], indirect=True)
@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"seed": 0}, Unrecorded.SEED),
        ({"seed": 0, "temperature": 1}, Unrecorded.SEED),
        ({"n": 2, "temperature": 1}, Unrecorded.CHOICES),
    ],
)
def test_what_is_not_recorded_says_why(vllm_server: VllmServer, fields: dict[str, Any], why: Unrecorded) -> None:
    body = json.dumps(CHAT | {"max_tokens": 3} | fields).encode()
    stream = events(vllm_server, "/v1/chat/completions", body, ASK)
    assert [part_of(event) for event in stream if event.startswith(COMMENT)] == [b'{"off":"%s"}' % why.encode()]


@pytest.mark.parametrize("vllm_server", [REASONING], indirect=True)
def test_a_grammar_that_waits_for_the_end_of_a_thought_is_not_recorded(vllm_server: VllmServer) -> None:
    body = json.dumps(CHAT | {"max_tokens": 3, "response_format": {"type": "json_object"}}).encode()
    stream = events(vllm_server, "/v1/chat/completions", body, ASK)
    assert [part_of(event) for event in stream if event.startswith(COMMENT)] == [b'{"off":"grammar"}']


@pytest.mark.parametrize("vllm_server", [TOOLED], indirect=True)
@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": 1.5},
        {"presence_penalty": 2.0, "min_tokens": 30},
        {"repetition_penalty": 1.2, "frequency_penalty": -0.5, "logprobs": True},
        {"structured_outputs": {"regex": "([a-z]{2} ){30}"}, "frequency_penalty": 0.5, "allowed_token_ids": None},
    ],
    ids=["frequency", "presence", "repetition", "grammar"],
)
def test_what_was_produced_elsewhere_counts_as_produced(vllm_server: VllmServer, fields: dict[str, Any]) -> None:
    """The model's own words, of few: each depends on how often it has said it, in whatever engine."""
    path, plain_body = "/v1/chat/completions", CHAT | {"max_tokens": 40, "ignore_eos": True} | FEW
    sent = json.dumps(plain_body | fields).encode()
    stream = events(vllm_server, path, sent, ASK)
    lines = [part_of(event) for event in stream if event.startswith(COMMENT)]
    others = [part_of(event) for event in events(vllm_server, path, json.dumps(plain_body).encode(), ASK)]
    assert ids_of(lines) != ids_of(filter(None, others))
    for cut in sorted({1, len(lines) // 3, len(lines) - 2, len(lines)}):
        record = record_of(lines[:cut])
        again = events(vllm_server, path, sent + record, ReplayAsk(ASK.name, ASK.seconds, len(record)))
        told = [part_of(event) for event in again if event.startswith(COMMENT)]
        assert ids_of(told) == ids_of(lines)
        assert told[:cut] == lines[:cut]
        assert recorded(again, cut) == recorded(stream, cut)


@pytest.mark.parametrize("vllm_server", [TOOLED], indirect=True)
def test_nothing_is_recorded_for_whole_answers_or_without_the_worker_key(vllm_server: VllmServer) -> None:
    path, body, text = FORMS["completion"]
    sent = scripted(vllm_server, body, text)
    whole = {name: value for name, value in sent.items() if name not in {"stream", "stream_options"}}
    asked = vllm_server.headers | {HEADER: ASK.header}
    answer = call(vllm_server, "POST", path, whole, headers=asked)
    assert answer.json["choices"][0]["text"] == text
    assert COMMENT not in call(vllm_server, "POST", path, sent).content


@pytest.mark.parametrize("vllm_server", [TOOLED], indirect=True)
@pytest.mark.parametrize(("header", "body"), [("x", b"{}"), ("d;1;5", b"{}"), ("d;1;2", b'{"model":"tiny"}{}')])
def test_what_is_no_record_is_refused(vllm_server: VllmServer, header: str, body: bytes) -> None:
    answer = call(vllm_server, "POST", "/v1/completions", body, headers=vllm_server.headers | {HEADER: header})
    assert answer.status == 400
    assert answer.json["error"]["code"] in {"bad_replay", "short_body", 400}
