"""Requests with a conversation before an application that renders; real vLLM is in e2e/engine."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachefleet_core.continuation import CONVERSATION_HEADER, Fingerprints, KeptPrefix, prefix_hash
from cachefleet_worker.plugin.conversations import conversation_middleware
from cachefleet_worker.plugin.conversations.conversation_middleware import Conversations
from cachefleet_worker.plugin.conversations.exchange import FEATURE
from cachefleet_worker.plugin.conversations.turn import Api
from cachefleet_worker.plugin.plugin_process import Process
from cachefleet_worker.plugin.prompts.recorded_prompt import recorded
from cachefleet_worker.plugin.settings import PluginSettings
from tests.worker.plugin.asked import Answer, Sent, ask, process
from tests.worker.plugin.conversations.test_turn_store import FINGERPRINTS

KEY = "worker-key"
ITEMS = [{"role": "user", "content": "hello 字"}, {"role": "assistant", "content": "hi"}]
NEW = [{"role": "user", "content": "and?"}]


class Server:
    """An application that renders a body to one id a byte, behind the middleware."""

    def __init__(self, settings: PluginSettings, *, prompts: str = "on") -> None:
        self.process: Process = process(settings)
        self.process.capabilities.add("prompts", prompts)
        self.bodies: list[bytes] = []
        self.scopes: list[Any] = []
        self.after: list[Any] = []
        self.renders = 1
        self.status = 200
        self.answer = ("", b"answer")
        self.app: Any = self
        conversation_middleware.install(self, self.process)

    def add_middleware(self, kind: type[Conversations], **options: Any) -> None:
        self.app = kind(self, **options)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        self.bodies.append(body)
        self.scopes.append(scope)
        if (record := recorded.get()) is not None:
            for _ in range(self.renders):
                record.add([{"type": "token", "prompt_token_ids": rendered(body).tolist()}])
        self.after.append(receive)
        kind, content = self.answer
        headers = [(b"content-type", kind.encode())] if kind else [(b"a", b"b")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def ask(
        self,
        body: Any,
        path: str = Api.CHATS,
        *,
        fingerprints: Fingerprints | None = FINGERPRINTS,
        key: str = KEY,
        **headers: str,
    ) -> Answer:
        given = {"x-cachefleet-token": key, "content-length": "1", "content-type": "application/json", **headers}
        if fingerprints is not None:
            given[CONVERSATION_HEADER] = msgspec.json.encode(fingerprints).decode()
        return await ask(self.app, "POST", path, body=encoded(body), headers=given, root_path="")

    async def keep(self, body: Any, path: str = Api.CHATS) -> KeptPrefix:
        answer = await self.ask(body, path)
        assert answer.status == 200, answer.content
        return kept(answer)

    @property
    def outcomes(self) -> dict[str, int]:
        stats = self.process.parts[FEATURE].stats()
        return {name: count for name, count in stats.items() if count and name not in {"turns", "bytes"}}

    @property
    def last(self) -> Any:
        return msgspec.json.decode(self.bodies[-1])


def encoded(body: Any) -> Any:
    return body if isinstance(body, (bytes, Sent)) else msgspec.json.encode(body)


def rendered(body: bytes) -> array[int]:
    prompt = msgspec.json.decode(body).get("prompt")
    return array("I", prompt if isinstance(prompt, list) else list(body))


def kept(answer: Answer) -> KeptPrefix:
    return msgspec.json.decode(answer.headers[CONVERSATION_HEADER.encode()], type=KeptPrefix)


def chat(items: list[Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": items, **more}


def ref(prefix: KeptPrefix, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(prefix.ref(FINGERPRINTS))
    return found | changes


@pytest.fixture
def settings(tmp_path: Path) -> PluginSettings:
    (tmp_path / "key").write_text(KEY)
    return PluginSettings(worker_key_file=tmp_path / "key", max_body_bytes=4096)


@pytest.fixture
def server(settings: PluginSettings) -> Server:
    return Server(settings)


async def test_without_header_or_key_nothing_happens(server: Server) -> None:
    body = b'{ "messages": [1], "prompt_cache_ref": 5, "n":1.0 }'
    for answer in (
        await server.ask(body, fingerprints=None),
        await server.ask(body, key="another"),
        await server.ask(body, "/v1/embeddings"),
    ):
        assert (answer.status, answer.headers, answer.content) == (200, {b"a": b"b"}, b"answer")
    assert server.bodies == [body] * 3
    assert dict(server.scopes[0]["headers"])[b"content-length"] == b"1"
    assert server.outcomes == {}


async def test_a_whole_body_is_passed_as_it_is_and_kept(server: Server) -> None:
    body = b'{ "messages" : [ {"role":"user", "content":"\\u0061"} ],"x":1e2}'
    found = await server.keep(body)
    assert server.bodies == [body]
    assert (found.prefix_token_count, found.prefix_hash) == (len(body), prefix_hash(list(body)))
    assert server.outcomes == {"kept": 1}


@pytest.mark.parametrize(
    ("path", "member", "common"),
    [
        (Api.CHATS, "messages", {"tools": [{"type": "function"}]}),
        (Api.RESPONSES, "input", {"tools": None, "instructions": "be brief"}),
        (Api.MESSAGES, "messages", {"system": [{"type": "text", "text": "be brief"}]}),
        (Api.CHATS, "messages", {}),
    ],
)
async def test_what_is_new_is_joined_to_what_is_kept(
    server: Server, path: str, member: str, common: dict[str, Any]
) -> None:
    first = await server.keep({member: ITEMS, **common, "temperature": 0}, path)
    turn = {member: NEW, "temperature": 1, "prompt_cache_ref": ref(first)}
    second = await server.keep(turn, path)
    assert server.last == {member: ITEMS + NEW, "temperature": 1, **common}
    lengths = [value for name, value in server.scopes[-1]["headers"] if name == b"content-length"]
    assert lengths == [str(len(server.bodies[-1])).encode()]
    again = await server.keep({member: [], "temperature": 1, "prompt_cache_ref": ref(second)}, path)
    assert server.last == {member: ITEMS + NEW, "temperature": 1, **common}
    assert again == second
    await server.keep({member: ["branch"], "prompt_cache_ref": ref(first)}, path)
    assert server.last == {member: [*ITEMS, "branch"], **common}
    assert server.outcomes == {"kept": 3, "continued": 3}


@pytest.mark.requirement("A7")
async def test_bytes_are_not_changed(server: Server) -> None:
    first = await server.keep(b'{"messages":[ {"a": 1.0, "a":2},"\\u0061" ]}')
    await server.ask(b'{"messages":[\n{"b":1e30}], "prompt_cache_ref":' + msgspec.json.encode(ref(first)) + b"}")
    assert server.bodies[-1] == b'{"messages":[{"a": 1.0, "a":2},"\\u0061",{"b":1e30}]}'


async def test_ids_are_appended(server: Server) -> None:
    first = await server.keep({"prompt": "ab", "max_tokens": 1}, Api.COMPLETIONS)
    ids = list(server.bodies[0])
    turn = {"max_tokens": 1, "append_token_ids": [7, 1 << 31], "prompt_cache_ref": ref(first)}
    second = await server.keep(turn, Api.COMPLETIONS)
    assert server.last == {"max_tokens": 1, "prompt": [*ids, 7, 1 << 31]}
    assert second.prefix_token_count == first.prefix_token_count + 2
    again = turn | {"append_token_ids": [], "prompt_cache_ref": ref(second)}
    assert await server.keep(again, Api.COMPLETIONS) == second
    assert server.process.parts[FEATURE].stats()["turns"] == 2


@pytest.mark.parametrize("path", [f"/v1/fleet/keys?api={api}" for api in ("responses", "messages", "")])
async def test_keys_are_asked_for_in_the_same_way(server: Server, path: str) -> None:
    api = {"responses": Api.RESPONSES, "messages": Api.MESSAGES}.get(path.partition("=")[2], Api.CHATS)
    member = "input" if api is Api.RESPONSES else "messages"
    first = await server.keep({member: ITEMS}, path)
    second = await server.keep({member: NEW, "prompt_cache_ref": ref(first)}, path)
    served = await server.ask({member: [], "prompt_cache_ref": ref(second)}, api)
    assert server.bodies[-1] == server.bodies[-2]
    assert kept(served) == second


async def test_keys_of_ids_are_asked_for_in_the_same_way(server: Server) -> None:
    first = await server.keep({"prompt": [1, 2]}, "/v1/fleet/keys")
    await server.keep({"append_token_ids": [3], "prompt_cache_ref": ref(first)}, "/v1/fleet/keys")
    assert server.last == {"prompt": [1, 2, 3]}
    answer = await server.ask({"input": "x"}, "/v1/fleet/keys")
    assert (answer.headers, server.last) == ({b"a": b"b"}, {"input": "x"})


@pytest.mark.requirement("A9")
async def test_what_is_not_here_and_what_is_anothers_are_refused_alike(server: Server) -> None:
    first = await server.keep(chat(ITEMS, cache_salt="s"))
    turn = chat(NEW, cache_salt="s", prompt_cache_ref=ref(first))
    guessed = "vllm_prefix_" + "0" * 16 + "_" + "0" * 32
    answers = [
        await server.ask(turn | {"prompt_cache_ref": ref(first, handle=guessed)}),
        await server.ask(turn | {"cache_salt": "other"}),
        await server.ask(chat(NEW, prompt_cache_ref=ref(first))),
        await server.ask(turn, Api.MESSAGES),
    ]
    server.process.parts[FEATURE].clear()
    answers.append(await server.ask(turn))
    assert {(each.status, each.content, tuple(each.headers.items())) for each in answers} == {
        (409, answers[0].content, tuple(answers[0].headers.items()))
    }
    assert answers[0].code == "handle_unknown"
    assert len(server.bodies) == 1
    assert server.outcomes == {"kept": 1, "handle_unknown": 5}


@pytest.mark.requirement("A8")
async def test_another_life_of_the_server_knows_no_handle(server: Server, settings: PluginSettings) -> None:
    turn = chat(NEW, prompt_cache_ref=ref(await server.keep(chat(ITEMS))))
    answer = await Server(settings).ask(turn)
    assert (answer.status, answer.code) == (409, "handle_unknown")


@pytest.mark.requirement("A6")
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("model", "model_mismatch"),
        ("tokenizer_fingerprint", "tokenizer_mismatch"),
        ("renderer", "renderer_mismatch"),
        ("renderer_version", "renderer_version_mismatch"),
        ("template_fingerprint", "template_mismatch"),
        ("effective_instructions_hash", "instructions_mismatch"),
        ("effective_tools_hash", "tools_mismatch"),
    ],
)
async def test_other_fingerprints_are_refused(server: Server, name: str, code: str) -> None:
    first = await server.keep(chat(ITEMS))
    of_the_ref = await server.ask(chat(NEW, prompt_cache_ref=ref(first, **{name: "other"})))
    other: Any = {name: "other"}
    of_the_request = await server.ask(
        chat(NEW, prompt_cache_ref=ref(first)), fingerprints=msgspec.structs.replace(FINGERPRINTS, **other)
    )
    assert [(each.status, each.code) for each in (of_the_ref, of_the_request)] == [(409, code)] * 2
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"prefix_token_count": 1}, "count_mismatch"),
        ({"prefix_hash": "sha256:" + "0" * 64}, "prefix_hash_mismatch"),
    ],
)
async def test_another_prefix_is_refused(server: Server, changes: dict[str, Any], code: str) -> None:
    answer = await server.ask(chat(NEW, prompt_cache_ref=ref(await server.keep(chat(ITEMS)), **changes)))
    assert (answer.status, answer.code) == (409, code)


@pytest.mark.parametrize("new", ["text", None, {}, 5])
async def test_new_items_must_be_a_list(server: Server, new: Any) -> None:
    answer = await server.ask(chat(new, prompt_cache_ref=ref(await server.keep(chat(ITEMS)))))
    assert (answer.status, answer.code) == (409, "append_malformed")
    assert "messages" in answer.json["error"]["message"]


@pytest.mark.parametrize("new", ["text", None, [-1], [1 << 32], [1.5], [True], [[1]]])
async def test_ids_to_append_must_be_ids(server: Server, new: Any) -> None:
    first = await server.keep({"prompt": [1]}, Api.COMPLETIONS)
    answer = await server.ask({"append_token_ids": new, "prompt_cache_ref": ref(first)}, Api.COMPLETIONS)
    assert (answer.status, answer.code) == (409, "append_malformed")


@pytest.mark.parametrize(
    ("path", "members", "named"),
    [
        (Api.CHATS, {"prompt_cache_ref": {"extra": 1}}, "prompt_cache_ref: "),
        (Api.CHATS, {"prompt_cache_ref": {"handle": "x"}}, "prompt_cache_ref.handle: "),
        (Api.CHATS, {"prompt_cache_ref": {"prefix_token_count": 0}}, "prompt_cache_ref.prefix_token_count: "),
        (Api.CHATS, {"prompt_cache_ref": "x"}, "prompt_cache_ref: "),
        (Api.CHATS, {"tools": []}, "tools: "),
        (Api.MESSAGES, {"system": ""}, "system: "),
        (Api.RESPONSES, {"instructions": ""}, "instructions: "),
        (Api.COMPLETIONS, {"prompt": ""}, "prompt: "),
        (Api.CHATS, {"append_token_ids": []}, "append_token_ids: "),
        (Api.CHATS, {"cache_salt": 5}, "cache_salt: "),
        (Api.CHATS, {"return_prompt_cache_ref": True}, "return_prompt_cache_ref: "),
        (Api.COMPLETIONS, {"return_prompt_cache_ref": 1}, "return_prompt_cache_ref: "),
        (Api.COMPLETIONS, {"return_prompt_cache_ref": True, "n": 2}, "n: "),
    ],
)
async def test_members_that_make_no_sense_are_named(
    server: Server, path: str, members: dict[str, Any], named: str
) -> None:
    first = await server.keep(chat(ITEMS))
    given = members.get("prompt_cache_ref", {})
    full = ref(first) | given if isinstance(given, dict) else given
    answer = await server.ask({"messages": [], **members, "prompt_cache_ref": full}, path)
    assert (answer.status, answer.code) == (400, "bad_conversation")
    assert answer.json["error"]["message"].startswith(named)
    assert len(server.bodies) == 1


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], {"a": 1}])
async def test_a_reference_is_asked_for_one_prompt(server: Server, prompt: Any) -> None:
    answer = await server.ask({"prompt": prompt, "return_prompt_cache_ref": True}, Api.COMPLETIONS)
    assert (answer.status, answer.json["error"]["message"][:8]) == (400, "prompt: ")


async def test_a_header_or_body_that_cannot_be_read_is_refused(server: Server) -> None:
    answer = await server.ask(b"{", Api.CHATS)
    assert (answer.status, answer.json["error"]["message"]) == (400, "body: must be a JSON object")
    for header in ("{}", "x", "[]"):
        answer = await ask(
            server.app,
            "POST",
            Api.CHATS,
            body=b"{}",
            headers={"x-cachefleet-token": KEY, CONVERSATION_HEADER: header},
        )
        assert answer.json["error"]["message"].startswith(f"{CONVERSATION_HEADER}: ")


async def test_a_body_is_bounded(server: Server, settings: PluginSettings) -> None:
    answer = await server.ask(b"[" + b" " * settings.max_body_bytes)
    assert (answer.status, answer.code) == (413, "too_large")


@pytest.mark.parametrize("body", [{"input": "text"}, {"input": None}, {}])
async def test_what_is_no_list_is_served_and_not_kept(server: Server, body: Any) -> None:
    answer = await server.ask(body, Api.RESPONSES)
    assert (answer.status, answer.headers) == (200, {b"a": b"b"})
    assert server.outcomes == {"not_kept": 1}


@pytest.mark.parametrize("renders", [0, 2])
async def test_what_is_no_single_prompt_is_not_kept(server: Server, renders: int) -> None:
    server.renders = renders
    assert (await server.ask(chat(ITEMS))).headers == {b"a": b"b"}
    assert server.outcomes == {"not_kept": 1}


async def test_what_vllm_refuses_is_not_kept(server: Server) -> None:
    server.status = 400
    assert (await server.ask(chat(ITEMS))).headers == {b"a": b"b"}
    assert server.outcomes == {}


async def test_one_prompt_rendered_otherwise_has_a_handle_of_its_own(server: Server) -> None:
    first = await server.keep(chat(ITEMS))
    other = await server.keep(chat([], add_generation_prompt=False, prompt_cache_ref=ref(first)))
    assert other.handle != first.handle
    await server.keep(chat(NEW, prompt_cache_ref=ref(other)))
    assert server.last["messages"] == ITEMS + NEW


async def test_items_that_render_to_nothing_are_kept_all_the_same(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "rendered", lambda _body: array("I", [3, 4]))
    first = await server.keep(chat(ITEMS))
    second = await server.keep(chat(NEW, prompt_cache_ref=ref(first)))
    assert (second.handle != first.handle, second.prefix_hash) == (True, first.prefix_hash)
    await server.keep(chat([], prompt_cache_ref=ref(second)))
    assert server.last["messages"] == ITEMS + NEW


async def test_a_truncated_completion_is_kept_as_it_was_rendered(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await server.keep({"prompt": [1, 2, 3]}, Api.COMPLETIONS)
    turn = {"append_token_ids": [4], "prompt_cache_ref": ref(first)}
    monkeypatch.setitem(globals(), "rendered", lambda _body: array("I", [3, 4]))
    second = await server.keep(turn, Api.COMPLETIONS)
    await server.keep({"append_token_ids": [5], "prompt_cache_ref": ref(second)}, Api.COMPLETIONS)
    assert server.last == {"prompt": [3, 4, 5]}


async def test_what_follows_the_body_is_received(server: Server) -> None:
    await server.ask(Sent([b'{"messages"', b":[]}"]))
    assert server.bodies == [b'{"messages":[]}']
    assert (await server.after[0]())["type"] == "http.disconnect"


async def test_switched_off_it_refuses_only_what_is_not_whole(settings: PluginSettings) -> None:
    for server in (
        Server(replace(settings, plugin_off=frozenset({FEATURE}))),
        Server(settings, prompts="off"),
    ):
        assert server.process.capabilities.mode(FEATURE) == "off"
        answer = await server.ask(chat(ITEMS))
        assert (answer.status, answer.headers, server.last) == (200, {b"a": b"b"}, chat(ITEMS))
        refused = await server.ask(chat(NEW, prompt_cache_ref={}))
        assert (refused.status, refused.code, len(server.bodies)) == (409, "handle_unknown", 1)


async def test_without_a_worker_key_it_is_not_there() -> None:
    server = Server(PluginSettings())
    assert server.app is server
    (told,) = [each for each in server.process.capabilities.document() if each.feature == FEATURE]
    assert (told.mode, told.reason) == ("off", "CACHEFLEET_WORKER_KEY_FILE names no key")


@pytest.mark.requirement("C12")
async def test_a_fault_turns_it_off_and_whole_requests_are_served(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await server.keep(chat(ITEMS))
    monkeypatch.setattr(conversation_middleware, "mismatch", lambda *_: 1 / 0)
    turn = chat(NEW, prompt_cache_ref=ref(first))
    for _ in range(2):
        assert (await server.ask(turn)).code == "handle_unknown"
    assert (await server.ask(chat(ITEMS))).headers == {b"a": b"b"}
    assert server.process.faults.counts == {FEATURE: 1}
    assert not server.process.faults.on(FEATURE)


async def test_the_next_reference_is_to_prompt_and_answer(server: Server) -> None:
    answer = {"id": "a", "choices": [{"finish_reason": "stop", "token_ids": [8, 9]}]}
    server.answer = "application/json", msgspec.json.encode(answer)
    first = await server.ask({"prompt": [1, 2], "return_prompt_cache_ref": True}, Api.COMPLETIONS)
    assert server.last == {"prompt": [1, 2]}
    given = first.json.pop("prompt_cache_ref")
    assert (given["prefix_token_count"], given["prefix_hash"]) == (4, prefix_hash([1, 2, 8, 9]))
    assert kept(first).prefix_token_count == 2
    turn = {"prompt_cache_ref": given, "append_token_ids": [3], "return_prompt_cache_ref": True}
    server.answer = "text/event-stream", b"data: " + msgspec.json.encode(answer) + b"\n\ndata: [DONE]\n\n"
    second = await server.ask(turn, Api.COMPLETIONS)
    assert server.last == {"prompt": [1, 2, 8, 9, 3]}
    given = msgspec.json.decode(second.content.split(b"\n\n")[1].removeprefix(b"data: "))["prompt_cache_ref"]
    await server.keep({"prompt_cache_ref": given, "append_token_ids": []}, Api.COMPLETIONS)
    assert server.last == {"prompt": [1, 2, 8, 9, 3, 8, 9]}


async def test_an_answer_without_ids_of_its_own_refers_to_its_prompt(server: Server) -> None:
    server.answer = "application/json", b'{"choices":[{"finish_reason":"length","token_ids":[]}]}'
    first = await server.ask({"prompt": [1, 2], "return_prompt_cache_ref": True}, Api.COMPLETIONS)
    assert first.json["prompt_cache_ref"]["handle"] == kept(first).handle


async def test_the_reference_is_null_where_nothing_is_kept(server: Server) -> None:
    server.answer = "application/json", b'{"choices":[{"finish_reason":"stop","token_ids":[3]}]}'
    server.process.parts[FEATURE].resize(0)
    first = await server.ask({"prompt": [1, 2], "return_prompt_cache_ref": True}, Api.COMPLETIONS)
    assert (first.json["prompt_cache_ref"], server.outcomes) == (None, {"not_kept": 1})


async def test_keys_have_no_reference(server: Server) -> None:
    server.answer = "application/json", b"{}"
    first = await server.ask({"prompt": [1, 2], "return_prompt_cache_ref": True}, "/v1/fleet/keys")
    assert (first.content, server.last) == (b"{}", {"prompt": [1, 2]})
