"""Conversations on real vLLM with the plugin: what turns leave, stored responses, and the examination of a profile."""

from __future__ import annotations

import json
import random
import re
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import httpx
import openai
import pytest
from openai.resources.responses.responses import ResponsesConnection
from openai.types.responses import Response

from cachefleet_controlplane.prompt_causes.prompt_cause import NOT_MENDED, PromptCause
from e2e.engine.fleet import READY_SECONDS, Up, running_up, until
from tests.controlplane.prompt_causes.conversations import INJECTED, conversation, next_turn, words
from tests.controlplane.prompt_causes.prompts import Body

POOL: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {name: talk}
spec:
  model: {name: tiny, source: cachefleet/tiny, weightsMiB: 2, kvBytesPerToken: 512}
  engine: {maxModelLen: 3072, dtype: float32}
  device: {resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: 504}
  prefixCache: {budgetMiB: 4}
  continuation: {storeHistory: true}
"""
FIRST: Final = "Tell me what is in the first box, and who put it there. " * 8
SECOND: Final = "And what about the second one?"
CLIENT_WARNS: Final = "ignore:connect.. must be used as a context manager:DeprecationWarning"
"""The client's own way of connecting, which its WebSocket library means to end."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("conversations")
    pool = folder / "pool.yaml"
    pool.write_text(POOL)
    with running_up(pool, folder) as up:
        until(lambda: up.live(1), READY_SECONDS, "whole")
        yield up


