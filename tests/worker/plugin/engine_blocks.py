"""vLLM's real KV cache manager and block pool in this process, without model or executor, with the plugin's budget."""

from __future__ import annotations

import inspect
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

from cachefleet_core.continuation import KEEP_MEMBER
from cachefleet_core.report_frames import Policy
from cachefleet_worker.plugin.budget import budget
from cachefleet_worker.plugin.engine_state import EngineState
from cachefleet_worker.plugin.settings import PluginSettings
from tests.worker.plugin.loaded import BLOCK

WINDOW = 2 * BLOCK
HEADS: dict[str, Any] = {"num_kv_heads": 1, "head_size": 32768 // BLOCK, "dtype": torch.float32}
"""Makes a block of one layer 256 KiB."""


def full() -> KVCacheSpec:
    return FullAttentionSpec(block_size=BLOCK, **HEADS)


def sliding() -> KVCacheSpec:
    return SlidingWindowSpec(block_size=BLOCK, sliding_window=WINDOW, **HEADS)


def wide() -> KVCacheSpec:
    return SlidingWindowSpec(block_size=BLOCK, sliding_window=5 * BLOCK, **HEADS)


def mamba() -> KVCacheSpec:
    return MambaSpec(block_size=BLOCK, shapes=((65536,),), dtypes=(torch.float32,), mamba_cache_mode="all")


def aligned() -> KVCacheSpec:
    return MambaSpec(block_size=BLOCK, shapes=((65536,),), dtypes=(torch.float32,), mamba_cache_mode="align")


def _manager(config: KVCacheConfig, **options: Any) -> KVCacheManager:
    sizes: dict[str, Any] = {"max_model_len": 4096, "scheduler_block_size": BLOCK, "hash_block_size": BLOCK}
    try:
        return KVCacheManager(config, enable_kv_cache_events=True, **sizes, **options)
    except AssertionError as error:
        if "mamba_cache_mode" not in str(error):
            raise
        pytest.skip("this vLLM caches states at aligned places alone")


class Engine:
    """One scheduler's blocks. Requests are run by hand: ``start``, ``grow``, ``finish``."""

    def __init__(
        self,
        *specs: KVCacheSpec,
        blocks: int = 64,
        caching: bool = True,
        retention: int | None = None,
        lookahead: int = 0,
    ) -> None:
        """With ``lookahead`` as for a draft model whose last layer is in every group, from vLLM 0.33 on."""
        init_none_hash(sha256)
        ahead: dict[str, Any] = {}
        if lookahead:
            if "num_hash_lookahead_tokens" not in inspect.signature(KVCacheManager).parameters:
                pytest.skip("this vLLM's hashes cover no tokens after their block")
            if lookahead > 1 and not any(isinstance(spec, FullAttentionSpec) for spec in specs):
                pytest.skip("vLLM 0.33 looks for blocks that have no hash")
            ahead = {"num_hash_lookahead_tokens": lookahead, "num_prefill_lookahead": lookahead}
        drafts: dict[str, Any] = {"is_eagle_group": True} if lookahead else {}
        groups = [KVCacheGroupSpec([f"layer{at}"], spec, **drafts) for at, spec in enumerate(specs)]
        self._hasher = get_request_block_hasher(BLOCK, sha256, *filter(None, [lookahead]))
        kept: dict[str, Any] = {} if retention is None else {"prefix_cache_retention_interval": retention}
        config = KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            **kept,
        )
        self.manager = _manager(config, enable_caching=caching, **ahead)
        self.pool = self.manager.block_pool
        scheduler = SimpleNamespace(kv_cache_manager=self.manager, kv_cache_config=config)
        self.state = EngineState(scheduler, PluginSettings(), rank=0)
        self.budget = budget.install(scheduler, self.state)
        self.announced: Counter[tuple[Any, int | None]] = Counter()
        """Copies of each block that the events so far say are cached."""
        self.removed = 0
        self._names = 0

    def bound(self, mib: int | None, **shares: Any) -> None:
        """Put a policy with this budget, and its shares, in force."""
        generation = self.state.policy.generation + 1
        self.state.apply(Policy(pool="p", uid="u", generation=generation, budget_mib=mib, **shares))

    def request(
        self, tokens: list[int], name: str = "", *, salt: str | None = None, keep: int = 0, **identity: Any
    ) -> Request:
        self._names += 1
        parameters = SamplingParams(max_tokens=1000, extra_args={KEEP_MEMBER: keep} if keep else None)
        name = name or f"r{self._names}"
        return Request(name, tokens, parameters, None, block_hasher=self._hasher, cache_salt=salt, **identity)

    def hit(self, tokens: list[int], salt: str | None = None, **asked: Any) -> int:
        """Tokens of this prompt, and one more, that are cached; changes nothing."""
        return int(self.manager.get_computed_blocks(self.request([*tokens, -1], salt=salt, **asked))[1])

    def start(self, tokens: list[int], *, chunk: int = 4096, **asked: Any) -> Request | None:
        """Run a prompt's prefill in chunks; None where there is no room."""
        request = self.request(tokens, **asked)
        self.manager.new_step_starts()
        computed, hit, *_ = self.manager.get_computed_blocks(request)
        new = min(chunk, len(tokens) - hit)
        if self.manager.allocate_slots(request, new, hit, computed) is None:
            self.manager.free(request)
            return None
        request.num_computed_tokens = hit + new
        while (left := len(tokens) - request.num_computed_tokens) > 0:
            if not self._advance(request, min(chunk, left)):
                self.manager.free(request)
                return None
        return request

    def grow(self, request: Request, outputs: list[int]) -> bool:
        """Produce tokens; False where there is no room for the next one."""
        for token in outputs:
            request.append_output_token_ids(token)
            if not self._advance(request, 1):
                return False
        return True

    def finish(self, request: Request) -> None:
        self.manager.free(request)

    def run(self, tokens: list[int], outputs: list[int] | None = None, *, chunk: int = 4096, **asked: Any) -> None:
        """A whole request; ``asked`` is what ``request`` takes."""
        request = self.start(tokens, chunk=chunk, **asked)
        assert request is not None
        assert self.grow(request, outputs or [])
        self.finish(request)

    def idle(self) -> list[int]:
        """Idle cached blocks in the order of vLLM's own free queue."""
        return [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks() if block.block_hash]

    def check(self) -> None:
        """What holds at all times: queue and references agree, the events tell what is cached, nothing is lost."""
        free = self.pool.free_block_queue.get_all_free_blocks()
        assert len(free) == self.pool.get_num_free_blocks()
        assert {id(block) for block in free} == {
            id(block) for block in self.pool.blocks if block.ref_cnt == 0 and not block.is_null
        }
        self._follow()
        cached = Counter(block.block_hash for block in self.pool.blocks if block.block_hash is not None)
        assert sorted(self.announced.values()) == sorted(cached.values())
        assert all(count > 0 for count in self.announced.values())
        assert self.budget is not None
        if self.state.faults.on("budget"):
            assert self.budget.idle == self.budget.recount()
            assert self.budget.limit is None or self.budget.idle <= self.budget.limit

    def _advance(self, request: Request, new: int) -> bool:
        self.manager.new_step_starts()
        if self.manager.allocate_slots(request, new) is None:
            return False
        request.num_computed_tokens += new
        return True

    def _follow(self) -> None:
        for event in self.manager.take_events():
            if isinstance(event, BlockStored):
                self.announced.update((one, event.group_idx) for one in event.block_hashes)
            elif isinstance(event, BlockRemoved):
                for one in event.block_hashes:
                    key = (one, event.group_idx)
                    assert self.announced[key] > 0, "removed twice, or never stored"
                    self.announced[key] -= 1
                    self.removed += 1
                    if not self.announced[key]:
                        del self.announced[key]
            else:
                assert isinstance(event, AllBlocksCleared)
                self.announced.clear()
