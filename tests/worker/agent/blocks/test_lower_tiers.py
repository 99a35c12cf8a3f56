"""Blocks below the device, from frames in the forms that vLLM 0.32's connectors and LMCache send.

The frames are made here after the connectors' code (`offloading/events.py` and `lmcache_connector.py` in
`vllm/distributed/kv_transfer/kv_connector/v1`), not taken from running ones: those need a GPU.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cachefleet_core.block_keys import BlockKey, Tier
from cachefleet_worker.agent.blocks.lower_media import LowerMedia, most_below
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.vllm.events.kv_events import decode_batch
from tests.worker.agent.model import BLOCK_SIZE, CONTRACT, INDEX_KEY, keys_of
from tests.worker.agent.receiver import Receiver, checked

TOKENS = [1, 2, 3, 4, 5, 6]
HASHES = [11, 12, 13]
KEYS = keys_of(TOKENS, salt="s")
FULL: dict[str, Any] = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}


def frame(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def stored(hashes: list[int], tokens: list[int], parent: int | None = None, **fields: Any) -> dict[str, Any]:
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens}
    return event | {"block_size": BLOCK_SIZE, "lora_id": None, "lora_name": None, "medium": "GPU"} | fields


def removed(*hashes: int, medium: str = "GPU", **fields: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": medium} | fields


def on_gpu(hashes: list[int] = HASHES, tokens: list[int] = TOKENS) -> dict[str, Any]:
    return stored(hashes, tokens, extra_keys=[["s"], *[None] * (len(hashes) - 1)], **FULL)


def placeholder(block_hash: int, medium: str = "CPU", **fields: Any) -> dict[str, Any]:
    """OffloadingConnector's store without `self_describing_kv_events`."""
    return stored([block_hash], [], medium=medium, block_size=0, group_idx=0, **fields)


def described(medium: str = "CPU", **fields: Any) -> dict[str, Any]:
    """The same with it; before 0.32 without extra keys."""
    return stored(HASHES, TOKENS, medium=medium, extra_keys=None, **FULL | fields)


def chunk(hashes: list[int], tokens: list[int], size: int = BLOCK_SIZE) -> dict[str, Any]:
    """LMCache's: no extra keys, no group, no removals."""
    return stored(hashes, tokens, medium="cpu", block_size=size)


class Agent:
    def __init__(self) -> None:
        self.residents = Residents(INDEX_KEY, CONTRACT, block_size=BLOCK_SIZE)
        self.receiver = Receiver()

    def read(self, *events: dict[str, Any]) -> None:
        batch = decode_batch(frame(*events))
        assert not batch.malformed
        self.residents.apply(batch.events)
        self._report()

    def heal(self, *events: dict[str, Any]) -> None:
        """Take a snapshot of the worker plugin."""
        draft = self.residents.draft()
        draft.apply(decode_batch(frame(*events)).events)
        self.residents.adopt(draft)
        self._report()

    def _report(self) -> None:
        self.receiver.apply(self.residents.take())
        fresh = Receiver()
        fresh.apply(checked(self.residents.snapshot()))
        assert fresh.held == self.receiver.held
        assert self.receiver.digest == self.residents.digest
        assert len(self.receiver.held) == self.residents.held

    @property
    def host(self) -> set[BlockKey]:
        return {key for key, tier in self.receiver.held if tier is Tier.HOST}


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.mark.parametrize("medium", ["CPU", "cpu", "CPU_PINNED", "STORAGE", "DISK", "EXTERNAL"])
def test_a_placeholder_is_joined_by_hash_in_every_medium_and_removed_by_hash(agent: Agent, medium: str) -> None:
    agent.read(on_gpu(), placeholder(HASHES[0], medium), placeholder(HASHES[2], medium), placeholder(99, medium))
    assert agent.host == {KEYS[0], KEYS[2]}
    agent.read(removed(*HASHES))
    assert agent.host == {KEYS[0], KEYS[2]}
    agent.read(removed(HASHES[0], medium=medium, group_idx=0), removed(99, medium=medium, group_idx=0))
    assert agent.host == {KEYS[2]}


@pytest.mark.parametrize("event", [described(), described("STORAGE"), chunk(HASHES, TOKENS)])
def test_what_an_event_leaves_out_of_a_blocks_identity_is_known_from_the_device(
    agent: Agent, event: dict[str, Any]
) -> None:
    agent.read(event)
    assert agent.host == set()  # or a tenant's block would be everybody's
    agent.read(on_gpu(), removed(*HASHES), event)
    assert agent.host == set(KEYS)
    assert not agent.residents.unkeyed


