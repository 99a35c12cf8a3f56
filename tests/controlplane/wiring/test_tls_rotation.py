"""Operator, control plane, agent and a worker, with TLS between them, while all certificates and the authority change.

Nothing stands in for TLS: every connection is one of OpenSSL's at loopback. The kubelet is the test: it copies Secrets
into volumes, each as late as it likes.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cachefleet_controlplane.wiring.control_plane import ControlPlane
from cachefleet_controlplane.wiring.replica_process import serve
from cachefleet_core.tls_names import AUTHORITIES, CERTIFICATE, worker_server_name
from cachefleet_local.fleet.ports import take_ports
from cachefleet_operator.certificates.certificate import Certificate
from cachefleet_operator.certificates.trust import Trust
from cachefleet_operator.controlplane_client.client import ControlPlaneClient
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.metrics import Metrics
from cachefleet_operator.reconcile.apply import Applier, Create, Replace
from cachefleet_operator.reconcile.certificate_renewal import IssuedCertificates
from cachefleet_operator.settings import Settings
from cachefleet_runtime.tls import client_context
from cachefleet_worker.agent.agent import Agent
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.wiring import running as running_agent
from tests.controlplane.gateway.harness import FLEET_KEY, POOL, WORKER_KEY, chat, engine
from tests.controlplane.gateway.harness import pool as declared_pool
from tests.controlplane.waiting import until
from tests.controlplane.wiring.test_control_plane import BOUNDS
from tests.controlplane.wiring.test_control_plane import settings as plane_settings
from tests.fakes.engine import FakeEngine
from tests.fakes.secret_volume import SecretVolume
from tests.operator.store import Store

PLANE = Ref("Secret", "ops", "cachefleet-controlplane-tls")
WORKERS = Ref("Secret", "default", "demo-worker-tls")
NOW = dt.datetime.now(dt.UTC)


class Cluster:
    """The operator's part: Secrets in an API server, and a clock that the test moves."""

    def __init__(self, now: dt.datetime) -> None:
        self.store = Store()
        self.trust = Trust()
        self.now = now
        self.applier = Applier(self.store, lambda: True)
        self.lead()

    def lead(self) -> None:
        """An operator takes over."""
        chosen = Settings(agent_image="x", operator_namespace="ops", tls="issued", admin_url="https://localhost")
        self.issued = IssuedCertificates(
            self.store,
            self.applier,
            chosen,
            self.trust,
            today=lambda: self.now,
            expiries=Metrics("0"),
            spread_seconds=1,
        )

    async def resync(self) -> None:
        """The authority, the control plane's certificate and the workers' one."""
        await self.issued.renew()
        live = self.store.objects.get(WORKERS)
        pool = declared_pool()
        for manifest in self.issued.renewed(pool.key, live) if live else self.issued.made(pool):
            await self.applier.act(Replace(manifest) if live else Create(manifest))

    def data(self, ref: Ref) -> dict[str, bytes]:
        return {name: base64.b64decode(text) for name, text in self.store.objects[ref]["data"].items()}

    def serving(self, ref: Ref) -> Certificate:
        return Certificate.read(self.data(ref)[CERTIFICATE])


