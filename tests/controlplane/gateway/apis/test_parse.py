"""What is understood of a body, and what a worker is sent."""

import json
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from cachefleet_native import upstream_headers
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from cachefleet_controlplane.gateway.apis.parse import first_prompt, given_ids, parse, upstream_body
from cachefleet_controlplane.gateway.apis.request_info import COMPLETIONS_MAX_TOKENS, Endpoint
from cachefleet_controlplane.wire.errors import ApiError, error_body
from tests.reference.request_bodies import CHAT_MAX_TOKENS

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def ask(body: Any, endpoint: Endpoint = Endpoint.CHAT) -> Any:
    return parse(body if isinstance(body, bytes) else json.dumps(body).encode(), endpoint)


def sent(body: Any, endpoint: Endpoint = Endpoint.CHAT, *, model: str = "m", salt: str = "s") -> dict[str, Any]:
    data, size = upstream_body(ask(body, endpoint), model=model, salt=salt)
    decoded: dict[str, Any] = json.loads(data)
    assert len(decoded) == size
    return decoded


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'"x"', b"{'a':1}", b'{"a":NaN}', b"\xff", b'{"a":' + b"[" * 200_000]
)
def test_what_is_no_json_object_is_a_400(body: bytes) -> None:
    with pytest.raises(ApiError) as error:
        ask(body)
    assert error.value.status == 400
    assert json.loads(error_body("/v1/completions", error.value))["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream_options":{"\xff":1}}',
        b'{"vllm_xargs":{"\xff":1,"kv_transfer_params":{}}}',
        b'{"vllm_xargs":{"\\ud800":1,"kv_transfer_params":{}}}',
        b'{"model":"\xff"}',
        b'{"\xff":1}',
    ],
)
def test_text_that_is_not_unicode_is_a_400_where_it_is_read(body: bytes) -> None:
    with pytest.raises(ApiError) as error:
        ask(body)
    assert error.value.status == 400


def test_text_that_is_not_unicode_is_the_engine_s_to_refuse_elsewhere() -> None:
    understood = ask(b'{"prompt":["\xff"],"n":"\xff","max_tokens":"\xff"}', Endpoint.COMPLETIONS)
    assert given_ids(understood) is None
    assert bytes(first_prompt(understood)["prompt"]) == b'"\xff"'


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
@pytest.mark.parametrize("name", ["n", "best_of"])
@pytest.mark.parametrize("count", ["9", "6000", "9.0", "1e1", '"9"', '" 1_0 "', "123456789012345678901234567890"])
def test_more_choices_than_the_document_says_are_refused_however_they_are_written(
    endpoint: Endpoint, name: str, count: str
) -> None:
    with pytest.raises(ApiError, match=f"`{name}` must be a whole number from 1 to 8") as error:
        ask(b'{"prompt":"p","%s":%s}' % (name.encode(), count.encode()), endpoint)
    assert (error.value.status, error.value.param) == (400, name)


def test_choices_and_prompts_are_sequences() -> None:
    several = {"prompt": ["a", "b", "c"], "n": "2", "best_of": 4}
    assert ask(several, Endpoint.COMPLETIONS).sequences == 12
    assert ask({"prompt": [1, 2, 3], "n": 8}, Endpoint.COMPLETIONS).sequences == 8
    assert ask({"prompt": "a", "prompt_embeds": ["e", "e"]}, Endpoint.COMPLETIONS).sequences == 3
    assert ask({"input": ["a"] * 2048}, Endpoint.EMBEDDINGS).sequences == 2048
    assert ask({"messages": [], "n": 0}).sequences == 1  # the engine refuses it


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (Endpoint.COMPLETIONS, {"prompt": ["a"] * 129}, "prompt"),
        (Endpoint.COMPLETIONS, {"prompt": [[1]] * 129}, "prompt"),
        (Endpoint.COMPLETIONS, {"prompt": ["a"] * 65, "n": 2}, "prompt"),
        (Endpoint.COMPLETIONS, {"prompt_embeds": ["a"] * 129}, "prompt_embeds"),
        (Endpoint.COMPLETIONS, {"prompt": ["a"] * 65, "prompt_embeds": ["a"] * 65}, "prompt"),
        (Endpoint.EMBEDDINGS, {"input": ["a"] * 2049}, "input"),
    ],
)
def test_too_many_prompts_are_refused_with_the_range(endpoint: Endpoint, body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError, match=f"`{param}` may have from 1 to (128|2048) items") as error:
        ask(body, endpoint)
    assert (error.value.status, error.value.param) == (400, param)


@pytest.mark.parametrize("model", [7, ["m"], {}, True])
def test_a_model_is_text(model: object) -> None:
    with pytest.raises(ApiError) as error:
        ask({"model": model})
    assert (error.value.status, error.value.param) == (400, "model")


