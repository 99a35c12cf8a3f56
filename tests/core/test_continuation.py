"""The body of a continuation: the names of its fields are fixed, and there are no others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cachefleet_core.continuation import (
    MISMATCHES,
    ContinueRequest,
    Fingerprints,
    PromptCacheRef,
    RequestError,
    appended,
    prefix_hash,
    read_request,
)

REF: dict[str, Any] = {
    "handle": "vllm_prefix_1",
    "prefix_hash": prefix_hash([1, 2, 3]),
    "prefix_token_count": 3,
    "model": "m",
    "tokenizer_fingerprint": "t",
    "renderer": "vllm",
    "renderer_version": "0.32.0",
    "template_fingerprint": "p",
    "effective_instructions_hash": "i",
    "effective_tools_hash": "",
}


def body(ref: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"prompt_cache_ref": ref, "append_token_ids": [4, 5]} | more).encode()


def test_a5_a_reference_has_exactly_these_fields() -> None:
    assert set(PromptCacheRef.__struct_fields__) == set(REF)
    assert set(Fingerprints.__struct_fields__) == set(REF) - {"handle", "prefix_hash", "prefix_token_count"}
    assert set(MISMATCHES) == set(Fingerprints.__struct_fields__)
    request = read_request(body(REF), ContinueRequest)
    assert (request.prompt_cache_ref.handle, appended(request)) == ("vllm_prefix_1", [4, 5])


@pytest.mark.parametrize("name", sorted(REF))
def test_a5_each_of_them_is_needed(name: str) -> None:
    with pytest.raises(RequestError, match=name):
        read_request(body({key: value for key, value in REF.items() if key != name}), ContinueRequest)


def test_a5_no_other_field_is_taken() -> None:
    with pytest.raises(RequestError, match="prompt_cache_ref"):
        read_request(body(REF | {"prompt_token_ids": [1]}), ContinueRequest)
    with pytest.raises(RequestError, match="more"):
        read_request(body(REF, more=1), ContinueRequest)


def test_a5_a_prefix_is_named_by_the_hash_of_its_ids() -> None:
    assert prefix_hash([1]) == "sha256:67abdd721024f0ff4e0b3f4c2fc13bc5bad42d0b7851d456d88d203d15aaa450"
    assert prefix_hash([1, 2]) != prefix_hash([2, 1])
