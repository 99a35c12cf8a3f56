"""The request field, in vLLM's own request types."""

from __future__ import annotations

import json
import warnings
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.gate import request_fields
from cachefleet_worker.plugin.gate.rules import FIELD, RESUMABLE
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.settings import PluginSettings

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

MESSAGE = "Parameter `cache_hit_threshold` must be between 0.0 and 1.0 if provided."
WRONG = ["-0.01", "1.01", "-0.1", "1.1", "NaN", "1e309", "-1e309", '"0.5"', '""', "true", "false", "[0.5]", "{}"]
XARGS = [text for text in WRONG if text not in ("true", "false", "{}")]
"""Those that come through the type of ``vllm_xargs``; a true is seen in the body as it was sent."""


@pytest.fixture(scope="module", autouse=True)
def faults() -> Faults:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        capabilities = Capabilities()
        faults = Faults(capabilities)
        request_fields.install(capabilities, faults, PluginSettings())
    assert capabilities.mode("fields") == "patched"
    return faults


@pytest.fixture(params=["chat", "completion"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def request(kind: str, body: str) -> Any:
    """A request as vLLM's API server makes it of a body."""
    given = json.loads(body)
    if kind == "chat":
        protocol = import_module("vllm.entrypoints.openai.chat_completion.protocol")
        return protocol.ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], **given)
    return import_module("vllm.entrypoints.openai.completion.protocol").CompletionRequest(prompt="x", **given)


def extra_args(kind: str, body: str) -> Any:
    return request(kind, body).to_sampling_params(8, {}).extra_args


@pytest.mark.parametrize("value", WRONG)
def test_what_is_no_ratio_is_refused_at_the_top(kind: str, value: str) -> None:
    with pytest.raises(ValueError) as refused:
        extra_args(kind, f'{{"{FIELD}": {value}}}')
    assert str(refused.value) == MESSAGE


@pytest.mark.parametrize("value", XARGS)
def test_what_is_no_ratio_is_refused_in_vllm_xargs(kind: str, value: str) -> None:
    with pytest.raises(ValueError) as refused:
        extra_args(kind, f'{{"vllm_xargs": {{"{FIELD}": {value}}}}}')
    assert str(refused.value) == MESSAGE


@pytest.mark.parametrize(("value", "threshold"), [("0", 0.0), ("0.0", 0.0), ("1", 1.0), ("0.33", 0.33)])
def test_a_ratio_travels_on(kind: str, value: str, threshold: float) -> None:
    assert extra_args(kind, f'{{"{FIELD}": {value}}}') == {FIELD: threshold}
    assert extra_args(kind, f'{{"vllm_xargs": {{"{FIELD}": {value}}}}}') == {FIELD: threshold}


def test_the_top_level_wins_and_other_arguments_stay(kind: str) -> None:
    body = f'{{"{FIELD}": 0.2, "vllm_xargs": {{"{FIELD}": 0.9, "session_id": "s"}}}}'
    assert extra_args(kind, body) == {FIELD: 0.2, "session_id": "s"}


@pytest.mark.parametrize("body", ["{}", f'{{"{FIELD}": null}}', '{"vllm_xargs": null}'])
def test_absent_or_null_leaves_the_parameters_alone(kind: str, body: str) -> None:
    assert extra_args(kind, body) is None


def test_both_are_checked(kind: str) -> None:
    with pytest.raises(ValueError, match="between"):
        extra_args(kind, f'{{"{FIELD}": 0.2, "vllm_xargs": {{"{FIELD}": 7}}}}')


async def as_handled(path: str, body: str, faults: Faults) -> Any:
    """A chat request as the handler below the patch gets it."""

    async def handler(_self: Any, given: Any, _raw: Any) -> Any:
        return given

    raw = SimpleNamespace(url=SimpleNamespace(path=path), _json=json.loads(body))
    return await request_fields._as_sent(handler, faults)(None, request("chat", body), raw)


@pytest.mark.parametrize("value", ["true", "false"])
async def test_a_truth_value_in_vllm_xargs_is_refused_as_it_was_sent(value: str, faults: Faults) -> None:
    body = f'{{"vllm_xargs": {{"{FIELD}": {value}}}}}'
    handled = await as_handled("/v1/chat/completions", body, faults)
    with pytest.raises(ValueError, match="between"):
        handled.to_sampling_params(8, {})


async def test_an_api_that_speaks_chat_underneath_is_exempt(faults: Faults) -> None:
    body = f'{{"vllm_xargs": {{"{FIELD}": 0.5, "{RESUMABLE}": 1, "session_id": "s"}}}}'
    handled = await as_handled("/v1/messages", body, faults)
    assert handled.to_sampling_params(8, {}).extra_args == {FIELD: 0.0, "session_id": "s"}
    handled = await as_handled("/prefix/v1/chat/completions", body, faults)
    assert handled.to_sampling_params(8, {}).extra_args == {FIELD: 0.5, RESUMABLE: 1, "session_id": "s"}


class Tokens:
    """vLLM's handler of token requests, as far as the check needs it."""

    def create_error_response(self, message: str) -> tuple[int, str]:
        return 400, message

    async def serve_tokens(self, _request: Any, _raw: Any = None) -> str:
        return "served"


@pytest.mark.parametrize("value", WRONG)
async def test_token_requests_are_checked_in_extra_args(value: str, faults: Faults) -> None:
    sampling = SimpleNamespace(extra_args={FIELD: json.loads(value)})
    serve = request_fields._with_check(Tokens.serve_tokens, faults)
    assert await serve(Tokens(), SimpleNamespace(sampling_params=sampling)) == (400, MESSAGE)


@pytest.mark.parametrize("extra", [None, {}, {FIELD: None}, {FIELD: 0.5}, {"other": "x"}])
async def test_other_token_requests_are_served(extra: Any, faults: Faults) -> None:
    serve = request_fields._with_check(Tokens.serve_tokens, faults)
    assert await serve(Tokens(), SimpleNamespace(sampling_params=SimpleNamespace(extra_args=extra))) == "served"


async def test_a_request_of_another_shape_is_served_and_the_field_goes_off() -> None:
    capabilities = Capabilities()
    broken = Faults(capabilities)
    serve = request_fields._with_check(Tokens.serve_tokens, broken)
    assert await serve(Tokens(), SimpleNamespace()) == "served"
    assert (capabilities.mode("fields"), broken.counts) == ("off", {"fields": 1})


def test_installing_again_wraps_nothing_twice(faults: Faults) -> None:
    protocol = import_module("vllm.entrypoints.openai.completion.protocol").CompletionRequest
    before = protocol.to_sampling_params
    request_fields.install(Capabilities(), faults, PluginSettings())
    assert protocol.to_sampling_params is before