@dataclass
class Fleet:
    """All processes, in this one."""

    cluster: Cluster
    volumes: dict[Ref, SecretVolume]
    gateway: str
    internal: str
    worker: FakeEngine
    agent: Agent
    plane: ControlPlane
    errors: list[str]
    answered: int = 0

    def show(self, ref: Ref) -> None:
        """A volume follows its Secret."""
        self.volumes[ref].put(self.cluster.data(ref))

    async def traffic(self) -> None:
        """Requests one after the other, each on a connection of its own between gateway and worker."""
        async with aiohttp.ClientSession() as http:
            while True:
                async with http.post(self.gateway + "/v1/chat/completions", json=chat(f"{self.answered}")) as answer:
                    text = await answer.text()
                    if answer.status != 200:
                        self.errors.append(f"{answer.status} {text}")
                self.answered += 1

    async def more(self, count: int = 5) -> None:
        """Wait until so many more requests were answered."""
        wanted = self.answered + count
        await until(lambda: self.answered >= wanted)

    async def uplinks(self) -> None:
        """Cut the agent's connection and wait for the next one."""
        for task in list(self.agent.uplink._tasks.values()):
            task.cancel()
        await until(lambda: self.agent.uplink.connected == 0)
        await until(lambda: self.agent.uplink.connected == 1)

    async def facts(self) -> str:
        """What the operator learns of the pool over a new connection, "" without trouble."""
        async with aiohttp.ClientSession() as http:
            source = ControlPlaneClient(
                http,
                self.internal.replace("127.0.0.1", "localhost"),
                token_file=self.volumes[PLANE].folder.parent / "admin.token",
                at_once=1,
                failed=lambda _reason: None,
                trusted=self.cluster.trust.context,
            )
            found = await source.ask(POOL, seconds=10)
        return "" if found.pool else found.message

    async def presents(self, url: str, name: str, issuer: str) -> None:
        """Returns once the certificate there is of this authority: the control plane looks each second."""
        async with asyncio.timeout(30):
            while await self.presented(url, name) != issuer:  # noqa: ASYNC110 - what another thread does
                await asyncio.sleep(0.1)

    async def presented(self, url: str, name: str) -> str:
        """The issuer of the certificate that a server presents now."""
        context = client_context(self.cluster.data(PLANE)[AUTHORITIES].decode())
        host, _, port = url.rpartition("/")[2].partition(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=name)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
        return Certificate.read(ssl.DER_cert_to_PEM_cert(der).encode()).issuer


@asynccontextmanager
async def fleet(folder: Path, cluster: Cluster, **options: Any) -> AsyncIterator[Fleet]:
    await cluster.resync()
    volumes = {ref: SecretVolume(folder / ref.name, cluster.data(ref)) for ref in (PLANE, WORKERS)}
    ports, stop = take_ports({"gateway": 0, "internal": 0}), asyncio.Event()
    async with engine(tls=volumes[WORKERS].folder, worker_key=WORKER_KEY, **options) as worker:
        told = plane_settings(folder, worker, ports, tls_folder=volumes[PLANE].folder)
        plane = ControlPlane(told, BOUNDS)
        serving = asyncio.create_task(serve(plane, told, stop))
        internal = f"https://127.0.0.1:{ports['internal']}"
        try:
            async with running_agent(_agent(folder, worker, volumes[WORKERS].folder, internal)) as agent:
                gateway = f"http://127.0.0.1:{ports['gateway']}"
                made = Fleet(cluster, volumes, gateway, internal, worker, agent, plane, [])
                await until(lambda: agent.uplink.connected == 1 and not agent.unready)
                yield made
        finally:
            stop.set()
            assert await serving == 0


def _agent(folder: Path, worker: FakeEngine, tls: Path, internal: str) -> AgentSettings:
    (folder / "index.key").write_text(base64.urlsafe_b64encode(FLEET_KEY.index_key).decode())
    (folder / "worker.key").write_text(WORKER_KEY)
    own: dict[str, Any] = {
        "worker": "demo-0",
        "pool": POOL,
        "engine_url": worker.url,
        "events_endpoint": worker.events_endpoint,
        "replay_endpoint": worker.replay_endpoint,
        "control_planes": (internal.replace("https", "wss"),),
        "token_file": folder / "reports.token",
        "index_key_file": folder / "index.key",
        "worker_key_file": folder / "worker.key",
        "tls_folder": tls,
        "http_host": "127.0.0.1",
        "http_port": 0,
        "poll_seconds": 0.05,
        "resolve_seconds": 0.05,
        "reconnect_base_seconds": 0.01,
        "reconnect_cap_seconds": 0.05,
    }
    return AgentSettings(**own)


