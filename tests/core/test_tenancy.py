from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.tenancy import (
    API_KEY_HINT,
    DEFAULT_TENANT,
    FleetKey,
    TenantId,
    api_key_hash,
    fleet_index_key,
    new_api_key,
    parse_index_key,
    tenant_salt,
)

SECRET = bytes(range(32))


def hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, no salt and 32 bytes of output."""
    extracted = hmac.new(b"\0" * 32, secret, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def test_keys_are_derived_by_hkdf() -> None:
    key = FleetKey(SECRET)

    assert key.index_key == hkdf(SECRET, b"cachefleet/index")
    assert key.salt_key == hkdf(SECRET, b"cachefleet/salt")
    assert key.api_key_hash_key == hkdf(SECRET, b"cachefleet/api-keys")
    worker = base64.urlsafe_b64encode(hkdf(SECRET, b"cachefleet/worker/serving/qwen")).decode().rstrip("=")
    assert key.worker_key("serving/qwen") == worker
    token = base64.urlsafe_b64encode(hkdf(SECRET, b"cachefleet/report/serving/qwen/qwen-0")).decode().rstrip("=")
    assert key.report_token("serving/qwen", "qwen-0") == f"serving/qwen/qwen-0.{token}"


def test_each_fleet_has_an_index_key_of_its_own() -> None:
    key = FleetKey(SECRET).index_key
    own = fleet_index_key(key, "serving", "org/qwen")
    assert own == hmac.new(key, b"serving/org/qwen", hashlib.sha256).digest()
    assert len({key, own, fleet_index_key(key, "batch", "org/qwen"), fleet_index_key(key, "serving", "qwen")}) == 4


def test_a_report_token_tells_whose_it_is() -> None:
    key = FleetKey(SECRET)
    token = key.report_token("serving/qwen", "qwen.a-0")
    assert key.reporter(token) == "serving/qwen/qwen.a-0"
    assert FleetKey(bytes(32)).reporter(token) == ""
    for other in ("", ".", token[:-1], token + "x", token.replace("a-0", "a-1"), token.rpartition(".")[2], "." + token):
        assert key.reporter(other) == "", other


def test_the_hkdf_above_is_that_of_the_rfc() -> None:
    """Test case 3 of RFC 5869: no salt, no info; its first 32 bytes of output."""
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"

    assert hkdf(b"\x0b" * 22, b"").hex() == expected


def test_derived_keys_are_all_different() -> None:
    key, other = FleetKey(SECRET), FleetKey(bytes(32))
    derived = [key.index_key, key.salt_key, key.api_key_hash_key, key.worker_key("a/b"), key.worker_key("a/c")]
    derived += [key.report_token("a/b", "b-0"), key.report_token("a/b", "b-1"), key.report_token("a/c", "b-0")]

    assert len({*map(str, derived)}) == len(derived)
    assert key.index_key != other.index_key


@given(st.binary(min_size=32, max_size=32))
def test_a_key_survives_its_text(secret: bytes) -> None:
    text = FleetKey(secret).format()

    assert FleetKey.parse(f"  {text}\n").index_key == FleetKey(secret).index_key
    assert len(text) == 44


def test_generated_keys_differ() -> None:
    assert FleetKey.generate().format() != FleetKey.generate().format()


@pytest.mark.parametrize("text", ["", "abc", "A" * 40, "é" * 44, "\0"])
def test_text_that_is_no_key_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ValueError, match="a fleet key is 32 bytes") as refused:
        FleetKey.parse(text)
    assert len(text) < 3 or text not in str(refused.value)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_has_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match=f"a fleet key is 32 bytes, got {size}"):
        FleetKey(bytes(size))


def test_a_key_does_not_show_itself() -> None:
    key = FleetKey(SECRET)

    assert repr(key) == "FleetKey(...)"
    assert key.format() not in f"{key} {key!r}"
    assert not hasattr(key, "__dict__")


def test_salts_are_stable_and_differ_by_tenant_key_and_version() -> None:
    made = tenant_salt(SECRET, DEFAULT_TENANT)
    others = [
        tenant_salt(SECRET, TenantId("acme")),
        tenant_salt(bytes(32), DEFAULT_TENANT),
        tenant_salt(SECRET, DEFAULT_TENANT, 2),
        tenant_salt(SECRET, TenantId("1/default"), 1),
    ]

    assert made == tenant_salt(SECRET, TenantId("default"))
    assert made not in others
    assert len(made) == 43
    assert "=" not in made


def test_a_tenant_cannot_name_itself_into_anothers_salt() -> None:
    """Version and name are joined by a slash: no name of one version may be the text of another version."""
    assert tenant_salt(SECRET, TenantId("x"), 11) != tenant_salt(SECRET, TenantId("1/x"), 1)


@pytest.mark.parametrize("key", [bytes(32), bytes(range(32)), b"\xff" * 32], ids=["zeros", "counting", "ones"])
def test_an_index_key_survives_its_text(key: bytes) -> None:
    assert parse_index_key(base64.urlsafe_b64encode(key) + b"\n") == key


@pytest.mark.parametrize(
    ("text", "said"),
    [(b"", "got 0"), (b"AAAA", "got 3"), (base64.b64encode(b"\xff" * 32), "URL-safe"), (b"\xff" * 43, "URL-safe")],
    ids=["empty", "short", "plain base64", "not base64"],
)
def test_what_is_no_index_key_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_index_key(text)


def test_an_api_key_is_its_32_bytes_and_can_be_recognised_by_its_first_characters() -> None:
    keys = [new_api_key(bytes([first]) * 32) for first in range(256)]
    assert all(key.startswith("cf-") and len(key) == 46 and key[3:].isascii() for key in keys)
    assert base64.urlsafe_b64decode(keys[7][3:] + "=") == b"\7" * 32
    assert len({key[:API_KEY_HINT] for key in keys}) == 256


@pytest.mark.parametrize("size", [0, 31, 33])
def test_an_api_key_is_made_of_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match=f"made of 32 bytes, got {size}"):
        new_api_key(bytes(size))


def test_the_hash_of_an_api_key_is_of_use_to_nobody_without_the_hash_key() -> None:
    key = new_api_key(SECRET).encode()
    assert api_key_hash(SECRET, key) == hmac.new(SECRET, key, hashlib.sha256).hexdigest()
    assert api_key_hash(bytes(32), key) != api_key_hash(SECRET, key)
    assert hashlib.sha256(key).hexdigest() != api_key_hash(SECRET, key)