@pytest.fixture
def client(fleet: Up) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.gateway}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a1_a2_each_turn_finds_what_the_one_before_left(fleet: Up, client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": f"A question of boxes. {FIRST}"}]
    found, cached = [], []
    for turn in range(3):
        raw = client.chat.completions.with_raw_response.create(
            model="tiny", messages=messages, max_tokens=6, extra_headers={"x-cachefleet-session": "box"}
        )
        said = raw.parse()
        found.append(fleet.decision(raw.headers["x-cachefleet-decision"])["continuation"])
        assert said.usage is not None
        assert said.usage.prompt_tokens_details is not None
        cached.append(said.usage.prompt_tokens_details.cached_tokens)
        messages += [{"role": "assistant", "content": "I see."}, {"role": "user", "content": f"{turn}: {SECOND}"}]
    assert found == ["no_checkpoint", "artifact_hit", "artifact_hit"]
    assert cached[0] == 0
    assert all(cached[1:])


def told_and_counted(fleet: Up) -> list[int]:
    """Prompt tokens and those served from cache: by the control plane's lost hits, and by the engine's own counters."""
    [worker] = fleet.workers()
    with urllib.request.urlopen(f"{worker['url']}/metrics", timeout=60) as answer:  # noqa: S310 - ours
        text = answer.read().decode()
    queries = re.search(r"^vllm:prefix_cache_queries_total{.*} (\S+)$", text, re.MULTILINE)
    hits = re.search(r"^vllm:prefix_cache_hits_total{.*} (\S+)$", text, re.MULTILINE)
    assert queries
    assert hits
    lost = fleet.document("lost-hits")
    assert sum(cause["tokens"] for cause in lost["causes"]) == lost["promptTokens"] - lost["servedTokens"]
    return [lost["promptTokens"], lost["servedTokens"], int(float(queries[1])), int(float(hits[1]))]


def test_lost_hits_add_up_to_what_the_engine_counts(fleet: Up, client: openai.OpenAI) -> None:
    before, prompt, cached = told_and_counted(fleet), 0, 0
    messages: list[Any] = [{"role": "user", "content": f"A question of sums. {FIRST}"}]
    for turn in range(4):
        usage = client.chat.completions.create(model="tiny", messages=messages, max_tokens=6).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        prompt += usage.prompt_tokens
        cached += usage.prompt_tokens_details.cached_tokens or 0
        messages += [{"role": "assistant", "content": "I see."}, {"role": "user", "content": f"{turn}: {SECOND}"}]
    assert prompt > cached > prompt / 4

    def grown() -> list[int]:
        return [now - then for now, then in zip(told_and_counted(fleet), before, strict=True)]

    until(lambda: grown() == [prompt, cached] * 2, 60, f"at {prompt} and {cached}")


def hit_ratio(fleet: Up) -> dict[str, Any]:
    """Of the fleet's only pool, by the admin API."""
    (pool,) = fleet.admin("pools")
    return dict(pool["hitRatio"])


@pytest.fixture
def console(fleet: Up) -> Iterator[httpx.Client]:
    """The console's pages, signed in by a link."""
    code = fleet.command("console").stdout.strip().partition("#")[2]
    with httpx.Client(base_url=f"{fleet.internal}/console", headers={"origin": fleet.internal}) as pages:
        assert pages.post("/enter", data={"code": code}).status_code == 303
        yield pages


def number(text: str) -> int:
    return int(text.replace(",", ""))


def shown(console: httpx.Client) -> list[int]:
    """Of the page of lost hits: prompt tokens and those from cache. The rest has to be there by cause, and
    what was first seen by cause in the prompt.
    """
    page = console.get("/lost-hits").text
    facts = re.findall(r"<b[^>]*>([\d,]+)</b> (?:prompt|from|computed)", page)
    rows = page.partition("First seen, by cause in the prompt")
    causes, in_prompts = (re.findall(r'data-label="Tokens"[^>]*>([\d,]+)<', part) for part in (rows[0], rows[2]))
    prompt, served, computed = map(number, facts) if facts else (0, 0, 0)
    assert sum(map(number, causes)) == computed == prompt - served, page
    first_seen = re.findall(r'data-cause="first_seen">.*?data-label="Tokens"[^>]*>([\d,]+)<', rows[0], re.DOTALL)
    assert sum(map(number, in_prompts)) == sum(map(number, first_seen)), page
    return [prompt, served]


def test_the_console_shows_what_the_engine_counts(fleet: Up, client: openai.OpenAI, console: httpx.Client) -> None:
    before, counted = shown(console), told_and_counted(fleet)[2:]
    messages: list[Any] = [{"role": "user", "content": f"A page of sums. {FIRST}"}]
    for _ in range(2):
        raw = client.chat.completions.with_raw_response.create(model="tiny", messages=messages, max_tokens=4)

    def grown() -> list[int]:
        now = shown(console) + told_and_counted(fleet)[2:]
        return [one - then for one, then in zip(now, before + counted, strict=True)]

    usage = raw.parse().usage
    assert usage is not None
    prompt = usage.prompt_tokens
    until(lambda: grown()[::2] == [2 * prompt] * 2, 60, "both prompts, on the page and in the engine's counters")
    _, served, _, hits = grown()
    assert 0 < served == hits < prompt
    page = console.get(f"/requests/{raw.headers['x-cachefleet-decision']}").text
    assert f"<b>{prompt - served:,}</b> of {prompt:,} prompt tokens were computed" in page
    queries, hits = told_and_counted(fleet)[2:]

    def by_engine() -> float:
        """-1 until the worker's next State tells of its first prompt."""
        counted = hit_ratio(fleet)["counted"]
        return -1 if counted is None else round(float(counted), 6)

    until(lambda: by_engine() == round(hits / queries, 6), 60, "the engine's counters in the pool's ratio")
    told = hit_ratio(fleet)
    assert told["by"] == "answers"
    ratio = f"{100 * told['servedTokens'] / told['answeredTokens']:.1f} %"
    until(lambda: ratio in console.get("/").text, 60, f"a hit ratio of {ratio}")


SHOWN: Final = (
    PromptCause.TIME,
    PromptCause.ID,
    PromptCause.SYSTEM_PROMPT,
    PromptCause.HISTORY_DROPPED,
    PromptCause.HISTORY_EDITED,
    PromptCause.REASONING_DROPPED,
)
"""Causes that a template without tools, media and options has."""


def changed(cause: PromptCause, rng: random.Random) -> tuple[Body, Body]:
    """Two requests of a conversation, of which the second leaves the first one for that cause."""
    body = conversation(rng, turns=2, tools=0)
    if cause is not PromptCause.REASONING_DROPPED:
        return INJECTED[cause](rng, body)
    first, asked, answered, *rest = body["messages"]
    thought = answered | {"content": f"<think>{words(rng, 60)}</think>{answered['content']}"}
    return body | {"messages": [first, asked, thought, *rest]}, next_turn(rng, body)


def common_blocks(fleet: Up, *bodies: Body) -> int:
    """Tokens of the whole blocks with which two chats begin, as the engine itself tokenizes them."""
    block = 32
    ids = [
        httpx.post(f"{fleet.gateway}/tokenize", json=body | {"model": "tiny"}, timeout=60).json()["tokens"]
        for body in bodies
    ]
    same = next((at for at, (one, other) in enumerate(zip(*ids, strict=False)) if one != other), min(map(len, ids)))
    return same // block * block


def told_causes(fleet: Up, body: Body) -> tuple[str, list[dict[str, Any]]]:
    """Send a chat; the id of its record, and what of it the record says can be mended."""
    asked = body | {"model": "tiny", "max_tokens": 2}
    answer = httpx.post(f"{fleet.gateway}/v1/chat/completions", json=asked, timeout=60).raise_for_status()
    number = answer.headers["x-cachefleet-decision"]
    lost = fleet.decision(number)["lost"]
    prompts = [one for cause in lost if cause["cause"] == "first_seen" for one in cause["prompt"]]
    return number, [one for one in prompts if one["cause"] not in NOT_MENDED]


def counted_causes(fleet: Up) -> dict[str, float]:
    """First-seen tokens of the causes that can be mended, by the control plane's metrics."""
    page = httpx.get(f"{fleet.internal}/metrics", timeout=60).raise_for_status().text
    found = re.findall(r'^cachefleet_first_seen_tokens_total{cause="(\w+)",.*} (\S+)$', page, re.MULTILINE)
    return {cause: float(tokens) for cause, tokens in found if cause not in NOT_MENDED}


def test_causes_in_prompts_are_named_with_their_place_and_no_other(fleet: Up) -> None:
    rng = random.Random(7)
    before, tokens = counted_causes(fleet), dict[str, float]()
    clean = conversation(rng, turns=0, tools=0)
    for cause in SHOWN * 2:
        first, second = changed(cause, rng)
        clean = next_turn(rng, clean) if len(clean["messages"]) < 6 else conversation(rng, turns=0, tools=0)
        for body in (first, clean):
            assert told_causes(fleet, body)[1] == []
        number, told = told_causes(fleet, second)
        assert [(one["cause"], one["position"]) for one in told] == [(cause, common_blocks(fleet, first, second))]
        if cause not in tokens:  # a command takes its time: once for each
            explained = fleet.command("explain", number).stdout
            assert f"{told[0]['tokens']:,} {cause} (from token {told[0]['position']:,}" in explained
        tokens[cause] = tokens.get(cause, 0) + told[0]["tokens"]
    after = counted_causes(fleet)
    assert {cause: after[cause] - before.get(cause, 0) for cause in after} == tokens


def test_a14_a_turn_taken_back_is_answered_all_the_same(fleet: Up, client: openai.OpenAI) -> None:
    headers = {"x-cachefleet-session": "back"}
    for messages, outcome in (([FIRST, "So?", SECOND], "no_checkpoint"), ([SECOND, "So?", FIRST], "artifact_miss")):
        roles = ("user", "assistant", "user")
        asked: list[Any] = [{"role": role, "content": text} for role, text in zip(roles, messages, strict=True)]
        raw = client.chat.completions.with_raw_response.create(
            model="tiny", messages=asked, max_tokens=4, extra_headers=headers
        )
        assert raw.parse().choices[0].message.content is not None
        assert fleet.decision(raw.headers["x-cachefleet-decision"])["continuation"] == outcome


def test_a12_a_response_is_continued_by_its_id(client: openai.OpenAI) -> None:
    """Its answer is that of the whole conversation sent at once."""
    first = client.responses.create(model="tiny", input=FIRST, max_output_tokens=6, temperature=0)
    by_id = client.responses.create(
        model="tiny", input=SECOND, previous_response_id=first.id, max_output_tokens=6, temperature=0
    )
    whole: list[Any] = [
        {"role": "user", "content": FIRST},
        *(item.model_dump(exclude_none=True) for item in first.output),
        {"role": "user", "content": SECOND},
    ]
    at_once = client.responses.create(model="tiny", input=whole, max_output_tokens=6, temperature=0, store=False)
    assert by_id.output_text == at_once.output_text
    assert by_id.usage is not None
    assert at_once.usage is not None
    assert by_id.usage.input_tokens == at_once.usage.input_tokens
    assert by_id.previous_response_id == first.id
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def over_socket(connection: ResponsesConnection, **fields: Any) -> Response:
    """The response of one request that is to be answered."""
    given: dict[str, Any] = {"model": "tiny", "max_output_tokens": 6, "temperature": 0} | fields
    connection.response.create(**given)
    last = next(event for event in connection if event.type in {"response.completed", "error"})
    assert last.type == "response.completed", last
    return last.response


def cached(response: Response) -> int:
    assert response.usage is not None
    return response.usage.input_tokens_details.cached_tokens


@pytest.mark.filterwarnings(CLIENT_WARNS)
def test_a24_a_response_is_continued_over_a_websocket(fleet: Up, client: openai.OpenAI) -> None:
    """Its answers are those of the whole conversation by POST, and each turn finds the one before in cache."""
    turns: list[Any] = []
    previous: Any = openai.omit
    with client.responses.connect() as connection:
        for text in (f"By another way. {FIRST}", SECOND, "And the third?"):
            new: list[Any] = [{"role": "user", "content": text}]
            done = over_socket(connection, input=new, previous_response_id=previous, store=False)
            turns += new
            whole = client.responses.create(model="tiny", input=turns, max_output_tokens=6, temperature=0, store=False)
            assert done.output_text == whole.output_text
            assert done.usage is not None
            assert whole.usage is not None
            assert done.usage.input_tokens == whole.usage.input_tokens
            assert bool(cached(done)) == bool(previous)
            turns += [item.model_dump(exclude_none=True) for item in done.output]
            previous = done.id


@pytest.mark.filterwarnings(CLIENT_WARNS)
def test_a24_what_another_connection_said_is_told_to_be_unknown(fleet: Up, client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        other = over_socket(connection, input=SECOND, store=False)
    with client.responses.connect() as connection:
        connection.response.create(model="tiny", input="x", previous_response_id=other.id)
        refused = connection.recv()
        assert refused.type == "error"
        assert refused.error.code == "previous_response_not_found"
        stored = client.responses.create(model="tiny", input=FIRST, max_output_tokens=6)
        assert over_socket(connection, input=SECOND, previous_response_id=stored.id).previous_response_id == stored.id


@pytest.mark.filterwarnings(CLIENT_WARNS)
def test_a24_a_warm_up_is_found_in_cache(fleet: Up, client: openai.OpenAI) -> None:
    instructions = f"Be of good cheer. {FIRST}"
    with client.responses.connect() as connection:
        warm = over_socket(connection, input=[], instructions=instructions, generate=False)
        assert (warm.output, cached(warm)) == ([], 0)
        done = over_socket(connection, input="x", instructions=instructions, previous_response_id=warm.id)
        assert cached(done) > 0


def test_a21_a_profile_is_examined_and_certified(fleet: Up) -> None:
    examined = fleet.command("doctor", "certify", "--model", "tiny", "--chats", "4", "-o", "json")
    assert examined.returncode == 0, examined.stderr + examined.stdout
    (certificate,) = json.loads(examined.stdout)
    assert certificate["certified"], certificate
    listed = fleet.command("doctor", "certificates", "-o", "json")
    assert [one["profile"] for one in json.loads(listed.stdout)] == [certificate["profile"]]
