"""A request that brings only what is new is answered as its whole body is, by every API; anything else is refused."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import pytest

from cachefleet_core.continuation import CONVERSATION_HEADER, Fingerprints, KeptPrefix, prefix_hash
from e2e.engine.plugin_client import Answer, ask_keys, call, features, fleet, keys_of
from e2e.engine.prompt_bodies import CALLED, PARTS, SYSTEM, TOOLED, TOOLS
from e2e.engine.vllm import VllmServer

pytestmark = pytest.mark.parametrize("vllm_server", [TOOLED], indirect=True)

FINGERPRINTS: Final = Fingerprints(
    model="tiny",
    tokenizer_fingerprint="t",
    renderer="r",
    renderer_version="1",
    template_fingerprint="p",
    effective_instructions_hash="i",
    effective_tools_hash="o",
)
HEADER: Final = {CONVERSATION_HEADER: msgspec.json.encode(FINGERPRINTS).decode()}
CHAT, COMPLETION, RESPONSES, MESSAGES = "chat/completions", "completions", "responses", "messages"
LISTS: Final = {CHAT: "messages", RESPONSES: "input", MESSAGES: "messages"}
STATIC: Final = ("tools", "instructions", "system")
COMMON: Final = {"model": "tiny", "max_tokens": 6, "temperature": 0}
BRIEF: Final = {"model": "tiny", "max_output_tokens": 6, "temperature": 0, "instructions": "Be brief."}
SAID: Final = {"role": "assistant", "content": "It is warm."}
ASKED: Final = {"role": "user", "content": "And what of the sea? 字"}
USER: Final = {"role": "user", "content": "What of the weather?"}

TURNS: Final[list[tuple[str, dict[str, Any], list[Any]]]] = [
    (CHAT, COMMON | {"messages": [SYSTEM, PARTS]}, [SAID, ASKED]),
    (CHAT, COMMON | {"messages": [SYSTEM, PARTS], "tools": TOOLS, "cache_salt": "tenant"}, [*CALLED]),
    (CHAT, COMMON | {"messages": [SYSTEM, PARTS], "logprobs": True, "top_logprobs": 2}, [SAID, ASKED]),
    (CHAT, COMMON | {"messages": [PARTS], "stream": True, "max_tokens": 1}, [SAID, ASKED]),
    (RESPONSES, BRIEF | {"input": [USER]}, [SAID, ASKED]),
    (RESPONSES, BRIEF | {"input": [USER], "stream": True, "max_output_tokens": 1, "cache_salt": "s"}, [SAID, ASKED]),
    (MESSAGES, COMMON | {"messages": [USER], "system": "Be brief."}, [SAID, ASKED]),
    (MESSAGES, COMMON | {"messages": [USER], "stream": True, "max_tokens": 1}, [SAID, ASKED]),
]
_VARYING: Final = re.compile(
    r'"(id|created|created_at|system_fingerprint|request_id|item_id|[a-z_]*(?:cache|comput)[a-z_]*)": ?("[^"]*"|[\d.]+)'
    r"|(resp|msg|chatcmpl|cmpl)[-_][\w-]+"
)
"""Names, times, and what came from the engine's cache."""


def asked(server: VllmServer, api: str, body: dict[str, Any], **headers: str) -> Answer:
    return call(server, "POST", f"/v1/{api}", body, headers=server.headers | HEADER | headers)


def said(answer: Answer) -> str:
    assert answer.status == 200, answer.content
    return _VARYING.sub("", answer.content.decode())


def kept(answer: Answer) -> KeptPrefix:
    assert answer.status == 200, answer.content
    return msgspec.json.decode(answer.headers[CONVERSATION_HEADER], type=KeptPrefix)


def ref(prefix: KeptPrefix, **changes: Any) -> dict[str, Any]:
    return {**msgspec.to_builtins(prefix.ref(FINGERPRINTS)), **changes}


