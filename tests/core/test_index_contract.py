from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest

from cachefleet_core.block_keys import KEY_VERSION
from cachefleet_core.index_contract import Difference, IndexContract, RenderProfile, differences, key_version


def contract(**fields: Any) -> IndexContract:
    given: dict[str, Any] = {"weights": "Qwen/Qwen3-32B", "tokenizer": "sha256:t", "block_size": 16}
    return IndexContract(**(given | fields))


def test_a_fingerprint_is_the_digest_of_the_canonical_json() -> None:
    made = contract(revision="abc", weights="ü")
    fields = {
        "block_size": 16,
        "key_version": KEY_VERSION,
        "revision": "abc",
        "tokenizer": "sha256:t",
        "weights": "ü",
    }
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    assert made.fingerprint() == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert made.fingerprint() == contract(revision="abc", weights="ü").fingerprint()


def test_a_contract_without_lookahead_has_the_fingerprint_that_it_always_had() -> None:
    """Else an upgrade of one side would part workers and control planes, and all keys would change."""
    made = contract(revision="abc", weights="w", lookahead=0)
    assert made.fingerprint() == "sha256:a55084211a7cdb16420d6c1302ca88ab2eaf54247e8639951a58a93c86b13638"


def test_keys_that_cover_what_follows_a_block_are_of_another_version() -> None:
    """A control plane that knows no lookahead must not take such keys for its own: it sees another version."""
    assert (key_version(0), key_version(1), key_version(4)) == (KEY_VERSION, KEY_VERSION + 1, KEY_VERSION + 1)


OTHERS: list[dict[str, Any]] = [
    {"weights": "x"},
    {"revision": "x"},
    {"tokenizer": "x"},
    {"block_size": 32},
    {"key_version": 2},
    {"lookahead": 1},
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: next(iter(other)))
def test_every_field_counts_and_a_difference_names_it(other: dict[str, Any]) -> None:
    field, value = next(iter(other.items()))
    found = differences(contract(), contract(**other))

    assert contract().fingerprint() != contract(**other).fingerprint()
    assert found == [Difference(field, str(getattr(contract(), field)), str(value))]
    assert str(found[0]) == f"{field}: pool has {found[0].expected!r}, worker has {str(value)!r}"


def test_the_parametrisation_above_knows_every_field() -> None:
    assert [next(iter(other)) for other in OTHERS] == list(IndexContract.__struct_fields__)


def test_equal_contracts_have_no_differences_and_several_come_in_field_order() -> None:
    assert differences(contract(), contract()) == []
    found = differences(contract(), contract(block_size=32, weights="x"))
    assert [difference.field for difference in found] == ["weights", "block_size"]


@pytest.mark.parametrize("field", RenderProfile.__struct_fields__)
@pytest.mark.requirement("A11")
def test_every_field_of_a_render_profile_counts(field: str) -> None:
    assert RenderProfile(**{field: "x"}).fingerprint() != RenderProfile().fingerprint()


def test_a_profile_and_a_contract_never_share_a_fingerprint() -> None:
    assert RenderProfile().fingerprint() != contract().fingerprint()


@pytest.mark.parametrize(
    "fields",
    [
        *({"block_size": 0}, {"block_size": 65537}, {"key_version": 0}, {"weights": "w" * 1025}, {"weights": 1}),
        *({"lookahead": -1}, {"lookahead": 1025}),
    ],
)
def test_limits_hold_where_a_contract_is_received(fields: dict[str, Any]) -> None:
    sent = msgspec.msgpack.encode(msgspec.to_builtins(contract()) | fields)

    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(sent, type=IndexContract)
