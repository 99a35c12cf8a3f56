"""C9: what no block of ids tells of is routed by load, counted with its reason, and not held up by asking."""

import json
import re
from typing import Any

import pytest
from cachefleet_native import MAX_INPUTS

from cachefleet_controlplane.gateway.apis.parse import parse, upstream_body
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.store.tenant_records import UsageRecord
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_core.report_frames import Capability
from tests.controlplane.gateway.harness import INDEX_KEY, MODEL, SALT, engine, front
from tests.controlplane.waiting import value

KEYED = tuple(Capability(feature=name, mode="on") for name in ("keys", "prompts", "media"))
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TEXT: dict[str, Any] = {"type": "text", "text": 'what is "type":"image_url" here?'}


def raw(messages: Any) -> bytes:
    return json.dumps(messages).encode()


def holds_media(messages: bytes) -> bool:
    return parse(b'{"messages":%b}' % messages, Endpoint.CHAT).bypass is not None


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


MEDIA: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [user(TEXT, IMAGE)]}),
    (
        "/v1/chat/completions",
        {"messages": [user({"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}})]},
    ),
    ("/v1/chat/completions", {"messages": [user({"image_url": "http://x/y.png"})]}),
    ("/v1/chat/completions", {"messages": [{"role": "tool", "tool_call_id": "c", "content": [IMAGE]}]}),
    ("/v1/responses", {"input": [user({"type": "input_image", "image_url": "data:image/png;base64,AAAA"})]}),
    ("/v1/messages", {"messages": [user({"type": "image", "source": {"type": "url", "url": "http://x"}})]}),
    (
        "/v1/messages",
        {"messages": [user({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {}}]})]},
    ),
]
TEXTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [user(TEXT)]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": '{"type": "image_url"}'}]}),
    (
        "/v1/messages",
        {
            "messages": [
                {"role": "user", "content": "draw"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "tool_use", "id": "t", "name": "draw", "input": {"type": "image", "content": []}}
                    ],
                },
                user({"type": "tool_result", "tool_use_id": "t", "content": '"image"'}),
            ]
        },
    ),
    (
        "/v1/responses",
        {"input": [{"type": "function_call_output", "call_id": "c", "output": '{"type":"input_image"}'}]},
    ),
]


@pytest.mark.parametrize(("path", "body"), MEDIA)
@pytest.mark.requirement("C9")
async def test_media_go_by_load_and_nobody_is_asked_for_ids(path: str, body: dict[str, Any]) -> None:
    async with engine() as worker, front([worker]) as gate:
        gate.report(0)
        status, headers, data = await gate.post(path, {"model": MODEL, "max_tokens": 2} | body)
        assert (status, headers["x-cachefleet-knowledge"]) == (200, "load"), data
        assert [seen.path for seen in worker.requests] == [path]
        assert json.loads(worker.requests[0].body)["cache_salt"] == SALT
        assert value(gate.metrics, "render_bypasses_total", reason="media") == 1
        assert value(gate.metrics, "render_failures_total", reason="multimodal") == 0
        _, _, data = await gate.post("/v1/route", {"model": MODEL, "endpoint": path} | body)
        assert json.loads(data)["render_failure"] == "media"


@pytest.mark.parametrize(("path", "body"), MEDIA)
@pytest.mark.requirement("C9")
async def test_media_go_by_blocks_where_a_workers_keys_take_them_into_account(path: str, body: dict[str, Any]) -> None:
    async with engine(plugin=True, index_key=INDEX_KEY) as worker, front([worker]) as gate:
        gate.report(0, said={"capabilities": KEYED})
        status, headers, data = await gate.post(path, {"model": MODEL, "max_tokens": 2} | body)
        assert (status, headers["x-cachefleet-knowledge"]) == (200, "exact"), data
        asked = [seen.path for seen in worker.requests]
        assert asked == ["/v1/fleet/keys", path]
        assert value(gate.metrics, "render_bypasses_total", reason="media") == 0
        await gate.post(path, {"model": MODEL, "max_tokens": 2} | body)
        assert [seen.path for seen in worker.requests] == asked * 2  # what an address names may be another picture now


