"""What browsers are told of pages of other origins."""

from __future__ import annotations

import pytest

from cachefleet_controlplane.tenants.rate_limit_headers import Room, Rooms
from cachefleet_controlplane.wire.cross_origin import AllowedOrigins, is_origin

APP = (b"origin", b"https://app.example")
ASKS = (b"access-control-request-method", b"POST")


@pytest.mark.parametrize(
    "text",
    [
        *("https://app.example", "http://localhost:3000", "http://[::1]:3000", "chrome-extension://abcdef"),
        *("vscode-webview://1f-2", "app://obsidian.md", "tauri://localhost", "*"),
    ],
)
def test_an_origin_is_a_scheme_a_host_and_a_port(text: str) -> None:
    assert is_origin(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "app.example", "https://", "https://app.example/", "https://app.example/x", "https://a b"),
        *("https://App.example", "HTTPS://app.example", "https://u@app.example", "https://app.example:x", "//app"),
        *("https://app.example?x", "https://*.example", "https://a,b", "https://" + "a" * 256),
    ],
)
def test_what_no_browser_sends_as_an_origin_is_none(text: str) -> None:
    assert not is_origin(text)


def test_an_allowed_page_may_read_answers_and_their_headers() -> None:
    origins = AllowedOrigins(["https://app.example", "http://localhost:3000"])
    told = dict(origins.told([APP]))
    assert told[b"access-control-allow-origin"] == APP[1]
    assert b"x-cachefleet-worker" in told[b"access-control-expose-headers"]
    assert told[b"vary"] == b"origin"


def test_a_page_may_read_what_limits_leave() -> None:
    told = dict(AllowedOrigins(["*"]).told([]))[b"access-control-expose-headers"].decode().split(", ")
    room = Room(10, 3, 6.0)
    for anthropic in (False, True):
        headers = Rooms(room, room).headers(anthropic=anthropic, now=0.0)
        assert {name.decode() for name, _ in headers} <= set(told)


@pytest.mark.parametrize("headers", [[], [(b"origin", b"https://other.example")], [(b"origin", APP[1] + b".evil")]])
def test_any_other_page_may_not_and_caches_keep_both_apart(headers: list[tuple[bytes, bytes]]) -> None:
    origins = AllowedOrigins(["https://app.example"])
    assert dict(origins.told(headers)) == {b"vary": b"origin"}
    assert origins.preflight("OPTIONS", [*headers, ASKS]) == ()


def test_all_pages_may_where_all_are_allowed() -> None:
    origins = AllowedOrigins(["*"])
    for headers in ([], [(b"origin", b"null")], [APP]):
        told = dict(origins.told(headers))
        assert told[b"access-control-allow-origin"] == b"*"
        assert b"vary" not in told
    assert origins.preflight("OPTIONS", [APP, ASKS])


def test_a_browser_is_told_what_it_may_send() -> None:
    origins, asked = AllowedOrigins(["https://app.example"]), b"authorization,content-type,x-api-key,anthropic-version"
    told = dict(origins.preflight("OPTIONS", [APP, ASKS, (b"access-control-request-headers", asked)]))
    assert told[b"access-control-allow-headers"] == asked
    assert b"POST" in told[b"access-control-allow-methods"]
    assert told[b"access-control-max-age"] == b"600"
    assert origins.preflight("POST", [APP, ASKS]) == ()
    assert origins.preflight("OPTIONS", [APP]) == (), "an OPTIONS that no browser sends"
    odd = dict(origins.preflight("OPTIONS", [APP, ASKS, (b"access-control-request-headers", b"x\x01y")]))
    assert b"access-control-allow-headers" not in odd


def test_without_origins_nothing_is_told() -> None:
    assert not AllowedOrigins()
