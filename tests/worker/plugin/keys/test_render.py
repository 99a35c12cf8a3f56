"""How bodies become prompts, over a made-up vLLM; the real one is in e2e/engine/test_plugin_keys.py."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict

from cachefleet_core.block_identity.adapters import adapter_namespace, path_revision
from cachefleet_core.block_identity.media import Placed
from cachefleet_worker.plugin.asgi import HttpError, Response
from cachefleet_worker.plugin.keys import render
from cachefleet_worker.plugin.keys.render import NoRenderingError, Prompt, PromptSource, RefusedError
from cachefleet_worker.plugin.tokens.short_renders import stays


class Chat(BaseModel):
    model_config = ConfigDict(extra="allow")
    messages: list[dict[str, str]]
    model: str | None = None
    cache_salt: str | None = None


class Completion(BaseModel):
    model_config = ConfigDict(extra="allow")
    prompt: str | list[str]
    model: str | None = None
    cache_salt: str | None = None


class Refusal(BaseModel):
    """As vLLM's ErrorResponse."""

    error: Any


class Renderer:
    """One token a character."""

    renderer = SimpleNamespace(get_tokenizer=lambda: "tokenizer")

    async def render_chat(self, request: Chat, *, skip_mm_cache: bool = False) -> Any:
        assert skip_mm_cache
        text = request.messages[0]["content"]
        if text == "refuse":
            return Refusal(error=SimpleNamespace(code=400))
        if text == "raise":
            raise OverflowError("too long")
        inputs: dict[str, Any] = {"prompt_token_ids": list(map(ord, text))}
        if "#" in text:
            inputs["mm_placeholders"] = {"image": [SimpleNamespace(offset=text.index("#"), length=1)]}
        if "##" in text:
            inputs["mm_hashes"] = {"image": ["digest"]}
            inputs["mm_placeholders"]["image"][0].length = 2
        return [], [inputs]

    async def render_completion(self, request: Completion, *, skip_mm_cache: bool = False) -> Any:
        assert skip_mm_cache
        texts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
        return [{"prompt_token_ids": list(map(ord, text))} if text != "embeds" else {"embeds": 1} for text in texts]


class Serving:
    """As vLLM's ServingRender."""

    def __init__(self) -> None:
        self.online_renderer = Renderer()
        self.models = SimpleNamespace(lora_requests={"adapter": SimpleNamespace(lora_path="/a")})

    async def _check_model(self, request: Any) -> Any:
        return Refusal(error=SimpleNamespace(code=404)) if request.model == "none" else None


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> PromptSource:
    monkeypatch.setattr(render, "_request_types", lambda: (Chat, Completion))
    monkeypatch.setattr(Refusal, "model_dump", lambda self: {"error": vars(self.error)})
    return PromptSource(SimpleNamespace(serving_render=Serving()))


def chat(text: str, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], "unknown": 1, **more}).encode()


async def test_a_chat_is_one_prompt_with_its_salt_and_adapter(source: PromptSource) -> None:
    rendered = await source.render(chat("abc", cache_salt="s", model="adapter"))
    assert rendered.prompts == (Prompt([97, 98, 99], 3),)
    assert (rendered.salt, rendered.adapter) == ("s", adapter_namespace("adapter", path_revision("/a")))
    plain = await source.render(chat("abc", model="base"))
    assert (plain.salt, plain.adapter, source.tokenizer()) == ("", "", "tokenizer")


async def test_media_without_identifiers_end_the_keys_at_the_first(source: PromptSource) -> None:
    assert (await source.render(chat("ab#c#"))).prompts[0].plain == 2


async def test_media_are_placed_by_vllms_identifiers(source: PromptSource) -> None:
    (prompt,) = (await source.render(chat("ab##c"))).prompts
    assert prompt == Prompt(list(map(ord, "ab##c")), 5, (Placed("digest", 2, 2),))


async def test_an_adapter_that_changes_media_is_part_of_their_identifiers(source: PromptSource) -> None:
    source._serving.models.input_processor = SimpleNamespace(lora_config=SimpleNamespace())
    for tower, identifier in ((False, "digest"), (True, "adapter:digest")):
        source._serving.models.input_processor.lora_config.enable_tower_connector_lora = tower
        assert (await source.render(chat("ab##c", model="adapter"))).prompts[0].media[0].identifier == identifier
    assert (await source.render(chat("ab##c", model="base"))).prompts[0].media[0].identifier == "digest"