@given(st.dictionaries(st.text(), JSON, max_size=6), st.sampled_from(Endpoint))
def test_everything_else_is_passed_on_as_it_is(body: dict[str, Any], endpoint: Endpoint) -> None:
    body.pop("model", None)
    private = {"cache_salt", "kv_transfer_params", "ec_transfer_params", "mm_payload", "data_parallel_rank"}
    trusted = {"priority", "request_id", "session_id"}
    ours = private | trusted | {"return_token_ids", "stream_options", "vllm_xargs", "store"}
    ours |= {"stream_include_usage"}
    given_body = {name: value for name, value in body.items() if name not in ours}
    got = sent(given_body, endpoint)
    assert {name: value for name, value in got.items() if name not in ours} == given_body


NAMES = st.sampled_from(
    [
        *("messages", "prompt", "input", "stream", "stream_options", "n", "max_tokens", "max_output_tokens", "model"),
        *("vllm_xargs", "previous_response_id", "background", "conversation", "store", "prompt_embeds", "tools"),
    ]
)
PARTS = st.fixed_dictionaries({}, optional={"type": JSON | st.just("image_url"), "content": JSON, "image_url": JSON})
SHAPES = JSON | st.lists(st.fixed_dictionaries({"role": JSON}, optional={"content": JSON | st.lists(PARTS)}))


@given(st.dictionaries(NAMES, SHAPES), st.sampled_from(Endpoint))
def test_any_body_is_understood_or_refused(body: dict[str, Any], endpoint: Endpoint) -> None:
    with suppress(ApiError):
        understood = ask(body, endpoint)
        data, size = upstream_body(understood, model="m", salt="s", gated=True)
        assert len(json.loads(data)) == size
        first_prompt(understood)
        given_ids(understood)


@pytest.mark.parametrize("name", ["cache_salt", "kv_transfer_params", "ec_transfer_params", "data_parallel_rank"])
def test_what_only_the_control_plane_says_is_taken_out(name: str) -> None:
    assert name not in sent({"model": "m", name: {"x": 1}}, salt="")


def test_the_clients_salt_is_replaced() -> None:
    assert sent({"model": "m", "cache_salt": "another tenant's"}, salt="own")["cache_salt"] == "own"


def test_internal_arguments_are_taken_out_and_others_kept() -> None:
    xargs = {"kv_cache_report_mode": "full", "kv_transfer_params": {}, "cachefleet_resumable": 1, "theirs": 2}
    assert sent({"vllm_xargs": xargs})["vllm_xargs"] == {"theirs": 2}
    assert sent({"vllm_xargs": 7})["vllm_xargs"] == 7


def test_the_engine_s_own_name_of_the_model_is_used() -> None:
    assert sent({"model": "space/m"}, model="m")["model"] == "m"
    assert "model" not in sent({}, model="m")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"stream": False}, None),
        ({"stream": True}, {"include_usage": True}),
        ({"stream": True, "stream_options": None}, {"include_usage": True}),
        ({"stream": True, "stream_options": {"x": 1}}, {"x": 1, "include_usage": True}),
        (
            {"stream": True, "stream_options": {"include_usage": False, "continuous_usage_stats": True}},
            {"include_usage": True},
        ),
        (
            {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
            {"include_usage": True, "continuous_usage_stats": True},
        ),
        ({"stream": True, "stream_options": 7}, 7),
        ({"stream_options": {"include_usage": True}}, {"include_usage": True}),
        ({"stream": "yes"}, {"include_usage": True}),
        ({"stream": 1}, {"include_usage": True}),
        ({"stream": 2}, None),
    ],
)
def test_usage_is_asked_of_every_stream(options: dict[str, Any], expected: object) -> None:
    assert sent(options).get("stream_options") == expected


@pytest.mark.parametrize(
    ("options", "asked", "wanted"),
    [({}, False, True), ({"return_token_ids": True}, True, False), ({"echo": True}, False, False)],
)
def test_ids_are_always_asked_for_but_not_of_an_echo(options: dict[str, Any], asked: bool, wanted: bool) -> None:  # noqa: FBT001
    understood = ask(options)
    assert (understood.ids_asked, understood.ids_wanted) == (asked, wanted)
    assert sent(options).get("return_token_ids", False) is (asked or wanted)


@pytest.mark.parametrize(
    ("endpoint", "body", "expected"),
    [
        (Endpoint.CHAT, {}, CHAT_MAX_TOKENS),
        (Endpoint.CHAT, {"max_tokens": 5}, 5),
        (Endpoint.CHAT, {"max_tokens": 5, "max_completion_tokens": 7}, 7),
        (Endpoint.COMPLETIONS, {}, COMPLETIONS_MAX_TOKENS),
        (Endpoint.COMPLETIONS, {"max_tokens": -3}, COMPLETIONS_MAX_TOKENS),
        (Endpoint.COMPLETIONS, {"max_tokens": "x"}, COMPLETIONS_MAX_TOKENS),
    ],
)
def test_bound_of_an_answer(endpoint: Endpoint, body: dict[str, Any], expected: int) -> None:
    assert ask(body, endpoint).max_tokens == expected


