"""Which shape an error has is told by its path alone."""

import json

import pytest

from cachefleet_controlplane.gateway.send.answers.answer import error_code, error_message
from cachefleet_controlplane.wire.errors import MAX_WORDS, ApiError, error_body, error_event, error_of

ERROR = ApiError(429, "Too much.", param="n", headers={"retry-after": "2"})
OPENAI = {"error": {"message": "Too much.", "type": "rate_limit_error", "param": "n", "code": "429"}}
ANTHROPIC = {"type": "error", "error": {"type": "rate_limit_error", "message": "Too much."}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *((path, OPENAI) for path in ("/", "/v1/chat/completions", "/v1/responses", "/v1/models", "/v1/messagesx", "")),
        *((path, ANTHROPIC) for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/x")),
    ],
)
def test_bodies(path: str, body: object) -> None:
    assert json.loads(error_body(path, ERROR)) == body


def test_events() -> None:
    plain = error_event("/v1/completions", ERROR).decode()
    assert plain == f"data: {json.dumps(OPENAI, separators=(',', ':'))}\n\ndata: [DONE]\n\n"
    named = error_event("/v1/messages", ERROR).decode()
    assert named == f"event: error\ndata: {json.dumps(ANTHROPIC, separators=(',', ':'))}\n\n"
    numbered = error_event("/v1/responses", ERROR, sequence=7).decode()
    told = {"type": "error", "code": "429", "message": "Too much.", "param": "n", "sequence_number": 7}
    assert json.loads(numbered.removeprefix("event: error\ndata: ")) == told


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("status", [400, 404, 429, 500, 502, 503])
def test_what_we_write_we_can_read(path: str, status: int) -> None:
    event = error_event(path, ApiError(status, "words")).partition(b"\n\n")[0] + b"\n\n"
    assert error_code(event) // 100 == status // 100
    assert error_message(error_body(path, ApiError(status, "words"))) == "words"


def test_a_code_in_words_stands_in_place_of_the_status() -> None:
    assert json.loads(error_body("/v1/models", ApiError(401, "x", code="invalid_api_key")))["error"]["code"] == (
        "invalid_api_key"
    )


@pytest.mark.parametrize("event", [b"", b"data: {}\n\n", b": x\n\n", b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n"])
def test_what_is_no_error(event: bytes) -> None:
    assert error_code(event) == 0


@pytest.mark.parametrize("code", ["5" * 10, "5" * 5000, "\u00b2", "\u0663", "x"])
def test_a_code_that_is_no_status_leaves_it_to_the_type(code: str) -> None:
    event = json.dumps({"error": {"code": code, "type": "rate_limit_error", "message": "x"}})
    assert error_code(b"data: %b\n\n" % event.encode()) == 429


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("error", [ERROR, ApiError(503, "Later."), ApiError(400, "No.", param="n", code="why")])
def test_an_error_is_read_from_the_body_of_its_answer(path: str, error: ApiError) -> None:
    told = error_of(error.status, error_body(path, error))
    assert error_body(path, told) == error_body(path, error)


def test_a_body_in_no_apis_shape_is_the_message_as_far_as_it_goes() -> None:
    for body in (b"out of order", b'{"error": "x"}', b"\xff"):
        assert error_of(502, body).message == body.decode(errors="replace")
    assert len(error_of(502, b"x" * 10_000).message) == MAX_WORDS
