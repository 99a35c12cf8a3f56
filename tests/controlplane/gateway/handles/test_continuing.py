"""One request by handle: what each worker is sent, what is learnt from its answers, and what is counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.handles.continuing import Continuing
from cachefleet_controlplane.gateway.handles.conversation_items import items_of
from cachefleet_controlplane.gateway.handles.handle_memory import PLACES, HandleMemory, HandleMetrics, HeldPrefix
from cachefleet_controlplane.gateway.handles.sending import HandleOutcome
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import Answer, AttemptResult
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.wire.json_members import parse_fields
from cachefleet_core.continuation import CONVERSATION_HEADER, Fingerprints, KeptPrefix, RefusalCode

A, B, C = "http://a:1", "http://b:1", "http://c:1"
PRINTS = Fingerprints(
    model="default/m",
    tokenizer_fingerprint="t",
    renderer="vllm",
    renderer_version="1",
    template_fingerprint="p",
    effective_instructions_hash="",
    effective_tools_hash="",
)
OTHER = msgspec.structs.replace(PRINTS, renderer_version="2")


def kept(number: int) -> KeptPrefix:
    return KeptPrefix(handle=f"vllm_prefix_a_{number}", prefix_hash="sha256:" + "0" * 64, prefix_token_count=number)


def chat(*contents: str, times: int = 500) -> bytes:
    messages = [{"content": text * times} for text in contents]
    return msgspec.json.encode({"messages": messages, "tools": [], "seed": 1})


@dataclass
class Talk:
    """Requests of one gateway, whose workers answer as they are told to."""

    memory: HandleMemory = field(default_factory=lambda: HandleMemory(100))
    metrics: Metrics = field(default_factory=Metrics)
    sent: list[dict[str, Any]] = field(default_factory=list)
    continued: list[KeptPrefix] = field(default_factory=list)
    refusing: str = ""
    status: int = 200

    def __post_init__(self) -> None:
        self.counts = HandleMetrics(self.metrics)

    def request(self, *contents: str, prints: Fingerprints = PRINTS, keepers: tuple[str, ...] = (A, B)) -> Continuing:
        items = items_of(Endpoint.CHAT, parse_fields(chat(*contents)), key=b"k", owner=())
        assert items is not None
        return Continuing(
            self.memory,
            items,
            prints,
            keepers=frozenset(keepers),
            metrics=self.counts,
            on_continued=lambda told, _: self.continued.append(told),
        )

    async def send(
        self, request: Continuing, url: str, *contents: str, keeps: int = 0, times: int = 500
    ) -> AttemptResult:
        async def sent(body: bytes) -> AttemptResult:
            self.sent.append(msgspec.json.decode(body))
            if self.refusing and "prompt_cache_ref" in self.sent[-1]:
                refusal = msgspec.json.encode({"error": {"code": self.refusing}})
                return AttemptResult(Outcome.ANSWERED, Answer(409, (), refusal))
            told = msgspec.json.encode(kept(keeps)).decode() if keeps else ""
            return AttemptResult(Outcome.ANSWERED, Answer(self.status, (), b"{}", kept=told))

        return await request.send(url, chat(*contents, times=times), sent)

    async def turn(self, url: str, *contents: str, keeps: int = 0) -> Continuing:
        request = self.request(*contents)
        await self.send(request, url, *contents, keeps=keeps)
        return request

    @property
    def lengths(self) -> list[tuple[int, str]]:
        """Of each body sent: how many messages, and the handle."""
        return [(len(body["messages"]), body.get("prompt_cache_ref", {}).get("handle", "")) for body in self.sent]

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"cachefleet_continuation_{name}_total", labels) or 0.0


async def test_the_second_turn_carries_only_what_is_new() -> None:
    talk = Talk()
    first = await talk.turn(A, "a", keeps=1)
    second = await talk.turn(A, "a", "b", "c", keeps=2)
    assert talk.lengths == [(1, ""), (2, kept(1).handle)]
    assert talk.sent[1] == {
        "messages": [{"content": "b" * 500}, {"content": "c" * 500}],
        "seed": 1,
        "prompt_cache_ref": msgspec.to_builtins(kept(1).ref(PRINTS)),
    }
    assert (first.ended(A), second.ended(A)) == (None, HandleOutcome.HIT)
    assert talk.continued == [kept(2)]
    assert talk.count("handles", outcome=HandleOutcome.HIT) == 1
    assert talk.count("bytes_spared") == len(chat("a", "b", "c")) - len(msgspec.json.encode(talk.sent[1]))


async def test_what_a_request_for_keys_left_serves_its_answer() -> None:
    """Of the first turn nothing was kept before, so no handle of an earlier request is counted."""
    talk = Talk()
    request = await talk.turn(A, "a", keeps=1)
    await talk.send(request, A, "a", keeps=1)
    assert talk.lengths == [(1, ""), (0, kept(1).handle)]
    assert (request.ended(A), talk.continued) == (None, [])


async def test_a_branch_continues_what_it_has_in_common() -> None:
    talk = Talk()
    await talk.turn(A, "a", "b", keeps=1)
    await talk.turn(A, "a", "b", "c", "d", keeps=2)
    await talk.turn(A, "a", "b", "x", keeps=3)
    await talk.turn(A, "y", "b", "x", keeps=4)
    assert talk.lengths == [(2, ""), (2, kept(1).handle), (1, kept(1).handle), (3, "")]


async def test_what_is_shorter_than_a_reference_is_sent_whole() -> None:
    """A body of the same beginning, in fewer bytes: whatever its length, the digest names the items."""
    talk = Talk()
    await talk.turn(A, "a", keeps=1)
    request = talk.request("a", "b")
    await talk.send(request, A, "a", "b", times=1)
    assert talk.lengths == [(1, ""), (2, "")]
    assert (request.ended(A), talk.continued) == (None, [])


async def test_a9_another_worker_is_sent_the_whole() -> None:
    talk = Talk()
    await talk.turn(A, "a", keeps=1)
    request = await talk.turn(B, "a", "b", keeps=2)
    assert talk.lengths == [(1, ""), (2, "")]
    assert request.ended(B) is HandleOutcome.MISS
    await talk.turn(A, "a", "b", "c")
    await talk.turn(B, "a", "b", "c")
    assert talk.lengths[2:] == [(2, kept(1).handle), (1, kept(2).handle)]


async def test_the_worker_that_keeps_most_comes_first() -> None:
    talk = Talk()
    await talk.turn(A, "a", "b", keeps=1)
    await talk.turn(B, "a", keeps=2)
    assert talk.request("a", "b", "c").first == A
    assert talk.request("a", "c").first == B
    assert talk.request("c").first == ""
    assert talk.request("a", "b", keepers=(B,)).first == B


@pytest.mark.parametrize("code", list(RefusalCode))
async def test_a16_a_lost_handle_is_followed_by_the_whole_in_the_same_attempt(code: RefusalCode) -> None:
    talk = Talk()
    await talk.turn(A, "a", keeps=1)
    talk.refusing = code
    request = talk.request("a", "b")
    opened = await talk.send(request, A, "a", "b")
    assert opened.succeeded
    assert talk.lengths == [(1, ""), (1, kept(1).handle), (2, "")]
    assert request.ended(A) is HandleOutcome.MISS
    assert talk.count("handle_refusals", code=code) == 1
    await talk.turn(A, "a", "b", "c")  # it is forgotten
    assert talk.lengths[-1] == (3, "")


@pytest.mark.parametrize("answer", [b'{"error":{"code":"other"}}', b"{}", b"no", b"\xff", b'{"error":null}'])
async def test_a_409_of_anybody_else_is_the_answer(answer: bytes) -> None:
    talk = Talk()
    await talk.turn(A, "a", keeps=1)

    async def sent(_: bytes) -> AttemptResult:
        return AttemptResult(Outcome.ANSWERED, Answer(409, (), answer))

    opened = await talk.request("a", "b").send(A, chat("a", "b"), sent)
    assert opened.answer is not None
    assert opened.answer.body == answer


async def test_an_error_leaves_nothing_and_is_no_hit() -> None:
    talk = Talk()
    await talk.turn(A, "a", keeps=1)
    talk.status = 400
    request = await talk.turn(A, "a", "b")
    assert (request.ended(A), talk.continued) == (HandleOutcome.MISS, [])


async def test_a6_a11_what_renders_otherwise_is_sent_whole_and_told() -> None:
    talk = Talk()
    await talk.turn(A, "a", keeps=1)
    request = talk.request("a", "b", prints=OTHER)
    await talk.send(request, A, "a", "b", keeps=2)
    assert talk.lengths[-1] == (2, "")
    assert request.ended(A) is HandleOutcome.FINGERPRINT_MISMATCH


async def test_only_workers_that_keep_conversations_are_asked_to() -> None:
    talk = Talk()
    await talk.turn(A, "a", keeps=1)
    request = talk.request("a", "b", keepers=(B,))
    await talk.send(request, A, "a", "b", keeps=2)
    assert talk.lengths[-1] == (2, "")
    assert request.headers(A) == []
    [(name, value)] = request.headers(B)
    assert (name, msgspec.json.decode(value, type=Fingerprints)) == (CONVERSATION_HEADER, PRINTS)


@pytest.mark.parametrize("told", ["", "no", "{}", '{"handle":"x"}', "[]"])
async def test_a_header_that_says_nothing_is_ignored(told: str) -> None:
    talk = Talk()

    async def sent(_: bytes) -> AttemptResult:
        return AttemptResult(Outcome.ANSWERED, Answer(200, (), b"{}", kept=told))

    await talk.request("a").send(A, chat("a"), sent)
    assert talk.request("a").first == ""


def test_a_memory_is_bounded_and_knows_a_few_workers_of_each_beginning() -> None:
    memory = HandleMemory(2)
    one = HeldPrefix(A, kept(1), PRINTS)
    memory.add(b"1", one)
    for number in range(PLACES + 2):
        memory.add(b"2", HeldPrefix(f"http://{number}", kept(1), PRINTS))
    assert [held.url for held in memory.at(b"2")] == [f"http://{number}" for number in range(PLACES + 1, 1, -1)]
    assert memory.at(b"1") == (one,)
    memory.add(b"3", one)
    assert (len(memory), memory.at(b"2")) == (2, ())


def test_a_newer_handle_stays_when_an_older_one_is_lost() -> None:
    memory, older, newer = HandleMemory(2), HeldPrefix(A, kept(1), PRINTS), HeldPrefix(A, kept(2), PRINTS)
    memory.add(b"1", older)
    memory.add(b"1", newer)
    memory.drop(b"1", older)
    assert memory.at(b"1") == (newer,)
    memory.drop(b"1", newer)
    memory.drop(b"1", newer)
    assert (len(memory), memory.at(b"1")) == (0, ())
