"""All pools as the API server lists them, and the wait for their CRD where it is not installed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from cachefleet_core.pool.spec import API_VERSION, KIND
from cachefleet_operator.waiting import Waiting
from cachefleet_runtime.kubernetes import LIST_PAGE, KubernetesError, Object, RefusedError

log = logging.getLogger(__name__)

MISSING: Final = "the CRD prefixcachepools.cachefleet.io is not installed"


class ListApi(Protocol):
    """The API request by which pools are listed."""

    async def list(self, kind: str, namespace: str, *, page: int, selector: str = "") -> list[Object] | None: ...


class PoolList:
    """Lists the pools of the watched namespaces (none: all); reports to ``waiting`` why it cannot.

    While the CRD is missing it looks again every ``look_seconds``.
    """

    def __init__(self, api: ListApi, namespaces: Sequence[str], waiting: Waiting, *, look_seconds: float) -> None:
        self._api = api
        self._namespaces = namespaces or ("",)
        self._waiting = waiting
        self._look_seconds = look_seconds

    async def documents(self) -> list[Object] | None:
        """All pools; None where the CRD is not installed. Namespaces that may not be read are left out.

        KubernetesError where none can be read.
        """
        found: list[Object] = []
        refused: list[RefusedError] = []
        for namespace in self._namespaces:
            try:
                items = await self._api.list(KIND, namespace, page=LIST_PAGE)
            except RefusedError as error:  # for instance a deleted namespace, and with it the right to read it
                refused.append(error)
                continue
            if items is None:
                return None
            found += [{"apiVersion": API_VERSION, "kind": KIND, **item} for item in items]
        if len(refused) == len(self._namespaces):
            raise refused[0]
        for each in refused:
            log.warning("the pools of a namespace are left out: %s", each)
        return found

    async def keys(self) -> list[str] | None:
        """The pools' keys "namespace/name"; otherwise as ``documents``."""
        found = await self.documents()
        if found is None:
            return None
        return [f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in found]

    async def wait(self) -> list[Object]:
        """All pools, once their CRD is there and they can be listed."""
        while True:
            try:
                found = await self.documents()
                self._waiting.become(MISSING if found is None else "")
                if found is not None:
                    return found
            except KubernetesError as error:
                self._waiting.become(f"pools could not be listed: {error}")
            await asyncio.sleep(self._look_seconds)
