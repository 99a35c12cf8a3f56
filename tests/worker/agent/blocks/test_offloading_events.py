"""Blocks below the device as vLLM's OffloadingConnector tells of them, and the time of its loads.

Its own code makes the events and the metrics, out of a real pool's requests; no block is copied, which takes a GPU.
"""

from __future__ import annotations

import warnings
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from cachefleet_core.block_keys import BlockKeyer, Namespace, Tier
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.vllm.events.kv_events import decode_batch
from cachefleet_worker.agent.engines.vllm.metrics_text import read_scrape
from tests.worker.agent.model import CONTRACT, INDEX_KEY
from tests.worker.agent.receiver import Receiver
from tests.worker.plugin.loaded import BLOCK, engine, prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

CONNECTOR = "distributed.kv_transfer.kv_connector.v1.offloading"
TOKENS = prompt(1, 6)
KEYS = BlockKeyer(INDEX_KEY, Namespace(CONTRACT, "s"), BLOCK).keys(TOKENS)


def vllm(module: str) -> Any:
    """A module of vLLM, whose import warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(f"vllm.{module}")


class Offloading:
    """A pool with a prompt of six blocks on the device, and the connector's tracker; chunks of so many blocks."""

    def __init__(self, *, describing: bool, chunk: int = 1) -> None:
        events, base = vllm(f"{CONNECTOR}.events"), vllm("v1.kv_offload.base")
        self.base, self.made = base, engine("full")
        settings = base.OffloadingKVEventsConfig(enable_kv_cache_events=True, self_describing_kv_events=describing)
        self.tracker = events.OffloadingEventsTracker(settings)
        self.residents, self.receiver = Residents(INDEX_KEY, CONTRACT, block_size=BLOCK), Receiver()
        self.request = self.made.request(TOKENS, salt="s")
        self.made.run(TOKENS, salt="s")
        self.read(self.made.manager.take_events())
        self.keys = [base.make_offload_key(self.request.block_hashes[at + chunk - 1], 0) for at in range(0, 6, chunk)]
        kind = events.OffloadingEventGroupSpec("full_attention", None)
        group = SimpleNamespace(
            group_idx=0,
            tokens_per_block=BLOCK,
            tokens_per_chunk=chunk * BLOCK,
            hashes_per_chunk=chunk,
            kv_event_group_spec=kind,
            sliding_window_size_in_chunks=None,
        )
        for place, key in enumerate(self.keys):
            self.tracker.record_store(self.request, group, place, key)

    def read(self, events: Any) -> None:
        published = vllm("distributed.kv_events").KVEventBatch(ts=1.0, events=list(events), data_parallel_rank=0)
        batch = decode_batch(msgspec.msgpack.encode(published))
        assert not batch.malformed
        self.residents.apply(batch.events)
        self.receiver.apply(self.residents.take())

    def say(self, *chunks: int, removed: bool = False, medium: str = "CPU") -> None:
        kind = getattr(self.base.Medium, medium)
        event = self.base.OffloadingEvent([self.keys[at] for at in chunks], kind, removed, removal_expected=True)
        self.read(self.tracker.take_events([event]))

    @property
    def below(self) -> list[int]:
        """Which of the prompt's blocks are below the device."""
        return [at for at, key in enumerate(KEYS) if (key, Tier.HOST) in self.receiver.held]


@pytest.mark.parametrize("describing", [False, True])
def test_its_blocks_are_known_until_their_last_medium_loses_them(*, describing: bool) -> None:
    offloading = Offloading(describing=describing)
    assert offloading.below == []
    offloading.say(0, 1, 2, 5)
    offloading.say(1, 2, medium="STORAGE")
    offloading.say(0, 1, removed=True)
    assert offloading.below == [1, 2, 5]
    offloading.made.pool.evict_blocks(set(range(1, 100)) & set(offloading.made.idle()))
    offloading.read(offloading.made.manager.take_events())
    assert {tier for _, tier in offloading.receiver.held} == {Tier.HOST}
    offloading.say(1, removed=True, medium="STORAGE")
    assert offloading.below == [2, 5]


def test_of_larger_chunks_all_blocks_are_known_where_it_describes_them_else_the_last() -> None:
    whole, bare = Offloading(describing=True, chunk=3), Offloading(describing=False, chunk=3)
    whole.say(0)
    bare.say(0)
    assert (whole.below, bare.below) == ([0, 1, 2], [2])


def test_the_time_of_its_loads_is_read() -> None:
    metrics, registry = vllm(f"{CONNECTOR}.metrics"), CollectorRegistry()
    kinds: dict[Any, Any] = {kind: partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)}
    config: Any = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config={}))
    exposed = metrics.OffloadPromMetrics(config, kinds, ["model_name", "engine"], {0: ["m", "0"]})
    stats = metrics.OffloadingConnectorStats(data={})
    stats.increase_counter(metrics._TransferMetricName.LOAD_TIME, 0.5)
    stats.increase_counter(metrics._TransferMetricName.STORE_TIME, 3.0)
    exposed.observe(stats.data)
    text = generate_latest(registry).decode()
    assert read_scrape(text).ranks[0].loading_seconds == 0.5
    older = "\n".join(line for line in text.splitlines() if "kv_offload_load_time" not in line)
    assert read_scrape(older).ranks[0].loading_seconds == 0.5
