"""Token ids of a request's body, by vLLM's own renderer in this process; refusals are vLLM's own.

The same objects serve vLLM's ``/v1/chat/completions/render``. Only the part that renders is called; what that route
adds (sampling parameters, a request for the engine, JSON of all ids) is left out.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any, Final

import msgspec

from cachefleet_core.block_identity.adapters import adapter_namespace, path_revision
from cachefleet_core.block_identity.media import Placed
from cachefleet_core.continuation import REF_MEMBER
from cachefleet_worker.plugin.asgi import HttpError, Response
from cachefleet_worker.plugin.keys.prompt_media import before_media, placed_media
from cachefleet_worker.plugin.tokens.short_renders import keep_templates, staying

_RENDERS: Final = ("render_chat", "render_completion")
_ENTRYPOINTS: Final = "vllm.entrypoints"
SHORT_BYTES: Final = 16 * 1024
"""Bodies up to this are rendered on the event loop: a few milliseconds, where nothing of one is memoised."""


class NoRenderingError(Exception):
    """This vLLM cannot render here; the message says why."""


class RefusedError(Exception):
    """vLLM refuses the request: ``answer`` is its response, or the exception that its handlers turn into one."""

    def __init__(self, answer: Response | Exception) -> None:
        super().__init__("vLLM refuses the request")
        self.answer = answer


class BodyKind(StrEnum):
    """Whose body it is, where its members do not say."""

    OPENAI = ""
    """A chat, or a completion."""
    RESPONSES = "responses"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One rendered prompt; blocks of its first ``plain`` tokens are keyed by these and by ``media``."""

    ids: Sequence[int]
    plain: int
    media: tuple[Placed, ...] = ()


@dataclass(frozen=True, slots=True)
class Rendered:
    """A request's prompts, with the cache salt and the adapter that separate its blocks ("" for none)."""

    prompts: tuple[Prompt, ...]
    salt: str
    adapter: str


_OTHER_APIS: Final = {
    BodyKind.RESPONSES: (f"{_ENTRYPOINTS}.openai.responses.protocol", "ResponsesRequest", "render_responses_request"),
    BodyKind.MESSAGES: (f"{_ENTRYPOINTS}.anthropic.protocol", "AnthropicMessagesRequest", "render_messages_request"),
}
"""Module and name of the request's type, and the method of vLLM's render routes."""


class PromptSource:
    """Renders bodies with objects of vLLM's application state. UnsupportedError where they are not as expected."""

    def __init__(self, state: Any) -> None:
        self._serving: Any = getattr(state, "serving_render", None)
        self._renderer: Any = getattr(self._serving, "online_renderer", None)
        if self._renderer is None:
            raise NoRenderingError("this server renders no prompts")
        if not inspect.iscoroutinefunction(getattr(self._serving, "_check_model", None)):
            raise NoRenderingError("this vLLM's render route checks models in a way unknown here")
        for name in _RENDERS:
            method = getattr(self._renderer, name, None)
            if not inspect.iscoroutinefunction(method) or "skip_mm_cache" not in inspect.signature(method).parameters:
                raise NoRenderingError(f"this vLLM's renderer has no {name} as known here")
        keep_templates(getattr(self._renderer, "renderer", None))
        self._chat, self._completion = _request_types()

    def tokenizer(self) -> Any:
        """The tokenizer that encodes the prompts."""
        return self._renderer.renderer.get_tokenizer()

    async def render(self, body: bytes, api: BodyKind = BodyKind.OPENAI) -> Rendered:
        """The prompts of an unchanged body. RefusedError; HttpError for bodies of no such API."""
        try:
            value = _json(body)
            with staying(short=len(body) <= SHORT_BYTES and not _brings_template(value)):
                return await self._render(value) if api is BodyKind.OPENAI else await self._whole(api, value)
        except (HttpError, RefusedError):
            raise
        except Exception as error:
            raise RefusedError(error) from error

    async def _render(self, value: Any) -> Rendered:
        if isinstance(value, dict) and "messages" in value:
            request = _validated(self._chat, value)
            await self._check(request)
            _, inputs = _accepted(await self._renderer.render_chat(request, skip_mm_cache=True))
        elif isinstance(value, dict) and ("prompt" in value or "prompt_embeds" in value):
            request = _validated(self._completion, value)
            await self._check(request)
            inputs = _accepted(await self._renderer.render_completion(request, skip_mm_cache=True))
        else:
            raise HttpError(400, "bad_body", "the body must be a chat or completion request: messages or prompt")
        return Rendered(
            prompts=tuple(self.prompt(each, request.model) for each in inputs),
            salt=getattr(request, "cache_salt", None) or "",
            adapter=self.adapter(request.model),
        )

    def prompt(self, engine_input: Any, model: str | None) -> Prompt:
        """A rendered prompt of vLLM's. HttpError 501 where it has no token ids."""
        ids = engine_input.get("prompt_token_ids") if isinstance(engine_input, Mapping) else None
        if not isinstance(ids, (list, tuple)):
            raise HttpError(501, "no_token_ids", "this prompt has no token ids: embeddings, or an encoder's")
        if not ids:
            raise HttpError(400, "empty_prompt", "the prompt has no tokens")
        if engine_input.get("prompt_embeds") is not None:
            return Prompt(ids, 0)
        return self._with_media(ids, engine_input.get("mm_hashes"), engine_input.get("mm_placeholders"), model)

    def _with_media(self, ids: Sequence[int], hashes: Any, placeholders: Any, model: str | None) -> Prompt:
        media = placed_media(hashes, placeholders, prefix=self._media_prefix(model))
        if media is None:
            return Prompt(ids, before_media(placeholders, length=len(ids)))
        return Prompt(ids, len(ids), media)

    def _media_prefix(self, model: str | None) -> str:
        """What vLLM puts before identifiers where an adapter changes what a medium becomes."""
        if not self.adapter(model):
            return ""
        lora = getattr(getattr(self._serving.models, "input_processor", None), "lora_config", None)
        return f"{model}:" if getattr(lora, "enable_tower_connector_lora", False) else ""

    async def _whole(self, api: BodyKind, value: Any) -> Rendered:
        """By vLLM's own render route of another API, which alone knows how its bodies become chats."""
        method, kind = _other_api(api, self._serving)
        if not isinstance(value, dict):
            raise HttpError(400, "bad_body", f"the body must be a {api} request")
        request = _validated(kind, value)
        found = _accepted(await method(request))
        media = found.features
        hashes, placeholders = getattr(media, "mm_hashes", None), getattr(media, "mm_placeholders", None)
        prompts = (self._with_media(found.token_ids, hashes, placeholders, request.model),)
        return Rendered(prompts, salt=found.cache_salt or "", adapter=self.adapter(request.model))

    async def _check(self, request: Any) -> None:
        refusal = await self._serving._check_model(request)  # noqa: SLF001 - what vLLM's own route calls
        if refusal is not None:
            raise RefusedError(_response(refusal))

    def adapter(self, model: str | None) -> str:
        """The adapter that a request's model names, as block keys name it; a server without an engine knows none."""
        known = getattr(self._serving.models, "lora_requests", None) or {}
        found = known.get(model) if model else None
        return "" if model is None or found is None else adapter_namespace(model, path_revision(found.lora_path))


