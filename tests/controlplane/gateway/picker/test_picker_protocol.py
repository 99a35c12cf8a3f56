"""The picker as Envoy sees it: the cases of the reference picker, and those of both ways to send a body."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest

from cachefleet_controlplane.pools.source import PoolView
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_core.tenancy import DEFAULT_TENANT
from tests.controlplane.gateway.harness import MODEL, SALT, WORKER_KEY, Front, Known, chat, engine, front, pool
from tests.controlplane.gateway.picker.envoy_stub import BUFFERED, DUPLEX, ENDPOINT, hint, picker
from tests.controlplane.gateway.roles import FIELD, nixl, split
from tests.controlplane.gateway.tenancies import directory
from tests.controlplane.waiting import until

MODES = pytest.mark.parametrize("mode", [DUPLEX, BUFFERED], ids=["duplex", "buffered"])
WHOLE = json.dumps({"usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}}).encode()


def addresses(made: Front) -> list[str]:
    return [worker.url.removeprefix("http://") for worker in made.engines]


@MODES
async def test_a_request_goes_to_a_worker_in_header_and_metadata_alike_with_all_others_to_fall_back_to(
    mode: int,
) -> None:
    async with engine() as one, engine() as two, engine() as three, front([one, two, three]) as made:
        async with picker(made) as envoy:
            asking, picked = await envoy.ask(chat("hello"), mode=mode)
            await asking.answered(WHOLE)
        assert sorted(picked.endpoints) == sorted(addresses(made))
        assert picked.metadata == {"envoy.lb": {ENDPOINT: picked.headers[ENDPOINT]}}
        assert picked.clears_route_cache
        assert made.records[0].worker == made.name(addresses(made).index(picked.endpoints[0]))


@pytest.mark.parametrize("fallbacks", [0, 1])
async def test_no_more_fallbacks_are_named_than_are_set(fallbacks: int) -> None:
    async with engine() as one, engine() as two, engine() as three:
        async with front([one, two, three], fallbacks=fallbacks) as made, picker(made) as envoy:
            asking, picked = await envoy.ask(chat("hello"))
            await asking.answered(WHOLE)
        assert len(set(picked.endpoints)) == 1 + fallbacks
        assert picked.metadata == {"envoy.lb": {ENDPOINT: ",".join(picked.endpoints)}}


@MODES
async def test_requests_with_the_same_prefix_go_where_it_is(mode: int) -> None:
    async with engine() as one, engine() as two, front([one, two], texts=True) as made, picker(made) as envoy:
        first = set()
        for turn in range(4):
            asking, picked = await envoy.ask(chat("the same long beginning " * 40 + str(turn)), mode=mode)
            await asking.answered(WHOLE)
            first.add(picked.endpoints[0])
        assert len(first) == 1


@MODES
async def test_the_worker_gets_the_salt_and_its_key_but_nothing_private_of_the_client(mode: int) -> None:
    async with engine() as worker, front([worker]) as made, picker(made) as envoy:
        private = {"cache_salt": "mine", "kv_transfer_params": {"x": 1}, "priority": -9}
        headers = {"authorization": "Bearer sk", "cookie": "a=b", "x-prefiller-host-port": "x", "x-mine": "1"}
        _, picked = await envoy.ask(chat("x", **private), mode=mode, headers=headers)
    assert picked.members()["cache_salt"] == SALT
    assert not {"kv_transfer_params", "priority", "return_token_ids", "vllm_xargs"} & picked.members().keys()
    assert picked.headers["authorization"] == f"Bearer {WORKER_KEY}"
    assert sorted(picked.removed) == ["cookie", "x-prefiller-host-port"]


async def test_the_head_is_answered_once_the_body_is_whole_in_strict_order() -> None:
    async with engine() as worker, front([worker]) as made, picker(made) as envoy:
        asking, body = envoy.asking(), json.dumps(chat("x" * 200)).encode()
        await asking.head()
        await asking.body(body[:50], body[50:120], end=False)
        assert await asking.is_silent()
        await asking.body(body[120:], b"")
        picked = await asking.picked()
    assert picked.order == ["request_headers", "request_body"]
    assert picked.members()["messages"] == chat("x" * 200)["messages"]
    assert picked.headers["content-length"] == str(len(picked.body))


async def test_a_long_body_is_taken_as_it_comes_and_sent_back_in_pieces_that_every_envoy_takes() -> None:
    async with engine() as worker, front([worker], max_model_len=1 << 20) as made, picker(made) as envoy:
        asking, text = envoy.asking(), "word " * 40_000
        body = json.dumps(chat(text)).encode()
        await asking.head(headers={"content-length": str(len(body))})
        await asking.body(*(body[at : at + 30_000] for at in range(0, len(body), 30_000)), b"")
        picked = await asking.picked()
    assert picked.members()["messages"][0]["content"] == text
    assert picked.pieces == -(-len(picked.body) // 62_000)


@MODES
async def test_a_body_that_is_too_long_is_refused(mode: int) -> None:
    async with engine() as worker, front([worker]) as made, picker(made, body_bytes=2 << 20) as envoy:
        _, picked = await envoy.ask(chat("x" * (1 << 20)), mode=mode)
    assert (picked.status, json.loads(picked.body)["error"]["type"]) == (413, "invalid_request_error")


@MODES
async def test_a_message_that_is_too_long_to_be_read_is_refused(mode: int) -> None:
    async with engine() as worker, front([worker]) as made, picker(made, body_bytes=1 << 16) as envoy:
        asking = envoy.asking(mode)
        await asking.head()
        await asking.body(json.dumps(chat("x" * (1 << 20))).encode())
        picked = await asking.picked()
    assert (picked.status, json.loads(picked.body)["error"]["type"]) == (413, "invalid_request_error")


@MODES
async def test_bodies_for_which_there_is_no_room_are_refused_until_there_is(mode: int) -> None:
    async with (
        engine() as worker,
        front([worker], max_model_len=1 << 20) as made,
        picker(made, buffer_bytes=1 << 20) as envoy,
    ):
        first, other = envoy.asking(), chat("y" * (512 << 10))
        await first.head()
        await first.body(json.dumps(chat("x" * (512 << 10))).encode()[:-1], end=False)
        await until(lambda: made.gateway.under_way == 1)
        await asyncio.sleep(0.2)  # its message is longer than what is told of at once
        _, refused = await envoy.ask(other, "/v1/messages", mode=mode)
        _, short = await envoy.ask(chat("short"), mode=mode)
        first.leave()
        await until(lambda: made.gateway.under_way == 1)
        _, later = await envoy.ask(other, mode=mode)
    assert (refused.status, json.loads(refused.body)["error"]["type"]) == (503, "overloaded_error")
    assert refused.headers["retry-after"] == "2"
    assert (short.status, later.status) == (0, 0)


async def test_a_body_is_asked_for_only_where_the_head_is_within_all_limits() -> None:
    own = TenantRecord(name=DEFAULT_TENANT, requests_at_once=1)
    known = Known(directory(own, keys=()))
    async with engine() as worker, front([worker], known=known) as made, picker(made) as envoy:
        long, busy, first = (envoy.asking(BUFFERED) for _ in range(3))
        await long.head(headers={"content-length": str(64 << 20)})
        too_long = await long.picked()
        await first.head()
        assert await first.is_body_wanted()
        await busy.head()
        too_many = await busy.picked()
    assert (too_long.status, too_long.order) == (413, ["immediate_response"])
    assert json.loads(too_long.body)["error"]["type"] == "invalid_request_error"
    assert (too_many.status, too_many.order) == (429, ["immediate_response"])


async def test_trailers_of_a_body_that_comes_whole_are_answered() -> None:
    async with engine() as worker, front([worker]) as made, picker(made) as envoy:
        asking, picked = await envoy.ask(chat("x"), mode=BUFFERED)
        await asking.trailers()
        assert (await asking.read()).WhichOneof("response") == "request_trailers"
        await asking.answered(WHOLE)
    assert picked.order == ["request_body"]


async def test_a_body_that_comes_in_pieces_with_trailers_is_refused() -> None:
    async with engine() as worker, front([worker]) as made, picker(made) as envoy:
        asking = envoy.asking()
        await asking.head()
        await asking.body(json.dumps(chat("x")).encode(), end=False)
        await asking.trailers()
        picked = await asking.picked()
    assert (picked.status, json.loads(picked.body)["error"]["type"]) == (400, "invalid_request_error")


async def test_who_opens_a_stream_or_a_connection_and_says_nothing_is_not_waited_for_long() -> None:
    async with engine() as worker, front([worker]) as made, picker(made, head_seconds=0.5) as envoy:
        silent = envoy.asking()
        with pytest.raises(grpc.aio.AioRpcError, match="did not come"):
            await silent.read()
        reader, writer = await asyncio.open_connection(*envoy.address.split(":"))
        await asyncio.wait_for(reader.read(), 10)
        writer.close()
        asking, _ = await envoy.ask(chat("x"))  # on the connection of the first, which has asked something
        await asking.answered(WHOLE)


@pytest.mark.parametrize("ended", [False, True], ids=["a body without a head", "nothing"])
async def test_a_stream_of_a_request_that_is_not_decided_on_ends_with_an_error(*, ended: bool) -> None:
    """After any other end Envoy sends the request on as the client made it."""
    async with engine() as worker, front([worker]) as made, picker(made) as envoy:
        asking = envoy.asking()
        await (asking.done() if ended else asking.body(b"{}"))
        with pytest.raises(grpc.aio.AioRpcError, match="was not decided on"):
            await asking.read()


@MODES
async def test_a_prefill_worker_computes_the_prompt_first(mode: int) -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet, picker(fleet.gate) as envoy:
        asking, picked = await envoy.ask(chat("x"), mode=mode)
        await asking.answered(WHOLE)
        assert picked.endpoints == [two.url.removeprefix("http://")]
        assert picked.members()["kv_transfer_params"]["do_remote_prefill"] is True
        assert [seen["max_tokens"] for seen in fleet.sent("prefill-0")] == [1]
        await until(lambda: bool(fleet.gate.records))
        assert fleet.attempts == [("prefill-0", "prefill", "answered"), ("decode-0", "answer", "answered")]


async def test_no_worker_is_asked_to_refuse_what_is_not_cached_there() -> None:
    async with nixl() as one, nixl() as two, split([one], [two], threshold=0.5) as fleet, picker(fleet.gate) as envoy:
        text = "the beginning is cached " * 20
        await fleet.gate.settled_chat(text)
        fleet.report()
        asking, picked = await envoy.ask(chat(text))
        await asking.answered(WHOLE)
        assert (len(fleet.sent("prefill-0")), picked.members()[FIELD]) == (1, 0)


@MODES
async def test_a_request_is_held_until_its_model_has_a_worker(mode: int) -> None:
    admission = "{coldStartSeconds: 150}"
    async with engine() as worker, front([worker], admission=admission) as made, picker(made) as envoy:
        made.fleet.update_pools([PoolView(pool(admission=admission), ())])
        held = asyncio.create_task(envoy.ask(chat("x"), mode=mode))
        await until(lambda: made.fleet.view().pools[0].unserved_requests == 1)
        assert not held.done()
        made.fleet.update_pools([PoolView(pool(admission=admission), made.endpoints())])
        asking, picked = await held
        await asking.answered(WHOLE)
        assert picked.endpoints == addresses(made)


@MODES
async def test_without_a_ready_worker_the_answer_is_503_in_the_apis_own_shape(mode: int) -> None:
    async with engine() as worker, front([worker], ready=False) as made, picker(made) as envoy:
        _, picked = await envoy.ask(chat("x"), mode=mode)
        _, messages = await envoy.ask(chat("x"), "/v1/messages", mode=mode)
    assert (picked.status, json.loads(picked.body)["error"]["code"]) == (503, "503")
    assert picked.headers["retry-after"]
    assert (messages.status, json.loads(messages.body)["error"]["type"]) == (503, "overloaded_error")


@MODES
async def test_a_tenant_over_its_limit_gets_429_with_retry_after(mode: int) -> None:
    own = TenantRecord(name=DEFAULT_TENANT, requests_at_once=1)
    async with engine() as worker, front([worker], known=Known(directory(own, keys=()))) as made, picker(made) as envoy:
        first, _ = await envoy.ask(chat("x"), mode=mode)
        _, second = await envoy.ask(chat("x"), mode=mode)
        await first.answered(WHOLE)
        again, third = await envoy.ask(chat("x"), mode=mode)
        await again.answered(WHOLE)
    assert (second.status, third.status) == (429, 0)
    assert int(second.headers["retry-after"]) > 0
    assert json.loads(second.body)["error"]["code"] == "requests_at_once"


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"no json", 400), (json.dumps({"model": "other", "messages": []}).encode(), 404), (b"[]", 400)],
)
async def test_what_names_no_model_here_is_refused(body: bytes, status: int) -> None:
    async with engine() as worker, front([worker]) as made, picker(made) as envoy:
        _, picked = await envoy.ask(body)
    assert picked.status == status


async def test_a_request_without_a_body_is_answered_where_the_gateway_answers_it() -> None:
    async with engine() as worker, front([worker]) as made, picker(made) as envoy:
        models, unknown = await envoy.get("/v1/models"), await envoy.get("/metrics")
    assert [model["id"] for model in json.loads(models.body)["data"]] == [MODEL]
    assert (models.status, unknown.status) == (200, 404)


async def test_envoys_that_send_no_body_are_told_what_to_set() -> None:
    async with engine() as worker, front([worker]) as made, picker(made) as envoy:
        asking = envoy.asking(mode=0)
        await asking.head()
        picked = await asking.picked()
    assert (picked.status, b"request_body_mode" in picked.body) == (500, True)


def _others(made: Front, value: Any) -> Any:
    """``value`` with addresses in place of numbers in braces."""
    named = dict(enumerate(addresses(made)))
    if isinstance(value, list):
        return [_others(made, one) for one in value]
    return value.format(*named.values()) if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("subset", "allowed"),
    [
        (["{0}"], {0}),
        (["{1}", "{2}"], {1, 2}),
        ("{0},{2}", {0, 2}),
        (" {0} , {2} ", {0, 2}),
        (["{0}, {1}", "{2}"], {0, 1, 2}),
        (["127.0.0.1"], {0, 1, 2}),
        (["{1}", "10.9.9.9:1"], {1}),
        (["10.9.9.9"], set()),
        (["127.0.0.1:1"], set()),
        ([], set()),
        ("", set()),
    ],
)
async def test_the_endpoint_is_one_of_the_subset_and_none_is_503(subset: Any, allowed: set[int]) -> None:
    async with engine() as one, engine() as two, engine() as three, front([one, two, three]) as made:
        async with picker(made) as envoy:
            asking, picked = await envoy.ask(chat("x"), metadata=hint(_others(made, subset)))
            if not picked.status:
                await asking.answered(WHOLE)
        expected = {addresses(made)[number] for number in allowed}
        assert (picked.status == 503, set(picked.endpoints) - {""}) == (not allowed, expected)


@pytest.mark.parametrize("metadata", [None, {}, {"envoy.lb.subset_hint": {}}, {"other": {"x": "y"}}])
async def test_without_a_subset_the_whole_pool_may_be_chosen(metadata: Any) -> None:
    async with engine() as one, engine() as two, front([one, two]) as made, picker(made) as envoy:
        asking, picked = await envoy.ask(chat("x"), metadata=metadata)
        await asking.answered(WHOLE)
        assert set(picked.endpoints) == set(addresses(made))


@pytest.mark.parametrize("trusted", [False, True])
async def test_the_header_of_the_conformance_tests_is_a_trusted_tenants_and_beats_the_hint(*, trusted: bool) -> None:
    own = TenantRecord(name=DEFAULT_TENANT, trusted=trusted)
    known = Known(directory(own, keys=()))
    async with engine() as one, engine() as two, engine() as three, front([one, two, three], known=known) as made:
        named = addresses(made)
        async with picker(made) as envoy:
            header = [("test-epp-endpoint-selection", named[1]), ("test-epp-endpoint-selection", named[2])]
            asking, picked = await envoy.ask(chat("x"), headers=header, metadata=hint([named[0]]))
            await asking.answered(WHOLE)
        assert set(picked.endpoints) == ({named[1], named[2]} if trusted else {named[0]})


@MODES
async def test_the_decisions_name_is_in_the_answers_headers_and_its_body_is_not_changed(mode: int) -> None:
    async with engine() as worker, front([worker]) as made, picker(made) as envoy:
        asking, _ = await envoy.ask(chat("x"), mode=mode, headers={"x-request-id": "mine"})
        body, headers = await asking.answered(WHOLE[:20], WHOLE[20:], trailers=mode == DUPLEX)
    assert body == WHOLE
    assert headers["x-cachefleet-decision"] == made.records[0].id
    assert headers["x-cachefleet-worker"] == "demo-0"
    assert headers["x-request-id"] == "mine"


async def test_health_is_served_until_the_replica_leaves() -> None:
    async with engine() as worker, front([worker]) as made, picker(made) as envoy:
        check = envoy.channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"
        envoy.server.leave()
        assert await check(b"") == b"\x08\x02"


async def test_a_server_that_stops_ends_once_what_is_under_way_has_ended() -> None:
    async with engine() as worker, front([worker]) as made, picker(made) as envoy:
        asking, _ = await envoy.ask(chat("x"))
        envoy.server.stop()
        await asyncio.sleep(0.05)
        body, _ = await asking.answered(WHOLE)
        assert body == WHOLE
        with pytest.raises(Exception, match=r"refused|UNAVAILABLE|failed to connect"):
            await envoy.get("/v1/models")
