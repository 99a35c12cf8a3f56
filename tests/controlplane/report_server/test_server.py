"""The reports endpoint over a real socket: admission, frames, and every way a connection ends."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from prometheus_client.samples import Sample

from cachefleet_controlplane.fleet.fleet_metrics import FleetCollector
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.internal_auth.authorizer import AccessUnavailableError, Authorization, Reporter
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_controlplane.report_server import connection
from cachefleet_controlplane.transport.websocket_protocol import FIRST_MESSAGE_BYTES
from cachefleet_controlplane.workers import registry
from cachefleet_core.report_frames import SUBPROTOCOL, Delta, Hello, Policy, Resync, Stored, encode
from tests.controlplane.chains import chain, removed, stored
from tests.controlplane.fleets import LiveFleet, fleet_of, pool, ranked, view, wid
from tests.controlplane.frames import delta, hello, snapshot, state
from tests.controlplane.report_server.agents import TOKEN, Doorkeeper, Endpoint, reports_endpoint
from tests.controlplane.waiting import until, value

pytestmark = pytest.mark.usefixtures("hurried")

KEYS = chain(1, 10)
HELD = [(key, 0) for key in KEYS]


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with reports_endpoint() as made:
        yield made


def greeting(token: str = TOKEN) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {token}"} if token else {}, "protocols": (SUBPROTOCOL,)}


def _unlisted(endpoint: Endpoint) -> list[Sample]:
    families = FleetCollector(endpoint.fleet.view).collect()
    return [sample for family in families for sample in family.samples if sample.name == "cachefleet_unlisted_workers"]


def held(endpoint: Endpoint, worker: str = "demo-0") -> int:
    return endpoint.fleet.worker(worker).held_blocks


class TestReporting:
    async def test_what_an_agent_reports_is_in_the_picture(self, endpoint: Endpoint) -> None:
        async with endpoint.agent() as agent:
            await agent.say(hello(), snapshot(0, KEYS), delta(1, removed(KEYS[9:])), state(1, HELD[:9], running=2))
            assert isinstance(await agent.hear(), Policy)
            await until(lambda: endpoint.fleet.worker().load is not None)
            assert (held(endpoint), endpoint.fleet.worker().stream, endpoint.server.connections) == (9, "live", 1)
        kinds = ("hello", "snapshot", "delta", "state")
        assert [value(endpoint.metrics, "report_frames_total", type=kind) for kind in kinds] == [1, 1, 1, 1]
        await until(lambda: endpoint.server.connections == 0)
        assert (held(endpoint), endpoint.fleet.worker().connected) == (9, False)
        assert value(endpoint.metrics, "report_connections") == 0

    async def test_an_agent_vouches_for_the_pod_of_its_token_alone(self) -> None:
        fleet = LiveFleet()
        pods = {"demo-0": "u0", "demo-1": "u1"}
        endpoints = tuple(WorkerEndpoint(name, f"http://{name}", ready=True, pod=uid) for name, uid in pods.items())
        fleet.update_pools([PoolView(pool(), endpoints)])
        async with reports_endpoint(fleet, pod="u0") as endpoint:
            for name in pods:
                async with endpoint.agent() as agent:
                    await agent.say(hello(name))
                    assert isinstance(await agent.hear(), Policy)
            assert {worker.name for worker in fleet.view().workers if worker.vouched} == {"demo-0"}

    async def test_divergence_is_answered_with_a_resync_and_counted(self, endpoint: Endpoint) -> None:
        async with endpoint.agent() as agent:
            await agent.say(hello(), snapshot(0, KEYS), state(0, HELD[1:]))
            await agent.hear()
            assert await agent.hear() == Resync(reason="divergence")
        assert value(endpoint.metrics, "report_divergence_total") == 1
        assert value(endpoint.metrics, "report_resyncs_total", reason="divergence") == 1
        assert value(endpoint.metrics, "report_epochs_total") == 1

    async def test_a_new_policy_reaches_a_connected_agent(self, endpoint: Endpoint) -> None:
        async with endpoint.agent() as agent:
            await agent.say(hello())
            await agent.hear()
            endpoint.fleet.update_pools([view(pool(generation=2), ["demo-0"])])
            policy = await agent.hear()
        assert isinstance(policy, Policy)
        assert policy.generation == 2

    async def test_reconnecting_in_the_same_epoch_resyncs_by_snapshot(self, endpoint: Endpoint) -> None:
        for sequence in (0, 5):
            async with endpoint.agent() as agent:
                await agent.say(hello(), snapshot(sequence, KEYS), state(sequence, HELD))
                await until(lambda number=sequence: endpoint.fleet.worker().sequence == number)  # type: ignore[misc]
            assert held(endpoint) == 10
        assert value(endpoint.metrics, "report_epochs_total") == 1

    async def test_a_newer_connection_closes_the_older(self, endpoint: Endpoint) -> None:
        async with endpoint.agent() as older, endpoint.agent() as newer:
            await older.say(hello())
            await older.hear()
            await newer.say(hello(), snapshot(0, KEYS))
            assert await older.end() == 4409
            await until(lambda: held(endpoint) == 10)


class TestAdmission:
    @pytest.mark.parametrize(
        ("token", "status", "reason"),
        [("", 401, "unauthenticated"), ("wrong", 401, "unauthenticated"), ("stranger", 403, "forbidden")],
    )
    async def test_without_an_agents_token_no_connection_is_accepted(
        self, endpoint: Endpoint, token: str, status: int, reason: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with endpoint.agent(token):
                pass
        assert refused.value.status == status
        assert value(endpoint.metrics, "report_rejections_total", reason=reason) == 1
        assert (endpoint.server.connections, endpoint.server.handshakes) == (0, 0)
        assert caplog.records == [], "who knocks cannot fill the log"

    async def test_a_token_is_good_for_its_worker_only(self, endpoint: Endpoint) -> None:
        async with endpoint.agent() as agent:
            await agent.say(hello("other-0"))
            assert await agent.end() == 4403
        assert value(endpoint.metrics, "report_rejections_total", reason="forbidden") == 1

    async def test_agents_that_no_pool_lists_are_bounded_and_do_not_fill_the_log(
        self, endpoint: Endpoint, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An agent of any release waits longer after each 1013, up to its longest delay."""
        monkeypatch.setattr(registry, "MAX_UNLISTED", 3)
        caplog.set_level("INFO")
        for number in range(8):
            async with endpoint.agent() as agent:
                await agent.say(hello(f"demo-{7 + number}"))
                if number < 3:
                    assert isinstance(await agent.hear(), Policy)
                else:
                    assert await agent.end() == 1013
        await until(lambda: endpoint.server.connections == 0)
        assert value(endpoint.metrics, "report_rejections_total", reason="busy") == 5
        assert [unlisted.value for unlisted in _unlisted(endpoint)] == [3]
        lines = [record.message for record in caplog.records if record.name == connection.__name__]
        assert lines == ["agent connected whose worker no pool lists", "agent's connection closed"]

    async def test_a_rank_beyond_the_pools_is_left_out_and_the_others_are_heard(self, endpoint: Endpoint) -> None:
        async with endpoint.agent() as agent:
            await agent.say(hello(rank=1), hello(), snapshot(0, KEYS, rank=1), state(0, HELD, rank=1))
            await agent.say(snapshot(0, KEYS), state(0, HELD))
            await until(lambda: held(endpoint) == 10)
            assert 1 not in {worker.rank for worker in endpoint.fleet.view().workers}
            assert value(endpoint.metrics, "report_rejections_total", reason="undeclared") == 1
            endpoint.fleet.update_pools([view(ranked(2), ["demo-0"])])
            await agent.say(hello(rank=1), snapshot(0, KEYS, rank=1))
            await until(lambda: 1 in {worker.rank for worker in endpoint.fleet.view().workers})

    async def test_an_unknown_pool_is_refused(self, endpoint: Endpoint) -> None:
        async with endpoint.agent() as agent:
            await agent.say(hello(pool="default/none"))
            assert await agent.end() == 4404

    async def test_another_subprotocol_is_refused_before_the_handshake(self, endpoint: Endpoint) -> None:
        for protocols in ((), ("cachefleet.reports.v9",)):
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await endpoint.http.ws_connect(endpoint.url, protocols=protocols)
        assert value(endpoint.metrics, "report_rejections_total", reason="subprotocol") == 2

    async def test_plain_http_is_told_to_upgrade(self, endpoint: Endpoint) -> None:
        async with endpoint.http.get(endpoint.url) as answer:
            assert (answer.status, answer.headers["upgrade"]) == (426, "websocket")

    async def test_too_many_agents_are_told_to_come_later(self) -> None:
        async with reports_endpoint(connections=1) as endpoint, endpoint.agent() as first:
            await first.say(hello())
            await first.hear()
            with pytest.raises(aiohttp.WSServerHandshakeError):
                async with endpoint.agent():
                    pass

    async def test_bearers_under_review_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever has no token does not take a place among them."""
        async with reports_endpoint(handshakes=1) as endpoint:
            reviewed = asyncio.Event()

            async def slowly(_token: str) -> Authorization:
                await reviewed.wait()
                return Authorization.ALLOWED

            monkeypatch.setattr(endpoint.server._authorizer, "agent", slowly)
            first = asyncio.create_task(endpoint.http.ws_connect(endpoint.url, **greeting()))
            await until(lambda: endpoint.server.handshakes == 1)
            for token, status in ((TOKEN, 503), ("", 401)):
                with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                    await endpoint.http.ws_connect(endpoint.url, **greeting(token))
                assert refused.value.status == status
            reviewed.set()
            await (await first).close()
            assert endpoint.server.handshakes == 0

    async def test_before_the_pools_are_known_a_hello_waits_for_them(self) -> None:
        async with reports_endpoint(LiveFleet()) as endpoint, endpoint.agent() as agent:
            await agent.say(hello())
            await asyncio.sleep(0.05)
            endpoint.fleet.update_pools([view(pool(), ["demo-0"])])
            assert isinstance(await agent.hear(), Policy)

    async def test_and_not_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Time is not hurried until the Hello has come, on threads of the server that keep their own pace."""
        heard, reports = threading.Event(), Doorkeeper.reports

        async def noting(keeper: Doorkeeper, token: str, greeting: Hello) -> Reporter | None:
            heard.set()
            return await reports(keeper, token, greeting)

        monkeypatch.setattr(Doorkeeper, "reports", noting)
        coming = asyncio.get_running_loop().run_in_executor(None, heard.wait, 60)
        async with reports_endpoint(LiveFleet(), hello_seconds=30) as endpoint, endpoint.agent() as agent:
            await agent.say(hello())
            assert await coming
            assert await agent.end() == 1013

    async def test_while_nobody_can_say_whose_token_it_is_an_agent_is_told_to_come_later(
        self, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def away(*_args: object) -> bool:
            raise AccessUnavailableError

        monkeypatch.setattr(endpoint.server._authorizer, "reports", away)
        async with endpoint.agent() as agent:
            await agent.say(hello())
            assert await agent.end() == 1013
        monkeypatch.setattr(endpoint.server._authorizer, "agent", away)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with endpoint.agent():
                pass
        assert refused.value.status == 503
        assert value(endpoint.metrics, "report_rejections_total", reason="not_ready") == 2


class TestSilence:
    async def test_an_agent_that_never_says_hello_is_closed(self) -> None:
        async with reports_endpoint(hello_seconds=0.1) as endpoint, endpoint.agent() as agent:
            assert await agent.end() == 4408

    async def test_so_is_one_that_says_nothing_any_more(self) -> None:
        async with reports_endpoint(idle_seconds=0.1) as endpoint, endpoint.agent() as agent:
            await agent.say(hello())
            assert await agent.end() == 4408

    async def test_one_that_does_not_read_is_closed(self) -> None:
        async with reports_endpoint(outbox_frames=3) as endpoint, endpoint.agent() as agent:
            await agent.say(hello())
            await agent.hear()
            for _ in range(5):
                endpoint.fleet.tell(wid("demo-0"), Resync())
            assert await agent.end() == 1013

    async def test_an_authorizer_that_does_not_answer_does_not_hang_the_agent(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with reports_endpoint(authorize_seconds=0.1) as endpoint:
            monkeypatch.setattr(endpoint.server._authorizer, "reports", lambda *_: asyncio.sleep(60, True))  # noqa: FBT003
            async with endpoint.agent() as agent:
                await agent.say(hello())
                assert await agent.end() == 1013
            monkeypatch.setattr(endpoint.server._authorizer, "agent", lambda _: asyncio.sleep(60))
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with endpoint.agent():
                    pass
            assert refused.value.status == 503


class TestMalformed:
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\xc1",
            encode(delta(1))[:-3],
            msgspec.msgpack.encode({"type": "delta", "sequence": -1, "operations": []}),
            msgspec.msgpack.encode({"type": "delta", "sequence": 1, "operations": [[0, 0, b"\1" * 12]]}),
            encode(delta(1, stored(KEYS), Stored(0, stored([3]).keys * 2))),
            encode(delta(1, stored(KEYS), stored([0]))),
            b"\x91" * 100_000,
        ],
        ids=lambda data: f"{len(data)}-bytes",
    )
    async def test_a_bad_frame_is_counted_and_nothing_of_it_applied(self, endpoint: Endpoint, data: bytes) -> None:
        async with endpoint.agent() as agent:
            await agent.say(hello(), snapshot(0, KEYS[:2]))
            await agent.ws.send_bytes(data)
            await agent.say(delta(1, stored(KEYS)))
            assert await agent.end() == 4400
        assert held(endpoint) == 2
        assert value(endpoint.metrics, "report_frames_malformed_total", reason="frame") == 1

    async def test_text_is_no_frame(self, endpoint: Endpoint) -> None:
        async with endpoint.agent() as agent:
            await agent.say(hello())
            await agent.ws.send_str("hello")
            assert await agent.end() == 4400

    async def test_frames_are_bounded_and_the_first_one_more_so(self) -> None:
        async with reports_endpoint(first_frame_bytes=500, frame_bytes=1000) as endpoint:
            async with endpoint.agent() as agent:
                await agent.ws.send_bytes(b"\0" * 501)
                assert await agent.end() == 4400
            async with endpoint.agent() as agent:
                await agent.say(hello(), delta(1, stored(chain(2, 200))))
                assert await agent.end() == 4400

    async def test_a_large_first_message_ends_the_connection_at_its_head(self, endpoint: Endpoint) -> None:
        """Its bytes are not waited for."""
        async with endpoint.agent() as agent:
            transport = agent.ws._response.connection.transport  # type: ignore[union-attr]
            transport.write(b"\x82\xff" + (FIRST_MESSAGE_BYTES + 1).to_bytes(8) + b"mask")  # type: ignore[union-attr]
            assert await agent.end() == 1009

    async def test_what_follows_a_hello_may_be_larger(self, endpoint: Endpoint) -> None:
        many = chain(3, FIRST_MESSAGE_BYTES // 8)
        async with endpoint.agent() as agent:
            await agent.say(hello(blocks_total=len(many)), snapshot(0, many))
            await until(lambda: held(endpoint) == len(many))

    @pytest.mark.parametrize("first", [snapshot(0, KEYS), delta(1), state()])
    async def test_the_first_frame_must_be_a_hello(self, endpoint: Endpoint, first: Delta) -> None:
        async with endpoint.agent() as agent:
            await agent.say(first)
            assert await agent.end() == 4400

    async def test_frames_for_another_worker_or_rank_end_the_connection(self, endpoint: Endpoint) -> None:
        for frame in (hello("demo-1"), delta(1, rank=3)):
            async with endpoint.agent() as agent:
                await agent.say(hello(), frame)
                assert await agent.end() == 4400
        assert endpoint.fleet.worker("demo-1").stream == "unknown"

    async def test_other_agents_do_not_notice(self, endpoint: Endpoint) -> None:
        async with endpoint.agent() as good, endpoint.agent() as bad:
            await good.say(hello("demo-1"), snapshot(0, KEYS))
            await bad.ws.send_bytes(b"\xc1")
            assert await bad.end() == 4400
            await good.say(delta(1, stored(chain(2, 5))))
            await until(lambda: held(endpoint, "demo-1") == 15)

    async def test_an_unexpected_error_is_counted_and_ends_one_connection(
        self, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_args: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(endpoint.fleet, "receive", broken)
        async with endpoint.agent() as agent:
            await agent.say(hello(), state())
            assert await agent.end() == 1011
        assert value(endpoint.metrics, "task_errors_total", task="reports") == 1

    async def test_an_index_that_is_full_costs_nobody_the_connection(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.index = fleet._index = fleet._agents._index = BlockIndex(max_held=5)
        async with reports_endpoint(fleet) as endpoint, endpoint.agent() as agent:
            await agent.say(hello(), snapshot(0, KEYS), state(0, HELD))
            await until(lambda: fleet.worker().load is not None)
            assert (held(endpoint), fleet.worker().stream) == (0, "live")