def by_ref(api: str, body: dict[str, Any], new: list[Any], prefix: KeptPrefix) -> dict[str, Any]:
    left = {name: value for name, value in body.items() if name not in STATIC}
    return left | {LISTS[api]: new, "prompt_cache_ref": ref(prefix)}


def grown(api: str, body: dict[str, Any], new: list[Any]) -> dict[str, Any]:
    return body | {LISTS[api]: [*body[LISTS[api]], *new]}


def stats(server: VllmServer) -> dict[str, int]:
    counts: dict[str, int] = fleet(server, "/stats")["conversations"]
    return counts


def stock(server: VllmServer, api: str, body: dict[str, Any]) -> Answer:
    return call(server, "POST", f"/v1/{api}", body)


@pytest.mark.parametrize(("api", "body", "new"), TURNS, ids=lambda value: json.dumps(value)[-30:])
def test_a_turn_by_handle_is_the_whole_body(
    vllm_server: VllmServer, api: str, body: dict[str, Any], new: list[Any]
) -> None:
    first = asked(vllm_server, api, body)
    assert said(first) == said(stock(vllm_server, api, body))
    second = asked(vllm_server, api, by_ref(api, body, new, kept(first)))
    whole = stock(vllm_server, api, grown(api, body, new))
    assert said(second) == said(whole)
    assert CONVERSATION_HEADER not in whole.headers
    named = "" if api == CHAT else f"&api={api}"
    prompt = keys_of(vllm_server, grown(api, body, new), named)
    assert kept(second).prefix_token_count == prompt.tokens
    again = asked(vllm_server, api, by_ref(api, body, [], kept(second)))
    assert (said(again), kept(again)) == (said(whole), kept(second))
    branch = [{"role": "assistant", "content": "No."}, ASKED]
    assert said(asked(vllm_server, api, by_ref(api, body, branch, kept(first)))) == said(
        stock(vllm_server, api, grown(api, body, branch))
    )


@pytest.mark.parametrize(("api", "body", "new"), TURNS, ids=lambda value: json.dumps(value)[-30:])
def test_keys_and_the_request_that_follows_go_by_handle(
    vllm_server: VllmServer, api: str, body: dict[str, Any], new: list[Any]
) -> None:
    named = "&ids=1" + ("" if api == CHAT else f"&api={api}")
    first = ask_keys(vllm_server, body, named, headers=vllm_server.headers | HEADER)
    turn = by_ref(api, body, new, kept(first))
    second = ask_keys(vllm_server, turn, named, headers=vllm_server.headers | HEADER)
    assert second.content == ask_keys(vllm_server, grown(api, body, new), named).content
    before = stats(vllm_server)
    empty = by_ref(api, body, [], kept(second))
    answer = asked(vllm_server, api, empty)
    assert said(answer) == said(stock(vllm_server, api, grown(api, body, new)))
    assert kept(answer) == kept(second)
    assert stats(vllm_server)["turns"] == before["turns"]


def test_completions_go_by_ids(vllm_server: VllmServer) -> None:
    body = COMMON | {"prompt": "The quick brown fox jumps.", "return_token_ids": True}
    first = asked(vllm_server, COMPLETION, body)
    ids = first.json["choices"][0]["prompt_token_ids"]
    assert kept(first).prefix_token_count == len(ids)
    turn = COMMON | {"prompt_cache_ref": ref(kept(first)), "append_token_ids": [300, 301], "return_token_ids": True}
    second = asked(vllm_server, COMPLETION, turn)
    whole = COMMON | {"prompt": [*ids, 300, 301], "return_token_ids": True}
    assert said(second) == said(stock(vllm_server, COMPLETION, whole))
    assert second.json["choices"][0]["prompt_token_ids"] == [*ids, 300, 301]
    keyed = ask_keys(vllm_server, turn, "&ids=1", headers=vllm_server.headers | HEADER)
    assert keyed.content == ask_keys(vllm_server, whole, "&ids=1").content


