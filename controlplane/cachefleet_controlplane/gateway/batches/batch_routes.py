"""Handlers of ``/v1/batches`` and of what is below it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from cachefleet_controlplane.gateway.admit.request_bodies import RequestBodies
from cachefleet_controlplane.gateway.admit.tenant_admission import AdmittedRequest, admitted_request
from cachefleet_controlplane.gateway.batches.batch_object import (
    ENDPOINTS,
    MAX_METADATA,
    MAX_METADATA_KEY,
    MAX_METADATA_VALUE,
    MAX_WINDOW_HOURS,
    WINDOW,
    Batch,
    BatchBounds,
    new_batch_id,
    window_seconds,
)
from cachefleet_controlplane.gateway.batches.batch_repository import SqlBatches
from cachefleet_controlplane.gateway.batches.batch_status import BatchStatus, StatusError
from cachefleet_controlplane.gateway.batches.batch_store import BatchStore
from cachefleet_controlplane.gateway.files.file_object import Purpose
from cachefleet_controlplane.gateway.files.file_routes import FileRoutes
from cachefleet_controlplane.gateway.files.kept_files import RETRY_SECONDS, KeptFiles
from cachefleet_controlplane.gateway.files.list_query import list_query, listed
from cachefleet_controlplane.gateway.files.object_exchange import named_id, tell, tenant_of
from cachefleet_controlplane.gateway.health import Handler
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.wire.errors import ApiError, shown
from cachefleet_controlplane.wire.http_exchange import Receive, Reply, Scope
from cachefleet_controlplane.wire.json_members import parse_fields, text

T = TypeVar("T")
Find = Callable[[str], Mapping[str, Handler] | None]
"""Returns the handlers of a path by method; None for a path that is another's."""

BATCHES_PATH: Final = "/v1/batches"
CANCEL: Final = "cancel"
PAGE, MAX_PAGE = 20, 100
"""As OpenAI has them."""


