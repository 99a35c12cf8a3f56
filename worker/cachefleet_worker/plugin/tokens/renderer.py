"""The hook in vLLM's renderers, where text becomes ids; on the class, so that executors bound later use it too."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from cachefleet_worker.plugin.method_hooks import wrap_method
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.tokens.cached_encoder import FEATURE, CachedEncoder
from cachefleet_worker.plugin.tokens.render_salts import rendering, salt_of, salted
from cachefleet_worker.plugin.tokens.short_renders import text_stays

ENCODES: Final = "_tokenize_prompt"
ENCODES_ELSEWHERE: Final = "_tokenize_prompt_async"
RENDERS: Final = ("render_chat", "render_cmpl")
RENDERS_ASYNC: Final = ("render_chat_async", "render_cmpl_async")
_EXTRAS: Final = "prompt_extras"
_STOCK: Final = "cachefleet_stock"
_KNOWN: Final = frozenset({"truncation", "max_length", "add_special_tokens"})
"""Arguments of the tokenizer that the cache supports."""


class HookError(Exception):
    """This vLLM's renderer is not built as the hook expects."""


def patch(renderer: type[Any], cache: CachedEncoder, faults: Faults) -> None:
    """Make ``renderer`` and its subclasses encode through ``cache``. HookError, nothing changed, where they cannot."""
    examine(renderer)
    wrap = partial(wrap_method, renderer, mark=_STOCK)
    wrap(ENCODES, lambda stock: _encoding(stock, cache, faults))
    wrap("__init__", lambda stock: _carrying(stock, cache, faults))
    for name in RENDERS:
        wrap(name, lambda stock: _rendering(stock, cache, faults))
    for name in RENDERS_ASYNC:
        wrap(name, _rendering_async)


def examine(renderer: type[Any]) -> None:
    """HookError where a method is missing or takes other arguments."""
    for name, wanted in (
        (ENCODES, ["self", "prompt", "params"]),
        ("_wants_offsets", ["self", "prompt", "params"]),
        ("get_tokenizer", ["self"]),
    ):
        if _parameters(renderer, name) != wanted:
            raise HookError(f"{name} is missing or takes other arguments")
    if _parameters(renderer, "_build_tokens_prompt")[:2] != ["token_ids", "prompt"]:
        raise HookError("_build_tokens_prompt is missing or takes other arguments")
    for name in (*RENDERS, *RENDERS_ASYNC):
        if _EXTRAS not in _parameters(renderer, name) or inspect.iscoroutinefunction(
            getattr(renderer, name)
        ) is not name.endswith("_async"):
            raise HookError(f"{name} is missing or takes no {_EXTRAS}")


def _parameters(renderer: type[Any], name: str) -> list[str]:
    method = getattr(renderer, name, None)
    return list(inspect.signature(method).parameters) if callable(method) else []


def _encoding(original: Callable[..., Any], cache: CachedEncoder, faults: Faults) -> Callable[..., Any]:
    @functools.wraps(original)
    def encode(self: Any, prompt: Any, params: Any) -> Any:
        ids = _ids(self, prompt, params, cache, faults)
        if ids is None:
            return original(self, prompt, params)
        return self._build_tokens_prompt(ids, prompt)

    return encode


def _ids(renderer: Any, prompt: Any, params: Any, cache: CachedEncoder, faults: Faults) -> list[int] | None:
    """The ids of a prompt's text; None where the plain encoder is to be used."""
    ids = None
    if faults.on(FEATURE):
        with faults.guard(FEATURE):
            ids = _memoised(renderer, prompt, params, cache)
    return ids


def _memoised(renderer: Any, prompt: Any, params: Any, cache: CachedEncoder) -> list[int] | None:
    arguments = params.get_encode_kwargs()
    salt = salt_of(prompt)
    text = prompt["prompt"]
    if salt is None or not _KNOWN.issuperset(arguments) or renderer._wants_offsets(prompt, params):  # noqa: SLF001
        return None
    tokenizer = renderer.get_tokenizer()
    return cache.encode(
        tokenizer,
        text,
        salt,
        add_special_tokens=arguments.get("add_special_tokens", True),
        max_length=arguments.get("max_length") if arguments.get("truncation") else None,
    )


def _carrying(original: Callable[..., None], cache: CachedEncoder, faults: Faults) -> Callable[..., None]:
    """Wraps ``__init__``: prompts handed to the renderer's executor carry their salt; short ones are not."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with faults.guard(FEATURE):
            elsewhere = getattr(self, ENCODES_ELSEWHERE)

            def encode(prompt: Any, params: Any) -> Any:
                ids = _ids(self, prompt, params, cache, faults) if text_stays(prompt["prompt"]) else None
                return elsewhere(salted(prompt), params) if ids is None else _built(self, ids, prompt)

            setattr(self, ENCODES_ELSEWHERE, encode)

    return init


async def _built(renderer: Any, ids: list[int], prompt: Any) -> Any:
    return renderer._build_tokens_prompt(ids, prompt)  # noqa: SLF001 - as where it is not called elsewhere


def _rendering(original: Callable[..., Any], cache: CachedEncoder, faults: Faults) -> Callable[..., Any]:
    """Wraps the render methods: has the tokenizer prepared, also when vLLM warms up before it serves."""

    @functools.wraps(original)
    def render(self: Any, *args: Any, **kwargs: Any) -> Any:
        if faults.on(FEATURE):
            with faults.guard(FEATURE):
                cache.expect(self.tokenizer)
        with rendering(kwargs.get(_EXTRAS)):
            return original(self, *args, **kwargs)

    return render


def _rendering_async(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def render(self: Any, *args: Any, **kwargs: Any) -> Any:
        with rendering(kwargs.get(_EXTRAS)):
            return await original(self, *args, **kwargs)

    return render
