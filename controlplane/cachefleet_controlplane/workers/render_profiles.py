"""Facts that rendering for a model depends on: contract, render profiles, and which workers can give block keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.workers.registry import Pool, Registry
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.report_frames import Hello

KEYS_FEATURE: Final = "keys"
"""Name of the worker plugin's feature that gives block keys."""
PROMPTS_FEATURE: Final = "prompts"
"""Name of the feature that keeps what it rendered for the request that follows."""
_OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class RenderFacts:
    """Facts of one fleet, from its pools and workers."""

    model: str = ""
    """As "namespace/name"."""
    pool: str = ""
    """The first pool, whose worker key its renderers accept; "" where there is none."""
    contract: str = ""
    """Fingerprint of the contract in force; "" until a worker has announced one."""
    block_size: int = 0
    profiles: tuple[str, ...] = ()
    """Fingerprints of its ready workers' render profiles, sorted."""
    keys_at: frozenset[str] = frozenset()
    """URLs of workers whose plugin gives block keys under that contract."""
    prompts_at: frozenset[str] = frozenset()
    """URLs of workers whose plugin keeps rendered prompts, and renders for every API."""

    @property
    def renderer(self) -> str:
        """Cache key: differs where prompts are rendered or keyed differently."""
        return "\n".join((self.model, self.contract, *self.profiles))


NO_FACTS: Final = RenderFacts()


class RenderProfiles:
    """Facts by model name, computed again after the registry has changed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._version = registry.version
        self._facts: dict[str, RenderFacts] = {}

    def of(self, model: str) -> RenderFacts:
        """The facts of a served model; NO_FACTS of any other."""
        if self._version != self._registry.version:
            self._facts.clear()
            self._version = self._registry.version
        if model not in self._facts:
            pools = self._registry.fleet(model)
            if not pools:
                return NO_FACTS
            self._facts[model] = _facts(pools)
        return self._facts[model]


def _facts(pools: list[Pool]) -> RenderFacts:
    contract = next((pool.contract for pool in pools if pool.contract), None)
    workers = [worker for pool in pools for worker in pool.workers.values() if worker.ready and worker.hello]
    profiles = {worker.hello.profile.fingerprint() for worker in workers if worker.hello}
    return RenderFacts(
        model="/".join(pools[0].fleet),
        pool=pools[0].key,
        contract=contract.fingerprint() if contract else "",
        block_size=contract.block_size if contract else pools[0].declared.spec.block_size,
        profiles=tuple(sorted(profiles)),
        keys_at=frozenset(w.endpoint.url for w in workers if w.endpoint and contract and _gives_keys(w, contract)),
        prompts_at=frozenset(w.endpoint.url for w in workers if w.endpoint and _has(w.hello, PROMPTS_FEATURE)),
    )


def _gives_keys(worker: Worker, contract: IndexContract) -> bool:
    hello = worker.hello
    if hello is None or hello.contract != contract:
        return False
    return _has(hello, KEYS_FEATURE)


def _has(hello: Hello | None, feature: str) -> bool:
    return hello is not None and any(one.feature == feature and one.mode != _OFF for one in hello.capabilities)
