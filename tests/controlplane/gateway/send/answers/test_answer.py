"""A whole answer's usage, and refusals in the client's terms."""

import pytest

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.send.answers.answer import restate_size
from cachefleet_controlplane.gateway.send.answers.usage import read_usage


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"usage":7}', b'{"usage":null}', b"{}"])
def test_an_answer_without_usage(body: bytes) -> None:
    assert read_usage(body, Endpoint.CHAT) is None


def test_cached_tokens() -> None:
    usage = read_usage(b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":7}}}', Endpoint.CHAT)
    assert usage is not None
    assert usage.cached_tokens == 7
    bare = read_usage(b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}', Endpoint.CHAT)
    assert bare is not None
    assert bare.cached_tokens is None


def test_a_refusal_tells_the_size_of_the_clients_body() -> None:
    def told(where: str, size: int) -> bytes:
        return b"'loc': '%s', 'msg': 'Field required', 'input': '<dict of %d items>'" % (where.encode(), size)

    assert restate_size(told("body.messages", 5), sent=5, asked=2) == told("body.messages", 2)
    # A part of the body that happens to be as large is the client's own.
    assert restate_size(told("body.messages.0.role", 5), sent=5, asked=2) == told("body.messages.0.role", 5)
