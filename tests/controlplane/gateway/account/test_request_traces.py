"""Traces of requests: context in and out, the spans of answers, streams and failures, and nothing of a prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from cachefleet_controlplane.exposition import CONTENT_TYPE, EXEMPLAR, exposition
from cachefleet_controlplane.fleet.fleet_metrics import FleetCollector
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.tracing.span import Kind, Span
from cachefleet_controlplane.tracing.span_export import make_tracer
from cachefleet_controlplane.tracing.trace_context import TraceContext, parse
from cachefleet_controlplane.tracing.tracer import Tracer
from cachefleet_controlplane.tracing.tracing_settings import TracingSettings
from cachefleet_core.tenancy import DEFAULT_TENANT, tenant_salt
from tests.controlplane.gateway.converse.talk import keyed
from tests.controlplane.gateway.harness import FLEET_KEY, WORKER_KEY, Front, Known, engine, front
from tests.controlplane.gateway.know.test_held_requests import asked as sent
from tests.controlplane.gateway.know.test_held_requests import introduce
from tests.controlplane.gateway.responses_socket.sockets import connected, respond
from tests.controlplane.gateway.retry.test_failover import Reset, serving
from tests.controlplane.gateway.roles import nixl, split
from tests.controlplane.gateway.tenancies import ACME, directory
from tests.controlplane.tracing.collector import collecting
from tests.controlplane.waiting import until
from tests.fakes.engine import FakeEngine

CLIENT = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0xF067AA0BA902B7, sampled=True)
MARK = "zanzibar-4711"


@dataclass
class Kept:
    """Keeps the spans of ended requests."""

    spans: list[Span] = field(default_factory=list)

    def submit(self, spans: Sequence[Span]) -> None:
        self.spans += spans

    async def close(self) -> None:
        pass

    @property
    def own(self) -> Span:
        (span,) = [span for span in self.spans if span.kind is Kind.SERVER]
        return span

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def tracer(kept: Kept) -> Tracer:
    return Tracer(lambda _, parent: parent is None or parent.sampled, kept)


def asked(worker: FakeEngine) -> list[dict[str, str]]:
    """The headers of what it was asked to answer."""
    return [
        {name.lower(): value for name, value in one.headers.items()}
        for one in worker.requests
        if one.path == "/v1/chat/completions"
    ]


def told(worker: FakeEngine) -> list[TraceContext | None]:
    """The contexts that it was to continue."""
    return [parse(headers.get("traceparent", "").encode()) for headers in asked(worker)]


async def chat(gate: Front, text: str = "hello " * 40, *, client: str = "", **changes: object) -> int:
    headers = {"traceparent": client or CLIENT.header()[1].decode(), "tracestate": "vendor=1"}
    body = {"model": "fake", "messages": [{"role": "user", "content": text}], "max_tokens": 4} | changes
    send = gate.settled if changes.get("stream") else gate.post  # a stream ends before its record is made
    return (await send("/v1/chat/completions", body, **headers))[0]


async def test_a_request_is_a_trace_from_its_client_to_its_worker(kept: Kept, tracer: Tracer) -> None:
    async with engine() as worker, front([worker], tracer=tracer) as gate:
        gate.report(0)
        assert await chat(gate) == 200
        record = gate.records[0]
    own, (attempt,) = kept.own, kept.named("attempt")
    assert told(worker) == [TraceContext(CLIENT.trace_id, attempt.span_id, sampled=True)]
    assert asked(worker)[0]["tracestate"] == "vendor=1"
    assert (own.name, own.trace_id, own.parent_id) == ("chat fake", CLIENT.trace_id, CLIENT.span_id)
    assert [span.name for span in kept.spans] == ["chat fake", "admission", "render", "decide", "attempt"]
    assert {span.parent_id for span in kept.spans[1:]} == {own.span_id}
    assert len({span.span_id for span in kept.spans}) == 5
    assert all(own.began <= span.began <= span.ended <= own.ended for span in kept.spans)
    assert record.at == pytest.approx(own.began, abs=1)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "fake",
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "cachefleet.decision.id": record.id,
        "cachefleet.pool": record.pool,
        "cachefleet.worker": record.worker,
        "cachefleet.reason": record.reason,
        "cachefleet.tokens.predicted": 0,
        "cachefleet.tokens.cached": 0,
        "cachefleet.tokens.lost": record.prompt_tokens,
    }
    assert expected.items() <= own.attributes.items()
    assert attempt.kind is Kind.CLIENT
    assert {"cachefleet.outcome": "answered", "http.response.status_code": 200}.items() <= attempt.attributes.items()
    assert attempt.attributes["server.port"] == int(worker.url.rpartition(":")[2])


async def test_a_streams_first_token_is_an_event(kept: Kept, tracer: Tracer) -> None:
    async with engine() as worker, front([worker], tracer=tracer) as gate:
        assert await chat(gate, stream=True) == 200
    (event,) = kept.own.events
    assert event.name == "first_token"
    assert kept.own.began < event.at <= kept.own.ended
    assert kept.named("attempt")[0].attributes["cachefleet.outcome"] == "finished"


@pytest.mark.usefixtures("hurried")
async def test_a_request_that_goes_to_another_worker_has_two_attempts(kept: Kept, tracer: Tracer) -> None:
    """The first worker drops the connection."""
    async with serving(Reset()) as first, engine() as second, front([first, second], tracer=tracer) as gate:
        while not first.asked:
            kept.spans.clear()
            assert await chat(gate, stream=True) == 200
        records = gate.records[-1].attempts
    lost, served = kept.named("attempt")
    assert [span.attributes["cachefleet.worker"] for span in (lost, served)] == [one.worker for one in records]
    assert (lost.failed, served.failed, kept.own.failed) == (True, False, False)
    assert lost.attributes["error.type"] == lost.attributes["cachefleet.outcome"] == "lost"
    assert (served.attributes["http.request.resend_count"], served.attributes["http.response.status_code"]) == (1, 200)
    assert lost.ended <= served.began
    assert told(second)[-1] == TraceContext(CLIENT.trace_id, served.span_id, sampled=True)
    assert lost.span_id != served.span_id


async def test_what_is_refused_is_a_trace_too(kept: Kept, tracer: Tracer) -> None:
    async with engine() as worker, front([worker], tracer=tracer) as gate:
        assert await chat(gate, model=MARK) == 404
    assert kept.own.name == "chat"
    assert kept.own.attributes["http.response.status_code"] == 404
    assert not kept.own.failed


@pytest.mark.parametrize("client", ["", "00-nonsense-01"])
async def test_without_a_clients_trace_one_begins(kept: Kept, tracer: Tracer, client: str) -> None:
    async with engine() as worker, front([worker], tracer=tracer) as gate:
        given = {"traceparent": client, "tracestate": "vendor=1"} if client else {}
        body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        assert (await gate.post("/v1/chat/completions", body, **given))[0] == 200
    own, (attempt,) = kept.own, kept.named("attempt")
    assert own.parent_id == 0
    assert own.trace_id
    assert told(worker) == [TraceContext(own.trace_id, attempt.span_id, sampled=True)]
    assert "tracestate" not in asked(worker)[0]


async def test_a_client_that_does_not_record_is_passed_on_as_it_is(kept: Kept, tracer: Tracer) -> None:
    quiet = TraceContext(CLIENT.trace_id, CLIENT.span_id, sampled=False)
    async with engine() as worker, front([worker], tracer=tracer) as gate:
        assert await chat(gate, client=quiet.header()[1].decode()) == 200
    assert told(worker) == [quiet]
    assert not kept.spans


async def test_a_worker_is_told_of_what_the_sampler_leaves_out(kept: Kept) -> None:
    async with engine() as worker, front([worker], tracer=Tracer(lambda *_: False, kept)) as gate:
        assert await chat(gate) == 200
        assert (await gate.chat("hi"))[0] == 200
    mine, new = told(worker)
    assert mine is not None
    assert new is not None
    assert (mine.trace_id, mine.sampled, new.sampled) == (CLIENT.trace_id, False, False)
    assert mine.span_id != CLIENT.span_id
    assert not kept.spans


async def test_a_clients_context_passes_while_traces_are_off() -> None:
    async with engine() as worker, front([worker]) as gate:
        assert await chat(gate) == 200
    assert told(worker) == [CLIENT]
    assert asked(worker)[0]["tracestate"] == "vendor=1"


async def test_a_prefill_is_an_attempt_of_its_own(kept: Kept, tracer: Tracer) -> None:
    async with nixl() as one, nixl() as two, split([one], [two], tracer=tracer) as fleet:
        assert await chat(fleet.gate) == 200
    (prefill,), (attempt,) = kept.named("prefill"), kept.named("attempt")
    assert prefill.ended <= attempt.began
    assert prefill.span_id != attempt.span_id


async def test_a_worker_that_holds_a_request_continues_its_attempt(kept: Kept, tracer: Tracer) -> None:
    async with keyed() as worker, front([worker], tracer=tracer) as gate:
        introduce(gate)
        assert await chat(gate) == 200
        assert sent(worker) == [("/v1/chat/completions", True)]
    assert told(worker) == [TraceContext(CLIENT.trace_id, kept.named("attempt")[0].span_id, sampled=True)]


async def test_each_response_of_a_socket_is_a_trace(kept: Kept, tracer: Tracer) -> None:
    headers = {"traceparent": CLIENT.header()[1].decode()}
    async with engine() as worker, front([worker], tracer=tracer) as gate, connected(gate, **headers) as socket:
        await respond(socket, "hello")
        await respond(socket, "hello again")
    first, second = (span for span in kept.spans if span.kind is Kind.SERVER)
    assert first.parent_id == second.parent_id == CLIENT.span_id
    assert first.span_id != second.span_id
    assert first.name == "chat fake"


async def test_who_is_not_admitted_makes_no_spans(kept: Kept, tracer: Tracer) -> None:
    async with engine() as worker, front([worker], tracer=tracer, known=Known(directory(ACME))) as gate:
        assert await chat(gate) == 401
    assert not kept.spans


async def test_histograms_name_the_trace_of_what_they_observed(tracer: Tracer, kept: Kept) -> None:
    async with engine() as worker, front([worker], tracer=tracer) as gate:
        gate.metrics.collect_from(FleetCollector(gate.fleet.view))
        assert await chat(gate, stream=True) == 200
        page, kind = exposition(gate.metrics.registry, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
        plain = exposition(gate.metrics.registry, "*/*")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in text_string_to_metric_families(page.decode())}  # type: ignore[no-untyped-call]
    named = {"trace_id": f"{CLIENT.trace_id:032x}", "span_id": f"{kept.own.span_id:016x}"}
    for name in ("time_to_first_token_seconds", "gateway_added_seconds", "render_seconds"):
        found = [one.exemplar.labels for one in families[f"cachefleet_{name}"].samples if one.exemplar]
        assert found == [named]
    assert plain[1] == CONTENT_TYPE
    assert b"trace_id" not in plain[0]
    assert EXEMPLAR.get() is None


async def test_a_request_that_is_not_traced_names_no_other_s_trace(kept: Kept) -> None:
    begin = Tracer(lambda trace, _: trace == CLIENT.trace_id, kept).begin
    traced, _ = begin([CLIENT.header()], arrived=0, unix_offset=0)
    assert traced is not None
    assert EXEMPLAR.get() is not None
    left_out, _ = begin([], arrived=0, unix_offset=0)
    assert left_out is None
    assert EXEMPLAR.get() is None


async def test_nothing_that_is_exported_holds_a_prompt_a_salt_or_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    async with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        traced = make_tracer(TracingSettings(queue=2048, batch=512, delay=300_000), metrics.trace_spans)
        async with engine() as first, engine() as second, front([first, second], tracer=traced) as gate:
            gate.report(0)
            headers = {"x-request-id": MARK, "tracestate": f"v={MARK}", "x-session-id": MARK, "authorization": MARK}
            body = {"model": "fake", "messages": [{"role": "user", "content": MARK}], "max_tokens": 4}
            for changes in (
                {},
                {"stream": True},
                {"prompt_cache_key": MARK, "user": MARK},
                {"max_tokens": MARK},
                {"model": MARK},
            ):
                await gate.post("/v1/chat/completions", body | changes, **headers)
            await gate.post("/v1/completions", {"model": "fake", "prompt": [4711, 815, 4711], "max_tokens": 2})
            first.fail_next(500, 2)
            second.fail_next(500, 2)
            await gate.post("/v1/chat/completions", body, **headers)
            seen = json.dumps([one.body.decode() for worker in (first, second) for one in worker.requests])
        await traced.close()
        await until(lambda: len(collector.spans()) > 20)
    salt = tenant_salt(FLEET_KEY.salt_key, DEFAULT_TENANT)
    assert MARK in seen
    assert salt in seen
    for body_sent in collector.bodies:
        assert not [secret for secret in (MARK, salt, WORKER_KEY, FLEET_KEY.format()) if secret.encode() in body_sent]
