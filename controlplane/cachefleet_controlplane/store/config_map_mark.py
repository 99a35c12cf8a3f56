"""The copy of the access marker in a ConfigMap: it outlives the volume and the database of a release.

The chart makes the ConfigMap, empty, and keeps it when the release goes; this reads and writes one entry of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from threading import RLock
from typing import Any, Final, Protocol

from cachefleet_controlplane.store.access_marker import Mark
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_runtime.kubernetes import KubernetesError, Object, RefusedError, read

FRESH_SECONDS: Final = 60.0
"""How old what was read may be."""
_SECONDS: Final = 5.0
_FIELD: Final = "access"
_MANAGER: Final = "cachefleet-controlplane"


class ApiRequests(Protocol):
    """The request of a Kubernetes client that this needs."""

    def exchange(
        self, method: str, path: str, *, query: Any = None, body: Any = None, seconds: float
    ) -> Coroutine[Any, Any, tuple[int, bytes]]: ...


class ConfigMapMark:
    """What a ConfigMap says. Calls block, and must not come from the thread of the loop that it is connected with.

    Once it was read, what it said last holds while it cannot be read again.
    """

    def __init__(self, namespace: str, name: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self._namespace, self._name = namespace, name
        self._now = now
        self._api: ApiRequests | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mark: Mark | None = None
        self._read_at = 0.0
        self._one_at_a_time = RLock()
        """So that what was noted last is what was written last."""

    def connect(self, api: ApiRequests, loop: asyncio.AbstractEventLoop) -> None:
        """Send requests by this client from now on, in its loop."""
        self._api, self._loop = api, loop

    def read(self) -> Mark:
        """What it says; ABSENT where there is no such ConfigMap or it says nothing. StoreError."""
        with self._one_at_a_time:
            if self._mark is not None and self._now() - self._read_at < FRESH_SECONDS:
                return self._mark
            try:
                mark = self._asked()
            except StoreError:
                if self._mark is None:
                    raise
                mark = self._mark
            return self._noted(mark)

    def write(self, mark: Mark) -> None:
        """Replace what it says; nothing for ABSENT. StoreError."""
        with self._one_at_a_time:
            if self.read() is not mark:
                self._write(mark)

    def _write(self, mark: Mark) -> None:
        metadata = {"name": self._name, "namespace": self._namespace}
        manifest: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        data = {} if mark is Mark.ABSENT else {"data": {_FIELD: str(mark)}}
        try:
            self._request("PATCH", {**manifest, **data})
        except KubernetesError as error:
            raise self._failure("written", error) from error
        self._noted(mark)

    def _noted(self, mark: Mark) -> Mark:
        self._mark, self._read_at = mark, self._now()
        return mark

    def _asked(self) -> Mark:
        try:
            text = str((self._request("GET").get("data") or {}).get(_FIELD, Mark.ABSENT)).strip()
        except RefusedError as error:
            if error.status == 404:
                return Mark.ABSENT
            raise self._failure("read", error) from error
        except KubernetesError as error:
            raise self._failure("read", error) from error
        return Mark(text) if text in set(Mark) else Mark.UNREADABLE

    def _request(self, method: str, body: Object | None = None) -> Object:
        if self._api is None or self._loop is None:
            raise KubernetesError(0, "NotConnected", "the Kubernetes API is not asked yet")
        path = f"/api/v1/namespaces/{self._namespace}/configmaps/{self._name}"
        query = {"fieldManager": _MANAGER, "force": "true"} if body else None
        answer = self._api.exchange(method, path, query=query, body=body, seconds=_SECONDS)
        try:
            return read(*asyncio.run_coroutine_threadsafe(answer, self._loop).result(2 * _SECONDS))
        except (RuntimeError, TimeoutError, CancelledError) as error:  # of a loop that ends, or is kept from its work
            answer.close()
            raise KubernetesError(0, type(error).__name__, str(error)) from error

    def _failure(self, what: str, error: KubernetesError) -> StoreError:
        return StoreError("unavailable", f"ConfigMap {self._namespace}/{self._name} cannot be {what}: {error}")
