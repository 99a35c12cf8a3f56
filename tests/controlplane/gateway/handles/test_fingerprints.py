"""Fingerprints: what shapes a prompt's form changes one of them, what does not changes none."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.handles.fingerprints import fingerprints
from cachefleet_controlplane.workers.render_profiles import rendered_by
from cachefleet_core.continuation import Fingerprints
from cachefleet_core.index_contract import IndexContract, RenderProfile
from cachefleet_core.report_frames import Hello

CONTRACT = IndexContract(weights="w", tokenizer="sha256:t", block_size=16)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}
CHAT: dict[str, Any] = {
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
    "tools": [TOOL],
}


def hello(**profile: str) -> Hello:
    made = RenderProfile(**({"renderer": "vllm", "renderer_version": "1", "template": "t"} | profile))
    return Hello(worker="w", pool="default/p", epoch="e", endpoint="http://x:1", contract=CONTRACT, profile=made)


def printed(
    body: dict[str, Any], *hellos: Hello, endpoint: Endpoint = Endpoint.CHAT, key: bytes = b"k"
) -> Fingerprints:
    info = parse(json.dumps(body).encode(), endpoint)
    return fingerprints("default/m", rendered_by(hellos or (hello(),)), info, key=key)


def differing(one: Fingerprints, other: Fingerprints) -> set[str]:
    before, after = msgspec.structs.asdict(one), msgspec.structs.asdict(other)
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"temperature": 0.5, "max_tokens": 3, "stream": True}, set()),
        ({"messages": [*CHAT["messages"], {"role": "assistant", "content": "a"}]}, set()),
        ({"messages": [{"role": "system", "content": "other"}]}, {"effective_instructions_hash"}),
        ({"messages": [*CHAT["messages"], {"role": "developer", "content": "late"}]}, {"effective_instructions_hash"}),
        ({"messages": [{"role": "user", "content": "u"}]}, {"effective_instructions_hash"}),
        ({"tools": None}, {"effective_tools_hash"}),
        ({"tool_choice": "none"}, {"effective_tools_hash"}),
        ({"reasoning_effort": "high"}, {"template_fingerprint"}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"template_fingerprint"}),
    ],
)
def test_a11_what_shapes_a_prompt_changes_its_own_print(change: dict[str, Any], names: set[str]) -> None:
    assert differing(printed(CHAT), printed(CHAT | change)) == names


def test_c13_the_order_of_a_tools_members_changes_nothing() -> None:
    swapped = {"function": {"parameters": {"a": 2, "b": 1}, "name": "f"}, "type": "function"}
    assert printed(CHAT) == printed(CHAT | {"tools": [swapped]})


@pytest.mark.parametrize(
    ("profile", "names"),
    [
        ({"renderer": "x"}, {"renderer", "template_fingerprint"}),
        ({"renderer_version": "2"}, {"renderer_version", "template_fingerprint"}),
        ({"reasoning_parser": "r"}, {"template_fingerprint"}),
        ({"template": "u"}, {"template_fingerprint"}),
    ],
)
def test_a11_a_profile_is_in_it_whole(profile: dict[str, str], names: set[str]) -> None:
    assert differing(printed(CHAT), printed(CHAT, hello(**profile))) == names


def test_a11_during_a_rollout_it_is_neither_profiles() -> None:
    old, new = hello(), hello(template="u")
    both = printed(CHAT, old, new)
    assert both == printed(CHAT, new, old)
    assert both not in (printed(CHAT, old), printed(CHAT, new))
    assert printed(CHAT, old, old) == printed(CHAT, old)


def test_other_apis_have_their_instructions_elsewhere() -> None:
    for endpoint, body, name in (
        (Endpoint.RESPONSES, {"input": "x"}, "instructions"),
        (Endpoint.MESSAGES, {"messages": [{"role": "user", "content": "x"}]}, "system"),
    ):
        found = differing(printed(body, endpoint=endpoint), printed(body | {name: "be brief"}, endpoint=endpoint))
        assert found == {"effective_instructions_hash"}
    assert printed({"prompt": "x"}, endpoint=Endpoint.COMPLETIONS).effective_instructions_hash == ""


def test_nobody_without_the_key_can_guess_what_was_instructed() -> None:
    assert differing(printed(CHAT), printed(CHAT, key=b"other")) >= {"effective_instructions_hash"}


@pytest.mark.parametrize("messages", [7, "text", [7], [{"role": 7}], None])
def test_what_the_engine_will_refuse_has_prints_too(messages: Any) -> None:
    assert printed({"messages": messages}).effective_instructions_hash == ""
