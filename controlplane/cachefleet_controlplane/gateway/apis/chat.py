"""Chats and completions: token ids and usage are always asked for, and taken out where the client did not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import cachefleet_native
from msgspec import Raw

from cachefleet_controlplane.gateway.apis.api import PassingApi
from cachefleet_controlplane.gateway.apis.media import holds_media
from cachefleet_controlplane.gateway.apis.request_info import (
    CHAT_MAX_TOKENS,
    COMPLETIONS_MAX_TOKENS,
    THRESHOLD_FIELD,
    Bypass,
    Endpoint,
    RequestInfo,
    choices_of,
    own_threshold,
    within_bounds,
)
from cachefleet_controlplane.gateway.send.answers.stream_filter import StreamFilter
from cachefleet_controlplane.gateway.send.worker_answer import Answer
from cachefleet_controlplane.wire.json_members import (
    TRUE,
    ZERO,
    Fields,
    count_of,
    encode,
    first_of,
    is_null,
    lax_bool,
    members,
    number,
)

_USAGE_ONLY: Final = Raw(b'{"include_usage":true}')


class ChatApi(PassingApi):
    """``/v1/chat/completions``."""

    endpoint = Endpoint.CHAT

    def understand(self, fields: Fields, *, model: str, size: int) -> RequestInfo:
        """Read a body; a chat without a bound counts CHAT_MAX_TOKENS. ApiError 400 for an invalid threshold."""
        echo, ids_asked = lax_bool(fields.get("echo")), lax_bool(fields.get("return_token_ids"))
        choices = choices_of(fields)
        return RequestInfo(
            endpoint=self.endpoint,
            model=model,
            fields=fields,
            size=size,
            stream=lax_bool(fields.get("stream")),
            usage_asked=_usage_asked(fields.get("stream_options")),
            ids_asked=ids_asked,
            ids_wanted=not echo and not ids_asked,
            single=choices == 1 and _has_one_prompt(fields),
            max_tokens=self._max_tokens(fields),
            bypass=Bypass.MEDIA if self._holds_media(fields) else None,
            threshold=own_threshold(fields),
            choices=choices,
            prompts=self._prompts(fields, choices),
        )

    def prepare(self, fields: Fields, info: RequestInfo, *, salt: str, gated: bool) -> None:
        """Ask for token ids and usage, and where ``gated`` set a threshold of 0 unless the caller has one."""
        if gated and info.threshold is None:
            fields[THRESHOLD_FIELD] = ZERO
        super().prepare(fields, info, salt=salt, gated=gated)
        if info.ids_wanted:
            fields["return_token_ids"] = TRUE
        if info.stream and not info.usage_asked:
            _want_usage(fields)

    def whole(self, info: RequestInfo, answer: Answer, *, sent: int) -> Answer:
        """As the base, without token ids that the client did not ask for."""
        answer = super().whole(info, answer, sent=sent)
        if not info.ids_wanted or answer.status == 400:
            return answer
        return Answer(answer.status, answer.headers, cachefleet_native.without_token_ids(answer.body))

    def transformer(self, info: RequestInfo, fingerprint: bytes | None) -> StreamFilter:
        """Return the filter that takes out usage and ids where the client did not ask for them."""
        return StreamFilter(
            strip_usage=info.stream and not info.usage_asked,
            strip_ids=info.ids_wanted,
            single=info.single,
            fingerprint=fingerprint,
            echoes=info.choices * info.prompts if lax_bool(info.fields.get("echo")) else 0,
        )

    def _max_tokens(self, fields: Fields) -> int:
        return _first_number(fields, "max_completion_tokens", "max_tokens") or CHAT_MAX_TOKENS

    def _prompts(self, fields: Fields, choices: int) -> int:  # noqa: ARG002 # completions have several
        return 1

    def _holds_media(self, fields: Fields) -> bool:
        return holds_media(fields.get("messages"))


class CompletionsApi(ChatApi):
    """``/v1/completions``."""

    endpoint = Endpoint.COMPLETIONS

    def _max_tokens(self, fields: Fields) -> int:
        return _first_number(fields, "max_tokens") or COMPLETIONS_MAX_TOKENS

    def _prompts(self, fields: Fields, choices: int) -> int:
        lists = [name for name in ("prompt", "prompt_embeds") if not is_null(fields, name)]
        counts = [within_bounds(count_of(fields[name]), choices, param=name) for name in lists]
        return within_bounds(sum(counts) or 1, choices, param="prompt")

    def _holds_media(self, fields: Fields) -> bool:
        return not is_null(fields, "prompt_embeds")


def _usage_asked(raw: Raw | None) -> bool:
    options = None if raw is None else members(raw)
    return options is not None and lax_bool(options.get("include_usage"))


def _want_usage(fields: Fields) -> None:
    """Ask for usage at the end of the stream; options that the engine will refuse stay unchanged."""
    if is_null(fields, "stream_options"):
        fields["stream_options"] = _USAGE_ONLY
    elif (options := members(fields["stream_options"])) is not None:
        # vLLM sends running usage only together with usage, so the client would not have got it either.
        kept = {name: raw for name, raw in options.items() if name != "continuous_usage_stats"}
        fields["stream_options"] = Raw(encode(kept | {"include_usage": TRUE}))


def _has_one_prompt(fields: Fields) -> bool:
    prompt = fields.get("prompt")
    return prompt is None or first_of(prompt) is None


def _first_number(fields: Mapping[str, Raw], *names: str) -> int | None:
    return next((found for name in names if (found := number(fields.get(name)))), None)
