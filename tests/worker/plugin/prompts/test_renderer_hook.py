"""The hook, on a class shaped like vLLM's renderer; e2e/engine/test_plugin_held.py has the real one."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.prompts import recorded_prompt
from cachefleet_worker.plugin.prompts.held_prompt import HeldPrompt, held
from cachefleet_worker.plugin.prompts.recorded_prompt import recording
from cachefleet_worker.plugin.prompts.renderer_hook import FEATURE, patch, unknown

CHAT = [[{"role": "user", "content": "hello"}]]
HELLO = list(map(ord, "hello"))
TEXT = {"type": "token", "prompt_token_ids": [1, 2]}


def new_renderer() -> Any:
    class Renderer:
        async def render_chat_async(
            self, conversations: Any, chat_params: Any, *, prompt_extras: Any = None, skip_mm_cache: bool = False
        ) -> Any:
            ids = list(map(ord, conversations[0][0]["content"]))
            return conversations, [{"type": "token", "prompt_token_ids": ids, "arrival_time": 0.0}]

        async def render_cmpl_async(self, prompts: Any, *, prompt_extras: Any = None) -> Any:
            return prompts

    return Renderer


class Hooked:
    """A patched renderer."""

    def __init__(self) -> None:
        kind = new_renderer()
        self.faults = Faults(Capabilities())
        patch(kind, self.faults)
        self.renderer = kind()

    async def recorded(self, *prompts: Any, times: int = 1) -> list[int] | None:
        """The ids that are recorded of so many calls."""
        with recording() as record:
            for _ in range(times):
                await self.renderer.render_cmpl_async(list(prompts))
        return None if record.only is None else record.only.tolist()


async def test_the_ids_of_the_only_call_are_recorded() -> None:
    hooked = Hooked()
    with recording() as record:
        result = await hooked.renderer.render_chat_async(CHAT, None, skip_mm_cache=True)
    assert record.only is not None
    assert (record.only.tolist(), result[1][0]["prompt_token_ids"]) == (HELLO, HELLO)
    assert await hooked.recorded(TEXT) == [1, 2]


async def test_two_calls_are_not_one_prompt() -> None:
    assert await Hooked().recorded(TEXT, times=2) is None


NO_TEXT = [
    [],
    [TEXT, TEXT],
    [{"type": "multimodal", "prompt_token_ids": [1, 2]}],
    [{"type": "embeds"}],
    [{"type": "token", "prompt_token_ids": (1, 2)}],
]


@pytest.mark.parametrize("prompts", NO_TEXT)
async def test_what_is_not_one_prompt_of_text_has_no_ids(prompts: list[Any]) -> None:
    assert await Hooked().recorded(*prompts) is None


@pytest.mark.parametrize("wrong", [1 << 40, -1, "a", None])
async def test_ids_that_are_none_are_the_bodys_fault(wrong: Any) -> None:
    """One client's body must not turn it off for all others."""
    hooked = Hooked()
    assert await hooked.recorded({"type": "token", "prompt_token_ids": [wrong]}) is None
    assert hooked.faults.on(FEATURE)
    assert await hooked.recorded(TEXT) == [1, 2]


async def test_without_a_recording_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    hooked = Hooked()
    monkeypatch.setattr(recorded_prompt, "text_ids", lambda _: 1 / 0)
    assert await hooked.renderer.render_cmpl_async([TEXT]) == [TEXT]
    assert hooked.faults.on(FEATURE)


async def test_a_fault_turns_it_off_and_the_prompt_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    hooked = Hooked()
    monkeypatch.setattr(recorded_prompt, "text_ids", lambda _: 1 / 0)
    for _ in range(2):
        assert await hooked.recorded(TEXT) is None
    assert not hooked.faults.on(FEATURE)
    assert hooked.faults.counts == {"prompts": 1}


async def test_a_held_prompt_waits_and_is_recorded() -> None:
    waited: list[Any] = []

    async def wait(prompt: Any) -> None:
        waited.append(prompt)

    token = held.set(HeldPrompt(wait))
    try:
        assert await Hooked().recorded(TEXT) == [1, 2]
    finally:
        held.reset(token)
    assert waited == [TEXT]


async def test_it_may_be_patched_again() -> None:
    kind = new_renderer()
    for _ in range(3):
        patch(kind, Faults(Capabilities()))
    with recording() as record:
        await kind().render_cmpl_async([TEXT])
    assert record.calls == 1


def test_a_renderer_built_otherwise_is_left_alone() -> None:
    kind = new_renderer()
    assert unknown(kind) == ""
    kind.render_chat_async = lambda self, conversations, prompt_extras: None
    assert "render_chat_async" in unknown(kind)
    del kind.render_chat_async
    assert "render_chat_async" in unknown(kind)