async def test_completions_may_have_several_prompts(source: PromptSource) -> None:
    rendered = await source.render(b'{"prompt": ["ab", "c"], "cache_salt": "s"}')
    assert [prompt.ids for prompt in rendered.prompts] == [[97, 98], [99]]
    assert rendered.salt == "s"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "bad_json"),
        (b"{", 400, "bad_json"),
        (b"\xff\xfe\x00", 400, "bad_json"),
        (b"[" * 100_000, 400, "bad_json"),
        (b"[]", 400, "bad_body"),
        (b'"messages"', 400, "bad_body"),
        (b"{}", 400, "bad_body"),
        (b'{"prompt": ""}', 400, "empty_prompt"),
        (b'{"prompt": "embeds"}', 501, "no_token_ids"),
    ],
)
async def test_a_body_of_neither_kind_is_refused(source: PromptSource, body: bytes, status: int, code: str) -> None:
    with pytest.raises(HttpError) as refused:
        await source.render(body)
    assert (refused.value.status, refused.value.code) == (status, code)


async def test_json_that_only_vllms_reader_takes_is_taken(source: PromptSource) -> None:
    lone = chat("\ud800", number=float("nan"))
    assert b"\\ud800" in lone
    assert (await source.render(lone)).prompts[0].ids == [0xD800]
    assert (await source.render('{"prompt": "ab"}'.encode("utf-16"))).prompts[0].ids == [97, 98]


async def test_vllms_refusals_are_its_own(source: PromptSource) -> None:
    for body, status in ((chat("refuse"), 400), (chat("x", model="none"), 404)):
        with pytest.raises(RefusedError) as refused:
            await source.render(body)
        assert isinstance(refused.value.answer, Response)
        assert refused.value.answer.status == status
        assert refused.value.answer.content == b'{"error":{"code":%d}}' % status
    with pytest.raises(RefusedError) as refused:
        await source.render(chat("raise"))
    assert str(refused.value.answer) == "too long"


async def test_what_does_not_validate_is_refused_as_fastapi_does(source: PromptSource) -> None:
    with pytest.raises(RefusedError) as refused:
        await source.render(b'{"messages": 3, "model": 4}')
    error = refused.value.answer
    assert isinstance(error, RequestValidationError)
    assert [each["loc"] for each in error.errors()] == [("body", "messages"), ("body", "model")]
    assert error.body == {"messages": 3, "model": 4}


def without(name: str) -> Any:
    serving = Serving()
    if name == "coroutine":
        serving.online_renderer.render_chat = lambda request, skip_mm_cache: None  # type: ignore[assignment,method-assign,misc]
    elif name == "parameter":

        async def render_completion(_request: Any) -> None: ...

        serving.online_renderer.render_completion = render_completion  # type: ignore[assignment,method-assign]
    elif name == "check":
        serving._check_model = None  # type: ignore[assignment,method-assign]
    return SimpleNamespace(serving_render=serving)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (SimpleNamespace(), "renders no prompts"),
        (SimpleNamespace(serving_render=None), "renders no prompts"),
        (without("coroutine"), "no render_chat as known here"),
        (without("parameter"), "no render_completion as known here"),
        (without("check"), "checks models in a way unknown here"),
    ],
)
def test_a_vllm_that_is_built_otherwise_is_not_asked(state: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "_request_types", lambda: (Chat, Completion))
    with pytest.raises(NoRenderingError, match=reason):
        PromptSource(state)


@pytest.mark.parametrize(
    ("changes", "stayed"),
    [
        ({}, True),
        ({"chat_template": None, "chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"chat_template": "{{ messages }}"}, False),
        ({"chat_template_kwargs": {"chat_template": "{{ messages }}"}}, False),
        ({"chat_template_kwargs": [1]}, False),
        ({"padding": "x" * render.SHORT_BYTES}, False),
    ],
)
async def test_only_short_bodies_without_a_template_of_their_own_stay_on_the_event_loop(
    source: PromptSource, monkeypatch: pytest.MonkeyPatch, *, changes: dict[str, Any], stayed: bool
) -> None:
    seen: list[bool] = []

    async def check(_: Serving, __: Any) -> None:
        seen.append(stays())

    monkeypatch.setattr(Serving, "_check_model", check)
    await source.render(json.dumps({"messages": [{"role": "user", "content": "a"}]} | changes).encode())

    assert seen == [stayed]
    assert not stays()


@pytest.mark.parametrize(
    ("body", "short"),
    [
        (b'{"messages": []}', True),
        (b'{"messages": [], "prompt_cache_ref": {}}', False),  # what it stands for may be long
        (b'{"messages": [], "chat_template": "x"}', False),
        (b'{"messages": []}' + b" " * render.SHORT_BYTES, False),
        (b"[]", False),
        (b"{", False),
    ],
)
def test_a_whole_body_by_the_models_own_template_is_short(*, body: bytes, short: bool) -> None:
    assert render.is_short(body) is short
