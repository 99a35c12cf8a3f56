"""Names and addresses of control planes, as a variable gives them."""

from __future__ import annotations

import json
import re

import pytest

from cachefleet_core.environment.control_planes import MOST_CONTROL_PLANES, parse_control_planes


def test_names_and_addresses_are_read() -> None:
    assert parse_control_planes("") == {}
    given = {"b": "http://gateway-b:8080/", "eu-1": "https://[2001:db8::1]"}
    assert parse_control_planes(json.dumps(given)) == {"b": "http://gateway-b:8080", "eu-1": "https://[2001:db8::1]"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("b=http://x", "is not JSON"),
        ('["b"]', "must be a mapping of at most 64 names to addresses"),
        ('{"B": "http://x"}', "'B' must be text of 1 to 63 characters: lowercase letters"),
        ('{"": "http://x"}', "'' must be text"),
        ('{"%s": "http://x"}' % ("b" * 64), "must be text of 1 to 63 characters"),
        ('{"b": 8080}', "b: 8080 must be the address of a gateway"),
        ('{"b": "gateway-b:8080"}', "must be the address of a gateway, such as http://gateway-b:8080"),
        ('{"b": "http://gateway-b:8080/v1"}', "must be the address of a gateway"),
        ('{"b": "http://user@gateway-b"}', "must be the address of a gateway"),
    ],
)
def test_what_names_none_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_control_planes(text)


def test_their_number_is_bounded() -> None:
    with pytest.raises(ValueError, match="at most 64"):
        parse_control_planes(json.dumps({f"c{number}": "http://x" for number in range(MOST_CONTROL_PLANES + 1)}))
