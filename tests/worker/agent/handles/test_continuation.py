from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import msgspec
import pytest

from cachefleet_core.continuation import (
    MISMATCHES,
    ContinueRequest,
    HandleRequest,
    RefusalCode,
    RequestError,
    ids_array,
    prefix_hash,
    read_request,
)
from cachefleet_worker.agent.handles.continuation import Limits, engine_body, mint, plan, succeed, told
from cachefleet_worker.agent.handles.prompt_handles import Entry, Handles, RefusedError
from tests.worker.agent.handles.test_prompt_handles import FINGERPRINTS

IDS = [10, 11, 12, 13]
LIMITS = Limits(vocab_size=100, max_model_len=16)


class TurnOfPrompts:
    """A store with one proven prefix in it."""

    def __init__(self, *, proven: bool = True, salt: str = "") -> None:
        numbers = count()
        self.handles = Handles(max_entries=8, max_bytes=1 << 20, token=lambda: f"{next(numbers):08d}")
        self.handles.begin("boot")
        entry = self.handles.mint(ids_array(IDS), FINGERPRINTS, salt=salt, ends_at_boundary=proven, expires_at=100.0)
        assert entry is not None
        self.entry: Entry = entry

    def body(self, append: Any = (20, 21), ref: dict[str, Any] | None = None, **fields: Any) -> bytes:
        reference = {
            "handle": self.entry.handle,
            "prefix_hash": prefix_hash(IDS),
            "prefix_token_count": len(IDS),
            **msgspec.to_builtins(FINGERPRINTS),
        } | (ref or {})
        return msgspec.json.encode({"prompt_cache_ref": reference, "append_token_ids": append} | fields)

    def plan(self, append: Any = (20, 21), ref: dict[str, Any] | None = None, now: float = 0.0, **fields: Any) -> Any:
        return plan(read_request(self.body(append, ref, **fields), ContinueRequest), self.handles, LIMITS, now)

    def refused(self, *args: Any, **fields: Any) -> RefusalCode:
        with pytest.raises(RefusedError) as refused:
            self.plan(*args, **fields)
        return refused.value.code


def test_a_prefix_and_its_suffix_are_one_prompt() -> None:
    turn = TurnOfPrompts(salt="s")
    chosen = turn.plan(
        sampling_params={"max_tokens": 3, "temperature": 0, "stop": ["x"]}, cache_salt="s", request_id="r", stream=True
    )
    assert msgspec.json.decode(engine_body(chosen)) == {
        "model": "m",
        "token_ids": [*IDS, 20, 21],
        "sampling_params": {"max_tokens": 3, "temperature": 0.0, "stop": ["x"]},
        "stream": True,
        "output_mode": "tokens",
        "priority": 0,
        "cache_salt": "s",
        "request_id": "r",
    }


@pytest.mark.parametrize(("field", "code"), MISMATCHES.items())
@pytest.mark.requirement("A6")
def test_each_fingerprint_has_its_own_refusal(field: str, code: RefusalCode) -> None:
    assert TurnOfPrompts().refused(ref={field: "another"}) is code


def test_what_is_not_as_it_was_is_refused() -> None:
    turn = TurnOfPrompts()
    assert turn.refused(ref={"prefix_token_count": 3}) is RefusalCode.COUNT_MISMATCH
    assert turn.refused(ref={"prefix_token_count": 5}) is RefusalCode.COUNT_MISMATCH
    assert turn.refused(ref={"prefix_hash": prefix_hash([1])}) is RefusalCode.PREFIX_HASH_MISMATCH
    unknown = f"vllm_prefix_{turn.handles.tag}ffffffff"
    assert turn.refused(ref={"handle": unknown}) is RefusalCode.HANDLE_UNKNOWN
    assert turn.refused(ref={"handle": "vllm_prefix_0_0_0"}) is RefusalCode.STALE_EPOCH
    assert turn.refused(cache_salt="s") is RefusalCode.SALT_MISMATCH
    assert TurnOfPrompts(salt="s").refused() is RefusalCode.SALT_MISMATCH
    assert TurnOfPrompts(proven=False).refused() is RefusalCode.BOUNDARY_NOT_PROVEN
    assert turn.refused(now=100.0) is RefusalCode.HANDLE_EXPIRED