@pytest.mark.requirement("C9")
async def test_media_without_keys_go_by_load_and_nobody_else_is_asked() -> None:
    body = {"model": MODEL, "max_tokens": 2, "messages": [user(TEXT, IMAGE)]}
    async with engine(plugin=True) as worker, front([worker]) as gate:  # its keys are off
        gate.report(0, said={"capabilities": KEYED})
        _, headers, _ = await gate.post("/v1/chat/completions", body)
        assert headers["x-cachefleet-knowledge"] == "load"
        assert [seen.path for seen in worker.requests] == ["/v1/fleet/keys", "/v1/chat/completions"]


async def test_vectors_as_a_prompt_are_never_keyed() -> None:
    async with engine(plugin=True, index_key=INDEX_KEY) as worker, front([worker]) as gate:
        gate.report(0, said={"capabilities": KEYED})
        await gate.post("/v1/completions", {"model": MODEL, "prompt": "x", "prompt_embeds": "AAAA"})
        assert [seen.path for seen in worker.requests] == ["/v1/completions"]


@pytest.mark.parametrize(("path", "body"), TEXTS)
async def test_text_that_speaks_of_media_is_text(path: str, body: dict[str, Any]) -> None:
    assert parse(json.dumps(body).encode(), Endpoint(path)).bypass is None


def test_vectors_as_a_prompt_are_media() -> None:
    assert parse(b'{"prompt_embeds":"AAAA"}', Endpoint.COMPLETIONS).bypass == "media"
    assert parse(b'{"prompt":"x","prompt_embeds":null}', Endpoint.COMPLETIONS).bypass is None


@pytest.mark.parametrize(
    "messages", [None, "image_url", 7, {}, [], [7], [["image_url"]], [{"content": 7, "x": "image_url"}]]
)
def test_what_is_no_conversation_holds_no_media(messages: Any) -> None:
    assert not holds_media(raw(messages))
    assert parse(b"{}", Endpoint.CHAT).bypass is None


def test_broken_text_and_deep_nesting_are_borne() -> None:
    assert not holds_media(b'[{"type":"\xff","content":["_url"]}]')
    depth = 50
    assert not holds_media(b'[{"content":' * depth + b'[{"type":"image_url"}]' + b"}]" * depth)
    with pytest.raises(ApiError):
        holds_media(b'[{"content":' * 5000 + b"[]" + b"}]" * 5000)


@pytest.mark.requirement("C9")
async def test_embeddings_go_by_load() -> None:
    async with engine(pooling=True) as worker, front([worker]) as gate:
        gate.report(0)
        body = {"model": MODEL, "input": ["one", "two"], "cache_salt": "mine", "kv_transfer_params": {}}
        status, headers, data = await gate.post("/v1/embeddings", body)
        assert (status, headers["x-cachefleet-knowledge"]) == (200, "load")
        assert len(json.loads(data)["data"]) == 2
        assert [seen.path for seen in worker.requests] == ["/v1/embeddings"]
        sent = json.loads(worker.requests[0].body)
        assert sent == {"model": MODEL, "input": ["one", "two"], "cache_salt": SALT}
        assert value(gate.metrics, "render_bypasses_total", reason="embeddings") == 1
        assert gate.records[-1].endpoint == "/v1/embeddings"


async def test_embeddings_of_a_model_that_has_none_are_refused_in_openai_s_shape() -> None:
    async with engine() as worker, front([worker]) as gate:
        status, _, data = await gate.post("/v1/embeddings", {"model": MODEL, "input": "x"})
    assert (status, json.loads(data)["error"]["code"]) == (404, "404")


async def test_embeddings_are_tried_elsewhere_where_a_worker_fails() -> None:
    async with engine(pooling=True) as one, engine(pooling=True) as two, front([one, two]) as gate:
        one.fail_next()
        two.fail_next()
        assert (await gate.post("/v1/embeddings", {"model": MODEL, "input": "x"}))[0] == 500
        await one.crash()
        for _ in range(3):
            assert (await gate.post("/v1/embeddings", {"model": MODEL, "input": "x"}))[0] == 200


