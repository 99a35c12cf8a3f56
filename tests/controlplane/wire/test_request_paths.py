"""Paths as naive joins of a base URL make them."""

import pytest

from cachefleet_controlplane.wire.request_paths import MAX_SHOWN, meant_path, no_such_path, plain_path

KNOWN = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/models")


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("/", "/"),
        ("//", "/"),
        ("", ""),
        ("/v1/models", "/v1/models"),
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/v1//chat///completions//", "/v1/chat/completions"),
        ("/v1/models/Qwen/Qwen3-8B/", "/v1/models/Qwen/Qwen3-8B"),
    ],
)
def test_slashes_too_many(path: str, plain: str) -> None:
    assert plain_path(path) == plain


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/openai/v1/completions", "/v1/completions"),
        ("/v1/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/v1/rerank", ""),
        ("/v1/messagesx", ""),
        ("x" * 100_000 + "/models", "/v1/models"),
    ],
)
def test_what_was_meant(path: str, meant: str) -> None:
    assert meant_path(path, KNOWN) == meant


def test_a_hint_fits_the_clients_of_an_api_and_repeats_no_long_path() -> None:
    assert "with `/v1`, once (`.../v1`)" in no_such_path("/chat/completions", "/v1/chat/completions").message
    assert "address without `/v1`" in no_such_path("/v1/v1/messages", "/v1/messages").message
    assert len(no_such_path("/x" * 5000, "").message) < MAX_SHOWN + 40
