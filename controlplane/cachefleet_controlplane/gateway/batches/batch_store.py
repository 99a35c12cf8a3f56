"""Calls of the batches' repository from the event loop; what it refuses is raised there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cachefleet_controlplane.gateway.batches.batch_repository import LeaseLostError, SqlBatches
from cachefleet_controlplane.gateway.batches.batch_status import StatusError
from cachefleet_controlplane.store.content.store_thread import StoreThread

T = TypeVar("T")


class BatchStore:
    """The repository in its thread."""

    def __init__(self, thread: StoreThread[SqlBatches]) -> None:
        self._thread = thread

    async def ask(self, operation: str, work: Callable[[SqlBatches], T]) -> T:
        """Return what ``work`` returns in the thread. StoreError, LeaseLostError, StatusError."""

        def caught(store: SqlBatches) -> T | LeaseLostError | StatusError:
            try:
                return work(store)
            except (LeaseLostError, StatusError) as refused:  # no failure of the store
                return refused

        found = await self._thread.ask(operation, caught)
        if isinstance(found, LeaseLostError | StatusError):
            raise found
        return found
