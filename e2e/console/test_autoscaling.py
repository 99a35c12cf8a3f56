"""A pool goes from no worker to two and back by the documented queries, asked of a real Prometheus; nothing is lost.

``Scaler`` stands in for KEDA: it takes the ScaledObject that the chart writes, asks its queries, and decides as KEDA
and the HPA behind it do. ``Pods`` stands in for operator and kubelet, whose tests are of the cluster
and node tiers: a worker is listed some time after it is wanted, and leaves the list before it ends.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from bench.parts import POOL, Running, agent_environment, plane, process
from cachefleet_core.tenancy import FleetKey
from e2e.console.fake_fleet import MODEL, WORKERS, _described, _engine
from e2e.console.prometheus import Prometheus, Target, prometheus
from tests.chart.helm import Object, template
from tests.fakes.engine import FakeEngine

pytestmark = [pytest.mark.console, pytest.mark.timeout(420)]

SPEC: Final = ("prefixCache: {budgetMiB: 4}", "replicas: 0", "admission: {maxQueueSeconds: 60, coldStartSeconds: 120}")
START_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 60
"""The least that the chart allows."""


def scaled_object(url: str) -> Object:
    namespace, _, name = POOL.partition("/")
    pool = {"namespace": namespace, "name": name, "minWorkers": 0, "maxWorkers": 2, "idleSeconds": IDLE_SECONDS}
    [told] = template({"autoscaling": {"pools": [pool], "prometheus": url}}).of("ScaledObject")
    return told


@dataclass
class Pods:
    """Workers of the pool: the first ``wanted`` of WORKERS, each listed some time after it was wanted."""

    file: Path
    engines: Mapping[str, FakeEngine]
    wanted: int = 0
    listed: list[str] = field(default_factory=list)
    history: list[int] = field(default_factory=lambda: [0])

    async def run(self) -> None:
        while True:
            target = list(WORKERS[: self.wanted])
            if len(target) > len(self.listed):
                await asyncio.sleep(START_SECONDS)
            if target != self.listed:
                self.listed = target
                self.history.append(len(target))
                endpoints = [{"name": name, "url": self.engines[name].url, "ready": True} for name in target]
                self.file.with_suffix(".new").write_text(json.dumps({POOL: endpoints}))
                self.file.with_suffix(".new").replace(self.file)
            await asyncio.sleep(0.2)


@dataclass
class Scaler:
    """What KEDA 2.21 does of a ScaledObject, each second in place of each fifteenth, and without stabilization."""

    told: Object
    source: Prometheus
    pods: Pods
    unserved: float = 0.0
    """The most demand that it saw."""

    async def run(self) -> None:
        spec = self.told["spec"]
        while True:
            values = await asyncio.to_thread(self._values)
            active = any(values[name] > float(t["activationThreshold"]) for name, t in self._triggers())
            self.unserved = max(self.unserved, values["active"] if not self.pods.listed else 0.0)
            if not active:
                wanted = spec["minReplicaCount"]
            elif self.pods.wanted == 0:
                wanted = 1
            else:
                wanted = max(math.ceil(values[name] / float(t["threshold"])) for name, t in self._triggers())
                wanted = min(max(wanted, 1, self.pods.wanted), spec["maxReplicaCount"])  # scale-in is slower than this
            self.pods.wanted = wanted
            await asyncio.sleep(1)

    def _triggers(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        return ((trigger["name"], trigger["metadata"]) for trigger in self.told["spec"]["triggers"])

    def _values(self) -> dict[str, float]:
        return {name: self.source.now(trigger["query"]) for name, trigger in self._triggers()}


@contextmanager
def recording_proxy() -> Iterator[tuple[str, list[str]]]:
    """A proxy that notes what it is asked for, and gives nothing."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def __getattr__(self, name: str) -> Any:
            if not name.startswith("do_"):
                raise AttributeError(name)
            return self._note

        def _note(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.send_error(502)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


@asynccontextmanager
async def at_zero(folder: Path) -> AsyncIterator[tuple[Running, Pods]]:
    """A control plane before a pool without workers, and engines with agents that are not listed yet."""
    key, everywhere = FleetKey.generate(), os.sched_getaffinity(0)
    async with AsyncExitStack() as engines:
        fakes = {name: await engines.enter_async_context(_engine(key)) for name in WORKERS}
        described = {name: _described(fake) for name, fake in fakes.items()}
        with ExitStack() as processes:
            opened = plane(folder, key, described, core=everywhere, spec=SPEC, until="listening")
            running = await asyncio.to_thread(processes.enter_context, opened)
            (folder / "endpoints.json").write_text(json.dumps({POOL: []}))
            for name, engine in described.items():
                told = agent_environment(folder, running, name, engine)
                arguments, log = ["-m", "cachefleet_worker.agent"], folder / f"{name}-agent.log"
                processes.enter_context(process(arguments, log=log, core=everywhere, environment=told))
            yield running, Pods(folder / "endpoints.json", fakes)


async def ask(http: aiohttp.ClientSession, running: Running, number: int) -> int:
    body = {"model": MODEL, "prompt": f"{number:02} " * 600, "max_tokens": 400, "ignore_eos": True}
    async with http.post(f"{running.gateway}/v1/completions", json=body) as answer:
        await answer.read()
        return answer.status


@pytest.mark.slow
async def test_from_zero_to_two_and_back_under_traffic_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With proxies in the environment of every process, which must send nothing of ours through them."""
    with recording_proxy() as (url, through_proxy):
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        monkeypatch.setattr(urllib.request, "urlopen", direct.open)  # this test's own questions
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, url)
            monkeypatch.setenv(name.lower(), url)
        async with at_zero(tmp_path) as (running, pods), aiohttp.ClientSession() as http:
            targets = [Target("controlplane", "controlplane-0", running.internal.removeprefix("http://"))]
            with prometheus(tmp_path, targets) as source:
                await scraped(source)
                scaler = Scaler(scaled_object(source.url), source, pods)
                tasks = [asyncio.create_task(one.run()) for one in (scaler, pods)]
                await asyncio.sleep(5)
                assert pods.history == [0], "nothing is asked for, and nothing is started"
                answers = await asyncio.gather(*(ask(http, running, number) for number in range(24)))
                assert answers == [200] * 24
                async with asyncio.timeout(IDLE_SECONDS * 3):
                    while pods.listed:
                        assert not [task for task in tasks if task.done()]
                        await asyncio.sleep(0.5)
                assert pods.history == [0, 1, 2, 0]
                assert scaler.unserved > 0
                assert await ask(http, running, 99) == 200, "and again from zero"
                for one in tasks:
                    one.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        assert through_proxy == []


async def scraped(source: Prometheus) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                source.now(f'cachefleet_pool_unserved_requests{{pool="{POOL}"}}')
            except ValueError:
                await asyncio.sleep(0.5)
            else:
                return