@asynccontextmanager
async def requests(fleet: Fleet) -> AsyncIterator[None]:
    task = asyncio.create_task(fleet.traffic())
    try:
        yield
        await fleet.more()
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert fleet.errors == []


async def test_everything_is_renewed_while_requests_flow(tmp_path: Path) -> None:
    cluster = Cluster(NOW - dt.timedelta(days=1460))  # four fifths of the authority's life ago
    await cluster.issued.renew()
    cluster.now = NOW - dt.timedelta(days=61)  # two thirds of a certificate's life ago
    async with fleet(tmp_path, cluster) as one, requests(one):
        first = {ref: cluster.serving(ref) for ref in (PLANE, WORKERS)}
        first_authority = first[PLANE].issuer
        await one.more()
        assert await one.facts() == ""

        cluster.now = NOW  # certificates are due, and the next authority is made
        cluster.lead()
        await cluster.resync()
        for ref in (WORKERS, PLANE):
            assert cluster.serving(ref).key != first[ref].key
            assert cluster.serving(ref).issuer == first_authority
            one.show(ref)
            await one.more()
            await one.uplinks()
            assert await one.facts() == ""

        cluster.now = NOW + dt.timedelta(seconds=2)  # everybody has had the next authority
        await cluster.resync()
        second_authority = cluster.serving(PLANE).issuer
        assert cluster.serving(WORKERS).issuer == second_authority != first_authority
        for ref in (PLANE, WORKERS):  # the first volume follows, and a while later the second
            one.show(ref)
            await one.more()
            await one.uplinks()
            assert await one.facts() == ""
        await one.presents(one.internal, "localhost", second_authority)
        assert await one.presented(one.worker.url, worker_server_name(POOL)) == second_authority
        agent_url = f"https://127.0.0.1:{one.agent.http_port}"
        assert await one.presented(agent_url, worker_server_name(POOL)) == second_authority


async def test_a_worker_of_another_pool_or_authority_gets_no_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine, other = Cluster(NOW), Cluster(NOW)
    async with fleet(tmp_path, mine) as one:
        await other.resync()
        one.volumes[WORKERS].put(other.data(WORKERS))  # an impostor at the worker's address
        asked = len(one.worker.requests)
        async with (
            aiohttp.ClientSession() as http,
            http.post(one.gateway + "/v1/chat/completions", json=chat("x")) as answer,
        ):
            assert answer.status in {502, 503}
        one.volumes[WORKERS].put(mine.data(PLANE))  # of the same authority, with another name
        async with (
            aiohttp.ClientSession() as http,
            http.post(one.gateway + "/v1/chat/completions", json=chat("x")) as answer,
        ):
            assert answer.status in {502, 503}
        assert not [seen for seen in list(one.worker.requests)[asked:] if "chat" in seen.path]
    told = [record.message for record in caplog.records if "certificate of a worker is refused" in record.message]
    assert any("no authority that is trusted has issued it" in each for each in told)
    assert any("it has another name" in each for each in told)


async def test_plain_http_is_not_answered(tmp_path: Path) -> None:
    async with fleet(tmp_path, Cluster(NOW)) as one, aiohttp.ClientSession() as http:
        for url in (one.internal, one.worker.url, f"https://127.0.0.1:{one.agent.http_port}"):
            with pytest.raises(aiohttp.ClientError):
                await http.get(url.replace("https", "http") + "/healthz")


async def test_a_client_that_goes_away_frees_its_worker(tmp_path: Path) -> None:
    async with fleet(tmp_path, Cluster(NOW), inter_token_seconds=0.05, natural_tokens=1000) as one:
        async with aiohttp.ClientSession() as http:
            url, body = one.gateway + "/v1/chat/completions", chat("x", stream=True, max_tokens=1000)
            async with http.post(url, json=body) as answer:
                assert await answer.content.readline()
                assert one.worker.worker.scheduler.running
                answer.close()
        await until(lambda: not one.worker.worker.scheduler.running, seconds=10)
