"""Held requests before an application that renders; real vLLM is in e2e/engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from cachefleet_core.engine.held_requests import (
    GO,
    HEAD,
    HOLD_HEADER,
    KEYS,
    MEDIA_TYPE,
    NOT_HELD,
    Hold,
    LateMembers,
    frame,
    read_head,
    split,
)
from cachefleet_worker.plugin.keys import held_requests
from cachefleet_worker.plugin.keys.held_requests import HeldRequests
from cachefleet_worker.plugin.prompts.held_prompt import FEATURE, HeldPrompt, held
from cachefleet_worker.plugin.settings import PluginSettings
from tests.worker.plugin.asked import process

KEY = "worker-key"
BODY = b'{"messages": []}'
HOLD = Hold(length=len(BODY), contract="sha256:" + "c" * 64, block_size=16, model="tiny")
PROMPT = {"type": "token", "prompt_token_ids": [1, 2, 3]}


class Service:
    """Gives a document for every prompt."""

    on = True

    async def of_prompt(self, hold: Hold, prompt: Any) -> bytes:
        return b"" if prompt is None else b"keys of %d" % len(prompt["prompt_token_ids"])


class Server:
    """An application that renders once and answers; ``renders`` is what its renderer returns, None for no call."""

    def __init__(self, settings: PluginSettings, renders: Any = ([], [PROMPT]), status: int = 200) -> None:
        self.process = process(settings)
        self.process.capabilities.add("prompts", "on")
        self.renders, self.status = renders, status
        self.bodies: list[bytes] = []
        self.headers: dict[bytes, bytes] = {}
        self.gone = False
        self.computed = False
        """The prompt went on to the engine."""
        self.members: LateMembers | None = None
        """What came with word to answer."""
        self.rendered = asyncio.Event()
        self.may_render = asyncio.Event()
        self.may_render.set()
        self.app: Any = self
        held_requests.install(self, self.process, Service)  # type: ignore[arg-type]

    def add_middleware(self, kind: type[HeldRequests], **options: Any) -> None:
        self.app = kind(self, **options)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        self.headers = dict(scope["headers"])
        self.bodies.append(message.get("body", b""))
        self.rendered.set()
        handler = asyncio.create_task(self._handle(send))
        listener = asyncio.create_task(receive())  # as vLLM does, to cancel what nobody waits for
        await asyncio.wait({handler, listener}, return_when=asyncio.FIRST_COMPLETED)
        self.gone = listener.done()
        for task in (handler, listener):
            task.cancel()
        await asyncio.gather(handler, listener, return_exceptions=True)
        if self.gone:  # what vLLM's routes answer to whom they take for gone
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"null"})

    async def _handle(self, send: Any) -> None:
        waiting = held.get()
        await self.may_render.wait()
        if waiting is not None and self.renders is not None:
            await waiting.rendered(self.renders)
            self.members = waiting.members
        self.computed = True
        await send({"type": "http.response.start", "status": self.status, "headers": [(b"a", b"b")]})
        for part, more in ((b"one ", True), (b"two", False)):
            await send({"type": "http.response.body", "body": part, "more_body": more})


class Client:
    """Sends messages when it is told to, and keeps what it gets."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for message in messages:
            self.queue.put_nowait(message)
        self.starts: list[dict[str, Any]] = []
        self.data = b""
        self.told = asyncio.Event()
        self.ended = False

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.starts.append(message)
            return
        self.data += message.get("body", b"")
        self.ended = not message.get("more_body", False)
        self.told.set()


