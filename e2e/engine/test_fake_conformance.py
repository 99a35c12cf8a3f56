"""The fake engine of the tests against real vLLM: the same requests to both, the same answers and events.

Both get the same model folder, so ids, block hashes and numbers must be equal, not only alike. What a random model
says cannot be: the text and ids of answers are compared by type and length. What else differs, on purpose:

- log probabilities are made up, or null, in the fake; a forced tool call or JSON of a schema is the smallest there is;
- ``vllm:estimated_*_per_gpu`` metrics, process metrics but the start time, and the HTTP server's are missing;
- ``cache_config_info`` has fewer labels;
- ``/abort_requests``, ``/server_info`` and other routes that no part of cachefleet uses are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import msgspec
import pytest
import zmq

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.handles.unseen_text import MARKERS, TextPlace, question
from e2e.engine.comparison import summary
from e2e.engine.requests import ANSWERED, CHAT, COMPLETION, MESSAGES, REFUSED, RESPONSES, Sent
from e2e.engine.side import Batch, Exchange, Held, Side
from e2e.engine.vllm import VllmOptions, VllmServer
from tests.controlplane.gateway.handles.test_unseen_text import IDS, PLACES
from tests.fakes.engine import FakeEngine

MISSING_METRICS: Final = ("vllm:estimated_", "python_", "process_", "http_")
BLOCK: Final = VllmOptions().block_size
ATTEMPTS: Final = 200


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:
        yield session


@pytest.fixture
async def fake(vllm_server: VllmServer, session: aiohttp.ClientSession) -> AsyncIterator[Side]:
    options = vllm_server.options
    engine = FakeEngine(
        model=options.model,
        root=str(vllm_server.folder),
        tokenizer=vllm_server.folder,
        api_key=options.api_key,
        num_blocks=options.num_blocks,
        block_size=options.block_size,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_batched_tokens=options.max_batched_tokens,
        topic=options.topic,
        buffer_steps=options.buffer_steps,
        event_int_hashes=("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0") not in options.environment,
        prefix_caching="--no-enable-prefix-caching" not in options.extra,
    )
    async with engine:
        yield Side(engine.url, engine.events_endpoint, engine.replay_endpoint, vllm_server.headers, session)


@pytest.fixture
async def real(vllm_server: VllmServer, session: aiohttp.ClientSession) -> Side:
    server = vllm_server
    return Side(server.url, server.events_endpoint, server.replay_endpoint, server.headers, session)


@pytest.fixture
async def sides(real: Side, fake: Side) -> tuple[Side, Side]:
    """Real and fake, both with an empty cache and the clearing event of it published."""
    for side in (real, fake):
        await side.reset()
        await side.complete([1])
    return real, fake


async def send(side: Side, sent: Sent) -> Exchange:
    headers = {} if sent.anonymous else side.headers
    return await side.send(sent.path, sent.body, method=sent.method, headers=headers)


@pytest.mark.parametrize("sent", ANSWERED, ids=str)
async def test_the_same_answer(sides: tuple[Side, Side], sent: Sent) -> None:
    real, fake = await _alike(sides, sent, warm=False)
    assert fake == real
    assert real[0] == 200
    real, fake = await _alike(sides, sent, warm=True)
    assert fake == real


async def _alike(sides: tuple[Side, Side], sent: Sent, *, warm: bool) -> list[Any]:
    """Both answers; of a stream the first two alike, since a busy vLLM may put the tokens of two steps into one."""
    for _ in range(ATTEMPTS):
        answers = [summary(await send(side, sent)) for side in sides]
        if answers[0] == answers[1] or not isinstance(sent.body, dict) or not sent.body.get("stream"):
            break
        for side in () if warm else sides:
            await side.reset()
    return answers


@pytest.mark.parametrize("sent", REFUSED, ids=str)
async def test_the_same_refusal(sides: tuple[Side, Side], sent: Sent) -> None:
    real, fake = [await send(side, sent) for side in sides]
    assert fake == real
    assert real.status >= 400


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
async def test_the_same_refusal_of_what_is_not_called_json(sides: tuple[Side, Side], kind: str) -> None:
    for path in (CHAT, COMPLETION, RESPONSES, MESSAGES, "/tokenize"):
        body = {
            "prompt": "hello",
            "input": "hello",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 1,
        }
        real, fake = [await side.send(path, body, headers={**side.headers, "Content-Type": kind}) for side in sides]
        assert fake == real
        assert real.status == 400


async def test_the_same_blocks_are_hit_stored_and_evicted(sides: tuple[Side, Side]) -> None:
    """A pool of 63 blocks under several times as many; exact events, in the same batches."""
    prompts = [_ids(seed, 40 + 61 * (seed % 7)) for seed in range(12)]
    prompts += [prompts[3] + _ids(50, 100), prompts[3][:70], prompts[11], prompts[0], prompts[11] + _ids(51, 300)]
    prompts += [prompts[4][: 3 * BLOCK]] * 3 + [_ids(60, 900), prompts[4], _ids(60, 950), prompts[2]]
    results = [await _run(side, [{"prompt": prompt} for prompt in prompts]) for side in sides]
    assert results[1][0] == results[0][0], "cached tokens"
    assert any(results[0][0])
    assert results[1][1] == results[0][1], "events"
    kinds = {event["type"] for batch in results[0][1] for event in batch}
    assert kinds == {"BlockStored", "BlockRemoved"}


async def test_salts_sessions_and_full_reports(sides: tuple[Side, Side]) -> None:
    prompt = _ids(1, 100)
    full = {"vllm_xargs": {"kv_cache_report_mode": "full"}}
    bodies: list[dict[str, Any]] = [{}, {"cache_salt": "a"}, {"cache_salt": "b", "session_id": "s1"}]
    bodies += [{"cache_salt": "a"} | full, full, {"session_id": "s2"} | full]
    results = [await _run(side, [{"prompt": prompt} | body for body in bodies]) for side in sides]
    assert results[1] == results[0]
    assert results[0][0] == [0, 0, 0, 96, 96, 96]


async def test_blocks_filled_by_an_answer_are_stored_as_they_fill(sides: tuple[Side, Side]) -> None:
    shapes, again = [], []
    for side in sides:
        start = await side.next_sequence()
        answer = await side.complete(_ids(2, 50), max_tokens=150, return_token_ids=True)
        batches = await _settled(side, start)
        shapes.append([(event["type"], len(event["block_hashes"])) for batch in batches for event in batch.events])
        again.append(await side.cached(_ids(2, 50) + answer.body["choices"][0]["token_ids"]))
        held = Held()
        held.apply(batches)
        assert len(held.copies) == (50 + 150 - 1) // BLOCK  # the last id is said, not computed
    assert shapes[1] == shapes[0]
    assert again[1] == again[0] == 192


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings_cut_the_text_of_an_answer(sides: tuple[Side, Side], *, stream: bool) -> None:
    """What is said differs, so each side is asked to stop within what it said before."""
    for side in sides:
        asked: dict[str, Any] = {"max_tokens": 30, "return_token_ids": True}
        whole = (await side.complete(_ids(4, 40), **asked)).body["choices"][0]
        stop = whole["text"][17:21]
        answer = await side.complete(_ids(4, 40), **asked, stop=["never said", stop], stream=stream)
        choices = [chunk["choices"][0] for chunk in answer.body] if stream else answer.body["choices"]
        assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", stop)
        assert "".join(choice["text"] for choice in choices) == whole["text"][: whole["text"].index(stop)]
        ids = [token for choice in choices for token in choice["token_ids"]]
        assert ids == whole["token_ids"][: len(ids)]
        assert len(ids) < 30


async def test_clearing_is_told_with_the_next_step(sides: tuple[Side, Side]) -> None:
    told = []
    for side in sides:
        await side.complete(_ids(3, 70))
        start = await side.next_sequence()
        await side.reset()
        silent = await side.replay(start)
        assert await side.cached(_ids(3, 70)) == 0
        told.append((silent, [event["type"] for batch in await _settled(side, start) for event in batch.events]))
    assert told[1] == told[0] == ([], ["AllBlocksCleared", "BlockStored"])


async def test_live_and_replayed_messages(sides: tuple[Side, Side]) -> None:
    shown = []
    for side in sides:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        with context.socket(zmq.SUB) as subscriber:
            subscriber.setsockopt(zmq.LINGER, 0)
            subscriber.connect(side.events_endpoint)
            subscriber.subscribe(b"")
            await _heard(side, subscriber)
            start = await side.next_sequence()
            for seed in range(3):
                await side.complete(_ids(100 + seed, 64))
            live = [await asyncio.to_thread(_receive, subscriber) for _ in range(3)]
        assert live == await side.replay(start)
        assert [batch.sequence for batch in await side.replay()] == list(range(start + 3))
        assert await side.replay(start + 3) == []
        shown.append([(batch.topic, batch.payload[:1], batch.payload[-1:]) for batch in live])
    assert shown[1] == shown[0]


async def test_concurrent_requests_preempt_and_the_events_stay_true(sides: tuple[Side, Side]) -> None:
    """Arrival is a race here, so both sides are held to the same law instead of to each other."""
    for side in sides:
        start = await side.next_sequence()
        before = await side.metrics()
        prompts = [_ids(200 + i, 200) for i in range(6)]
        answer = await side.complete(prompts, max_tokens=300)
        usage = answer.body["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (1200, 1800)
        assert _delta(before, await side.metrics(), "vllm:num_preemptions_total") > 0
        held = Held()
        held.apply(await _settled(side, start))
        assert 0 < sum(held.copies.values()) <= 63
        for prompt in prompts:
            predicted = held.depth(prompt, BLOCK) * BLOCK
            start = await side.next_sequence()
            assert await side.cached(prompt) == predicted
            held.apply(await _settled(side, start))


async def test_a_client_that_leaves_frees_its_blocks(sides: tuple[Side, Side]) -> None:
    for side in sides:
        body = {"prompt": _ids(300, 100), "max_tokens": 900, "stream": True, "ignore_eos": True}
        async with side.session.post(f"{side.url}/v1/completions", json=body, headers=side.headers) as response:
            await response.content.readline()
        async with asyncio.timeout(60):
            while _value(await side.metrics(), "vllm:num_requests_running"):  # noqa: ASYNC110 # another process
                await asyncio.sleep(0.02)
        assert await side.cached(_ids(300, 100)) == 96


async def test_metrics_have_the_same_names_labels_and_counts(sides: tuple[Side, Side]) -> None:
    deltas, names = [], []
    counted = (
        "prompt_tokens_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "generation_tokens_total",
    )
    for side in sides:
        before = await side.metrics()
        for prompt in (_ids(400, 100), _ids(400, 100), _ids(401, 32)):
            await side.complete(prompt, max_tokens=3)
        after = await side.metrics()
        deltas.append([_delta(before, after, f"vllm:{name}") for name in counted])
        deltas[-1].append(_delta(before, after, "vllm:request_prompt_tokens_sum"))
        deltas[-1].append(_delta(before, after, "vllm:iteration_tokens_total_sum"))
        names.append({_name(sample) for sample in after if not sample.startswith(MISSING_METRICS)})
        assert any(sample.startswith("process_start_time_seconds") for sample in after)
    assert deltas[1] == deltas[0]
    assert names[1] == names[0]


def _ids(seed: int, count: int) -> list[int]:
    return [256 + (seed * 7919 + i * 31 + i * i * seed) % 1500 for i in range(count)]


async def _run(side: Side, bodies: list[dict[str, Any]]) -> tuple[list[int], list[Any]]:
    """Cached tokens of each request, and the batches of events they made."""
    start = await side.next_sequence()
    cached = [await side.cached(**body) for body in bodies]
    return cached, [batch.events for batch in await _settled(side, start)]


async def _settled(side: Side, start: int) -> list[Batch]:
    """The batches since ``start``; an answer may overtake the batch of its own step, a replay the one in hand."""
    looks: list[list[Batch]] = []
    while len(looks) < 2 or looks[-1] != looks[-2]:
        await asyncio.sleep(0.15)
        looks.append(await side.replay(start))
    return looks[-1]


async def _heard(side: Side, subscriber: zmq.Socket[bytes]) -> None:
    """The engine has met its subscriber; what it heard meanwhile is thrown away."""
    for seed in range(50):
        await side.complete(_ids(9_000 + seed, 64))
        if await asyncio.to_thread(subscriber.poll, 200):
            break
    while await asyncio.to_thread(subscriber.poll, 500):
        subscriber.recv_multipart()


def _receive(subscriber: zmq.Socket[bytes]) -> Batch:
    assert subscriber.poll(60_000)
    topic, sequence, payload = subscriber.recv_multipart()
    return Batch(topic, int.from_bytes(sequence, "big"), payload)


def _value(samples: dict[str, float], name: str) -> float:
    return sum(value for sample, value in samples.items() if sample.partition("{")[0] == name)


def _delta(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return _value(after, name) - _value(before, name)


def _name(sample: str) -> tuple[str, tuple[str, ...]]:
    """A sample's name, label names, and those label values that say which one of a family it is."""
    name, _, labels = sample.partition("{")
    if name == "vllm:cache_config_info":
        return name, ()
    pairs = [pair for pair in labels.rstrip("}").split(",") if pair and not pair.startswith("model_name")]
    return name, tuple(sorted(pairs))


