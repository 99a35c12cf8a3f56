"""A small API server that lists in pages, watches from a version, forgets its history, falls silent, and reviews."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from kubernetes.aio import client

from cachefleet_runtime.kubernetes import KubernetesClient

Object = dict[str, Any]
POOLS = "prefixcachepools"
SLICES = "endpointslices"


@dataclass
class KubeServer:
    """Its state is public: tests change it and look at what was asked."""

    url: str = ""
    version: int = 100
    oldest: int = 0
    down: int = 0
    """The HTTP status of every answer, where not 0."""
    silent: bool = False
    seconds: float = 60
    """How long a watch lasts at most."""
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    history: list[tuple[int, str, Object]] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    watches: list[tuple[str, str]] = field(default_factory=list)
    reviews: list[Object] = field(default_factory=list)
    tokens: dict[str, Object] = field(default_factory=dict)
    """The status of a TokenReview by token."""
    allowed: set[tuple[str, str, str]] = field(default_factory=set)
    """(user, verb, namespace) that may."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def put(self, plural: str, item: Object) -> None:
        key = (plural, f"{item['metadata']['namespace']}/{item['metadata']['name']}")
        await self._tell("MODIFIED" if key in self.objects else "ADDED", key, copy.deepcopy(item))

    async def delete(self, plural: str, name: str) -> None:
        await self._tell("DELETED", (plural, name), self.objects[plural, name])

    async def compact(self) -> None:
        """What was watched until now can no longer be taken up."""
        self.version += 1
        self.oldest = self.version
        await self.disconnect()

    async def disconnect(self) -> None:
        """End every watch."""
        async with self.changed:
            self.history.append((self.version, "END", {}))
            self.changed.notify_all()

    async def _tell(self, kind: str, key: tuple[str, str], item: Object) -> None:
        async with self.changed:
            self.version += 1
            item["metadata"]["resourceVersion"] = str(self.version)
            if kind == "DELETED":
                del self.objects[key]
            else:
                self.objects[key] = item
            self.history.append((self.version, kind, {"plural": key[0], "object": copy.deepcopy(item)}))
            self.changed.notify_all()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if self.down:
            return web.json_response({"message": "told to be down"}, status=self.down)
        plural = request.path.rsplit("/", 1)[-1]
        if request.method == "POST":
            return web.json_response(self._review(plural, await request.json()), status=201)
        if "watch" in request.query:
            return await self._watch(request, plural)
        return self._list(request, plural)

    def _list(self, request: web.Request, plural: str) -> web.Response:
        self.lists.append(request.path)
        first = int(request.query.get("continue", 0))
        limit = int(request.query["limit"])
        found = [
            item for (kind, name), item in sorted(self.objects.items()) if kind == plural and _within(request, name)
        ]
        more = {"continue": str(first + limit)} if len(found) > first + limit else {}
        metadata = {"resourceVersion": str(self.version), **more}
        return web.json_response({"metadata": metadata, "items": found[first : first + limit]})

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        self.watches.append((plural, request.query["resourceVersion"]))
        response = web.StreamResponse()
        await response.prepare(request)
        if since < self.oldest:
            await _write(response, {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}})
            return response
        ends = sum(kind == "END" for _, kind, _ in self.history)
        try:
            async with asyncio.timeout(self.seconds):
                await self._stream(request, response, plural, since, ends)
        except TimeoutError:
            bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.version)}}}
            await _write(response, bookmark)
        return response

    async def _stream(
        self, request: web.Request, response: web.StreamResponse, plural: str, since: int, ends: int
    ) -> None:
        sent = 0
        while True:
            for version, kind, what in self.history[sent:]:
                ours = kind != "END" and what["plural"] == plural and version > since
                name = "/".join(what["object"]["metadata"][k] for k in ("namespace", "name")) if ours else ""
                if ours and not self.silent and _within(request, name):
                    await _write(response, {"type": kind, "object": what["object"]})
            sent = len(self.history)
            if sum(kind == "END" for _, kind, _ in self.history) > ends and not self.silent:
                return
            async with self.changed:
                await self.changed.wait_for(lambda: len(self.history) > sent)  # noqa: B023 - waited for here

    def _review(self, plural: str, review: Object) -> Object:
        self.reviews.append(review)
        if plural == "tokenreviews":
            missing = {"authenticated": None, "error": "invalid bearer token"}
            return review | {"status": self.tokens.get(review["spec"]["token"], missing)}
        spec = review["spec"]
        asked = spec["resourceAttributes"]
        return review | {"status": {"allowed": (spec["user"], asked["verb"], asked["namespace"]) in self.allowed}}


def _within(request: web.Request, name: str) -> bool:
    return "namespaces/" not in request.path or f"namespaces/{name.split('/', maxsplit=1)[0]}/" in request.path


async def _write(response: web.StreamResponse, event: Object) -> None:
    await response.write(json.dumps(event).encode() + b"\n")


@asynccontextmanager
async def kube_server() -> AsyncIterator[KubeServer]:
    server = KubeServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def connected(server: KubeServer) -> AsyncIterator[KubernetesClient]:
    api = KubernetesClient(client.ApiClient(client.Configuration(host=server.url)))
    try:
        yield api
    finally:
        await api.close()


def pool(name: str = "demo", namespace: str = "serving", **spec: Any) -> Object:
    base = {
        "model": {"name": "tiny", "source": "/models/tiny", "weightsMiB": 100},
        "engine": {"image": "vllm:v1", "maxModelLen": 2048},
        "device": {"resource": "", "memoryMiB": 4096},
        "prefixCache": {"budgetMiB": 64},
    }
    return {
        "apiVersion": "cachefleet.io/v1alpha1",
        "kind": "PrefixCachePool",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "generation": 1},
        "spec": base | spec,
    }


def endpoint(name: str, address: str, *, ready: bool | None = True) -> Object:
    target = {"kind": "Pod", "name": name, "uid": f"uid-{name}"}
    return {"addresses": [address], "conditions": {"ready": ready}, "targetRef": target}


def endpoint_slice(*endpoints: Object, pool: str = "demo", suffix: str = "x", family: str = "IPv4") -> Object:
    labels = {"cachefleet.io/pool": pool, "kubernetes.io/service-name": f"{pool}-workers"}
    metadata = {"name": f"{pool}-workers-{suffix}", "namespace": "serving", "labels": labels}
    return {"metadata": metadata, "addressType": family, "endpoints": list(endpoints)}
