"""Requests that run a prompt for its cache."""

from __future__ import annotations

import pytest

from cachefleet_core.warmth import Prefix
from cachefleet_worker.agent.engines.vllm.prompt_requests import warm_request


def test_ids_and_adapters() -> None:
    path, body = warm_request("m", Prefix(name="p", ids=(7).to_bytes(4, "little"), lora="adapter", salt="s"))
    assert path == "/v1/completions"
    assert (body["prompt"], body["model"], body["cache_salt"], body["logprobs"]) == ([7], "adapter", "s", 0)


@pytest.mark.parametrize("prefix", [Prefix(name="p"), Prefix(name="p", ids=b"123"), Prefix(name="p", messages=b"{}")])
def test_prompts_that_are_none(prefix: Prefix) -> None:
    with pytest.raises(ValueError, match=r"neither|multiple of 4|JSON array"):
        warm_request("m", prefix)
