"""Examines render profiles at their workers, one at a time: on request, and by itself where a pool has handles."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.converse.certification.certificates import (
    VERSION,
    Certificates,
)
from cachefleet_controlplane.gateway.converse.certification.examination import (
    DEFAULT_CHATS,
    CertificationVerdict,
    Message,
    TurnSeen,
    chats,
    judged,
    turns,
)
from cachefleet_controlplane.gateway.converse.certification.plain_render import PlainRenderer
from cachefleet_controlplane.gateway.converse.conversation_metrics import ContinuationMetrics
from cachefleet_controlplane.gateway.converse.records import Certificate
from cachefleet_controlplane.gateway.converse.retention import allowance
from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.workers.render_profiles import Profile, RenderFacts, profile_of
from cachefleet_controlplane.workers.views import ServedModel

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 15.0
"""Between two searches for profiles to examine."""
AGAIN_SECONDS: Final = 600.0
"""Before a profile that was refused, or could not be examined, is examined again without a request."""
DEFAULT_LENGTH: Final = 8192
_UNEXAMINED: Final = frozenset({"unrendered", "unserved"})
"""Counts that speak of a failing worker."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One worker that is examined for a profile."""

    profile: Profile
    worker: WorkerEndpoint


class Examiner:
    """Examines the profiles of the fleet's workers; run ``run()`` as a task."""

    def __init__(
        self,
        fleet: Fleet,
        plain: PlainRenderer,
        certificates: Certificates,
        *,
        metrics: ContinuationMetrics,
        chats: int = DEFAULT_CHATS,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._plain = plain
        self.certificates = certificates
        self._metrics = metrics
        self._chats = chats
        self._clock = clock
        self._wall_clock = wall_clock
        self._examining = asyncio.Lock()
        self._not_before: dict[Profile, float] = {}

    @property
    def busy(self) -> bool:
        """An examination is under way."""
        return self._examining.locked()

    def all_certificates(self) -> list[Certificate]:
        """Return all certificates, for the admin API."""
        return self.certificates.all()

    async def examine(self, *, model: str | None, pool: str | None, chats: int, seed: int) -> list[Certificate]:
        """Examine a model, or that of a pool, or all; return the certificates. LookupError for one not served."""
        served = self._fleet.models()
        if pool is not None:
            served = [one for one in served if pool in one.pools]
        if model is not None:
            names = [one.upstream for one in served] + [f"{one.namespace}/{one.upstream}" for one in served]
            found = self._fleet.serving(model) if model in names else None
            served = [] if found is None else [found]
        if not served:
            raise LookupError(f"no model is served that is named {model or pool or 'anything'}")
        return [made for one in served for made in await self.certify(one, chats=chats, seed=seed)]

    async def certify(self, model: ServedModel, *, chats: int, seed: int) -> list[Certificate]:
        """Examine each profile of a model's ready workers; return the certificates, granted or refused."""
        made = []
        for candidate in self._candidates(model.name):
            async with self._examining:
                made.append(await self._examine(model, candidate, chats=chats, seed=seed))
        return made

    async def run(self) -> None:
        """Read the certificates and ``look``, every LOOK_SECONDS, until cancelled."""
        while True:
            try:
                await self.certificates.load()
            except StoreError:
                logger.debug("certificates cannot be read now")
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Examine each profile without a certificate, once, of models whose pools have handles."""
        now = self._clock()
        for model in self._fleet.models():
            if not allowance(model.declared).handles:
                continue
            for candidate in self._candidates(model.name):
                held = self.certificates.of(candidate.profile)
                if (held is None or not held.certified) and self._not_before.get(candidate.profile, 0.0) <= now:
                    self._not_before[candidate.profile] = now + AGAIN_SECONDS
                    async with self._examining:
                        await self._examine(model, candidate, chats=self._chats, seed=secrets.randbits(32))

    def _candidates(self, model: str) -> list[Candidate]:
        """One worker for each profile, the least busy."""
        profiles = {hello.worker: profile_of(hello) for hello in self._fleet.announced(model)}
        found: dict[Profile, WorkerEndpoint] = {}
        for worker in self._fleet.renderers(model):
            if worker.name in profiles:
                found.setdefault(profiles[worker.name], worker)
        return [Candidate(profile, worker) for profile, worker in found.items()]

    async def _examine(self, model: ServedModel, candidate: Candidate, *, chats: int, seed: int) -> Certificate:
        verdict = await self._verdict(model, candidate.worker, count=chats, seed=seed)
        made = Certificate(
            profile=candidate.profile[0],
            contract=candidate.profile[1],
            model=f"{model.namespace}/{model.upstream}",
            certified=verdict.certified,
            reason=verdict.reason,
            at=self._wall_clock(),
            version=VERSION,
            counts=verdict.counts,
        )
        await self.certificates.put(made)
        failed = bool(_UNEXAMINED & verdict.counts.keys())
        self._metrics.certified("certified" if made.certified else "failed" if failed else "refused")
        facts = {"model": made.model, "profile": made.profile, "reason": made.reason}
        logger.info("a render profile was %s", "certified" if made.certified else "refused", extra=facts)
        return made

    async def _verdict(
        self, model: ServedModel, worker: WorkerEndpoint, *, count: int, seed: int
    ) -> CertificationVerdict:
        facts = self._fleet.render_facts(model.name)
        salt = secrets.token_urlsafe(16)  # no tenant's, so no request hits these blocks
        examined: list[Sequence[TurnSeen]] = []
        for messages in chats(seed, count, longest=model.max_model_len or DEFAULT_LENGTH):
            asked = [_body(model.upstream, turn, salt) for turn in turns(messages)]
            seen = [await self._turn_seen(worker, facts, body, last=body is asked[-1]) for body in asked]
            examined.append(seen)
            if any(turn.first is None for turn in seen):
                break  # the worker is failing: no need to add to its load
        return judged(examined)

    async def _turn_seen(self, worker: WorkerEndpoint, facts: RenderFacts, body: bytes, *, last: bool) -> TurnSeen:
        plain = self._plain
        first = await plain.rendered(worker, Endpoint.CHAT, body)
        second = await plain.rendered(worker, Endpoint.CHAT, body)
        keyed = await plain.keyed(worker, body, facts) if facts.contract else None
        ids, boundaries = keyed or (None, ())
        return TurnSeen(first, second, ids, boundaries, await plain.served(worker, body) if last else None, last=last)


def _body(model: str, messages: Sequence[Message], salt: str) -> bytes:
    return msgspec.json.encode(
        {
            "model": model,
            "messages": messages,
            "max_tokens": 1,
            "temperature": 0,
            "return_token_ids": True,
            "cache_salt": salt,
        }
    )
