"""The hook, on a class shaped like vLLM's renderer; e2e/engine/test_plugin_prompts.py has the real one."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_core.prompt_keys import PROMPT_HEADER
from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.prompts import renderer_hook
from cachefleet_worker.plugin.prompts.offered_prompt import OfferedPrompts, recording
from cachefleet_worker.plugin.prompts.prompt_store import PromptStore
from cachefleet_worker.plugin.prompts.renderer_hook import patch, unknown
from tests.worker.plugin.asked import ask

KEY = b"worker-key"
CHAT = [[{"role": "user", "content": "hello"}]]


def new_renderer() -> Any:
    class Renderer:
        calls = 0

        async def render_chat_async(
            self, conversations: Any, chat_params: Any, *, prompt_extras: Any = None, skip_mm_cache: bool = False
        ) -> Any:
            self.calls += 1
            ids = list(map(ord, conversations[0][0]["content"]))
            conversations[0][0]["seen"] = True  # templates may change what they are given
            return conversations, [{"type": "token", "prompt_token_ids": ids, "arrival_time": 0.0}]

        async def render_cmpl_async(self, prompts: Any, *, prompt_extras: Any = None) -> Any:
            self.calls += 1
            return [{"type": "token", "prompt_token_ids": list(each)} for each in prompts]

    return Renderer


class Hooked:
    """A patched renderer behind the middleware; the application renders ``chat`` and notes what it got."""

    def __init__(self) -> None:
        kind = new_renderer()
        self.faults = Faults(Capabilities())
        patch(kind, self.faults)
        self.renderer = kind()
        self.store = PromptStore(max_bytes=1 << 20)
        self.chat: Any = CHAT
        self.got: list[Any] = []
        self.times = 1

    async def kept(self, chat: Any = CHAT) -> str:
        with recording() as record:
            await self.render(chat, skip_mm_cache=True)
        assert record.only is not None
        return self.store.keep(record.only)

    async def render(self, chat: Any, **more: Any) -> Any:
        copied = [[dict(message) for message in each] for each in chat]
        return await self.renderer.render_chat_async(copied, None, prompt_extras={"cache_salt": "s"}, **more)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        for _ in range(self.times):
            self.got.append(await self.render(self.chat))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ask(self, handle: str, *, key: bytes = KEY, header: str = "authorization") -> None:
        given = f"Bearer {key.decode()}" if header == "authorization" else key.decode()
        app = OfferedPrompts(self, self.store, KEY)
        await ask(app, "POST", "/v1/chat/completions", headers={PROMPT_HEADER: handle, header: given})

    def outcomes(self) -> dict[str, int]:
        return {name: count for name, count in self.store.stats().items() if count}


@pytest.mark.parametrize("header", ["authorization", "x-cachefleet-token"])
async def test_a_kept_prompt_stands_for_the_call(header: str) -> None:
    hooked = Hooked()
    plain = await hooked.render(CHAT)
    await hooked.ask(await hooked.kept(), header=header)
    assert hooked.renderer.calls == 2
    (conversations, (prompt,)) = hooked.got[0]
    assert (conversations, prompt["prompt_token_ids"]) == (plain[0], plain[1][0]["prompt_token_ids"])
    assert prompt["arrival_time"] > 0
    assert hooked.outcomes() == {"used": 1}


@pytest.mark.parametrize("key", [b"user-key", b"worker-keyx", b""])
async def test_without_the_worker_key_a_handle_is_nothing(key: bytes) -> None:
    hooked = Hooked()
    await hooked.ask(await hooked.kept(), key=key)
    assert hooked.renderer.calls == 2
    assert hooked.outcomes().keys() == {"prompts", "bytes"}


async def test_only_a_requests_first_call_is_answered() -> None:
    hooked = Hooked()
    hooked.times = 2
    await hooked.ask(await hooked.kept())
    assert hooked.renderer.calls == 2
    assert hooked.outcomes() == {"used": 1}


async def test_a_request_that_renders_nothing_is_counted() -> None:
    hooked = Hooked()
    hooked.times = 0
    await hooked.ask(await hooked.kept())
    assert hooked.store.stats()["unused"] == 1


async def test_two_calls_are_not_one_prompt() -> None:
    hooked = Hooked()
    with recording() as record:
        await hooked.render(CHAT)
        await hooked.render(CHAT)
    assert record.only is None


async def test_what_a_kept_prompt_stands_for_is_recorded_too() -> None:
    hooked = Hooked()
    handle = await hooked.kept()
    with recording() as record:
        await hooked.ask(handle)
    assert hooked.renderer.calls == 1
    assert record.only is not None
    assert record.only.ids.tolist() == list(map(ord, "hello"))


async def test_a_recording_learns_of_what_is_recorded_inside_of_it() -> None:
    hooked = Hooked()
    with recording() as outer:
        with recording() as inner:
            await hooked.render(CHAT)
        assert outer.only is inner.only is not None
        with recording():
            pass
        assert outer.only is inner.only
        await hooked.render(CHAT)
    assert outer.calls == 2
    assert inner.calls == 1


async def test_what_cannot_be_compared_is_rendered_and_not_kept() -> None:
    hooked = Hooked()
    with recording() as record:
        await hooked.render([[{"role": "user", "content": "hello", "parts": iter([])}]])
    assert record.only is None
    assert hooked.faults.on(renderer_hook.FEATURE)


async def test_ids_that_are_none_are_the_bodys_fault() -> None:
    """One client's body must not turn it off for all others."""
    hooked = Hooked()
    with recording() as record:
        await hooked.renderer.render_cmpl_async([[1 << 40]])
    assert record.only is None
    assert hooked.faults.on(renderer_hook.FEATURE)
    assert await hooked.kept()


async def test_a_fault_turns_it_off_and_the_prompt_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    hooked = Hooked()
    handle = await hooked.kept()
    monkeypatch.setattr(renderer_hook, "call", lambda *_: 1 / 0)
    for _ in range(2):
        await hooked.ask(handle)
    assert hooked.renderer.calls == 3
    assert not hooked.faults.on(renderer_hook.FEATURE)
    assert hooked.faults.counts == {"prompts": 1}


async def test_it_may_be_patched_again() -> None:
    kind = new_renderer()
    for _ in range(3):
        patch(kind, Faults(Capabilities()))
    with recording() as record:
        await kind().render_cmpl_async([[1]])
    assert record.calls == 1


def test_a_renderer_built_otherwise_is_left_alone() -> None:
    kind = new_renderer()
    assert unknown(kind) == ""
    kind.render_chat_async = lambda self, conversations, prompt_extras: None
    assert "render_chat_async" in unknown(kind)
    del kind.render_chat_async
    assert "render_chat_async" in unknown(kind)
