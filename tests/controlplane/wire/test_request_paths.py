"""Paths as naive joins of a base URL make them."""

import pytest

from cachefleet_controlplane.wire.errors import MAX_SHOWN
from cachefleet_controlplane.wire.request_paths import meant_path, no_such_path, plain_path

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
        ("/v1/completion", "/v1/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/message", "/v1/messages"),
        ("/v1/Models", "/v1/models"),
        ("/v1/chat", ""),
        ("/v1/images/completion", ""),
        ("", ""),
        ("x" * 100_000 + "/models", "/v1/models"),
    ],
)
def test_what_was_meant(path: str, meant: str) -> None:
    assert meant_path(path, KNOWN) == meant


def test_a_hint_fits_the_clients_of_an_api_and_repeats_no_long_path() -> None:
    assert "with `/v1`, once (`.../v1`)" in no_such_path("/chat/completions", "/v1/chat/completions").message
    assert "address without `/v1`" in no_such_path("/v1/v1/messages", "/v1/messages").message
    assert no_such_path("/v1/message", "/v1/messages").message.endswith("Did you mean /v1/messages?")
    assert no_such_path("/v1/chat/completionss", "/v1/chat/completions").message.endswith("/v1/chat/completions?")
    assert len(no_such_path("/x" * 5000, "").message) < MAX_SHOWN + 40
    assert no_such_path("", "").message == "The request names no path."


@pytest.mark.parametrize("path", ["/metrics", "/admin/v1/pools", "/console/", "/readyz"])
def test_what_is_on_the_internal_port_is_told_so(path: str) -> None:
    assert "internal port (8081)" in no_such_path(plain_path(path), "").message
