"""Looks token ids up in the index for other routers: how much of a prompt each worker holds, for one tenant."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Raw, UnsetType

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.admit.model_lookup import find_model
from cachefleet_controlplane.index_queries.query_shapes import DEFAULT, Found
from cachefleet_controlplane.pools.cache_salts import Salter
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.pool.spec import PoolSpec
from cachefleet_core.request_bodies import BodyError, token_ids

MAX_TOKENS: Final = 1_048_576
"""Token ids of one query."""
_TOKENS: Final = "token_ids"


class TenantNames(Protocol):
    """What it needs of ``AdmissionMiddleware``."""

    def named(self, tenant: str | None) -> TenantRecord:
        """A tenant by its name. ApiError 404."""
        ...

    async def informed(self) -> None:
        """Wait until the tenants are known."""
        ...


class IndexQueries:
    """Answers from the index as it is now; asks no worker, and changes nothing. ``salt_key`` makes tenants' salts."""

    def __init__(
        self, fleet: Fleet, admission: TenantNames, *, salt_key: bytes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fleet = fleet
        self._admission = admission
        self._salter = Salter(salt_key)
        self._clock = clock

    async def find(
        self, model: str, tokens: Raw | UnsetType, tenant: str = DEFAULT, *, block_size: int | None = None
    ) -> Found:
        """What each ready worker of a model holds of a prompt. ApiError 400, 404.

        Workers whose reports are not trusted hold nothing, as in decisions. ``block_size``: what the asker expects.
        """
        await self._admission.informed()
        served = find_model(self._fleet, model)
        if served.is_adapter:
            raise ApiError(400, "Blocks of adapters cannot be asked for by token ids.", param="model")
        size = _pool_spec(served).block_size
        if block_size not in {None, size}:
            raise ApiError(400, f"`block_size` is {block_size}, the model's blocks have {size} tokens.")
        record = self._named(tenant)
        salt = self._salter.salt(served.declared, record.name, record.salt_version)
        count, keys = self._keyed(served, salt, tokens)
        held = self._fleet.holders.prefixes(served.name, keys, self._clock())
        return Found(size, count // size, held)

    def _named(self, tenant: str) -> TenantRecord:
        try:
            return self._admission.named(None if tenant == DEFAULT else tenant)
        except ApiError as error:
            raise ApiError(error.status, error.message, param="tenant_id") from error

    def _keyed(self, served: ServedModel, salt: str, tokens: Raw | UnsetType) -> tuple[int, bytes]:
        """The number of token ids and their block keys, none of these while no worker has told how they are made."""
        if isinstance(tokens, UnsetType):
            raise ApiError(400, f"`{_TOKENS}` is required: an array of token ids.", param=_TOKENS)
        body = b'{"%b":%b}' % (_TOKENS.encode(), tokens)
        if body.count(b",") >= MAX_TOKENS:
            raise ApiError(400, f"`{_TOKENS}` must have at most {MAX_TOKENS} entries.", param=_TOKENS)
        keyer = self._fleet.keyer(served.name, salt=salt)
        try:
            return (len(token_ids(body, _TOKENS)), b"") if keyer is None else keyer.packed_json(body, _TOKENS)
        except BodyError as error:
            message = f"`{_TOKENS}` must be an array of whole numbers from 0 to 4294967295."
            raise ApiError(400, message, param=_TOKENS) from error


def _pool_spec(served: ServedModel) -> PoolSpec:
    return served.declared[0].spec