@pytest.mark.slow
@pytest.mark.parametrize(
    "vllm_server",
    [
        VllmOptions(environment=(("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0"),)),
        VllmOptions(extra=("--no-enable-prefix-caching",)),
    ],
    ids=["hashes of 32 bytes", "no prefix caching"],
    indirect=True,
)
async def test_the_same_events_with_other_settings(sides: tuple[Side, Side]) -> None:
    bodies: list[dict[str, Any]] = [{"prompt": _ids(seed, 300)} for seed in (1, 2, 1, 3, 4, 5, 6, 7, 8, 1)]
    results = [await _run(side, bodies) for side in sides]
    assert results[1] == results[0]


@pytest.mark.parametrize("place", PLACES, ids=IDS)
async def test_both_leave_out_of_a_prompt_what_claude_code_says_anew_each_time(
    sides: tuple[Side, Side], place: TextPlace
) -> None:
    """What the gateway asks renderers, asked of this vLLM: its answer is not taken from a list of versions.

    Of responses' lists of parts, which are ``input_text``, vLLM leaves out nothing.
    """
    alike = []
    for side in sides:
        prompts = []
        for nonce in ("cch=0;", "cc_version=2.1.17; cch=5d2ab;"):
            body = question(place, MARKERS[0].decode(), nonce, model=VllmOptions().model)
            answer = await side.send(f"{place.endpoint}/render", msgspec.json.decode(body), headers=side.headers)
            assert answer.status == 200, answer
            prompts.append(answer.body["token_ids"])
        alike.append(prompts[0] == prompts[1])
    assert alike == [not (place.endpoint is Endpoint.RESPONSES and place.listed)] * 2
