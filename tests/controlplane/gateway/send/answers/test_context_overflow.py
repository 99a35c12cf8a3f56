"""vLLM's words for a prompt that is too long, of the versions that are supported."""

import json

import pytest

from cachefleet_controlplane.gateway.send.answers.answer import read_error, restated_event
from cachefleet_controlplane.gateway.send.answers.context_overflow import MAX_WORDS, Overflow, overflow_in

WORDS = [
    (
        (
            "This model's maximum context length is 3072 tokens. However, your prompt contains at least 3073 "
            "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of "
            "the input prompt. (parameter=input_tokens, value=3073)"
        ),
        Overflow(3073, 3072),
    ),
    (
        (
            "This model's maximum context length is 3072 tokens. However, you requested 2000 output tokens and "
            "your prompt contains 2013 input tokens, for a total of 4013 tokens. Please reduce the length of the "
            "input prompt or the number of requested output tokens."
        ),
        Overflow(2013, 3072, 2000),
    ),
    (
        (
            "This model's maximum context length is 3072 tokens. However, your prompt contains 90000 characters "
            "(more than 61440 characters, which is the upper bound for 3072 input tokens)."
        ),
        Overflow(3073, 3072),
    ),
    (
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum context length is "
            "3072 tokens and your request has 2013 input tokens (2000 > 3072 - 2013)."
        ),
        Overflow(2013, 3072, 2000),
    ),
    (
        (
            "The decoder prompt (length 4013) is longer than the maximum model length of 3072. Make sure that "
            "`max_model_len` is no smaller than the number of text tokens."
        ),
        Overflow(4013, 3072),
    ),
    (
        (
            "The decoder prompt (length 3072) plus the number of requested output tokens (at least 1) is longer "
            "than the maximum model length of 3072. Make sure that `max_model_len` is no smaller than the number "
            "of text tokens."
        ),
        Overflow(3072, 3072, 1),
    ),
    (
        ("Input length (4013) exceeds model's maximum context length (3072)."),
        Overflow(4013, 3072),
    ),
]


@pytest.mark.parametrize(("message", "found"), WORDS)
def test_what_vllm_says(message: str, found: Overflow) -> None:
    assert overflow_in(message) == found
    body = json.dumps({"error": {"message": message, "type": "BadRequestError", "param": "x", "code": 400}}).encode()
    openai = read_error("/v1/chat/completions", 400, body)
    assert (openai.code, openai.param, openai.message) == ("context_length_exceeded", "messages", message)
    assert read_error("/v1/responses", 400, body).param == "input"
    anthropic = read_error("/v1/messages", 400, body).message
    if found.output:
        assert f"exceed context limit: {found.tokens} + {found.output} > {found.limit}," in anthropic
    else:
        assert anthropic == f"prompt is too long: {found.tokens} tokens > {found.limit} maximum"


@pytest.mark.parametrize("message", ["", "temperature must be non-negative", "x" * MAX_WORDS + WORDS[0][0]])
def test_other_words_say_nothing_of_it(message: str) -> None:
    assert overflow_in(message) is None


def test_only_a_400_is_one() -> None:
    body = json.dumps({"error": {"message": WORDS[0][0], "type": "InternalServerError", "code": 500}}).encode()
    assert read_error("/v1/completions", 500, body).code is None


def test_an_event_of_it_has_the_shape_of_its_api() -> None:
    error = {"error": {"message": WORDS[4][0], "type": "BadRequestError", "param": None, "code": 400}}
    event = b"data: " + json.dumps(error, separators=(",", ":")).encode() + b"\n\n"
    told = json.loads(restated_event("/v1/completions", event).removeprefix(b"data: "))["error"]
    assert (told["code"], told["param"], told["type"]) == ("context_length_exceeded", "prompt", "invalid_request_error")
    named = restated_event("/v1/responses", event, sequence=3)
    assert json.loads(named.removeprefix(b"event: error\ndata: "))["sequence_number"] == 3
    assert b"prompt is too long: 4013 tokens > 3072 maximum" in restated_event("/v1/messages", event)
    assert restated_event("/v1/messages", b"data: {}\n\n") == b"data: {}\n\n"