SCORED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/rerank", {"query": "one", "documents": ["two", "three"]}, "pooling"),
    ("/v1/score", {"queries": "one", "documents": ["two", "three"]}, "pooling"),
    ("/pooling", {"input": ["two", "three"]}, "pooling"),
    ("/tokenize", {"prompt": "one"}, "tokenize"),
    ("/detokenize", {"tokens": [1, 2]}, "tokenize"),
]


@pytest.mark.parametrize(("path", "body", "reason"), SCORED, ids=[path for path, *_ in SCORED])
async def test_what_pooling_models_and_tokenizers_answer_goes_by_load(
    path: str, body: dict[str, Any], reason: str
) -> None:
    """With the tenant's salt where anything is computed, and in the account as the engine counts."""
    used: list[UsageRecord] = []
    async with engine(pooling=True) as worker, front([worker], used=used.append) as gate:
        gate.report(0)
        asked = {"model": MODEL} | body
        status, headers, data = await gate.settled(path, asked | {"cache_salt": "mine", "priority": 1})
        assert (status, headers["x-cachefleet-knowledge"]) == (200, "load")
        salted = {"cache_salt": SALT} if reason == "pooling" else {}
        assert json.loads(worker.requests[0].body) == asked | salted
        assert value(gate.metrics, "render_bypasses_total", reason=reason) == 1
        gate.metrics.registry.settle()
    told = json.loads(data).get("usage", {}).get("prompt_tokens", 0)
    assert [(one.requests, one.prompt_tokens) for one in used] == [(1, told)]
    assert (told > 0) is (reason == "pooling")


@pytest.mark.parametrize(
    ("asked", "served"),
    [("/rerank", "/v1/rerank"), ("/v2/rerank", "/v1/rerank"), ("/score", "/v1/score"), ("/v1/tokenize", "/tokenize")],
)
async def test_other_paths_of_the_same_are_the_same(asked: str, served: str) -> None:
    body = next(body for path, body, _ in SCORED if path == served)
    async with engine(pooling=True) as worker, front([worker]) as gate:
        assert (await gate.post(asked, {"model": MODEL} | body))[0] == 200
        assert [seen.path for seen in worker.requests] == [served]


async def test_what_a_model_was_not_trained_for_is_told() -> None:
    async with engine(pooling=True) as worker, front([worker]) as gate:
        status, _, data = await gate.post("/classify", {"model": MODEL, "input": "x"})
    assert (status, "only pooling models have it" in json.loads(data)["error"]["message"]) == (404, True)


@pytest.mark.parametrize(
    ("path", "name"),
    [("/v1/rerank", "documents"), ("/v1/score", "text_2"), ("/pooling", "input"), ("/classify", "input")],
)
async def test_what_one_request_may_score_is_bounded(path: str, name: str) -> None:
    items: list[Any] = ["x", {"content": []}]
    for item in items:
        body = json.dumps({"model": MODEL, name: [item] * (MAX_INPUTS + 1)}).encode()
        with pytest.raises(ApiError) as refused:
            parse(body, Endpoint(path))
        assert (refused.value.status, refused.value.param) == (400, name)
        assert parse(json.dumps({name: [item] * MAX_INPUTS}).encode(), Endpoint(path)).prompts == MAX_INPUTS


def test_media_among_what_is_scored_have_names_of_the_tenant_s_own() -> None:
    """The engine knows a medium by its name, whoever gave it."""
    part = {"type": "image_url", "image_url": {"url": "data:x"}, "uuid": "dog"}
    body = json.dumps({"query": {"content": [part]}, "documents": ["x", {"content": [part]}]}).encode()
    one, other = (upstream_body(parse(body, Endpoint.RERANK), model="", salt=salt)[0] for salt in ("a", "b"))
    assert b"dog" not in one + other
    assert one != other
    assert len(set(re.findall(rb'"uuid":"(\w{64})"', one))) == 1