@pytest.mark.parametrize(
    ("append", "code"),
    [
        ([], RefusalCode.NO_MARGINAL_SUFFIX),
        ([99], None),
        ([100], RefusalCode.TOKEN_OUT_OF_VOCABULARY),
        ([1, 2**32], RefusalCode.APPEND_MALFORMED),
        ([-1], RefusalCode.APPEND_MALFORMED),
        ([1.5], RefusalCode.APPEND_MALFORMED),
        ([True], RefusalCode.APPEND_MALFORMED),
        (["1"], RefusalCode.APPEND_MALFORMED),
        ("text", RefusalCode.APPEND_MALFORMED),
        (None, RefusalCode.APPEND_MALFORMED),
        ({}, RefusalCode.APPEND_MALFORMED),
    ],
)
def test_what_may_be_appended(append: Any, code: RefusalCode | None) -> None:
    if code is None:
        assert TurnOfPrompts().plan(append).ids.tolist() == IDS + append
    else:
        assert TurnOfPrompts().refused(append) is code


def test_a_vocabulary_that_is_not_known_is_left_to_the_engine() -> None:
    turn = TurnOfPrompts()
    request = read_request(turn.body([4_000_000]), ContinueRequest)
    assert plan(request, turn.handles, Limits(), 0.0).ids.tolist() == [*IDS, 4_000_000]


def test_a_prompt_must_leave_room_for_an_answer() -> None:
    assert len(TurnOfPrompts().plan([1] * 11).ids) == 15
    with pytest.raises(RequestError, match=r"append_token_ids: 16 tokens .* takes 16"):
        TurnOfPrompts().plan([1] * 12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"more": 1}, "unknown field `more`"),
        ({"prompt_cache_ref": None}, "prompt_cache_ref: Expected"),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature: Expected `float` >= 0"),
        ({"sampling_params": {"temperature": True}}, "sampling_params.temperature"),
        ({"sampling_params": {"top_p": 0}}, "sampling_params.top_p: Expected `float` > 0"),
        ({"sampling_params": {"n": 2}}, "sampling_params.n: Expected `int` <= 1"),
        ({"sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens: Expected `int` >= 1"),
        ({"sampling_params": {"guided": 0}}, "sampling_params: Object contains unknown field `guided`"),
        (
            {"sampling_params": {"extra_args": {"cache_hit_threshold": 1.1}}},
            "cache_hit_threshold: Expected `float` <= 1",
        ),
        ({"sampling_params": {"extra_args": {"x": 1}}}, "unknown field `x`"),
        ({"stream": "yes"}, "stream: Expected `bool`"),
        ({"output_mode": "secret"}, "output_mode: Expected `str` matching regex"),
        ({"cache_salt": ""}, "cache_salt: Expected `str` of length >= 1"),
    ],
)
@pytest.mark.requirement("A5")
def test_a_request_that_is_none_names_the_field_and_what_may_stand_there(change: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as error:
        read_request(TurnOfPrompts().body(**change), ContinueRequest)
    assert words in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"sampling_params":{"temperature":NaN}}']
)
def test_a_body_that_is_no_object(body: bytes) -> None:
    with pytest.raises(RequestError, match=r"^body: "):
        read_request(body, ContinueRequest)


def test_numbers_beyond_a_float_are_refused() -> None:
    body = (
        TurnOfPrompts()
        .body()
        .replace(b'"append_token_ids"', b'"sampling_params":{"temperature":1e309},"append_token_ids"')
    )
    with pytest.raises(RequestError, match=r"sampling_params.temperature: Number out of range"):
        read_request(body, ContinueRequest)


@pytest.mark.parametrize("missing", ["handle", "prefix_hash", "prefix_token_count", *MISMATCHES])
@pytest.mark.requirement("A5")
def test_every_field_of_a_reference_is_needed(missing: str) -> None:
    body = msgspec.json.decode(TurnOfPrompts().body())
    del body["prompt_cache_ref"][missing]
    with pytest.raises(RequestError, match=rf"prompt_cache_ref: .*{missing}"):
        read_request(msgspec.json.encode(body), ContinueRequest)


