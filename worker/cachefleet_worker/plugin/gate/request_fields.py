"""The request field ``cache_hit_threshold``: a number from 0 to 1, anything else is answered 400.

It is read from the top level or ``vllm_xargs`` of chat and plain completions, and from ``sampling_params.extra_args``
of ``/inference/v1/generate``, whose body takes no other fields. It is passed on in ``extra_args``, also through
``/render``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, Final

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.gate.rules import FIELD, RESUMABLE, is_threshold
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.settings import PluginSettings

log = logging.getLogger("vllm.cachefleet")

MESSAGE: Final = f"Parameter `{FIELD}` must be between 0.0 and 1.0 if provided."

_OPENAI: Final = "vllm.entrypoints.openai"
_PARAMETERS: Final = (
    (f"{_OPENAI}.chat_completion.protocol", "ChatCompletionRequest"),
    (f"{_OPENAI}.completion.protocol", "CompletionRequest"),
)
_HANDLERS: Final = (
    (f"{_OPENAI}.chat_completion.serving", "OpenAIServingChat", "create_chat_completion"),
    (f"{_OPENAI}.completion.serving", "OpenAIServingCompletion", "create_completion"),
)
_GENERATE: Final = ("vllm.entrypoints.scale_out.token_in_token_out.serving", "ServingTokens", "serve_tokens")
_PATHS: Final = ("/chat/completions", "/chat/completions/batch", "/completions")

Method = Callable[..., Any]
Patch = Callable[[Method, Faults], Method]


def install(capabilities: Capabilities, faults: Faults, settings: PluginSettings) -> None:
    """Add the field to this process's request types. Idempotent."""
    if off := settings.switched_off("gate"):
        capabilities.add("fields", "off", f"the gate is {off}")
        return
    capabilities.add("fields", "patched")
    for (module, name, method), patch in _patches():
        with faults.guard("fields"):
            _wrap(getattr(import_module(module), name), method, patch, faults)


def _patches() -> list[tuple[tuple[str, str, str], Patch]]:
    return [
        *(((module, name, "to_sampling_params"), _with_field) for module, name in _PARAMETERS),
        *((where, _as_sent) for where in _HANDLERS),
        (_GENERATE, _with_check),
    ]


def _wrap(owner: Any, method: str, patch: Patch, faults: Faults) -> None:
    original = getattr(owner, method)
    if not hasattr(original, "cachefleet"):
        patched = patch(original, faults)
        patched.cachefleet = True  # type: ignore[attr-defined]
        setattr(owner, method, patched)


def check(value: object) -> float | None:
    """A threshold as a number; None where absent. ValueError, which vLLM answers with 400, where it is invalid."""
    if value is None:
        return None
    if not is_threshold(value):
        raise ValueError(MESSAGE)
    return float(value)  # type: ignore[arg-type] # is_threshold guarantees a number


def _with_field(original: Method, faults: Faults) -> Method:
    """Wraps ``to_sampling_params``: adds the field to ``extra_args``; the top level wins."""

    @wraps(original)
    def to_sampling_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        sent: list[object] = []
        with faults.guard("fields"):
            sent = [(extra or {}).get(FIELD) for extra in (self.vllm_xargs, self.model_extra)]
        given = [threshold for threshold in map(check, sent) if threshold is not None]
        parameters = original(self, *args, **kwargs)
        with faults.guard("fields"):
            if given:
                parameters.extra_args = {**(parameters.extra_args or {}), FIELD: given[-1]}
        return parameters

    return to_sampling_params


def _as_sent(original: Method, faults: Faults) -> Method:
    """Wraps the handlers: restores a boolean that vLLM's types turned into 1, and exempts APIs built on chat."""

    @wraps(original)
    async def create(self: Any, request: Any, raw_request: Any = None, *args: Any, **kwargs: Any) -> Any:
        if raw_request is not None and faults.on("fields"):
            with faults.guard("fields"):
                if request.vllm_xargs:
                    _restore(request, raw_request)
                if not str(raw_request.url.path).endswith(_PATHS):
                    _exempt(request)
        return await original(self, request, raw_request, *args, **kwargs)

    return create


def _restore(request: Any, raw_request: Any) -> None:
    body = getattr(raw_request, "_json", None)
    sent = body.get("vllm_xargs") if isinstance(body, dict) else None
    if isinstance(sent, dict) and isinstance(sent.get(FIELD), bool):
        request.vllm_xargs[FIELD] = sent[FIELD]


def _exempt(request: Any) -> None:
    """Turn the gate off for APIs built on chat (messages, say), whose answers cannot express a refusal."""
    rest = {name: value for name, value in (request.vllm_xargs or {}).items() if name != RESUMABLE}
    request.vllm_xargs = {**rest, FIELD: 0}


def _with_check(original: Method, faults: Faults) -> Method:
    """Wraps ``serve_tokens``: answers 400 to an invalid threshold."""

    @wraps(original)
    async def serve_tokens(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        sent: object = None
        with faults.guard("fields"):
            sent = (request.sampling_params.extra_args or {}).get(FIELD)
        try:
            check(sent)
        except ValueError as error:
            return self.create_error_response(str(error))
        return await original(self, request, *args, **kwargs)

    return serve_tokens