def test_turns_at_once_on_one_head_are_each_their_own(vllm_server: VllmServer) -> None:
    body = COMMON | {"messages": [SYSTEM, USER], "cache_salt": "at-once"}
    prefix = kept(asked(vllm_server, CHAT, body))
    branches = [[SAID, {"role": "user", "content": f"What of number {number}?"}] for number in range(8)]
    with ThreadPoolExecutor(len(branches)) as pool:
        answers = list(pool.map(lambda new: asked(vllm_server, CHAT, by_ref(CHAT, body, new, prefix)), branches))
    for new, answer in zip(branches, answers, strict=True):
        named = keys_of(vllm_server, grown(CHAT, body, new))
        assert kept(answer).prefix_hash == prefix_hash(named.ids)
    assert len({kept(answer).handle for answer in answers}) == len(branches)


def test_any_other_handle_is_an_unknown_one(vllm_server: VllmServer) -> None:
    body = COMMON | {"messages": [SYSTEM, USER], "cache_salt": "a-tenant"}
    prefix, before = kept(asked(vllm_server, CHAT, body)), stats(vllm_server)
    turn = by_ref(CHAT, body, [ASKED], prefix)
    guessed = prefix.handle[:-8] + "0" * 8
    answers = [
        asked(vllm_server, CHAT, turn | {"cache_salt": "another"}),
        asked(vllm_server, CHAT, {name: value for name, value in turn.items() if name != "cache_salt"}),
        asked(vllm_server, MESSAGES, turn),
        asked(vllm_server, CHAT, turn | {"prompt_cache_ref": ref(prefix, handle=guessed)}),
        asked(vllm_server, CHAT, turn | {"prompt_cache_ref": ref(prefix, handle="vllm_prefix_never")}),
    ]
    assert {(each.status, each.content) for each in answers} == {(409, answers[-1].content)}
    assert answers[-1].json["error"]["code"] == "handle_unknown"
    assert stats(vllm_server)["handle_unknown"] == before["handle_unknown"] + 5
    assert b"tenant" not in json.dumps(fleet(vllm_server, "/stats")).encode()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"template_fingerprint": "q"}, "template_mismatch"),
        ({"effective_tools_hash": "q"}, "tools_mismatch"),
        ({"prefix_token_count": 1}, "count_mismatch"),
        ({"prefix_hash": "sha256:" + "0" * 64}, "prefix_hash_mismatch"),
    ],
)
def test_another_prefix_is_refused(vllm_server: VllmServer, changes: dict[str, Any], code: str) -> None:
    body = COMMON | {"messages": [SYSTEM, USER]}
    prefix = kept(asked(vllm_server, CHAT, body))
    turn = by_ref(CHAT, body, [ASKED], prefix) | {"prompt_cache_ref": ref(prefix, **changes)}
    answer = asked(vllm_server, CHAT, turn)
    assert (answer.status, answer.json["error"]["code"]) == (409, code)


def test_what_is_no_conversation_of_one_prompt_is_served_and_not_kept(vllm_server: VllmServer) -> None:
    for api, body in (
        (COMPLETION, COMMON | {"prompt": ["a b", "c d"]}),
        (RESPONSES, BRIEF | {"input": "What of the sea?"}),
    ):
        answer = asked(vllm_server, api, body)
        assert said(answer) == said(stock(vllm_server, api, body))
        assert CONVERSATION_HEADER not in answer.headers


def test_refusals_are_vllms_own(vllm_server: VllmServer) -> None:
    body = COMMON | {"messages": [SYSTEM, USER]}
    bad = grown(CHAT, body, [ASKED]) | {"temperature": "hot"}
    turn = by_ref(CHAT, body, [ASKED], kept(asked(vllm_server, CHAT, body))) | {"temperature": "hot"}
    plain, given = stock(vllm_server, CHAT, bad), asked(vllm_server, CHAT, turn)
    assert (given.status, given.json) == (plain.status, plain.json)
    assert CONVERSATION_HEADER not in given.headers