def test_the_next_handle_stands_for_prompt_and_answer_and_ends_at_no_boundary() -> None:
    turn = TurnOfPrompts()
    after = succeed(turn.plan(), [30, 31], turn.handles, 50.0)
    assert after is not None
    cache = told(after, 50.0)
    assert cache.prefix_hash == prefix_hash([*IDS, 20, 21, 30, 31])
    assert (cache.prefix_token_count, cache.ends_at_boundary, cache.expires_in_seconds) == (8, False, 50.0)
    assert len(turn.handles) == 1


def test_there_is_no_next_handle_once_the_cache_was_cleared_or_time_is_up() -> None:
    turn = TurnOfPrompts()
    chosen = turn.plan()
    assert succeed(chosen, [30], turn.handles, 100.0) is None
    turn.handles.clear("engine")
    assert succeed(chosen, [30], turn.handles, 50.0) is None
    assert len(turn.handles) == 0


def request(**fields: Any) -> HandleRequest:
    return read_request(msgspec.json.encode({"fingerprints": FINGERPRINTS} | fields), HandleRequest)


def test_a_handle_to_ids() -> None:
    turn = TurnOfPrompts()
    entry = mint(request(prompt_token_ids=[1, 2], ends_at_boundary=True, ttl_seconds=5), turn.handles, LIMITS, 1.0)
    assert (entry.ids.tolist(), entry.ends_at_boundary, entry.expires_at) == ([1, 2], True, 6.0)


@pytest.mark.requirement("A7")
def test_a_boundary_is_proven_by_making_a_handle_to_the_beginning_of_another() -> None:
    turn = TurnOfPrompts(proven=False)
    for_three = request(
        handle=turn.entry.handle, prefix_token_count=3, prefix_hash=prefix_hash(IDS[:3]), ends_at_boundary=True
    )
    entry = mint(for_three, turn.handles, LIMITS, 0.0)
    assert (entry.ids.tolist(), entry.ends_at_boundary) == (IDS[:3], True)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"prompt_token_ids": [1], "prefix_token_count": 2}, RefusalCode.COUNT_MISMATCH),
        ({"prompt_token_ids": [1], "prefix_hash": prefix_hash([2])}, RefusalCode.PREFIX_HASH_MISMATCH),
        ({"prompt_token_ids": [100]}, RefusalCode.TOKEN_OUT_OF_VOCABULARY),
        ({"handle": "vllm_prefix_0_0_0"}, RefusalCode.STALE_EPOCH),
        ({"handle": "", "prefix_token_count": 5}, RefusalCode.COUNT_MISMATCH),
        ({"handle": "", "cache_salt": "s"}, RefusalCode.SALT_MISMATCH),
        (
            {"handle": "", "fingerprints": {**msgspec.to_builtins(FINGERPRINTS), "model": "x"}},
            RefusalCode.MODEL_MISMATCH,
        ),
    ],
)
def test_handles_that_are_not_made(fields: dict[str, Any], code: RefusalCode) -> None:
    turn = TurnOfPrompts()
    given = fields | ({"handle": turn.entry.handle} if fields.get("handle") == "" else {})
    with pytest.raises(RefusedError) as refused:
        mint(request(**given), turn.handles, LIMITS, 0.0)
    assert refused.value.code is code


def test_a_handle_for_which_there_is_no_room() -> None:
    turn = TurnOfPrompts()
    turn.handles.resize(0)
    with pytest.raises(RefusedError) as refused:
        mint(request(prompt_token_ids=[1]), turn.handles, replace(LIMITS), 0.0)
    assert refused.value.code is RefusalCode.HANDLE_NOT_KEPT


@pytest.mark.parametrize(
    "fields",
    [{}, {"prompt_token_ids": [1], "handle": "vllm_prefix_1"}, {"prompt_token_ids": []}, {"prompt_token_ids": [-1]},
     {"prompt_token_ids": [1], "ttl_seconds": 0}, {"prompt_token_ids": [1], "x": 1}],
)  # fmt: skip
def test_requests_for_a_handle_that_are_none(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        mint(request(**fields), TurnOfPrompts().handles, LIMITS, 0.0)
