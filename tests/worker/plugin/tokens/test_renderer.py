"""The hook, on a class shaped like vLLM's renderer; test_renderer_engine.py uses the real one."""

from __future__ import annotations

import asyncio
import functools
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.tokens.cached_encoder import CachedEncoder
from cachefleet_worker.plugin.tokens.render_salts import SaltedPrompt, rendering, salt_of, salted
from cachefleet_worker.plugin.tokens.renderer import HookError, examine, patch
from cachefleet_worker.plugin.tokens.short_renders import SHORT_TEXT, staying
from tests.worker.plugin.tokens.styles import trained
from tests.worker.plugin.tokens.wrapped import Wrapped

pytestmark = pytest.mark.usefixtures("quick_self_test")

TEXT = "<|im_start|>user\nA question with many words in it, and some more.<|im_end|>\n<|im_start|>assistant\n"

LONG = TEXT * (SHORT_TEXT // len(TEXT) + 1)
"""What a template may make of a short body: indentation, say, which encoding on the event loop would stop it for."""


class Params:
    def __init__(self, **arguments: Any) -> None:
        self.arguments = {"truncation": True, "max_length": 4096, "add_special_tokens": False} | arguments

    def get_encode_kwargs(self) -> dict[str, Any]:
        return dict(self.arguments)


class Plain:
    """What surrounds the encoding in vLLM's renderer."""

    def __init__(self) -> None:
        self.tokenizer = Wrapped(trained("qwen"))
        self.plain = 0
        self.offsets = False
        self.pool = ThreadPoolExecutor(2)
        self._tokenize_prompt_async = functools.partial(self.elsewhere, self._tokenize_prompt)

    def elsewhere(self, bound: Any, prompt: Any, params: Any) -> Any:
        return asyncio.get_running_loop().run_in_executor(self.pool, bound, prompt, params)

    def get_tokenizer(self) -> Any:
        return self.tokenizer

    def _wants_offsets(self, prompt: Any, params: Any) -> bool:
        return self.offsets

    @staticmethod
    def _build_tokens_prompt(token_ids: Any, prompt: Any) -> dict[str, Any]:
        return {"prompt_token_ids": list(token_ids), **prompt}

    def _tokenize_prompt(self, prompt: Any, params: Any) -> dict[str, Any]:
        self.plain += 1
        ids = self.tokenizer._tokenizer.encode(prompt["prompt"], add_special_tokens=False).ids
        return self._build_tokens_prompt(ids, prompt)

    def render_cmpl(self, prompts: Any, params: Any, *, prompt_extras: Any = None) -> Any:
        return [self._tokenize_prompt(prompt, params) | (prompt_extras or {}) for prompt in prompts]

    async def render_cmpl_async(self, prompts: Any, params: Any, *, prompt_extras: Any = None) -> Any:
        found = await asyncio.gather(*(self._tokenize_prompt_async(prompt, params) for prompt in prompts))
        return [prompt | (prompt_extras or {}) for prompt in found]

    render_chat = render_cmpl
    render_chat_async = render_cmpl_async


def new_renderer() -> Any:
    """A class as vLLM has it: the executor's method is bound in ``__init__``, the salt comes after the encoding."""
    return type("Renderer", (Plain,), {})


class Hooked:
    def __init__(self) -> None:
        self.faults = Faults(Capabilities())
        self.cache = CachedEncoder(
            Capabilities(), self.faults, max_bytes=1 << 20, sample_ratio=0.0, rng=random.Random(1)
        )
        self.cls = new_renderer()
        patch(self.cls, self.cache, self.faults)
        self.renderer = self.cls()
        self.cache.prepare(self.renderer.tokenizer)

    def salts(self) -> set[str]:
        return {key.salt for key in self.cache._cache._entries}


@pytest.mark.parametrize("name", ["render_chat", "render_cmpl"])
def test_a_rendered_text_is_memoised(name: str) -> None:
    hooked = Hooked()
    for _ in range(2):
        (found,) = getattr(hooked.renderer, name)([{"prompt": TEXT}], Params(), prompt_extras={"cache_salt": "s"})
        ids = hooked.renderer.tokenizer._tokenizer.encode(TEXT, add_special_tokens=False).ids
        assert found == {"prompt": TEXT, "prompt_token_ids": ids, "cache_salt": "s"}
    assert hooked.renderer.plain == 0
    assert hooked.salts() == {"s"}


@pytest.mark.parametrize("name", ["render_chat_async", "render_cmpl_async"])
async def test_the_salt_reaches_the_executors_threads(name: str) -> None:
    hooked = Hooked()
    render = getattr(hooked.renderer, name)

    async def one(salt: str) -> Any:
        extras = {"cache_salt": salt} if salt else None
        return await render([{"prompt": f"{TEXT} for {salt}"}], Params(), prompt_extras=extras)

    tenants = ["", *(f"tenant {number}" for number in range(20))]
    for (found,), salt in zip(await asyncio.gather(*map(one, tenants)), tenants, strict=True):
        assert found.get("cache_salt", "") == salt
        assert set(found) <= {"prompt", "prompt_token_ids", "cache_salt"}
    assert hooked.salts() == set(tenants)
    endings = {key.text.rpartition(" for ")[2]: key.salt for key in hooked.cache._cache._entries if " for " in key.text}
    assert endings == {tenant: tenant for tenant in tenants}
    assert hooked.renderer.plain == 0


@pytest.mark.parametrize(
    ("short", "text", "handed"), [(True, TEXT, 0), (False, TEXT, 1), (True, "short", 1), (True, LONG, 1)]
)
async def test_a_short_render_hands_no_text_to_the_executor_that_is_memoised(
    *, short: bool, text: str, handed: int
) -> None:
    hooked = Hooked()
    hooked.renderer.pool = pool = Mock(wraps=hooked.renderer.pool)
    with staying(short=short):
        (found,) = await hooked.renderer.render_chat_async(
            [{"prompt": text}], Params(max_length=1 << 20), prompt_extras={}
        )

    assert found["prompt_token_ids"] == hooked.renderer.tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
    assert pool.submit.call_count == handed


def test_a_prompts_own_salt_counts_where_the_call_has_none() -> None:
    hooked = Hooked()
    hooked.renderer.render_cmpl([{"prompt": TEXT, "cache_salt": "own"}], Params())
    hooked.renderer.render_cmpl([{"prompt": TEXT, "cache_salt": "own"}], Params(), prompt_extras={"cache_salt": "call"})
    assert hooked.salts() == {"own", "call"}


async def test_a_text_without_a_render_call_around_it_is_left_to_the_plain_encoder() -> None:
    hooked = Hooked()
    hooked.renderer._tokenize_prompt({"prompt": TEXT}, Params())
    await hooked.renderer._tokenize_prompt_async({"prompt": TEXT}, Params())
    assert hooked.renderer.plain == 2
    assert hooked.cache.stats()["entries"] == 0


@pytest.mark.parametrize(
    ("offsets", "arguments", "plain"),
    [
        (False, {}, 0),
        (True, {}, 1),
        (False, {"return_offsets_mapping": True}, 1),
        (False, {"max_length": 3}, 1),
        (False, {"max_length": 3, "truncation": False}, 0),
        (False, {"max_length": None}, 0),
    ],
)
def test_arguments_it_does_not_know_go_to_the_plain_encoder(
    *, offsets: bool, arguments: dict[str, Any], plain: int
) -> None:
    hooked = Hooked()
    hooked.renderer.offsets = offsets
    hooked.renderer.render_cmpl([{"prompt": TEXT}], Params(**arguments))
    assert hooked.renderer.plain == plain


def test_a_fault_in_the_memo_costs_the_feature_not_the_request() -> None:
    hooked = Hooked()
    hooked.cache.encode = None  # type: ignore[assignment,method-assign]
    for _ in range(2):
        (found,) = hooked.renderer.render_cmpl([{"prompt": TEXT}], Params())
        assert found["prompt_token_ids"]
    assert hooked.renderer.plain == 2
    assert not hooked.faults.on("tokens")
    assert hooked.faults.counts["tokens"] == 1


def test_the_first_render_call_has_the_tokenizer_prepared() -> None:
    hooked = Hooked()
    other = hooked.cls()
    other.render_chat([], Params())
    hooked.cache.settle()
    other.render_chat([{"prompt": TEXT}], Params())
    assert other.plain == 0


def test_a_class_that_is_patched_again_is_not_wrapped_twice() -> None:
    hooked = Hooked()
    second = Hooked()
    patch(hooked.cls, second.cache, second.faults)
    renderer = hooked.cls()
    hooked.cache.prepare(renderer.tokenizer)  # which the second does not know yet
    renderer._tokenize_prompt({"prompt": TEXT, "cache_salt": "s"}, Params())
    with rendering(None):
        renderer._tokenize_prompt({"prompt": TEXT}, Params())
    assert renderer.plain == 2
    assert hooked.cache.stats()["entries"] == 0


def test_a_renderer_without_a_tokenizer_is_left_alone() -> None:
    hooked = Hooked()
    hooked.renderer.tokenizer = None
    assert hooked.renderer.render_chat([], Params()) == []
    assert hooked.faults.on("tokens")


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("_tokenize_prompt", None),
        ("_tokenize_prompt", lambda self, prompt: None),
        ("_wants_offsets", lambda self, prompt: None),
        ("get_tokenizer", None),
        ("_build_tokens_prompt", lambda self, prompt: None),
        ("render_chat_async", lambda self, prompts, *, prompt_extras: None),  # not a coroutine
        ("render_cmpl", lambda self, prompts: None),
    ],
)
def test_a_renderer_of_another_shape_is_not_touched(name: str, method: Any) -> None:
    cls = new_renderer()
    examine(cls)
    setattr(cls, name, method)
    before = dict(vars(cls))
    with pytest.raises(HookError):
        patch(cls, Hooked().cache, Faults(Capabilities()))
    assert dict(vars(cls)) == before


def test_salts_outside_and_inside_a_render_call() -> None:
    prompt = {"prompt": TEXT}
    assert salt_of(prompt) is None
    assert salt_of(salted(prompt)) is None
    with rendering({"cache_salt": "s"}):
        assert salt_of(prompt) == "s"
        carried = salted(prompt)
        with rendering(None):
            assert salt_of(prompt) == ""
    assert salt_of(prompt) is None
    assert salt_of(carried) == "s"
    assert carried == prompt
    assert salt_of(SaltedPrompt({"cache_salt": 5}, "")) is None