def part(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


def scope(*, key: str = KEY, header: str | None = None) -> dict[str, Any]:
    value = HOLD.header() if header is None else header
    headers = [(b"authorization", b"Bearer " + key.encode()), (b"transfer-encoding", b"chunked")]
    headers += [(HOLD_HEADER.encode(), value.encode())] if value else []
    return {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}


@pytest.fixture
def key_settings(tmp_path: Any) -> PluginSettings:
    (tmp_path / "key").write_text(KEY)
    return PluginSettings(worker_key_file=tmp_path / "key")


async def test_keys_come_first_and_the_answer_when_it_is_asked_for(key_settings: PluginSettings) -> None:
    server, client = Server(key_settings), Client(part(BODY[:5]), part(BODY[5:]))
    asking = asyncio.create_task(server.app(scope(), client.queue.get, client.send))
    await client.told.wait()
    assert client.data == frame(KEYS, b"keys of 3")
    assert dict(client.starts[0]["headers"])[b"content-type"] == MEDIA_TYPE.encode()
    assert (server.bodies, server.headers[b"content-length"]) == ([BODY], str(len(BODY)).encode())
    assert not {b"transfer-encoding", HOLD_HEADER.encode()} & server.headers.keys()
    client.queue.put_nowait(part(GO, more=False))
    await asking
    kind, payload, rest = split(client.data[len(frame(KEYS, b"keys of 3")) :]) or (b"", b"", b"")
    head = read_head(payload)
    assert (kind, head.status, head.headers, rest) == (HEAD, 200, (("a", "b"),), b"one two")
    assert (client.ended, len(client.starts), server.gone) == (True, 1, False)


async def test_word_that_came_with_the_body_is_heard(key_settings: PluginSettings) -> None:
    server, client = Server(key_settings), Client(part(BODY + GO, more=False))
    await server.app(scope(), client.queue.get, client.send)
    assert client.data.endswith(b"one two")


@pytest.mark.parametrize("pieces", [(BODY, GO[:1], GO[1:]), (BODY + GO[:1], GO[1:])])
async def test_word_in_two_pieces_is_heard(key_settings: PluginSettings, pieces: tuple[bytes, ...]) -> None:
    server, client = Server(key_settings), Client(*map(part, pieces), part(b"", more=False))
    await server.app(scope(), client.queue.get, client.send)
    assert client.data.endswith(b"one two")


LATE = [
    (b"", LateMembers()),
    (b"{}", LateMembers()),
    (b'{"cache_hit_threshold":0.25}', LateMembers(0.25)),
    (b'{"cache_hit_threshold":null}', LateMembers(None)),
    (b'{"kv_transfer_params":{"remote":[1]}}', LateMembers(kv_transfer_params={"remote": [1]})),
]


@pytest.mark.parametrize(("said", "members"), LATE)
async def test_members_of_the_body_come_with_word(
    key_settings: PluginSettings, said: bytes, members: LateMembers
) -> None:
    server, client = Server(key_settings), Client(part(BODY), part(GO + said[:9]), part(said[9:], more=False))
    await server.app(scope(), client.queue.get, client.send)
    assert (server.members, server.computed) == (members, True)


WRONG = [
    (b"on", 400, "begin with 'go'"),
    (b"go{", 400, "truncated"),
    (b'go{"model":"other"}', 400, "unknown field `model`"),
    (b'go{"cache_hit_threshold":1.5}', 400, "<= 1.0 - at `$.cache_hit_threshold`"),
    (b'go{"cache_hit_threshold":true}', 400, "got `bool` - at `$.cache_hit_threshold`"),
    (b'go{"kv_transfer_params":[]}', 400, "got `array` - at `$.kv_transfer_params`"),
    (b"go{" + b" " * 300, 413, "over 200 bytes"),
]


@pytest.mark.parametrize(("said", "status", "message"), WRONG)
async def test_wrong_word_is_refused_and_computes_nothing(
    key_settings: PluginSettings, said: bytes, status: int, message: str
) -> None:
    settings = PluginSettings(worker_key_file=key_settings.worker_key_file, max_body_bytes=200)
    server, client = Server(settings), Client(part(BODY), part(said, more=len(said) > 200))
    await server.app(scope(), client.queue.get, client.send)
    kind, payload, rest = split(client.data[len(frame(KEYS, b"keys of 3")) :]) or (b"", b"", b"")
    assert (kind, read_head(payload).status, client.ended) == (HEAD, status, True)
    assert message in json.loads(rest)["error"]["message"]
    assert (server.computed, server.process.capabilities.mode(FEATURE)) == (False, "on")


async def test_who_goes_away_is_gone_for_the_application(key_settings: PluginSettings) -> None:
    server, client = Server(key_settings), Client(part(BODY))
    asking = asyncio.create_task(server.app(scope(), client.queue.get, client.send))
    await client.told.wait()
    client.queue.put_nowait({"type": "http.disconnect"})
    await asking
    assert (server.gone, server.computed, client.data) == (True, False, frame(KEYS, b"keys of 3"))


async def test_who_says_nothing_is_gone_after_a_while(
    key_settings: PluginSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_requests, "WORD_SECONDS", 0.0)
    server, client = Server(key_settings), Client(part(BODY))
    await server.app(scope(), client.queue.get, client.send)
    assert (server.gone, server.computed, client.data) == (True, False, frame(KEYS, b"keys of 3"))
    assert not client.ended  # or what vLLM says to nobody would be taken for the answer


async def test_the_first_rendering_alone_waits() -> None:
    told: list[Any] = []

    async def tell(prompt: Any) -> None:
        told.append(prompt)

    waiting = HeldPrompt(tell)
    for _ in range(2):
        await waiting.rendered([PROMPT])
    assert told == [PROMPT]


async def test_who_goes_away_before_the_keys_leaves_it_on(key_settings: PluginSettings) -> None:
    server, client = Server(key_settings), Client(part(BODY))
    server.may_render.clear()
    asking = asyncio.create_task(server.app(scope(), client.queue.get, client.send))
    await server.rendered.wait()
    client.queue.put_nowait({"type": "http.disconnect"})
    await asking
    assert (server.gone, client.starts) == (True, [])
    assert server.process.capabilities.mode(FEATURE) == "on"


@pytest.mark.parametrize("renders", [[PROMPT, PROMPT], ([], [{"type": "multimodal"}]), [{"type": "embeds"}]])
async def test_what_is_not_one_prompt_of_text_waits_without_keys(key_settings: PluginSettings, renders: Any) -> None:
    server, client = Server(key_settings, renders), Client(part(BODY + GO, more=False))
    await server.app(scope(), client.queue.get, client.send)
    assert client.data.startswith(frame(KEYS, b""))
    assert client.data.endswith(b"one two")


async def test_a_refusal_before_rendering_is_framed_by_itself(key_settings: PluginSettings) -> None:
    server, client = Server(key_settings, None, status=400), Client(part(BODY))
    await server.app(scope(), client.queue.get, client.send)
    kind, payload, rest = split(client.data) or (b"", b"", b"")
    assert (kind, read_head(payload).status, rest) == (HEAD, 400, b"one two")
    assert server.process.capabilities.mode(FEATURE) == "on"


async def test_an_answer_without_a_rendering_switches_it_off(key_settings: PluginSettings) -> None:
    """Somebody would compute an answer that nobody has asked for, each time."""
    server, client = Server(key_settings, None), Client(part(BODY))
    await server.app(scope(), client.queue.get, client.send)
    assert server.process.capabilities.mode(FEATURE) == "off"
    again = Client(part(BODY))
    await server.app(scope(), again.queue.get, again.send)
    assert (again.starts[0]["status"], NOT_HELD.encode() in again.data, again.ended) == (501, True, True)
    assert len(server.bodies) == 1  # vLLM would have waited for the rest of the body
    plain = Client(part(BODY, more=False))
    await server.app(scope(header=""), plain.queue.get, plain.send)
    assert plain.data == b"one two"


async def test_without_keys_nothing_is_held(key_settings: PluginSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be rendered once more, elsewhere, each time."""
    monkeypatch.setattr(Service, "on", False)
    server, client = Server(key_settings), Client(part(BODY))
    await server.app(scope(), client.queue.get, client.send)
    assert (client.starts[0]["status"], NOT_HELD.encode() in client.data, server.bodies) == (501, True, [])


@pytest.mark.parametrize(("key", "header"), [("other", None), (KEY, "")])
async def test_without_key_or_header_nothing_happens(
    key_settings: PluginSettings, key: str, header: str | None
) -> None:
    server, client = Server(key_settings), Client(part(BODY, more=False))
    await server.app(scope(key=key, header=header), client.queue.get, client.send)
    assert client.data == b"one two"


BAD = [
    ("{}", [], 400),
    ("no", [], 400),
    (Hold(length=9, contract="sha256:" + "c" * 64, block_size=16).header().replace("16", "0"), [], 400),
    (None, [part(BODY[:-1], more=False)], 400),
    (None, [part(BODY[:-1]), {"type": "http.disconnect"}], 400),
    (Hold(length=1 << 30, contract="sha256:" + "c" * 64, block_size=16).header(), [], 413),
]


@pytest.mark.parametrize(("header", "messages", "status"), BAD)
async def test_what_is_no_held_request_is_refused(
    key_settings: PluginSettings, header: str | None, messages: list[dict[str, Any]], status: int
) -> None:
    server, client = Server(key_settings), Client(*messages)
    await server.app(scope(header=header), client.queue.get, client.send)
    assert ([start["status"] for start in client.starts], server.bodies) == ([status], [])


@pytest.mark.parametrize("off", [frozenset({"held"}), frozenset({"prompts"})])
def test_it_is_off_by_hand_and_without_the_hook(key_settings: PluginSettings, off: frozenset[str]) -> None:
    settings = PluginSettings(worker_key_file=key_settings.worker_key_file, plugin_off=off & {"held"})
    made = process(settings)
    made.capabilities.add("prompts", "off" if "prompts" in off else "on")

    class App:
        def add_middleware(self, kind: type[Any], **options: Any) -> None:
            raise AssertionError(kind)

    held_requests.install(App(), made, lambda: None)
    assert made.capabilities.mode("held") == "off"
