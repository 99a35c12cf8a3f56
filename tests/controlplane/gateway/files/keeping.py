"""Files in a database of a test's own, and a clock that it moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select, text

from cachefleet_controlplane.gateway.admit.request_bodies import RequestBodies
from cachefleet_controlplane.gateway.batches.batch_object import BatchBounds
from cachefleet_controlplane.gateway.batches.batch_repository import SqlBatches
from cachefleet_controlplane.gateway.batches.batch_routes import BatchRoutes
from cachefleet_controlplane.gateway.batches.batch_store import BatchStore
from cachefleet_controlplane.gateway.files.file_contents import FileContents
from cachefleet_controlplane.gateway.files.file_object import FileBounds
from cachefleet_controlplane.gateway.files.file_repository import SqlFiles
from cachefleet_controlplane.gateway.files.kept_files import LABEL, KeptFiles
from cachefleet_controlplane.store.content.store_thread import StoreThread, StoreThreadBounds
from cachefleet_controlplane.store.content.tenant_cipher import TenantCipher
from cachefleet_controlplane.store.database import Database
from tests.controlplane.gateway.harness import FLEET_KEY

BEGINNING = 1_800_000_000.0


@dataclass
class Clock:
    now: float = BEGINNING

    def __call__(self) -> float:
        return self.now


@dataclass
class Keeping:
    """What keeps files, and the failures of its store by operation."""

    database: Database
    bounds: FileBounds = field(default_factory=FileBounds)
    clock: Clock = field(default_factory=Clock)
    failed: list[str] = field(default_factory=list)
    url: str = ""
    """Of object storage; "" keeps files in the database."""

    def __post_init__(self) -> None:
        self.database.open()
        self.store = StoreThread(
            *(SqlFiles(self.database), "files"),
            failed=self.failed.append,
            prune=lambda store: store.prune(now=self.clock()),
            bounds=StoreThreadBounds(answer_seconds=60, retry_seconds=0),
        )
        cipher = TenantCipher(FLEET_KEY.history_key, LABEL)
        objects = self._objects(self.url) if self.url else None
        self.files = KeptFiles(
            *(self.store, cipher, self.bounds), objects=objects, earlier=self._objects, wall_clock=self.clock
        )

    def _objects(self, url: str) -> FileContents:
        from cachefleet_controlplane.gateway.files.object_contents import ObjectContents  # noqa: PLC0415 - an extra

        return ObjectContents(url, self.store, failed=self.failed.append)

    def routes(self, bodies: RequestBodies) -> BatchRoutes:
        thread = StoreThread(
            *(SqlBatches(self.database), "batches"),
            failed=self.failed.append,
            prune=lambda store: store.prune(now=self.clock()),
            bounds=StoreThreadBounds(answer_seconds=60, retry_seconds=0),
        )
        return BatchRoutes(BatchStore(thread), self.files, bodies, BatchBounds(), wall_clock=self.clock)

    def rows(self, table: str) -> list[dict[str, Any]]:
        with self.database.transaction() as connection:
            return [dict(row) for row in connection.execute(select(text("*")).select_from(text(table))).mappings()]
