"""Which thread applies a template; where text is encoded is in test_renderer.py."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import ModuleType
from typing import Any

import pytest

from cachefleet_worker.plugin.tokens.short_renders import keep_templates, staying


def apply(*messages: str) -> tuple[str, bool]:
    """As vLLM's function that applies a template; tells whether it ran on the event loop."""
    if "bad" in messages:
        raise ValueError("no such role")
    return "".join(messages), threading.current_thread() is threading.main_thread()


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("vllm.renderers.hf")
    module.safe_apply_chat_template = apply
    monkeypatch.setitem(sys.modules, module.__name__, module)

    class HfRenderer:
        def _apply_chat_template_async(self, *messages: str) -> Any:
            return asyncio.get_running_loop().run_in_executor(None, apply, *messages)

    HfRenderer.__module__ = module.__name__
    made = HfRenderer()
    keep_templates(made)
    return made


@pytest.mark.parametrize("short", [True, False])
async def test_only_the_template_of_a_short_render_is_applied_on_the_event_loop(renderer: Any, *, short: bool) -> None:
    with staying(short=short):
        assert await renderer._apply_chat_template_async("a", "b") == ("ab", short)
    assert await renderer._apply_chat_template_async("a") == ("a", False)


@pytest.mark.parametrize("short", [True, False])
async def test_errors_come_where_it_is_awaited(renderer: Any, *, short: bool) -> None:
    with staying(short=short):
        applied = renderer._apply_chat_template_async("bad")
        with pytest.raises(ValueError, match="no such role"):
            await applied


async def test_another_renderer_is_left_alone() -> None:
    class Other:
        def _apply_chat_template_async(self) -> None:
            """Not vLLM's for Hugging Face's templates."""

    other = Other()
    keep_templates(other)
    keep_templates(None)

    assert "_apply_chat_template_async" not in vars(other)