def test_blocks_of_another_size_teach_nothing(agent: Agent) -> None:
    agent.read(chunk([HASHES[0]], TOKENS, size=len(TOKENS)), placeholder(HASHES[0]), on_gpu())
    assert (agent.host, agent.residents.unknown) == (set(), "")
    agent.read(chunk([HASHES[0]], TOKENS, size=len(TOKENS)))
    assert agent.host == {KEYS[0]}
    assert {key for key, _ in agent.receiver.held} == set(KEYS)


def test_a_window_s_blocks_below_the_device_are_not_taken_for_full_attentions(agent: Agent) -> None:
    agent.read(on_gpu(), placeholder(HASHES[0]) | {"group_idx": 1})
    assert agent.host == set()
    agent.read(placeholder(HASHES[0]), removed(HASHES[0], medium="CPU", group_idx=1), placeholder(HASHES[0]))
    assert agent.host == {KEYS[0]}
    agent.read(removed(HASHES[0], medium="CPU", group_idx=0))
    assert agent.host == set()


def test_a_block_in_memory_and_on_disk_is_held_until_both_have_lost_it(agent: Agent) -> None:
    agent.read(on_gpu(), placeholder(HASHES[0]), placeholder(HASHES[0], "STORAGE"), removed(*HASHES))
    agent.read(removed(HASHES[0], medium="CPU"))
    assert agent.host == {KEYS[0]}
    agent.read(removed(HASHES[0], medium="STORAGE"))
    assert agent.receiver.held == set()


def test_another_machines_blocks_are_not_this_workers(agent: Agent) -> None:
    agent.read(on_gpu(), placeholder(HASHES[0], "STORAGE", locality="REMOTE"))
    assert agent.host == set()


def test_media_come_through_a_snapshot_which_names_blocks_itself(agent: Agent) -> None:
    whole = on_gpu() | {"medium": "CPU"}
    agent.heal(whole, whole | {"medium": "STORAGE"})
    agent.read(removed(*HASHES, medium="CPU"))
    assert agent.host == set(KEYS)
    agent.read(removed(*HASHES, medium="STORAGE"))
    assert agent.receiver.held == set()


def test_the_longest_held_leave_where_nothing_is_ever_removed(agent: Agent) -> None:
    agent.residents._lower = LowerMedia(most=2)
    agent.read(on_gpu(), placeholder(HASHES[0]), placeholder(HASHES[1]), placeholder(HASHES[0]))
    agent.read(placeholder(HASHES[2]))
    assert agent.host == {KEYS[0], KEYS[2]}
    agent.read({"type": "AllBlocksCleared"})
    assert (agent.receiver.held, len(agent.residents._lower)) == (set(), 0)


def test_no_more_is_reported_than_a_control_plane_takes() -> None:
    """Also after a snapshot."""
    small = Residents(INDEX_KEY, CONTRACT, block_size=BLOCK_SIZE, below=1)
    small.adopt(small.draft())
    small.apply(decode_batch(frame(on_gpu(), placeholder(HASHES[0]), placeholder(HASHES[1]))).events)
    assert small.held == len(HASHES) + 1
    assert (most_below(100), most_below(0), most_below(10**9)) == (1500, 1 << 18, 1 << 18)


def test_no_more_is_held_in_the_hosts_memory_than_the_engine_has_room_for(agent: Agent) -> None:
    """Where a connector forgets blocks without a word, as the engine's own size shows."""
    agent.read(on_gpu(), *(placeholder(each) for each in HASHES))
    agent.residents.bound_below(2)
    agent._report()
    assert agent.host == {KEYS[1], KEYS[2]}, "the longest held one is gone"
    agent.read(placeholder(HASHES[0]))
    assert agent.host == {KEYS[0], KEYS[2]}
    agent.heal(on_gpu(), *(placeholder(each) for each in HASHES))
    assert len(agent.host) == 2, "after a snapshot, too"


def test_the_hosts_size_is_no_bound_on_what_a_disk_holds(agent: Agent) -> None:
    agent.residents.bound_below(1)
    agent.read(on_gpu(), placeholder(HASHES[0]), *(placeholder(each, "STORAGE") for each in HASHES))
    assert agent.host == set(KEYS)
