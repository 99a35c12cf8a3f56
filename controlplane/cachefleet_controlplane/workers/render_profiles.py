"""Facts that rendering for a model depends on: contract, render profiles, and which workers can give block keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.engine.answer_replay import FEATURE as REPLAY_FEATURE
from cachefleet_core.engine.held_requests import LATE_MEMBERS
from cachefleet_core.engine.left_answers import FEATURE
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.prompt_keys import keys_query
from cachefleet_core.report_frames import Hello

KEYS_FEATURE: Final = "keys"
"""Name of the worker plugin's feature that gives block keys."""
CONVERSATIONS_FEATURE: Final = "conversations"
"""Name of the feature that keeps conversations by handle."""
HELD_FEATURE: Final = "held"
"""Name of the feature that renders requests and holds them until they are to be answered."""
LEFT_FEATURE: Final = FEATURE
"""Name of the feature that says what was made of an answer whose client left."""
MEDIA_FEATURE: Final = "media"
"""Name of the feature by which block keys take images and the like into account."""
_OFF: Final = "off"
_PARSER: Final = "--reasoning-parser"


Profile = tuple[str, str]
"""Fingerprints of render profile and index contract."""


def profile_of(hello: Hello) -> Profile:
    """The fingerprints of a worker's render profile and index contract."""
    return hello.profile.fingerprint(), hello.contract.fingerprint()


@dataclass(frozen=True, slots=True)
class RenderedBy:
    """What the ready workers of a model render by, as Fingerprints name it."""

    tokenizer: str = ""
    renderer: str = ""
    version: str = ""
    profiles: tuple[str, ...] = ()
    """Fingerprints of their render profiles, sorted."""


def rendered_by(hellos: Iterable[Hello]) -> RenderedBy:
    """What the workers that sent ``hellos`` render by."""
    known = {hello.profile.fingerprint(): hello for hello in hellos}
    profiles = [known[name].profile for name in sorted(known)]
    return RenderedBy(
        _joined(hello.contract.tokenizer for hello in known.values()),
        _joined(profile.renderer for profile in profiles),
        _joined(profile.renderer_version for profile in profiles),
        tuple(sorted(known)),
    )


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
    lookahead: int = 0
    """Tokens after a block that its key covers, by that contract."""
    profiles: tuple[str, ...] = ()
    """Fingerprints of its ready workers' render profiles, sorted."""
    keys_at: frozenset[str] = frozenset()
    """URLs of workers whose plugin gives block keys under that contract."""
    conversations_at: frozenset[str] = frozenset()
    """URLs of workers whose plugin keeps conversations by handle."""
    held_at: frozenset[str] = frozenset()
    """URLs of workers whose plugin holds requests."""
    late_members_at: frozenset[str] = frozenset()
    """URLs of those whose plugin takes late members of their bodies."""
    left_at: frozenset[str] = frozenset()
    """URLs of workers whose plugin says what was made for a client that left."""
    replays_at: frozenset[str] = frozenset()
    """URLs of workers whose plugin records streams, and makes recorded ones again."""
    replay_lacking: frozenset[str] = frozenset()
    """Full names of all workers whose plugin does not, or that have none."""
    adapter: bool = False
    """Whether it is an adapter of the model: workers alone can tell its keys, and they may change at any time."""
    media_at: frozenset[str] = frozenset()
    """URLs of workers that give block keys for prompts with media."""
    rendered_by: RenderedBy = RenderedBy()
    """What all ready workers render by."""
    certifiable: frozenset[Profile] = frozenset()
    """Their pairs of render profile and index contract."""
    parses_reasoning: bool = False
    """Any of them takes chats' reasoning apart from their answers."""
    indexed: bool = True
    """Hits on any worker can be told from blocks; True before one has come."""

    @property
    def keys_query(self) -> str:
        """How a worker's plugin is asked for keys of that contract."""
        return keys_query(self.contract, self.block_size, self.lookahead)

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
            served = self._registry.serving(model)
            self._facts[model] = replace(_facts(pools), adapter=served is not None and served.is_adapter)
        return self._facts[model]


def _facts(pools: list[Pool]) -> RenderFacts:
    contract = next((pool.contract for pool in pools if pool.contract), None)
    workers = [worker for pool in pools for worker in pool.workers.values() if worker.ready and worker.hello]
    hellos = [worker.hello for worker in workers if worker.hello]
    return RenderFacts(
        model="/".join(pools[0].fleet),
        pool=pools[0].key,
        contract=contract.fingerprint() if contract else "",
        block_size=contract.block_size if contract else pools[0].declared.spec.block_size,
        lookahead=contract.lookahead if contract else 0,
        profiles=rendered_by(hellos).profiles,
        keys_at=frozenset(w.endpoint.url for w in workers if w.endpoint and contract and _gives_keys(w, contract)),
        media_at=_urls(workers, MEDIA_FEATURE),
        held_at=_urls(workers, HELD_FEATURE),
        late_members_at=_urls(workers, HELD_FEATURE, LATE_MEMBERS),
        left_at=_urls(workers, LEFT_FEATURE),
        replays_at=_urls(workers, REPLAY_FEATURE),
        replay_lacking=frozenset(
            worker.full_name
            for pool in pools
            for worker in pool.workers.values()
            if not _has(worker.hello, REPLAY_FEATURE)
        ),
        conversations_at=_urls(workers, CONVERSATIONS_FEATURE),
        rendered_by=rendered_by(hellos),
        certifiable=frozenset(map(profile_of, hellos)),
        parses_reasoning=any(hello.profile.reasoning_parser for hello in hellos) or any(map(_names_parser, pools)),
        indexed=_indexed(pools),
    )


def _names_parser(pool: Pool) -> bool:
    """Whether a pool's own arguments name a reasoning parser; vLLM takes the beginning of an option for all of it."""
    words = (word.replace("_", "-") for word in pool.declared.spec.engine.extra_args)
    return any(word.startswith(_PARSER) for word in words)


def _indexed(pools: list[Pool]) -> bool:
    hellos = [one.hello for pool in pools for one in pool.workers.values() if one.hello]
    return not hellos or any(not hello.not_indexed for hello in hellos)


def _urls(workers: Iterable[Worker], feature: str, mode: str = "") -> frozenset[str]:
    """URLs of the workers whose plugin has a feature, in that mode where one is named."""
    return frozenset(w.endpoint.url for w in workers if w.endpoint and _has(w.hello, feature, mode))


def _gives_keys(worker: Worker, contract: IndexContract) -> bool:
    hello = worker.hello
    if hello is None or hello.contract != contract:
        return False
    return _has(hello, KEYS_FEATURE)


def _has(hello: Hello | None, feature: str, mode: str = "") -> bool:
    modes = [one.mode for one in hello.capabilities if one.feature == feature] if hello is not None else []
    return any(one == mode if mode else one != _OFF for one in modes)


def _joined(values: Iterable[str]) -> str:
    """One value where all agree; during a rollout all there are, sorted."""
    return ",".join(sorted(set(values)))[:1024]
