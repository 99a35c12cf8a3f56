"""Stored responses: continued, shown, deleted, and encrypted for the store."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Raw

from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.gateway.converse.checkpoint import Owner
from cachefleet_controlplane.gateway.converse.checkpoint_repository import SqlContinuations
from cachefleet_controlplane.gateway.converse.encryption import ConversationHistory, HistoryCipher, HistoryError
from cachefleet_controlplane.gateway.converse.records import SealedResponse
from cachefleet_controlplane.gateway.converse.rehydration import (
    PREVIOUS,
    Finished,
    continued,
    finished,
    input_items,
    is_id,
    joined,
    split,
    wants_storing,
)
from cachefleet_controlplane.gateway.converse.retention import Allowance, allowance
from cachefleet_controlplane.store.content.store_thread import StoreThread
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.wire.errors import ApiError, shown
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.tenancy import TenantId

SETTING = "spec.continuation.storeHistory"
BOUND = "CACHEFLEET_CONTINUATION_HISTORY_BYTES"
RETRY_SECONDS = 5


class Histories:
    """Stored conversations by the id of a response; ``max_bytes`` bounds the input of one that is stored."""

    def __init__(
        self,
        store_thread: StoreThread[SqlContinuations],
        cipher: HistoryCipher,
        *,
        max_bytes: int,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store_thread = store_thread
        self._cipher = cipher
        self._max_bytes = max_bytes
        self._wall_clock = wall_clock

    def stores(self, info: RequestInfo, allowed: Allowance) -> bool:
        """Whether a request's response is to be stored. ApiError 413 where its input is too long for that."""
        wanted = info.endpoint is Endpoint.RESPONSES and allowed.history and wants_storing(info)
        if wanted:
            self._check(len(bytes(info.fields.get("input", b""))))
        return wanted

    async def continued(self, info: RequestInfo, previous: str, *, tenant: TenantId, model: ServedModel) -> RequestInfo:
        """Return the request with its whole input. ApiError: 400 where nothing is stored, 404, 413, 503."""
        if not allowance(model.declared).history:
            message = (
                f"`{PREVIOUS}` is not supported: responses are not stored here. It needs `{SETTING}: true`, and "
                f"`enabled`, in every pool of the model `{model.name}`. Send the whole conversation as `input`."
            )
            raise ApiError(400, message, param=PREVIOUS)
        history = await self._read(tenant, previous)
        if history is None:
            raise ApiError(404, f"Previous response with id '{shown(previous)}' not found.", param=PREVIOUS)
        whole = continued(info, split(history.items))
        if wants_storing(info):
            self._check(len(bytes(whole.fields["input"])))
        return whole

    async def shown(self, tenant: TenantId, response: str) -> bytes:
        """Return a response as its client got it. ApiError 404, 503."""
        history = await self._read(tenant, response)
        if history is None:
            raise _not_found(response)
        return history.response

    async def model(self, tenant: TenantId, response: str) -> str:
        """Return the full name of the model that made a response; "" where it is not stored. ApiError 503."""
        found = await self._sealed(tenant, response)
        return "" if found is None else found.model

    async def input_items(self, tenant: TenantId, response: str) -> tuple[Raw, ...]:
        """Return the items of all input that a response answers, those of responses before it among them.

        ApiError 404, 503.
        """
        history = await self._read(tenant, response)
        made = None if history is None else finished(history.response)
        if history is None or made is None:
            raise _not_found(response)
        items = split(history.items)
        return items[: len(items) - len(made.output)]

    async def deleted(self, tenant: TenantId, response: str) -> None:
        """Delete a response. ApiError 404, 503."""
        if not is_id(response):
            raise _not_found(response)
        now = self._wall_clock()
        try:
            there = await self._store_thread.ask("delete", lambda store: store.forget(tenant, response, now=now))
        except StoreError as error:
            raise _unavailable() from error
        if not there:
            raise _not_found(response)

    def sealed(
        self, info: RequestInfo, response: Finished, body: bytes, owner: Owner, *, now: float, expires: float
    ) -> SealedResponse:
        """Return the encrypted record of a response to ``info``, whose input is whole."""
        history = ConversationHistory(joined((*input_items(info), *response.output)), body)
        return SealedResponse(
            tenant=owner.tenant,
            id=response.id,
            model=owner.model,
            sealed=self._cipher.seal(history, tenant=owner.tenant, response=response.id),
            created=now,
            expires=expires,
        )

    async def _read(self, tenant: TenantId, response: str) -> ConversationHistory | None:
        """None for a response that is not stored, or cannot be decrypted."""
        found = await self._sealed(tenant, response)
        try:
            return None if found is None else self._cipher.open(found.sealed, tenant=tenant, response=response)
        except HistoryError:
            return None

    async def _sealed(self, tenant: TenantId, response: str) -> SealedResponse | None:
        if not is_id(response):
            return None
        now = self._wall_clock()
        try:
            return await self._store_thread.ask("history", lambda store: store.response(tenant, response, now=now))
        except StoreError as error:
            raise _unavailable() from error

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            message = (
                f"The conversation is {size} bytes, and at most {self._max_bytes} are stored ({BOUND}). "
                "Send it as `input` with `store: false`."
            )
            raise ApiError(413, message, param="input")


def _not_found(response: str) -> ApiError:
    return ApiError(404, f"Response with id '{shown(response)}' not found.", param="response_id")


def _unavailable() -> ApiError:
    return ApiError(503, "Stored responses cannot be read now.", headers={"retry-after": str(RETRY_SECONDS)})
