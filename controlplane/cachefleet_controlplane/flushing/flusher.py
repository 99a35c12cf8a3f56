"""Asks workers to flush, all at once, and adds up what they answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
from prometheus_client import Counter

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.flushing.flush_plan import NO_PLUGIN, Target, targets
from cachefleet_controlplane.flushing.flush_scope import Scope, models_meant
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import AttemptResult
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import READ_ERRORS
from cachefleet_core.engine.cache_flush import FLUSH_PATH, MAX_SALTS, FlushAnswer, Flushed
from cachefleet_core.prompt_keys import TOKEN_HEADER
from cachefleet_core.tenancy import salt_digest, tenant_salt

logger = logging.getLogger(__name__)

SECONDS: Final = 30.0
"""Longest time for all workers together."""
AT_ONCE: Final = 64
"""Workers that are asked at one time."""
_FAULTS_OF_PROMPT: Final = frozenset({400, 422})
_NO_ROUTE: Final = frozenset({404, 405})
_MAY_STILL: Final = "; it may flush all the same once it gets to it"
_WORDS: Final[Mapping[Outcome, str]] = {
    Outcome.UNREACHABLE: "the engine cannot be reached",
    Outcome.LOST: f"the connection ended before the answer{_MAY_STILL}",
    Outcome.SILENT: f"no answer in time{_MAY_STILL}",
    Outcome.KEY_REFUSED: "the engine refuses the control plane's key",
    Outcome.OVERSIZED: "the answer is too long",
    Outcome.UNDECODABLE: "the answer is compressed in a way that cannot be read",
}

_answer = msgspec.json.Decoder(FlushAnswer, strict=False)  # JSON object keys are strings, ranks are integers


class _Error(msgspec.Struct):
    message: str = ""


class _Refusal(msgspec.Struct):
    error: _Error


_refusal = msgspec.json.Decoder(_Refusal)


class Parts(Protocol):
    """What it needs of ``GatewayContext``."""

    @property
    def fleet(self) -> Fleet: ...
    @property
    def upstream(self) -> Upstream: ...
    @property
    def credentials(self) -> Credentials: ...
    @property
    def metrics(self) -> Metrics: ...


class Admission(Protocol):
    """What it needs of ``AdmissionMiddleware``."""

    def named(self, tenant: str | None) -> TenantRecord:
        """A tenant by its name. ApiError 404."""
        ...

    async def informed(self) -> None:
        """Wait until the tenants are known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFlush:
    """What one worker flushed, or would; ``error`` says why not, "" where it did."""

    worker: str
    pool: str
    blocks: int = 0
    tokens: int = 0
    busy: int = 0
    error: str = ""
    status: int = 200
    """Of its answer; 0 where it was not asked, or gave none."""


class Flusher:
    """Flushes what a scope means on all workers; ``salt_key`` makes tenants' salts, of which workers know digests."""

    def __init__(self, parts: Parts, admission: Admission, *, salt_key: bytes, seconds: float = SECONDS) -> None:
        self._parts = parts
        self._admission = admission
        self._salt_key = salt_key
        self._seconds = seconds
        self._seats = asyncio.Semaphore(AT_ONCE)
        registry = parts.metrics.registry
        self._flushed = Counter(
            "cachefleet_flushed_blocks", "Blocks flushed by the admin API", ["pool"], registry=registry
        )
        self._failed = Counter(
            "cachefleet_flush_failures", "Workers that did not flush as asked", ["pool"], registry=registry
        )

    async def __call__(self, scope: Scope, *, dry_run: bool) -> list[WorkerFlush]:
        """Flush, or say what would go; an entry for each worker. ApiError where the scope is wrong."""
        scope.check()
        await self._admission.informed()
        asked = None if scope.model is None else self._parts.fleet.serving(scope.model)
        models = models_meant(scope, self._parts.fleet.models(), asked)
        workers = self._parts.fleet.view().workers
        found = targets(scope, models, workers, digests=lambda: self._digests(scope.tenant), dry_run=dry_run)
        flushes = await asyncio.gather(*(self._flush(target, asyncio.get_running_loop().time()) for target in found))
        _check_prompt(scope, flushes)
        if not dry_run:
            self._count(flushes)
        return list(flushes)

    def _digests(self, tenant: str | None) -> tuple[str, ...]:
        """Of a tenant's salts: the present one and those that it had before."""
        try:
            record = self._admission.named(tenant)
        except ApiError as error:
            raise ApiError(error.status, error.message, param="scope.tenant") from error
        versions = range(max(1, record.salt_version - MAX_SALTS + 1), record.salt_version + 1)
        return tuple(salt_digest(tenant_salt(self._salt_key, record.name, version)) for version in versions)

    async def _flush(self, target: Target, began: float) -> WorkerFlush:
        if target.problem:
            return WorkerFlush(worker=target.worker, pool=target.pool, error=target.problem, status=0)
        async with self._seats:
            left = max(0.0, began + self._seconds - asyncio.get_running_loop().time())
            key = self._parts.credentials.of(target.url)
            headers = [("content-type", "application/json"), ("authorization", f"Bearer {key}"), (TOKEN_HEADER, key)]
            body = msgspec.json.encode(target.ask)
            opened = await self._parts.upstream.ask(target.url, FLUSH_PATH, body, headers=headers, seconds=left)
        return read(target, opened)

    def _count(self, flushes: Sequence[WorkerFlush]) -> None:
        for one in flushes:
            self._flushed.labels(one.pool).inc(one.blocks)
            if one.error:
                self._failed.labels(one.pool).inc()
        blocks, failed = sum(one.blocks for one in flushes), sum(bool(one.error) for one in flushes)
        logger.info("cached blocks flushed", extra={"blocks": blocks, "workers": len(flushes), "failed": failed})


def read(target: Target, opened: AttemptResult) -> WorkerFlush:
    """A worker's answer, or why there is none."""
    status = opened.answer.status if opened.answer is not None else 0
    if status == 200 and opened.answer is not None:
        with suppress(*READ_ERRORS):
            ranks = _answer.decode(opened.answer.body).ranks.values()
            return _summed(target, list(ranks))
    absent = NO_PLUGIN if status in _NO_ROUTE else ""
    error = absent or _WORDS.get(opened.outcome) or _error_message(opened) or f"status {status}"
    return WorkerFlush(worker=target.worker, pool=target.pool, error=error, status=status)


def _summed(target: Target, ranks: Sequence[Flushed]) -> WorkerFlush:
    blocks, tokens, busy = (sum(getattr(one, name) for one in ranks) for name in ("blocks", "tokens", "busy"))
    return WorkerFlush(worker=target.worker, pool=target.pool, blocks=blocks, tokens=tokens, busy=busy)


def _error_message(opened: AttemptResult) -> str:
    """The message of an error answer, by the plugin or by vLLM; "" for none."""
    if opened.answer is None:
        return ""
    with suppress(*READ_ERRORS):
        return _refusal.decode(opened.answer.body).error.message
    return ""


def _check_prompt(scope: Scope, flushes: Sequence[WorkerFlush]) -> None:
    """ApiError 422 where every worker that was asked finds fault with the prompt."""
    asked = [one for one in flushes if one.status]
    if scope.prompt is not None and asked and all(one.status in _FAULTS_OF_PROMPT for one in asked):
        raise ApiError(422, asked[0].error, param="scope.prompt")
