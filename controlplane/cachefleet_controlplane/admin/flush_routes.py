"""``POST /admin/v1/flush``: evict cached blocks, or say what would go."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field

from cachefleet_controlplane.admin.admin_openapi import ERRORS, refusals
from cachefleet_controlplane.admin.audit.audit_middleware import note_change
from cachefleet_controlplane.admin.schemas import Schema
from cachefleet_controlplane.flushing.flush_scope import Scope
from cachefleet_controlplane.flushing.flusher import WorkerFlush

Named = Annotated[str | None, Field(min_length=1, max_length=512)]
_REFUSALS = refusals(404)


class FlushScope(Schema):
    """What is to go: all that is named holds at once."""

    model_config = ConfigDict(extra="forbid")

    model: Named = None
    """A served model or adapter, or namespace/name. A model's name means its adapters' blocks as well."""
    pool: Named = None
    """As namespace/name."""
    worker: Named = None
    """Its name, namespace/pool/name, or with #rank one rank alone."""
    tenant: Named = None
    """Blocks computed for this tenant, under its present salt or a former one."""
    prompt: dict[str, Any] | None = None
    """A chat (`messages`) or completion (`prompt`, a text or token ids): what begins with it."""
    all: bool = False
    """Everything; goes with nothing else."""


class FlushRequest(Schema):
    """What to flush, and whether only to say what would go."""

    model_config = ConfigDict(extra="forbid")

    scope: FlushScope
    dry_run: bool = False


class FlushedWorker(Schema):
    """What one worker flushed, or would; error is null where it did as asked."""

    worker: str
    pool: str
    blocks: int
    tokens: int
    """Tokens of prompts that these blocks hold."""
    busy: int
    """Blocks that are meant as well and that running requests use: they stay."""
    error: str | None


class FlushReport(Schema):
    """Each worker's answer, and their sums."""

    workers: tuple[FlushedWorker, ...]
    blocks: int
    tokens: int
    busy: int
    dry_run: bool


class Flush(Protocol):
    """Flushes what a scope means; ApiError where it is wrong."""

    async def __call__(self, scope: Scope, *, dry_run: bool) -> list[WorkerFlush]: ...


def flush_routes(flush: Flush) -> APIRouter:
    """The route ``POST /flush``."""
    router = APIRouter(tags=["fleet"], responses=ERRORS)

    @router.post("/flush", summary="Evict idle cached blocks, or say what would go", responses=_REFUSALS)
    async def flushed(wanted: FlushRequest, request: Request) -> FlushReport:
        note_change(request, without_prompt(wanted))
        named = wanted.scope.model_dump(exclude={"all"})
        return report(await flush(Scope(**named, everything=wanted.scope.all), dry_run=wanted.dry_run), wanted.dry_run)

    return router


def without_prompt(wanted: FlushRequest) -> dict[str, Any]:
    """A request as the audit log may have it: whether a prompt was named, and not which."""
    named = wanted.scope.model_dump(exclude_defaults=True)
    return {"scope": named | ({"prompt": True} if "prompt" in named else {}), "dryRun": wanted.dry_run}


def report(told: list[WorkerFlush], dry_run: bool) -> FlushReport:  # noqa: FBT001 - as the API has it
    """The workers' answers as the API shows them."""
    workers = tuple(
        FlushedWorker(
            worker=one.worker,
            pool=one.pool,
            blocks=one.blocks,
            tokens=one.tokens,
            busy=one.busy,
            error=one.error or None,
        )
        for one in told
    )
    blocks, tokens, busy = (sum(getattr(one, name) for one in told) for name in ("blocks", "tokens", "busy"))
    return FlushReport(workers=workers, blocks=blocks, tokens=tokens, busy=busy, dry_run=dry_run)
