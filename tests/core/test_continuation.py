"""A reference to a kept conversation: the names of its fields are fixed, and there are no others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cachefleet_core.continuation import (
    APPEND_MEMBER,
    MISMATCHES,
    REF_MEMBER,
    Fingerprints,
    KeptPrefix,
    PromptCacheRef,
    RefusalCode,
    prefix_hash,
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


def read(ref: dict[str, Any]) -> PromptCacheRef:
    return msgspec.json.decode(msgspec.json.encode(ref), type=PromptCacheRef)


def test_a5_a_reference_has_exactly_these_fields() -> None:
    assert (REF_MEMBER, APPEND_MEMBER) == ("prompt_cache_ref", "append_token_ids")
    assert set(PromptCacheRef.__struct_fields__) == set(REF)
    assert set(Fingerprints.__struct_fields__) == set(REF) - set(KeptPrefix.__struct_fields__)
    assert set(MISMATCHES) == set(Fingerprints.__struct_fields__)
    assert len(set(MISMATCHES.values())) == len(MISMATCHES)
    assert set(MISMATCHES.values()) < set(RefusalCode)
    assert msgspec.to_builtins(read(REF)) == REF


@pytest.mark.parametrize("name", sorted(REF))
def test_a5_each_of_them_is_needed(name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=name):
        read({key: value for key, value in REF.items() if key != name})


def test_a5_no_other_field_is_taken() -> None:
    with pytest.raises(msgspec.ValidationError, match="prompt_token_ids"):
        read(REF | {"prompt_token_ids": [1]})


def test_what_is_kept_and_the_fingerprints_are_the_reference() -> None:
    kept = msgspec.convert({name: REF[name] for name in KeptPrefix.__struct_fields__}, KeptPrefix)
    assert kept.ref(msgspec.convert({name: REF[name] for name in MISMATCHES}, Fingerprints)) == read(REF)


def test_a5_a_prefix_is_named_by_the_hash_of_its_ids() -> None:
    assert prefix_hash([1]) == "sha256:67abdd721024f0ff4e0b3f4c2fc13bc5bad42d0b7851d456d88d203d15aaa450"
    assert prefix_hash([1, 2]) != prefix_hash([2, 1])