class BatchRoutes:
    """Handlers by path and method; ``wall_clock`` is in Unix seconds."""

    def __init__(
        self,
        store: BatchStore,
        files: KeptFiles,
        bodies: RequestBodies,
        bounds: BatchBounds,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self.files = files
        self._bodies = bodies
        self._bounds = bounds
        self._wall_clock = wall_clock
        self._all: Mapping[str, Handler] = {"GET": self._list, "POST": self._create}
        self._one: Mapping[str, Handler] = {"GET": self._show}
        self._cancelled: Mapping[str, Handler] = {"POST": self._cancel}

    def handler(self, path: str) -> Mapping[str, Handler] | None:
        """Return the handlers of a path by method; None for a path that is none of these."""
        if path == BATCHES_PATH:
            return self._all
        batch, _, below = path.removeprefix(f"{BATCHES_PATH}/").partition("/")
        if not batch or not path.startswith(f"{BATCHES_PATH}/"):
            return None
        return {"": self._one, CANCEL: self._cancelled}.get(below)

    async def in_use(self, file: str) -> bool:
        """Whether a batch that is not over reads a file. ApiError 503."""
        return await self._ask("uses", lambda store: store.uses(file))

    async def _create(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        admitted = admitted_request(scope)
        tenant = admitted.tenant.name
        with self._bodies.share(tenant) as share:
            asked = await self._bodies.read(scope, receive, share, read_batch)
        file = await self.files.file(tenant, asked.input_file_id)
        if file.purpose != Purpose.BATCH:
            raise ApiError(400, "The input file must have the purpose `batch`.", param="input_file_id")
        batch = made_batch(asked, admitted, self._wall_clock(), self._bounds)
        if not await self._ask("create", lambda store: store.create(batch, unfinished=self._bounds.unfinished)):
            message = f"A tenant has at most {self._bounds.unfinished} batches that are not over."
            raise ApiError(429, message, code="too_many_batches", headers={"retry-after": "60"})
        await tell(reply, batch.shown())

    async def _list(self, scope: Scope, _: Receive, reply: Reply) -> None:
        asked = list_query(scope, page=PAGE, most=MAX_PAGE)
        found = await self._ask("list", lambda store: store.page(tenant_of(scope), asked))
        if found is None:
            raise ApiError(400, "`after` must be the id of a batch.", param="after")
        shown = [batch.shown() for batch in found[: asked.limit]]
        await tell(reply, listed(shown, more=len(found) > asked.limit))

    async def _show(self, scope: Scope, _: Receive, reply: Reply) -> None:
        named = named_id(scope, BATCHES_PATH)
        await tell(reply, _found(await self._ask("batch", lambda store: store.batch(tenant_of(scope), named)), named))

    async def _cancel(self, scope: Scope, _: Receive, reply: Reply) -> None:
        named, now = named_id(scope, BATCHES_PATH), self._wall_clock()
        try:
            cancelled = await self._ask("cancel", lambda store: store.cancel(tenant_of(scope), named, now=now))
        except StatusError as error:
            raise ApiError(400, f"It cannot be cancelled any more: {error}.") from error
        await tell(reply, _found(cancelled, named))

    async def _ask(self, operation: str, work: Callable[[SqlBatches], T]) -> T:
        """Call the store. ApiError 503 where it cannot be; StatusError."""
        try:
            return await self._store.ask(operation, work)
        except StoreError as error:
            message = "Batches cannot be read or kept now."
            raise ApiError(503, message, headers={"retry-after": str(RETRY_SECONDS)}) from error


def batch_handlers(batches: BatchRoutes) -> tuple[Find, Find]:
    """Return what finds the handlers of batches and of their files."""
    return batches.handler, FileRoutes(batches.files, batches.in_use).handler


class AskedBatch(msgspec.Struct, frozen=True):
    """What a client asks for."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


def read_batch(body: bytes) -> AskedBatch:
    """Return what the body of a request for a batch says. ApiError 400."""
    fields = parse_fields(body)
    for name in ("input_file_id", "endpoint", "completion_window"):
        if not text(fields, name):
            raise ApiError(400, f"`{name}` is required.", param=name, code="missing_required_parameter")
    try:
        asked = msgspec.json.decode(body, type=AskedBatch)
    except msgspec.ValidationError as error:  # of what is not text alone
        raise ApiError(400, "`metadata` must be an object of texts, or null.", param="metadata") from error
    if asked.endpoint not in ENDPOINTS:
        raise ApiError(400, f"`endpoint` must be one of {', '.join(ENDPOINTS)}.", param="endpoint")
    if window_seconds(asked.completion_window) is None:
        message = f"`completion_window` must be `{WINDOW}`, or other hours from `1h` to `{MAX_WINDOW_HOURS}h`."
        raise ApiError(400, message, param="completion_window")
    _check_metadata(asked.metadata or {})
    return asked


def _check_metadata(given: Mapping[str, str]) -> None:
    long = any(len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE for key, value in given.items())
    if long or len(given) > MAX_METADATA:
        bounds = (
            f"at most {MAX_METADATA} pairs, keys of {MAX_METADATA_KEY} and values of {MAX_METADATA_VALUE} characters"
        )
        raise ApiError(400, f"`metadata` may have {bounds}.", param="metadata")


def made_batch(asked: AskedBatch, admitted: AdmittedRequest, now: float, bounds: BatchBounds) -> Batch:
    """Return the batch that an admitted client asks for."""
    expires = now + (window_seconds(asked.completion_window) or 0.0)
    return Batch(
        id=new_batch_id(),
        tenant=admitted.tenant.name,
        endpoint=asked.endpoint,
        input_file=asked.input_file_id,
        window=asked.completion_window,
        given=asked.metadata,
        models=None if admitted.models is None else list(admitted.models.given),
        key=None if admitted.key is None else admitted.key.id,
        model="",
        status=BatchStatus.VALIDATING,
        created=now,
        expires=expires,
        deleted=expires + bounds.kept_seconds,
        times={},
        errors=[],
    )


def _found(batch: Batch | None, named: str) -> Mapping[str, Any]:
    if batch is None:
        raise ApiError(404, f"No batch found with id '{shown(named)}'.", param="batch_id")
    return batch.shown()