def _request_types() -> tuple[Any, Any]:
    try:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: PLC0415
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest  # noqa: PLC0415
    except ImportError as error:
        raise NoRenderingError(f"this vLLM's request types are elsewhere: {error}") from error
    return ChatCompletionRequest, CompletionRequest


def _other_api(api: BodyKind, serving: Any) -> tuple[Callable[[Any], Any], Any]:
    """The method that renders bodies of another API, and their type. HttpError 501 where this vLLM lacks them."""
    module, name, method = _OTHER_APIS[api]
    kind, found = None, getattr(serving, method, None)
    with suppress(ImportError):
        kind = getattr(import_module(module), name, None)
    if kind is None or not inspect.iscoroutinefunction(found):
        raise HttpError(501, "no_api", f"this vLLM renders no {api}")
    return found, kind


def _json(body: bytes) -> Any:
    """The body's value; where msgspec rejects it, the standard library's parser, as in vLLM, may still accept it."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "bad_json", f"the body is not JSON: {type(error).__name__}") from None


def is_short(body: bytes) -> bool:
    """Whether a body of any API is whole and may be rendered on the event loop."""
    if len(body) > SHORT_BYTES:
        return False
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return not _brings_template(value) and REF_MEMBER not in value


def _brings_template(value: Any) -> bool:
    """Whether a body has, or may have, a template of its own, of which nobody knows how long it takes."""
    if not isinstance(value, dict):
        return True
    given = value.get("chat_template_kwargs") or {}
    return bool(value.get("chat_template")) or not isinstance(given, dict) or "chat_template" in given


def _validated(kind: Any, value: dict[str, Any]) -> Any:
    """The validated request; RefusedError with the exception that vLLM's own route would raise."""
    from fastapi.exceptions import RequestValidationError  # noqa: PLC0415 - vLLM's own dependencies
    from pydantic import ValidationError  # noqa: PLC0415

    try:
        return kind.model_validate(value)
    except ValidationError as error:
        found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False)]
        raise RefusedError(RequestValidationError(found, body=value)) from None


def _accepted(result: Any) -> Any:
    if hasattr(result, "error"):
        raise RefusedError(_response(result))
    return result


def _response(refusal: Any) -> Response:
    dump: Callable[[], dict[str, Any]] = refusal.model_dump
    return Response(msgspec.json.encode(dump()), int(refusal.error.code))
