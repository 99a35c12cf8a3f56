"""Token ids by reference: completions whose client sends new ids alone, and what they get where that cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from cachefleet_controlplane.gateway.handles.sending import HandleOutcome
from tests.controlplane.gateway.converse.talk import PROFILE, keyed
from tests.controlplane.gateway.handles.test_handles import ON, bodies, introduce, talking
from tests.controlplane.gateway.harness import MODEL, Front, front
from tests.fakes.engine import FakeEngine

COMPLETIONS: Final = "/v1/completions"
IDS: Final = [(7 * number) % 200 + 1 for number in range(300)]
MORE: Final = [11, 12, 13]


async def complete(gate: Front, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {"model": MODEL, "max_tokens": 5, "temperature": 0, "return_prompt_cache_ref": True} | fields
    status, _, answer = await gate.post(COMPLETIONS, body)
    return status, json.loads(answer)


async def first_turn(gate: Front) -> tuple[dict[str, Any], list[int]]:
    """The reference to prompt and answer, and their ids."""
    status, answer = await complete(gate, prompt=IDS, return_token_ids=True)
    assert status == 200, answer
    (choice,) = answer["choices"]
    return answer["prompt_cache_ref"], IDS + choice["token_ids"]


async def test_a5_a_turn_carries_only_its_new_ids(tmp_path: Path) -> None:
    async with keyed() as worker, talking(tmp_path, worker) as (gate, _):
        ref, ids = await first_turn(gate)
        assert ref["prefix_token_count"] == len(ids)
        assert set(ref) == {
            *("handle", "prefix_hash", "prefix_token_count", "model", "tokenizer_fingerprint", "renderer"),
            *("renderer_version", "template_fingerprint", "effective_instructions_hash", "effective_tools_hash"),
        }
        worker.requests.clear()
        status, answer = await complete(gate, prompt_cache_ref=ref, append_token_ids=MORE)
        assert status == 200
        assert answer["usage"]["prompt_tokens"] == len(ids) + len(MORE)
        assert answer["choices"][0].get("token_ids") is None  # the client did not ask for them
        assert [(body["prompt_cache_ref"], body["append_token_ids"]) for body in bodies(worker)] == [(ref, MORE)] * 2
        assert not any("prompt" in body for body in bodies(worker))
        assert [record.continuation for record in gate.records] == [None, HandleOutcome.HIT]
        assert gate.records[-1].knowledge == "exact"
        again = answer["prompt_cache_ref"]
        assert again["prefix_token_count"] == len(ids) + len(MORE) + answer["usage"]["completion_tokens"]
        _, plain = await complete(gate, prompt=ids + MORE)
        assert plain["choices"][0]["text"] == answer["choices"][0]["text"]


async def test_another_worker_is_sent_all_ids(tmp_path: Path) -> None:
    async with keyed() as first, keyed() as second, talking(tmp_path, first, second) as (gate, _):
        ref, ids = await first_turn(gate)
        owner = max((0, 1), key=lambda one: (first, second)[one].plugin.conversations.store.stats()["turns"])
        other = (first, second)[1 - owner]
        other.requests.clear()
        gate.report(owner, said={"capabilities": ON, "profile": PROFILE}, running=500, waiting=500)
        status, answer = await complete(gate, prompt_cache_ref=ref, append_token_ids=MORE)
        assert status == 200, answer
        assert answer["usage"]["prompt_tokens"] == len(ids) + len(MORE)
        (served,) = bodies(other)
        assert served["prompt"] == ids + MORE
        assert "prompt_cache_ref" not in served
        assert gate.records[-1].continuation == HandleOutcome.MISS
        assert answer["prompt_cache_ref"]["handle"] != ref["handle"]


LOSSES: Final[dict[str, Callable[[FakeEngine, dict[str, Any]], object]]] = {
    "handle_unknown": lambda worker, _: worker.plugin.conversations.store.clear(),
    "count_mismatch": lambda _, ref: ref.update(prefix_token_count=7),
    "prefix_hash_mismatch": lambda _, ref: ref.update(prefix_hash="sha256:" + "0" * 64),
    "template_mismatch": lambda _, ref: ref.update(template_fingerprint="other"),
    "model_mismatch": lambda _, ref: ref.update(model="default/other"),
}


@pytest.mark.parametrize("code", list(LOSSES))
async def test_a16_what_cannot_be_continued_is_told_by_its_code(tmp_path: Path, code: str) -> None:
    """The client has the ids: it sends them all."""
    async with keyed() as worker, talking(tmp_path, worker) as (gate, _):
        ref, ids = await first_turn(gate)
        LOSSES[code](worker, ref)
        status, answer = await complete(gate, prompt_cache_ref=ref, append_token_ids=MORE)
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (409, code, "prompt_cache_ref")
        assert (await complete(gate, prompt=ids + MORE))[0] == 200


async def test_a8_a_guessed_handle_is_the_same_as_an_unknown_one(tmp_path: Path) -> None:
    async with keyed() as worker, talking(tmp_path, worker) as (gate, _):
        ref, _ = await first_turn(gate)
        server = ref["handle"].removeprefix("vllm_prefix_").partition("_")[0]
        told = set()
        for handle in (f"vllm_prefix_{server}_{'0' * 32}", f"vllm_prefix_{'0' * 16}_{'0' * 32}", "vllm_prefix_a"):
            status, answer = await complete(gate, prompt_cache_ref=ref | {"handle": handle}, append_token_ids=MORE)
            told.add((status, json.dumps(answer)))
        assert len(told) == 1
        assert next(iter(told))[0] == 409


BAD: Final[list[tuple[dict[str, Any], str]]] = [
    ({"append_token_ids": MORE, "prompt": "a"}, "append_token_ids"),
    ({"prompt_cache_ref": "REF", "append_token_ids": MORE, "prompt": "a"}, "prompt"),
    ({"prompt_cache_ref": "REF", "append_token_ids": MORE, "echo": True}, "echo"),
    ({"prompt_cache_ref": "REF", "append_token_ids": MORE, "n": 2}, "n"),
    ({"prompt": ["a", "b"]}, "n"),
    ({"prompt_cache_ref": "REF", "append_token_ids": "x"}, "append_token_ids"),
    ({"prompt_cache_ref": "REF", "append_token_ids": [-1]}, "append_token_ids"),
    ({"prompt_cache_ref": "REF"}, "append_token_ids"),
    ({"prompt_cache_ref": {"handle": "x"}, "append_token_ids": MORE}, "prompt_cache_ref"),
    ({"prompt_cache_ref": "MORE", "append_token_ids": MORE}, "prompt_cache_ref"),
    ({"prompt_cache_ref": 7, "append_token_ids": MORE}, "prompt_cache_ref"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
async def test_bad_members_are_named(tmp_path: Path, fields: dict[str, Any], param: str) -> None:
    async with keyed() as worker, talking(tmp_path, worker) as (gate, _):
        ref, _ = await first_turn(gate)
        given = {"REF": ref, "MORE": ref | {"extra": 1}}
        body = {name: given.get(value, value) if isinstance(value, str) else value for name, value in fields.items()}
        status, answer = await complete(gate, **body)
        assert (status, answer["error"]["param"]) == (400, param), answer


async def test_a6_nothing_to_append_leaves_nothing_to_compute(tmp_path: Path) -> None:
    async with keyed() as worker, talking(tmp_path, worker) as (gate, _):
        ref, _ = await first_turn(gate)
        status, answer = await complete(gate, prompt_cache_ref=ref, append_token_ids=[])
        assert (status, answer["error"]["code"]) == (409, "no_marginal_suffix")


@pytest.mark.parametrize("continuation", ["{}", "{enabled: false}"])
async def test_where_no_pool_wants_handles_the_setting_is_named(tmp_path: Path, continuation: str) -> None:
    async with keyed() as worker, talking(tmp_path, worker, certified=False, continuation=continuation) as (gate, _):
        status, answer = await complete(gate, prompt=IDS)
        assert (status, "continuation.handles" in answer["error"]["message"]) == (400, True)
        assert (await complete(gate, prompt=IDS, return_prompt_cache_ref=False))[0] == 200


async def test_a_gateway_without_handles_says_so() -> None:
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate)
        assert (await complete(gate, prompt=IDS))[0] == 400


async def test_a_worker_that_keeps_nothing_answers_without_a_reference(tmp_path: Path) -> None:
    async with keyed() as worker, talking(tmp_path, worker) as (gate, _):
        introduce(gate, capabilities=ON[:2])
        status, answer = await complete(gate, prompt=IDS)
        assert (status, answer.get("prompt_cache_ref")) == (200, None)
        assert not any("return_prompt_cache_ref" in body for body in bodies(worker, COMPLETIONS))