@pytest.mark.parametrize(
    ("prompt", "ids", "single"),
    [
        ("text", None, True),
        ([1, 2, 3], b"[1,2,3]", True),
        ([[1, 2], [3]], b"[1,2]", False),
        (["a", "b"], None, False),
        ([1, "a"], b'[1,"a"]', True),
        ({"a": 1}, None, True),
    ],
)
def test_prompts_of_ids_need_no_rendering(prompt: object, ids: bytes | None, single: bool) -> None:  # noqa: FBT001
    understood = ask(json.dumps({"prompt": prompt}, separators=(",", ":")).encode(), Endpoint.COMPLETIONS)
    given = given_ids(understood)
    assert (None if given is None else bytes(given)) == ids
    assert understood.single is single


def test_ids_that_the_engine_will_cut_must_be_rendered() -> None:
    assert given_ids(ask({"prompt": [1, 2], "truncate_prompt_tokens": 1}, Endpoint.COMPLETIONS)) is None
    assert given_ids(ask({"prompt": [1, 2]}, Endpoint.CHAT)) is None


def test_several_prompts_are_routed_by_the_first() -> None:
    assert bytes(first_prompt(ask({"prompt": ["a", "b"]}, Endpoint.COMPLETIONS))["prompt"]) == b'"a"'
    one = ask({"prompt": "a"}, Endpoint.COMPLETIONS)
    assert first_prompt(one) is one.fields


@pytest.mark.parametrize("space", ["", " ", "\n\t\r "])
@pytest.mark.parametrize(("first", "several"), [('"a"', True), ("[1]", True), ("1", False), ("", False), ("{}", False)])
def test_a_list_of_prompts_is_told_by_its_first_item(space: str, first: str, several: bool) -> None:  # noqa: FBT001
    one = ask(f'{{"prompt":[{space}{first}{space}]}}'.encode(), Endpoint.COMPLETIONS)
    assert (first_prompt(one) is not one.fields) is several
    assert not several or bytes(first_prompt(one)["prompt"]) == first.encode()


def test_a_long_list_of_ids_is_not_taken_apart() -> None:
    one = ask(b'{"prompt":[' + b"1," * 1_000_000 + b"1]}", Endpoint.COMPLETIONS)
    tracemalloc.start()
    assert first_prompt(one) is one.fields
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("count", ['"-inf"', "-1e400", '"\\uff19"', '"\uff19"', "-3", '"no number"'])
def test_a_number_of_choices_that_the_engine_refuses_counts_as_one(count: str) -> None:
    assert ask(f'{{"n":{count}}}'.encode(), Endpoint.CHAT).choices == 1


def test_other_members_are_copied_once() -> None:
    one, history = ask(b'{"input":"a"}', Endpoint.RESPONSES), Raw(b'"' + b"h" * 4_000_000 + b'"')
    tracemalloc.start()
    other = one.with_fields({"input": history})
    assert other.fields["input"] == history
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_headers_of_one_hop_and_credentials_stay_here() -> None:
    headers = [
        (b"host", b"x"),
        (b"authorization", b"Bearer client"),
        (b"x-api-key", b"k"),
        (b"connection", b"close, X-Hop"),
        (b"x-hop", b"1"),
        (b"x-cachefleet-worker", b"w"),
        (b"x-data-parallel-rank", b"1"),
        (b"x-prefiller-host-port", b"evil:1"),
        (b"x-kv-transfer-params", b"{}"),
        (b"x-encoder-hosts-ports", b"evil:1"),
        (b"x-original-url", b"/v1/fleet/flush"),
        (b"x-rewrite-url", b"/v1/fleet/flush"),
        *((name, b"1") for name in (b"x_data_parallel_rank", b"x_cachefleet_worker", b"content_length", b"x-a_b")),
        (b"content-type", b"application/json"),
        (b"traceparent", b"00-1"),
    ]
    assert dict(upstream_headers(headers, key="own")) == {
        "content-type": "application/json",
        "traceparent": "00-1",
        "accept-encoding": "identity",
        "authorization": "Bearer own",
    }


@pytest.mark.parametrize(
    ("body", "threshold"),
    [
        ({}, 0),
        ({"cache_hit_threshold": None}, 0),
        ({"vllm_xargs": {"a": 1}}, 0),
        ({"cache_hit_threshold": 0.4}, 0.4),
        ({"vllm_xargs": {"cache_hit_threshold": 0.4}}, None),
    ],
)
def test_only_a_caller_who_asks_for_the_gate_meets_it(body: dict[str, Any], threshold: float | None) -> None:
    asked = ask({"messages": [], **body})
    gated, _ = upstream_body(asked, model="m", salt="", gated=True)
    assert json.loads(gated).get("cache_hit_threshold") == threshold
    stock, _ = upstream_body(asked, model="m", salt="")
    assert json.loads(stock).get("cache_hit_threshold", None) == body.get("cache_hit_threshold")