def test_ended_conversations_are_unknown(vllm_server: VllmServer) -> None:
    body = COMMON | {"messages": [SYSTEM, USER]}
    prefix = kept(asked(vllm_server, CHAT, body))
    assert call(vllm_server, "DELETE", "/v1/fleet/conversations").json["turns"] > 0
    answer = asked(vllm_server, CHAT, by_ref(CHAT, body, [ASKED], prefix))
    assert (answer.status, stats(vllm_server)["bytes"]) == (409, 0)


def test_it_is_told(vllm_server: VllmServer) -> None:
    assert features(vllm_server)["conversations"] == ("on", "")


@pytest.mark.parametrize("more", [{}, {"stream": True}], ids=["whole", "stream"])
def test_answers_give_the_next_reference(vllm_server: VllmServer, more: dict[str, Any]) -> None:
    base = COMMON | more | {"return_token_ids": True, "cache_salt": "ids"}
    body = base | {"prompt": list(range(300, 340))}
    first = asked(vllm_server, COMPLETION, body | {"return_prompt_cache_ref": True})
    answer, given = completed(first)
    assert answer == completed(stock(vllm_server, COMPLETION, body))[0]
    assert given == ref(kept(first), **{name: given[name] for name in ("handle", "prefix_hash", "prefix_token_count")})
    assert given["prefix_token_count"] == 40 + len(answer) == 46
    turn = base | {"prompt_cache_ref": given, "append_token_ids": [7], "return_prompt_cache_ref": True}
    second = asked(vllm_server, COMPLETION, turn)
    whole = base | {"prompt": [*range(300, 340), *answer, 7]}
    found, last = completed(second)
    assert found == completed(stock(vllm_server, COMPLETION, whole))[0]
    assert last["prefix_token_count"] == 53
    third = asked(vllm_server, COMPLETION, turn | {"prompt_cache_ref": last, "append_token_ids": []})
    assert kept(third).handle == last["handle"]


def test_the_reference_is_all_that_is_added(vllm_server: VllmServer) -> None:
    body = COMMON | {"prompt": "a b c", "return_token_ids": True}
    answer = asked(vllm_server, COMPLETION, body | {"return_prompt_cache_ref": True})
    added = b',"prompt_cache_ref":' + msgspec.json.encode(answer.json["prompt_cache_ref"])
    plain = stock(vllm_server, COMPLETION, body)
    assert _VARYING.sub("", answer.content.replace(added, b"").decode()) == said(plain)


def test_an_answer_without_ids_has_no_reference(vllm_server: VllmServer) -> None:
    answer = asked(vllm_server, COMPLETION, COMMON | {"prompt": "a b", "return_prompt_cache_ref": True})
    assert answer.json["prompt_cache_ref"] is None


@pytest.mark.parametrize(
    ("members", "named"),
    [({"n": 2}, "n: "), ({"prompt": ["a", "b"]}, "prompt: "), ({"prompt": [[1], [2]]}, "prompt: ")],
)
def test_a_reference_is_to_one_prompt_and_one_answer(
    vllm_server: VllmServer, members: dict[str, Any], named: str
) -> None:
    body = COMMON | {"prompt": "a", "return_prompt_cache_ref": True, "temperature": 1} | members
    answer = asked(vllm_server, COMPLETION, body)
    assert (answer.status, answer.json["error"]["message"].startswith(named)) == (400, True)


def completed(answer: Answer) -> tuple[list[int], Any]:
    """The ids of an answer, and its reference."""
    assert answer.status == 200, answer.content
    data = [answer.content.decode()]
    if data[0].startswith("data:"):
        data = [each.removeprefix("data: ") for each in data[0].split("\n\n")[:-2]]
    parts = [json.loads(each) for each in data]
    ids = [token for part in parts for choice in part["choices"] for token in choice["token_ids"]]
    return ids, parts[-1].get("prompt_cache_ref")
