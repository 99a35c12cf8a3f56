"""What a request asks for: its body read and checked in vLLM's order, with vLLM's refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from tests.fakes.conversions import messages_as_chat, responses_as_chat
from tests.fakes.failures import (
    Refusal,
    bad_parameter,
    bad_request,
    decoder_prompt_too_long,
    invalid,
    missing,
    too_long,
    unknown_model,
    unknown_response,
)
from tests.fakes.gate import Gated, gated
from tests.fakes.options import EngineOptions
from tests.fakes.scheduler import Sequence as Generation
from tests.fakes.scripts import Script, script_of
from tests.fakes.tokenizer import Tokenizer, flatten

Body = dict[str, Any]

_COMPLETION_DEFAULT: Final = 16
_KINDS: Final = {"list": "list", "dict": "dictionary", "str": "string"}
_TYPES: Final = {"list": "list_type", "dict": "dict_type", "str": "string_type"}
_TEMPLATE_OPTIONS: Final = ("tools", "documents")


@dataclass(frozen=True, slots=True)
class Ask:
    """One generation request: its prompts and how to answer."""

    body: Body
    prompts: list[list[int]]
    max_tokens: list[int]
    n: int
    prompt_text: str = ""
    script: Script | None = None
    spoken: tuple[int, ...] = ()
    """The ids of the script."""
    pieces: Callable[[Items[int]], list[str]] = lambda _: []
    """The text of each of some ids."""
    client: Body = field(default_factory=dict)
    """The body as it was sent, where that was none of a chat."""
    gated: Gated = field(default_factory=Gated)

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def include_usage(self) -> bool:
        return bool((self.body.get("stream_options") or {}).get("include_usage"))

    @property
    def continuous_usage(self) -> bool:
        options = self.body.get("stream_options") or {}
        return self.include_usage and bool(options.get("continuous_usage_stats"))

    @property
    def return_token_ids(self) -> bool:
        return bool(self.body.get("return_token_ids"))

    def generations(self) -> list[Generation]:
        """One for each prompt and choice, in the order of their index."""
        return [self._generation(prompt, choice) for prompt in range(len(self.prompts)) for choice in range(self.n)]

    def _generation(self, prompt: int, choice: int) -> Generation:
        sampling = self.body.get("sampling_params") or self.body
        extra = self.body.get("vllm_xargs") or sampling.get("extra_args") or {}
        return Generation(
            list(self.prompts[prompt]),
            self.max_tokens[prompt],
            choice=choice,
            salt=self.body.get("cache_salt") or "",
            ignore_eos=bool(sampling.get("ignore_eos")),
            session_id=self.body.get("session_id") or extra.get("session_id"),
            stop_ids=frozenset(sampling.get("stop_token_ids") or ()),
            min_tokens=int(sampling.get("min_tokens") or 0),
            script=self.spoken,
            resumable=bool(extra.get("cachefleet_resumable")) or bool(self.gated.own),
            gated=self.gated,
            report_all=extra.get("kv_cache_report_mode") == "full",
        )


class Reader:
    """Reads the bodies of one engine's routes. Everything may raise Refusal."""

    def __init__(self, options: EngineOptions, tokenizer: Tokenizer) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._longest = tokenizer.max_new_tokens or options.context

    def body(self, data: bytes) -> Body:
        try:
            body = msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise _undecodable(data) from error
        if not isinstance(body, dict):
            message = "Input should be a valid dictionary or object to extract fields from"
            raise invalid("model_attributes_type", "body", message, _shown(body))
        return body

    def chat(self, body: Body) -> Ask:
        ids, text = self._conversation(body)
        wanted = body.get("max_completion_tokens") or body.get("max_tokens")
        limit = self._budget(len(ids), wanted, self._longest)
        script = script_of(body)
        spoken = tuple(self._tokenizer.encode(script.text)) if script else ()
        asked = gated(body)
        return Ask(body, [ids], [limit], _count(body), text, script, spoken, self._tokenizer.pieces, gated=asked)

    def responses(self, body: Body) -> Ask:
        """Nothing is stored, as without VLLM_ENABLE_RESPONSES_API_STORE."""
        if "input" not in body:
            raise missing(["input"], len(body) + ("tool_choice" not in body))
        self.check_model(body)
        if previous := body.get("previous_response_id"):
            raise unknown_response(str(previous))
        return replace(self.chat(responses_as_chat(body)), client=body, gated=Gated())

    def messages(self, body: Body) -> Ask:
        _check_messages(body, "model", "messages", "max_tokens")
        return replace(self.chat(messages_as_chat(body)), client=body, gated=Gated())

    def count_tokens(self, body: Body) -> int:
        _check_messages(body, "model", "messages")
        ids, _ = self._conversation(messages_as_chat(body))
        return len(ids)

    def inputs(self, body: Body, name: str) -> list[list[int]]:
        """The ids of each input of a pooling model, which a member has."""
        if name not in body:
            raise missing([name], len(body))
        self.check_model(body)
        return [self._ids(one) for one in _several(body[name])]

    def completion(self, body: Body) -> Ask:
        prompts = self._prompts(body)
        asked = body.get("max_tokens")
        limits = [self._budget(len(ids), asked, _COMPLETION_DEFAULT) for ids in prompts]
        return Ask(body, prompts, limits, _count(body), pieces=self._tokenizer.pieces, gated=gated(body))

    def generate(self, body: Body) -> Ask:
        ids = _required(body, "token_ids", list)
        if not ids:
            message = "List should have at least 1 item after validation, not 0"
            context = "{'field_type': 'List', 'min_length': 1, 'actual_length': 0}"
            raise invalid("too_short", "body.token_ids", message, "<list of 0 items>", context)
        sampling = _required(body, "sampling_params", dict)
        self.check_model(body)
        self._check_vocabulary(ids)
        if len(ids) > self._options.context:
            raise decoder_prompt_too_long(len(ids), self._options.context)
        limit = self._budget(len(ids), sampling.get("max_tokens"), self._longest)
        return Ask(body, [ids], [limit], _count(sampling))

    def tokenize(self, body: Body) -> list[int]:
        """The ids of a ``prompt`` or ``messages``; neither is refused for its length."""
        if "messages" in body:
            _required(body, "messages", list)
            self.check_model(body)
            return self._tokenizer.encode(self._render(body))
        if "prompt" not in body:
            raise missing(["prompt", "messages"], len(body))
        text = str(_required(body, "prompt", str))
        self.check_model(body)
        return self._tokenizer.encode(text)

    def check_model(self, body: Body) -> None:
        asked = body.get("model")
        if asked and asked != self._options.model:
            raise unknown_model(str(asked), self._options.model)

    def _conversation(self, body: Body) -> tuple[list[int], str]:
        messages = _required(body, "messages", list)
        _check_fields(body)
        self.check_model(body)
        if not messages:
            raise bad_request("Cannot apply chat template to an empty conversation. Provide at least one message.")
        text = self._render(body)
        ids = self._tokenizer.encode(text)
        if len(ids) > self._options.context:
            raise too_long(len(ids), self._options.context, text=True)
        return ids, text

    def _render(self, body: Body) -> str:
        options = {name: body[name] for name in _TEMPLATE_OPTIONS if body.get(name)}
        options |= body.get("chat_template_kwargs") or {}
        options["add_generation_prompt"] = body.get("add_generation_prompt", True)
        return self._tokenizer.render([flatten(message) for message in body["messages"]], options)

    def _prompts(self, body: Body) -> list[list[int]]:
        prompt = body.get("prompt")
        if prompt is None or prompt == "":
            raise bad_parameter("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        _check_fields(body)
        self.check_model(body)
        if prompt == []:
            raise bad_request("You must pass at least one prompt")
        return [self._ids(one) for one in _several(prompt)]

    def _ids(self, prompt: str | list[int]) -> list[int]:
        text = isinstance(prompt, str)
        ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        self._check_vocabulary(ids)
        if len(ids) > self._options.context:
            raise too_long(len(ids), self._options.context, text=text)
        return ids

    def _check_vocabulary(self, ids: Sequence[int]) -> None:
        highest = max(ids)
        if highest >= self._tokenizer.vocabulary:
            raise bad_request(f"Token id {highest} is out of vocabulary")

    def _budget(self, prompt_tokens: int, asked: int | None, default: int) -> int:
        """Output tokens allowed: what was asked, as far as the context has room."""
        limit = min(default if asked is None else asked, self._options.context - prompt_tokens)
        if limit < 1:
            raise bad_parameter(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
        return limit


def _check_messages(body: Body, *names: str) -> None:
    lacking = [name for name in names if name not in body]
    if lacking:
        raise missing(lacking, len(body))


def _undecodable(data: bytes) -> Refusal:
    """The words come from the standard library's parser."""
    try:
        json.loads(data)
    except ValueError as error:
        position, message = getattr(error, "pos", 0), getattr(error, "msg", "invalid text")
    else:  # what one parser takes and the other does not (NaN)
        position, message = 0, "invalid value"
    shown = "<dict of 0 items>"
    return invalid("json_invalid", f"body.{position}", "JSON decode error", shown, f"{{'error': {message!r}}}")


def _several(prompt: Any) -> list[Any]:
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return list(prompt) if several else [prompt]


def _required(body: Mapping[str, Any], name: str, kind: type) -> Any:
    location = f"body.{name}"
    if name not in body:
        raise missing([name], len(body))
    value = body[name]
    if not isinstance(value, kind):
        type_name = _KINDS[kind.__name__]
        raise invalid(_TYPES[kind.__name__], location, f"Input should be a valid {type_name}", _shown(value))
    return value


def _check_fields(body: Body) -> None:
    for name in ("max_tokens", "max_completion_tokens", "n"):
        value = body.get(name)
        if isinstance(value, str):
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise invalid("int_parsing", f"body.{name}", message, value)
    if body.get("stream_options") and not body.get("stream"):
        raise bad_parameter("Stream options can only be defined when `stream=True`.", "stream_options")
    if body.get("cache_salt") is not None and not (isinstance(body["cache_salt"], str) and body["cache_salt"]):
        raise bad_parameter("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")


def _count(sampling: Mapping[str, Any]) -> int:
    n = sampling.get("n")
    n = 1 if n is None else n
    if n < 1:
        raise bad_request(f"n must be at least 1, got {n}.")
    temperature = sampling.get("temperature")
    if temperature is not None and temperature < 0:
        value = float(temperature)
        raise bad_parameter(f"temperature must be non-negative, got {value}.", "temperature", value)
    if n > 1 and temperature == 0:
        raise bad_request(f"n must be 1 when using greedy sampling, got {n}.")
    return int(n)


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    return str(value)
