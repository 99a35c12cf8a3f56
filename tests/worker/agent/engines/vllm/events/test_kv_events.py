from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_worker.agent.blocks.block_events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Unreadable
from cachefleet_worker.agent.engines.vllm.events.kv_events import Batch, BatchError, decode_batch

pack = msgspec.msgpack.encode
STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [2**64 - 1, 7],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}


def batch(*events: object) -> bytes:
    return pack([1.5, list(events), 0])


def kinds(found: Batch) -> list[type[Event]]:
    known = (BlockStored, BlockRemoved, AllBlocksCleared, Unreadable)
    return [next(kind for kind in known if isinstance(event, kind)) for event in found.events]


def test_map_form_with_all_fields_and_unknown_ones() -> None:
    event = STORED | {
        "extra_keys": [["salt"], None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "session_id": "s",
        "of_a_later_release": {"deep": [1]},
    }
    [stored] = decode_batch(batch(event)).events
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == [2**64 - 1, 7]
    assert stored.group_idx == 0
    assert [stored.extras(0), stored.extras(1), stored.extras(2)] == [["salt"], [], []]


def test_array_form_with_and_without_trailing_defaults() -> None:
    long = [
        "BlockStored",
        [1],
        None,
        [5, 6],
        2,
        None,
        "GPU",
        None,
        [["salt"]],
        1,
        "full_attention",
        None,
        "LOCAL",
        "x",
        "s",
        None,
        9,
    ]
    short = ["BlockStored", [1], 9, [5, 6], 2, None]
    first, second, removed, cleared = decode_batch(
        batch(long, short, ["BlockRemoved", [1], "GPU"], ["AllBlocksCleared"])
    ).events
    assert isinstance(first, BlockStored)
    assert (first.group_idx, first.locality, first.extras(0)) == (1, "LOCAL", ["salt"])
    assert isinstance(second, BlockStored)
    assert (second.parent_block_hash, second.medium, second.extra_keys) == (9, None, None)
    assert isinstance(removed, BlockRemoved)
    assert isinstance(cleared, AllBlocksCleared)


def test_the_tokens_after_each_block_are_read() -> None:
    told = STORED | {"block_hashes": [1, 2], "lookahead_token_ids": [[7], [8]], "session_id": "s", "ownership": "x"}
    [stored] = decode_batch(batch(told)).events
    assert isinstance(stored, BlockStored)
    assert (stored.lookahead_token_ids, stored.lookahead) == ([[7], [8]], 1)


@pytest.mark.parametrize(
    ("told", "lookahead"),
    [(None, 0), ([[7, 8], [9, 1]], 2), ([[], []], 0), ([[7], [8, 9]], -1), ([[7]], -1), ([], -1)],
)
def test_a_lookahead_is_one_for_all_blocks_of_an_event(told: list[list[int]] | None, lookahead: int) -> None:
    [stored] = decode_batch(batch(STORED | {"block_hashes": [1, 2], "lookahead_token_ids": told})).events
    assert isinstance(stored, BlockStored)
    assert stored.lookahead == lookahead


@pytest.mark.parametrize("told", [[[-1], [2]], [["a"], [2]], [1, 2], "x"])
def test_a_store_with_a_malformed_lookahead_is_skipped(told: object) -> None:
    found = decode_batch(batch(STORED | {"lookahead_token_ids": told}, {"type": "AllBlocksCleared"}))
    assert (kinds(found), found.malformed) == ([AllBlocksCleared], 1)


def test_hashes_may_be_bytes() -> None:
    digest = bytes(range(32))
    [stored] = decode_batch(batch(STORED | {"block_hashes": [digest], "parent_block_hash": digest})).events
    assert isinstance(stored, BlockStored)
    assert (stored.block_hashes, stored.parent_block_hash) == ([digest], digest)


def test_extras_are_texts_and_media_and_all_else_is_none() -> None:
    extra = [
        [
            "lora",
            ["image", -3],
            b"digest",
            5,
            {"a": 1},
            ["image", "3"],
            ["image", 1 << 40],
            ["image"],
            ["image", 1, 2],
            [1, "image"],
            "salt",
        ]
    ]
    [stored] = decode_batch(batch(STORED | {"extra_keys": extra})).events
    assert isinstance(stored, BlockStored)
    assert stored.extras(0) == ["lora", ("image", -3), *[None] * 8, "salt"]


@pytest.mark.parametrize(
    ("name", "extras"), [("lora", ["lora", "salt"]), (None, ["lora", "lora", "salt"]), ("x", ["lora", "lora", "salt"])]
)
def test_the_adapters_name_is_no_extra_since_it_has_a_field_of_its_own(name: str | None, extras: list[str]) -> None:
    event = STORED | {"lora_name": name, "extra_keys": [["lora", "lora", "salt"], None]}
    [stored] = decode_batch(batch(event)).events
    assert isinstance(stored, BlockStored)
    assert [stored.extras(0), stored.extras(1)] == [extras, []]


def test_an_unknown_event_type_is_passed_over() -> None:
    found = decode_batch(batch({"type": "BlockMoved", "x": 1}, ["BlockSwapped", 1], {"type": "AllBlocksCleared"}))
    assert (kinds(found), found.unknown, found.malformed) == ([AllBlocksCleared], 2, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": [-1, 2, 3, 4]},
        {"token_ids": "text"},
        {"block_size": -1},
        {"block_hashes": [b"x" * 65]},
        {"block_hashes": None},
        {"extra_keys": 5},
    ],
)
def test_a_malformed_store_is_left_out_alone(change: dict[str, object]) -> None:
    found = decode_batch(batch(STORED, STORED | change, {"type": "AllBlocksCleared"}))
    assert kinds(found) == [BlockStored, AllBlocksCleared]
    assert (found.malformed, found.unknown) == (1, 0)


@pytest.mark.parametrize(
    "event", [{"type": "BlockRemoved"}, ["BlockRemoved", "x"], {"no": "type"}, [], 5, None, "text"]
)
def test_a_malformed_removal_leaves_its_mark(event: object) -> None:
    found = decode_batch(batch(STORED, event))
    assert isinstance(found.events[1], Unreadable)
    assert found.malformed == 1


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", pack(5), pack({"events": []}), pack([1.0]), pack([1.0, 5]), b"\x93\xff"]
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(BatchError):
        decode_batch(payload)


def test_deep_nesting_is_refused_not_a_crash() -> None:
    deep = b"\x91" * 200_000 + b"\xc0"
    with pytest.raises(BatchError):
        decode_batch(b"\x93" + pack(1.0) + b"\x91" + deep + pack(0))


def test_a_forged_length_allocates_nothing() -> None:
    with pytest.raises(BatchError):
        decode_batch(b"\x93" + pack(1.0) + b"\xdd\xff\xff\xff\xff" + pack(0))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_an_error(payload: bytes) -> None:
    with suppress(BatchError):
        decode_batch(payload)


def test_damaged_batches_are_read_or_refused() -> None:
    rng = random.Random(5)
    good = batch(STORED, {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}, ["AllBlocksCleared"])
    for _ in range(20_000):
        damaged = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with suppress(BatchError):
            decode_batch(bytes(damaged[: rng.randint(1, len(damaged))]))
