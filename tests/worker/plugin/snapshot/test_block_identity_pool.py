"""Keys of prompts with adapters and media against vLLM's real block pool: predicted is what it serves."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cachefleet_core.block_identity.adapters import adapter_namespace, path_revision
from cachefleet_core.block_identity.media import Placed, media_of_blocks
from cachefleet_core.block_keys import Namespace, unpack_keys
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.vllm.events.kv_events import decode_batch
from cachefleet_worker.plugin.adapters import adapter_revisions
from cachefleet_worker.plugin.keys.key_cache import KeyCache
from cachefleet_worker.plugin.keys.prompt_media import placed_media
from cachefleet_worker.plugin.snapshot.event_batches import batches
from cachefleet_worker.plugin.snapshot.snapshot import install
from tests.worker.agent.model import CONTRACT, INDEX_KEY
from tests.worker.plugin.loaded import BLOCK, engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]  # importing vLLM on a busy machine takes a minute

ADAPTERS = [None, None, ("sql", "/a"), ("sql", "/b"), ("chat", "/a")]
"""Name and path; the number that the engine gives a name stays when it is re-pointed."""


@dataclass(frozen=True)
class Asked:
    """A prompt with all that names its blocks."""

    tokens: list[int]
    salt: str = ""
    adapter: tuple[str, str] | None = None
    media: tuple[Placed, ...] = ()

    @property
    def identity(self) -> dict[str, Any]:
        """For a request of the test engine, and vLLM's Request in it."""
        from vllm.lora.request import LoRARequest  # noqa: PLC0415 - its import takes seconds
        from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange  # noqa: PLC0415

        number = 0 if self.adapter is None else 1 + ("sql", "chat").index(self.adapter[0])
        return {
            "salt": self.salt or None,
            "lora_request": None if self.adapter is None else LoRARequest(self.adapter[0], number, self.adapter[1]),
            "mm_features": [
                MultiModalFeatureSpec(None, "image", one.identifier, PlaceholderRange(one.offset, one.length))
                for one in self.media
            ],
        }

    @property
    def namespace(self) -> Namespace:
        lora = "" if self.adapter is None else adapter_namespace(self.adapter[0], path_revision(self.adapter[1]))
        return Namespace(CONTRACT, self.salt, lora)


@dataclass
class Worker:
    """A real pool behind the plugin, and what an agent beside it holds."""

    blocks: int = 64
    adapters: bool = True
    lookahead: int = 0
    cache: KeyCache = field(default_factory=lambda: KeyCache(INDEX_KEY, max_bytes=1 << 20))

    def __post_init__(self) -> None:
        self.engine = engine("full", blocks=self.blocks, lookahead=self.lookahead)
        self.residents = self.empty()
        scheduler = self.engine.state.scheduler
        scheduler.vllm_config = SimpleNamespace(lora_config=object())
        scheduler.kv_event_publisher = self
        object.__setattr__(self.engine.state.settings, "heartbeat_seconds", 1e6)
        assert install(scheduler, self.engine.state) is not None
        self.proxy = scheduler.kv_event_publisher
        if self.adapters:
            adapter_revisions.install(scheduler, self.engine.state)

    def empty(self) -> Residents:
        return Residents(INDEX_KEY, CONTRACT, block_size=BLOCK, lookahead=self.lookahead)

    def publish(self, batch: Any) -> None:
        batch.data_parallel_rank = 0
        self.residents.apply(decode_batch(msgspec.msgpack.encode(batch)).events)

    def run(self, asked: Asked, outputs: list[int]) -> None:
        self.engine.run(asked.tokens, outputs, **asked.identity)
        self.engine.state.publish_events()

    def served(self, asked: Asked) -> int:
        return int(self.engine.hit(asked.tokens, **asked.identity))

    def predicted(self, asked: Asked, residents: Residents | None = None) -> int:
        held = {block.key for block in (residents or self.residents)._names.live.values()}
        tokens = [*asked.tokens, -1 % (1 << 32)]  # the engine's helper asks for one token more
        packed = self.cache.keys(asked.namespace, BLOCK, tokens, asked.media, lookahead=self.lookahead)
        keys = unpack_keys(packed)
        return BLOCK * next((at for at, key in enumerate(keys) if key not in held), len(keys))

    def recovered(self) -> Residents:
        """What an agent holds that has a snapshot alone."""
        draft = self.empty()
        for payload in batches(self.proxy.point().copies, rank=0, now=0.0):
            draft.apply(decode_batch(payload).events)
        return draft


def media(chance: random.Random, length: int) -> tuple[Placed, ...]:
    """A few media one after the other, some over several blocks, some in one."""
    placed: list[Placed] = []
    at = 0
    while len(placed) < 3 and (at := at + chance.randrange(9)) < length - 1:
        size = min(chance.choice([1, 2, 5, 11]), length - at)
        placed.append(Placed(chance.choice(["digest-a", "digest-b"]), at, size))
        at += size
    return tuple(placed)


def prompts(chance: random.Random) -> list[Asked]:
    """Prompts of few distinct tokens, so that many differ in nothing else than adapter, salt and media."""
    made = []
    for _ in range(60):
        tokens = [7] * chance.randrange(5, 40)
        placed = media(chance, len(tokens)) if chance.random() < 0.6 else ()
        made.append(Asked(tokens, chance.choice(["", "s", "t"]), chance.choice(ADAPTERS), placed))
    return made


@pytest.mark.parametrize("lookahead", [0, 1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_predicted_is_served_for_any_adapter_salt_and_media(seed: int, lookahead: int) -> None:
    chance = random.Random(seed)
    worker, known = Worker(blocks=chance.choice([40, 200]), lookahead=lookahead), prompts(chance)
    hits = 0
    for step in range(400):
        asked = chance.choice(known)
        served = worker.served(asked)
        assert worker.predicted(asked) == served
        hits += bool(served)
        worker.run(asked, [chance.randrange(3) for _ in range(chance.randrange(6))])
        if step % 100 == 99:
            recovered = worker.recovered()
            assert all(worker.predicted(each, recovered) == worker.served(each) for each in known)
    assert hits > 40
    assert worker.residents.counts["lookahead"] == 0
    assert worker.residents.counts["extra_key"] == worker.residents.counts["adapter_revision"] == 0
    assert worker.engine.state.faults.counts == {}


def test_an_adapter_loaded_from_another_path_matches_no_older_block() -> None:
    worker, tokens = Worker(), list(range(40))
    old, new, base = (Asked(tokens, adapter=each) for each in (("sql", "/a"), ("sql", "/b"), None))
    worker.run(old, [1])
    assert (worker.predicted(old), worker.predicted(new), worker.predicted(base)) == (40, 0, 0)
    assert (worker.served(old), worker.served(new), worker.served(base)) == (40, 0, 0)
    worker.run(new, [1])
    assert worker.predicted(old) == worker.predicted(new) == worker.served(new) == 40


def test_without_the_revision_an_adapters_blocks_are_not_reported() -> None:
    worker, asked = Worker(adapters=False), Asked(list(range(40)), adapter=("sql", "/a"))
    worker.run(asked, [1])
    assert (worker.served(asked), worker.predicted(asked), worker.residents.unkeyed) == (40, 0, True)
    assert worker.residents.counts["adapter_revision"] == 10


@pytest.mark.parametrize("lookahead", [0, 1, 3])
def test_media_of_blocks_are_those_of_vllm_also_where_they_overlap(lookahead: int) -> None:
    made = engine("full", lookahead=lookahead)  # imports vLLM
    from vllm.multimodal.inputs import PlaceholderRange  # noqa: PLC0415

    utils: Any = import_module("vllm.v1.core.kv_cache_utils")  # some of it is of newer releases than the one here

    def extra_keys(request: Any, start: int, at: int) -> Any:
        end = start + BLOCK
        if lookahead:
            return utils.generate_lookahead_block_hash_extra_keys(request, start, end, end + lookahead, at)
        return utils.generate_block_hash_extra_keys(request, start, end, at)

    for seed in range(500):
        chance = random.Random(seed)
        placed_at = [(chance.randrange(40), chance.randrange(1, 20)) for _ in range(chance.randrange(1, 5))]
        ranges = [PlaceholderRange(*each) for each in placed_at]
        placed = placed_media({"image": [f"m{at}" for at in range(len(ranges))]}, {"image": ranges})
        assert placed is not None
        request = made.request([7] * 64, **Asked([7] * 64, media=placed).identity)
        expected, at = [], 0
        for start in range(0, 64, BLOCK):
            keys, at = extra_keys(request, start, at)
            expected.append(tuple(key[1:] for key in keys or ()))
        assert media_of_blocks(placed, block_size=BLOCK, blocks=64 // BLOCK, lookahead=lookahead) == expected
